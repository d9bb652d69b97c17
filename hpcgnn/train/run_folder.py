"""The run folder: ``config.toml``, ``metrics.jsonl`` (a line an epoch) and ``summary.json``. Rank 0 alone writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from hpcgnn.data import h5
from hpcgnn.errors import HpcgnnError
from hpcgnn.train import checkpoint

CONFIG, METRICS = "config.toml", "metrics.jsonl"


class RunFolder:
    """Writes one run's files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._metrics = self.path / METRICS

    def prepare(self, *, resume: bool) -> None:
        """Create the folder; refuse one that holds another run unless it is to be resumed."""
        has_run = self._metrics.exists() or (checkpoint.folder(self.path) / checkpoint.LAST).exists()
        if has_run and not resume:
            raise HpcgnnError(f"{self.path} already holds a run: pass --resume to continue it, or another --out")
        checkpoint.folder(self.path).mkdir(parents=True, exist_ok=True)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write ``config.toml``; once the run is known to be able to start, so that a refused one changes nothing."""
        self._replace(CONFIG, tomli_w.dumps(config))

    def keep_epochs(self, count: int) -> None:
        """Forget the lines of epochs ``count`` and later: a resumed run writes them again."""
        if not self._metrics.exists():
            return
        kept = [record for record in self.records() if record["epoch"] < count]
        self._replace(METRICS, "".join(json.dumps(record) + "\n" for record in kept))

    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``: all epochs so far, also those before a resumption."""
        lines = self._metrics.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]  # a killed run may leave half a line
        try:
            return [json.loads(line) for line in whole]
        except json.JSONDecodeError as error:
            raise HpcgnnError(
                f"{self._metrics} is damaged ({error}): remove it to resume without its history"
            ) from error

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to ``metrics.jsonl``."""
        try:
            with self._metrics.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
        except OSError as error:
            raise HpcgnnError(f"cannot write {self._metrics}: {error.strerror}") from error

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``."""
        self._replace("summary.json", json.dumps(summary, indent=2) + "\n")

    def _replace(self, name: str, text: str) -> None:
        with h5.replacing(self.path / name) as temporary:
            temporary.write_text(text)
