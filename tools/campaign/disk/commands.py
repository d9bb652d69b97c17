"""The commands that meet faults, their inputs, and their expected results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaign.kills.jobs import of_file, of_training
from campaign.whole import is_temporary, is_whole_page

_TRAINING = ("--hidden", "8", "--layers", "2", "--checkpoint-every", "1", "--quiet")


@dataclass(frozen=True)
class Command:
    """A command. words: of ``hpcgnn``. again: words of the command that a user starts after a failure. made: computes digests
    of the results. found: names of the inputs, and their names in the command's folder; if the command may replace a file, an
    old one is there under the name of the result.
    """

    name: str
    words: tuple[str, ...]
    made: Callable[[Path], dict[str, str]]
    found: dict[str, str]
    again: tuple[str, ...] = ()

    def words_again(self) -> tuple[str, ...]:
        """The words of the second command."""
        return self.words + self.again


def of_page(folder: Path) -> dict[str, str]:
    """The digest of a page, which contains its date: whether it is complete."""
    return {"page.html": "whole" if is_whole_page(folder / "page.html") else "not whole"}


_CONVERT = ("convert", "sbm:nodes=60,blocks=3,degree=4,features=4", "graph.h5", "--undirected", "--quiet")
_PARTITION = ("partition", "graph.h5", "parts.h5", "--parts", "3", "--method", "ldg", "--quiet")

CONVERT = Command("convert", (*_CONVERT, "--force"), of_file("graph.h5"), {"old.h5": "graph.h5"})
PARTITION = Command("partition", _PARTITION, of_file("parts.h5"), {"graph.h5": "graph.h5"})
PARTITION_ANEW = Command(
    "partition --force", (*_PARTITION, "--force"), of_file("parts.h5"), {"graph.h5": "graph.h5", "old.h5": "parts.h5"}
)
PLAN = Command("plan", ("plan", "parts.h5", "--quiet"), of_file("parts.h5"), {"unplanned.h5": "parts.h5"})
TRAIN = Command(
    "train",
    ("train", "parts.h5", "--out", "run", "--epochs", "3", *_TRAINING),
    of_training,
    {"one.h5": "parts.h5"},
    again=("--resume",),
)
RESUME = Command(
    "train --resume",
    ("train", "parts.h5", "--out", "run", "--epochs", "4", *_TRAINING, "--resume"),
    of_training,
    {"one.h5": "parts.h5", "run": "run"},
)
PREDICT = Command(
    "predict",
    ("predict", "parts.h5", "run", "--out", "scores.h5", "--force", "--quiet"),
    of_file("scores.h5"),
    {"one.h5": "parts.h5", "run": "run", "old.h5": "scores.h5"},
)
REPORT = Command(
    "report", ("report", "run", "--out", "page.html", "--quiet"), of_page, {"run": "run", "old.html": "page.html"}
)
COMMANDS = (CONVERT, PARTITION, PARTITION_ANEW, PLAN, TRAIN, RESUME, PREDICT, REPORT)

PARTITION_ON_RANKS = Command("partition on 2 ranks", _PARTITION, of_file("parts.h5"), {"graph.h5": "graph.h5"})
TRAIN_ON_RANKS = Command(
    "train on 2 ranks",
    (*TRAIN.words, "--message-coding", "delta", "--dropout", "0", "--bits", "2"),
    of_training,
    {"two.h5": "parts.h5"},
    again=("--resume",),
)
ON_RANKS = (PARTITION_ON_RANKS, TRAIN_ON_RANKS)

PREPARATION = (
    ("convert", "sbm:nodes=50,blocks=2,degree=3,features=3", "old.h5", "--quiet"),
    _CONVERT,
    ("partition", "graph.h5", "one.h5", "--parts", "1", "--method", "ldg", "--quiet"),
    ("partition", "graph.h5", "two.h5", "--parts", "2", "--method", "ldg", "--quiet"),
    ("partition", "graph.h5", "unplanned.h5", "--parts", "3", "--method", "ldg", "--plan", "none", "--quiet"),
    ("train", "one.h5", "--out", "run", "--epochs", "2", *_TRAINING),
    ("report", "run", "--out", "old.html", "--quiet"),
)


def raw(folder: Path) -> dict[str, str]:
    """A digest of each file in a folder that has a final name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path for path in files}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items() if not is_temporary(name)
    }
