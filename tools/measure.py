"""What the measuring tools share: running a command for its cost, and writing results as JSON and as a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcgnn.processor import processor

HPCGNN = [sys.executable, "-m", "hpcgnn"]
DOCS = Path(__file__).resolve().parents[1] / "docs"


def run(command: list[str]) -> dict[str, Any]:
    """Run ``command``, which prints one JSON object; returns it with ``wall_seconds`` and ``peak_memory_bytes``."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    seconds = time.perf_counter() - started
    return json.loads(output) | {"wall_seconds": seconds, "peak_memory_bytes": usage.ru_maxrss * 1024}


def machine() -> str:
    """The processor and how much of it this run had."""
    return f"{processor()}, {len(os.sched_getaffinity(0))} cores"


class Records:
    """Runs that are done, in a JSON file that is written whole after each: what is in it need not be run again."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self.content = json.loads(path.read_text()) if path.exists() else {"settings": settings, "runs": []}
        if self.content["settings"] != settings:
            raise SystemExit(f"{path} was measured with other settings: move it away, or measure with those")

    @property
    def runs(self) -> list[dict[str, Any]]:
        """All runs in the order in which they ended."""
        return self.content["runs"]

    def has(self, keys: Sequence[str], values: Sequence[Any]) -> bool:
        """Whether there is a run with these values under these keys."""
        return any([run[key] for key in keys] == list(values) for run in self.runs)

    def add(self, run: dict[str, Any]) -> None:
        """Write a finished run."""
        self.runs.append(run)
        lines = ",\n".join(json.dumps(one) for one in self.runs)  # one a line, for whoever compares versions
        partial = self._path.with_suffix(".partial")
        partial.write_text(f'{{"settings": {json.dumps(self.content["settings"])},\n"runs": [\n{lines}\n]}}\n')
        partial.replace(self._path)


def write(name: str, title: str, command: str, about: str, header: list[str], rows: list[list[str]], data: Any) -> None:
    """Write ``docs/NAME.json`` and, from it, ``docs/NAME.md``."""
    (DOCS / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
    lines = [f"# {title}", "", f"Made by `{command}` on {machine()}; figures in `{name}.json`.", "", about, ""]
    lines += [*table(header, rows), ""]
    (DOCS / f"{name}.md").write_text("\n".join(lines))


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
