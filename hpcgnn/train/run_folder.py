"""The files of a run folder, and the lock that keeps other jobs out of it. Only rank 0 writes it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import weakref
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import tomli_w

from hpcgnn.base import typed, whole_file
from hpcgnn.base.errors import HpcgnnError, printable
from hpcgnn.base.typed import Count, Finite, MessageBits
from hpcgnn.base.whole_file import lock
from hpcgnn.exchange import BYTES
from hpcgnn.exchange.passes import ExchangeName
from hpcgnn.policy.clock import Decision
from hpcgnn.train import checkpoint
from hpcgnn.train.rank_report import BREAKDOWN, Ranks
from hpcgnn.train.run_config import CONFIG, DECISIONS, RANKS, RECORDS, SUMMARY
from hpcgnn.train.summary import METRICS

_LOG = logging.getLogger("hpcgnn")
NAME = ".lock"
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")  # variables in which batch systems name the job
_MOST_CHARACTERS = 200  # of a holder's name that are read from the file


def _release(file: Path, stream: IO[str]) -> None:
    for end in (file.unlink, stream.close):
        with contextlib.suppress(OSError):
            end()


def _locked(file: Path) -> IO[str]:
    """The file with the lock of a folder, in which the holder's name is. Raises HpcgnnError if another process holds it."""
    while True:
        stream = file.open("a+")
        if not lock(stream, waits=False):
            with stream:
                stream.seek(0)
                holder = printable(stream.read(_MOST_CHARACTERS)) or "another process"
            raise HpcgnnError(f"{holder} is training into {file.parent}: wait until it ends, or choose another folder")
        if file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat()):
            break
        stream.close()  # its holder has ended and removed the file in between
    jobs = [f", job {os.environ[variable]}" for variable in _JOBS if os.environ.get(variable)]
    with contextlib.suppress(OSError):  # on a full disk the lock has no name, and the run's own files say what is wrong
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}{''.join(jobs[:1])}")
        stream.flush()
    return stream


_BitsName = Literal["1", "2", "4", "8", "16", "32"]
# A line of ``metrics.jsonl``. Lines of older runs may lack keys, and those of later versions may have more.
Record = msgspec.defstruct(
    "Record",
    [
        ("epoch", Count),
        ("bits", MessageBits | dict[ExchangeName, dict[_BitsName, Count]]),
        ("stale", bool),
        *((name, Count, 0) for name in BYTES),
        ("loss", Finite | None, None),
        ("compute", str, ""),
        ("eval_seconds", Finite, 0.0),
        ("stale_epochs", dict[ExchangeName, Count], {}),
        ("policy", dict[str, Any], {}),
        *((name, Finite | None, None) for name in METRICS),
        *((f"{name}{mean}", Finite, 0.0) for name in BREAKDOWN for mean in ("", "_mean")),
    ],
)


def check_records(lines: list[dict[str, Any]], count: int, path: Path) -> None:
    """Raise HpcgnnError unless there is a line for each epoch from that of the first line to ``count - 1``, and warn if the first
    one is not of epoch 0: a run was continued without its file."""
    first = lines[0]["epoch"] if lines else 0
    if lacking := set(range(first, count)) - {line["epoch"] for line in lines}:
        raise HpcgnnError(
            f"{path} has no line of epoch {min(lacking)}, though {count} epochs were trained: bring the file back, or remove it "
            "to resume without its lines"
        )
    if first:
        _LOG.warning("%s begins with epoch %d: the lines of earlier epochs are lost", path, first)


class RunFolder:
    """A run folder: ``metrics.jsonl``, ``decisions.jsonl``, ``summary.json``, ``ranks.json``, ``config.toml`` and checkpoints.

    A ``hpcgnn.Trainer`` that is given one writes it, on rank 0 alone, all but ``config.toml``.

    Args:
        path: the folder; it is created when training starts.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._unlock: weakref.finalize | None = None  # called at the latest when the process exits

    def prepare(self, *, resume: bool) -> None:
        """Create the folder, and lock it until :meth:`release`; while it is locked, further calls have no effect. Raises
        HpcgnnError if it is a file, if it holds a run that is not resumed, or if another process trains into it."""
        if self._unlock is not None:
            return
        if self.path.exists() and not self.path.is_dir():
            raise HpcgnnError(f"{self.path} is a file, and a run needs a folder: choose another name")
        has_run = (self.path / RECORDS).exists() or (checkpoint.folder(self.path) / checkpoint.LAST).exists()
        if has_run and not resume:
            raise HpcgnnError(
                f"{self.path} already holds a run: continue it with --resume (in Python, call resume() before fit()), or "
                "choose another --out"
            )
        checkpoints = checkpoint.folder(self.path)
        checkpoints.mkdir(parents=True, exist_ok=True)
        self._unlock = weakref.finalize(self, _release, self.path / NAME, _locked(self.path / NAME))
        for folder in (self.path, checkpoints, checkpoints / checkpoint.MESSAGES):
            whole_file.remove_left(folder)

    def release(self) -> None:
        """Let other processes train into the folder."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    def files(self) -> list[Path]:
        """The files of the run; an empty list if the run has no folder yet."""
        checkpoints = checkpoint.folder(self.path)
        return [path for folder in (self.path, checkpoints) if folder.is_dir() for path in folder.iterdir()]

    def write_config(self, config: dict[str, Any]) -> None:
        """Write ``config.toml``, from which ``hpcgnn train --config`` repeats the run. Rank 0 calls it; not collective.

        Args:
            config: values by the names of settings, such as ``RunConfig.settings()``.
        """
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in config.items()}
        self._replace(CONFIG, tomli_w.dumps({name: value for name, value in plain.items() if value is not None}))

    def keep_epochs(self, count: int) -> None:
        """Remove the lines of epochs from ``count`` on, which a resumed run writes again. Raises HpcgnnError if lines before are
        missing."""
        for name in (RECORDS, DECISIONS):
            if (self.path / name).exists():
                lines = self._lines(name)
                if name == RECORDS:
                    check_records(lines, count, self.path / name)
                self._replace(name, "".join(json.dumps(line) + "\n" for line in lines if line["epoch"] < count))

    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``: all epochs so far, including those before a resume."""
        return self._lines(RECORDS)

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to ``metrics.jsonl``."""
        self._append(RECORDS, record)

    def append_decisions(self, decisions: dict[str, Any] | None, data: dict[str, str]) -> None:
        """Add one line to ``decisions.jsonl``, if there are decisions; the first line has the ``data`` of the graph, too."""
        path = self.path / DECISIONS
        if decisions is not None:
            is_first = not path.exists() or not path.stat().st_size
            self._append(DECISIONS, decisions | ({"data": data} if is_first else {}))

    def _append(self, name: str, line: dict[str, Any]) -> None:
        try:
            with (self.path / name).open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        except OSError as error:
            raise HpcgnnError(f"cannot write {self.path / name}: {error.strerror}") from error

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        try:
            lines = typed.read_lines(path, Decision if name == DECISIONS else Record)
            typed.check_epochs(lines, path)
        except HpcgnnError as error:
            raise HpcgnnError(f"{error}: the file is damaged; remove it to resume without its lines") from error
        return lines

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``."""
        self._replace(SUMMARY, json.dumps(summary, indent=2) + "\n")

    def write_ranks(self, ranks: Ranks) -> None:
        """Write ``ranks.json``."""
        self._replace(RANKS, json.dumps(msgspec.to_builtins(ranks)) + "\n")

    def _replace(self, name: str, text: str) -> None:
        with whole_file.replacing(self.path / name, cleans=False) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="surrogateescape")  # names of files may be any bytes
