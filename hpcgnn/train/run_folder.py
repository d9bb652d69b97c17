"""The run folder: ``config.toml``, ``metrics.jsonl`` and, where policies decide, ``decisions.jsonl`` (a line an epoch each), and
``summary.json``. Rank 0 alone writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from hpcgnn.data import h5
from hpcgnn.errors import HpcgnnError
from hpcgnn.train import checkpoint

CONFIG, METRICS, DECISIONS, LINK_COSTS = "config.toml", "metrics.jsonl", "decisions.jsonl", "link_costs.json"


class RunFolder:
    """Writes one run's files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def prepare(self, *, resume: bool) -> None:
        """Create the folder; refuse one that holds another run unless it is to be resumed."""
        has_run = (self.path / METRICS).exists() or (checkpoint.folder(self.path) / checkpoint.LAST).exists()
        if has_run and not resume:
            raise HpcgnnError(f"{self.path} already holds a run: pass --resume to continue it, or another --out")
        checkpoint.folder(self.path).mkdir(parents=True, exist_ok=True)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write ``config.toml``; once the run is known to be able to start, so that a refused one changes nothing.

        Settings that are None are left out, and paths are written as strings.
        """
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in config.items()}
        self._replace(CONFIG, tomli_w.dumps({name: value for name, value in plain.items() if value is not None}))

    def keep_epochs(self, count: int) -> None:
        """Forget the lines of epochs ``count`` and later: a resumed run writes them again."""
        for name in (METRICS, DECISIONS):
            if (self.path / name).exists():
                kept = [line for line in self._lines(name) if line["epoch"] < count]
                self._replace(name, "".join(json.dumps(line) + "\n" for line in kept))

    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``: all epochs so far, also those before a resumption."""
        return self._lines(METRICS)

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to ``metrics.jsonl``."""
        self._append(METRICS, record)

    def append_decisions(self, decisions: dict[str, Any] | None) -> None:
        """Add one line to ``decisions.jsonl``, if there is one."""
        if decisions is not None:
            self._append(DECISIONS, decisions)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        try:
            with (self.path / name).open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        except OSError as error:
            raise HpcgnnError(f"cannot write {self.path / name}: {error.strerror}") from error

    def _lines(self, name: str) -> list[dict[str, Any]]:
        lines = (self.path / name).read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]  # a killed run may leave half a line
        try:
            return [json.loads(line) for line in whole]
        except json.JSONDecodeError as error:
            raise HpcgnnError(
                f"{self.path / name} is damaged ({error}): remove it to resume without its history"
            ) from error

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``."""
        self._replace("summary.json", json.dumps(summary, indent=2) + "\n")

    def _replace(self, name: str, text: str) -> None:
        with h5.replacing(self.path / name) as temporary:
            temporary.write_text(text)
