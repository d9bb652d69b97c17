"""Ranks that run one `hpcgnn` command after another, each as if it had been started by itself, and say how far they are.

usage: under_faults.py FOLDER      on each rank; commands come as FOLDER/0.json, FOLDER/1.json, ...

A command's file has ``arguments``, the words behind ``hpcgnn``, and may have ``pause``: ``[rank, what, count]``: before that rank
waits for ``what`` for the count-th time, it makes FOLDER/NUMBER.reached, and goes on when there is FOLDER/NUMBER.go. When a
command has succeeded, a rank writes what it waited for, and a digest of its weights, to FOLDER/NUMBER.done.RANK. A command that
fails ends the job as it would end by itself. An empty file ends it, too.
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
from hpcgnn.comm import MpiWorld
from hpcgnn.comm.pending import Pending
from hpcgnn.train import checkpoint
from hpcgnn.train.archive import digest_of
from hpcgnn.train.trainer import Trainer

CHECKPOINT = "the disk, with a checkpoint"
# Methods of MpiWorld that call what MPI has in a blocking form only.
UNTESTED = ("ranks_on_my_cores", "channel", "neighbours", "on_my_node")
_LOOK_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 60.0
_LONGEST_REST_SECONDS = 300.0  # between commands: whoever gave them is gone


class Reporter:
    """What a command waits for, and the pause that it is to make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begin(0, None)

    def begin(self, number: int, pause: list[Any] | None) -> None:
        """Of the next command."""
        self.number, self.pause, self.waits, self.weights = number, pause, Counter[str](), ""

    def told(self, rank: int, what: str) -> None:
        """``rank`` is about to wait for ``what``."""
        self.waits[what] += 1
        if self.pause == [rank, what, self.waits[what]]:
            self.folder.joinpath(f"{self.number}.reached").touch()
            deadline = time.monotonic() + _LONGEST_PAUSE_SECONDS
            while not self.folder.joinpath(f"{self.number}.go").exists() and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)


def told_of(reporter: Reporter, rank: int, name: str) -> Callable[..., Any]:
    """The method ``name`` of :class:`MpiWorld`, which tells ``reporter`` first."""
    method = getattr(MpiWorld, name)

    def told(self: MpiWorld, *arguments: Any) -> Any:
        reporter.told(rank, f"MPI in {name}")
        return method(self, *arguments)

    return told


def watch(reporter: Reporter, rank: int) -> None:
    """Have the command's ranks, and the checkpoints that it writes, tell ``reporter``."""

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
    """Of a file that will come, under its name once it is whole; nothing where none comes."""
    deadline = time.monotonic() + _LONGEST_REST_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return ""
        time.sleep(_LOOK_SECONDS)
    return path.read_text()


def run(folder: Path) -> None:
    """All commands."""
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
