"""Ranks that run one `hpcgnn` command after another, each as if it had been started by itself, and report their progress.

usage: under_faults.py FOLDER      on each rank; commands are read from FOLDER/0.json, FOLDER/1.json, ...

The file of a command has ``arguments``, the words after ``hpcgnn``, and may have ``pause``: ``[rank, what, count]``. Before
that rank waits for ``what`` for the count-th time, it creates FOLDER/NUMBER.reached, and continues when FOLDER/NUMBER.go
exists. After a command has succeeded, each rank writes its waits, and a digest of its weights, to FOLDER/NUMBER.done.RANK. A
command that fails ends the job as it would by itself. An empty file ends the job, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcgnn.cli import train_job
from hpcgnn.cli.main import main
from hpcgnn.train import checkpoint
from hpcgnn.train.archive import digest_of
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import MpiWorld
from hpcgnn.world.buffer import Pending

CHECKPOINT = "the disk, with a checkpoint"
# Methods of MpiWorld that call operations of MPI that exist only in a blocking form.
UNTESTED = ("ranks_on_my_cores", "exchange_queue", "neighbours", "on_my_node")
_LOOK_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 60.0
_LONGEST_REST_SECONDS = 300.0  # between commands: after that, the program that gives them has ended


class Reporter:
    """Records the operations for which a command waits, and makes the pause."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begin(0, None)

    def begin(self, number: int, pause: list[Any] | None) -> None:
        """Begin with the next command."""
        self.number, self.pause, self.waits, self.weights = number, pause, Counter[str](), ""

    def told(self, rank: int, what: str) -> None:
        """Note that ``rank`` is about to wait for ``what``."""
        self.waits[what] += 1
        if self.pause == [rank, what, self.waits[what]]:
            self.folder.joinpath(f"{self.number}.reached").touch()
            deadline = time.monotonic() + _LONGEST_PAUSE_SECONDS
            while not self.folder.joinpath(f"{self.number}.go").exists() and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)


def told_of(reporter: Reporter, rank: int, name: str) -> Callable[..., Any]:
    """The method ``name`` of :class:`MpiWorld`, extended by a call of ``reporter``."""
    method = getattr(MpiWorld, name)

    def told(self: MpiWorld, *arguments: Any) -> Any:
        reporter.told(rank, f"MPI in {name}")
        return method(self, *arguments)

    return told


def watch(reporter: Reporter, rank: int) -> None:
    """Make the ranks of the command, and the checkpoints that it writes, report to ``reporter``."""

    class Watched(MpiWorld):
        def wait(self, pending: Pending) -> None:
            reporter.told(rank, pending.what)
            super().wait(pending)

    for name in UNTESTED:
        setattr(Watched, name, told_of(reporter, rank, name))
    save = checkpoint.save

    def told_save(path: Path, content: dict[str, Any]) -> None:
        reporter.told(rank, CHECKPOINT)
        save(path, content)

    class Kept(Trainer):
        def fit(self) -> dict[str, Any]:
            summary = super().fit()
            reporter.weights = digest_of(self.model.state_dict())
            return summary

    train_job.MpiWorld, train_job.Trainer = Watched, Kept
    checkpoint.save = told_save


def text_of(path: Path) -> str:
    """The text of a file that another process will create and complete; empty if it does not come."""
    deadline = time.monotonic() + _LONGEST_REST_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return ""
        time.sleep(_LOOK_SECONDS)
    return path.read_text()


def run(folder: Path) -> None:
    """Run all commands."""
    rank = MpiWorld().rank
    folder.joinpath(f"pid.{rank}").write_text(str(os.getpid()))
    reporter, number = Reporter(folder), 0
    watch(reporter, rank)
    while text := text_of(folder / f"{number}.json"):
        told = json.loads(text)
        reporter.begin(number, told.get("pause"))
        sys.argv = ["hpcgnn", *told["arguments"]]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        temporary = folder / f"{number}.done.{rank}.new"
        temporary.write_text(json.dumps({"waits": reporter.waits, "weights": reporter.weights}))
        temporary.rename(folder / f"{number}.done.{rank}")
        number += 1


if __name__ == "__main__":
    run(Path(sys.argv[1]))
