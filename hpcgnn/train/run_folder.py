"""The run folder: ``config.toml``, ``metrics.jsonl`` (a line an epoch) and ``summary.json``. Rank 0 alone writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import tomli_w

from hpcgnn.data import h5
from hpcgnn.errors import HpcgnnError
from hpcgnn.train import checkpoint


class RunFolder:
    """Writes one run's files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._metrics = self.path / "metrics.jsonl"

    def prepare(self, config: dict[str, Any], *, resume: bool) -> None:
        """Create the folder; refuse one that holds another run unless it is to be resumed."""
        has_run = self._metrics.exists() or (checkpoint.folder(self.path) / checkpoint.LAST).exists()
        if has_run and not resume:
            raise HpcgnnError(f"{self.path} already holds a run: pass --resume to continue it, or another --out")
        checkpoint.folder(self.path).mkdir(parents=True, exist_ok=True)
        self._replace("config.toml", tomli_w.dumps(_without_none(config)))

    def keep_epochs(self, count: int) -> None:
        """Forget the lines of epochs ``count`` and later: a resumed run writes them again."""
        if not self._metrics.exists():
            return
        lines = self._metrics.read_text().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["epoch"] < count]
        self._replace("metrics.jsonl", "".join(kept))

    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``: all epochs so far, also those before a resumption."""
        return [json.loads(line) for line in self._metrics.read_text().splitlines()]

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to ``metrics.jsonl``."""
        with self._metrics.open("a") as stream:
            stream.write(json.dumps(record) + os.linesep)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``."""
        self._replace("summary.json", json.dumps(summary, indent=2) + "\n")

    def _replace(self, name: str, text: str) -> None:
        with h5.replacing(self.path / name) as temporary:
            temporary.write_text(text)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None
    }
