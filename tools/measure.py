"""What the measuring tools share: running a command for its cost, and writing results as JSON and as a table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def write(name: str, title: str, command: str, about: str, header: list[str], rows: list[list[str]], data: Any) -> None:
    """Write ``docs/NAME.json`` and, from it, ``docs/NAME.md``."""
    (DOCS / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
    lines = [f"# {title}", "", f"Made by `{command}` on {machine()}; figures in `{name}.json`.", "", about, ""]
    lines += [_row(header), _row(["---"] * len(header)), *map(_row, rows), ""]
    (DOCS / f"{name}.md").write_text("\n".join(lines))


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
