"""The commands that are killed, the way in which each is started again, and the results of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import torch

from hpcgnn.train import archive

INPUTS = "../inputs"
"""The folder of the commands' inputs, relative to a case's folder."""
EPOCHS = 30
OF_TRAINED_EPOCHS = {"run/ranks.json"}
"""The files that a command writes only if it has trained; a run that resumes after its last epoch has no measurements."""
_GRAPH, _PARTS, _MORE_PARTS = f"{INPUTS}/graph.h5", f"{INPUTS}/parts-2.h5", f"{INPUTS}/parts-4.h5"
_TRAINING = ("--epochs", str(EPOCHS), "--hidden", "32", "--eval-every", "5")
POLICIES = {
    "": (),
    "adaqp, pipeline": ("--bits", "adaqp", "--staleness", "pipeline", "--bits-period", "8"),
    "delta": ("--bits", "2", "--message-coding", "delta", "--dropout", "0"),
    "learned rows": ("--embed", "all"),
}


@dataclass(frozen=True)
class Job:
    """A command in the folder of a case.

    words: of ``hpcgnn``. again: words that a user adds to start it again. ranks: of mpirun; 0 without a launcher. copied: an
    input that the command changes. made: computes digests of the results. replays: the command repeats the decisions of the
    undisturbed run, because decisions depend on the clock.
    """

    name: str
    words: tuple[str, ...]
    made: Callable[[Path], dict[str, str]]
    again: tuple[str, ...] = ()
    ranks: int = 0
    copied: str = ""
    replays: bool = False


def of_hdf5(path: Path) -> str:
    """The digest of all datasets, and of all attributes except those that differ between two files with the same content."""
    found: list[Any] = []

    def add(name: str, item: Any) -> None:
        found.append((name, sorted((key, str(value)) for key, value in item.attrs.items() if not _is_own(key))))
        if isinstance(item, h5py.Dataset) and not _is_own(name):
            found.append((item.dtype.str, item.shape, item[()].tobytes()))

    with h5py.File(path, "r") as file:
        add("", file)
        file.visititems(add)
    return archive.digest_of(found)


def _is_own(name: str) -> bool:
    return name in ("uuid", "provenance", "parts_uuid") or "checksum" in name


def of_file(name: str) -> Callable[[Path], dict[str, str]]:
    """Digests of an HDF5 file in a folder."""
    return lambda folder: {name: of_hdf5(folder / name)}


def of_training(folder: Path) -> dict[str, str]:
    """Digests of the training in ``run``: the losses and metrics of each epoch, and the contents of the checkpoints."""
    run = folder / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [line["epoch"] for line in lines]
    found = {"epochs": repr(epochs) if epochs != list(range(len(epochs))) else f"0 to {len(epochs) - 1}, each once"}
    found["losses"] = archive.digest_of([(line["loss"], line["val_metric"], line["test_metric"]) for line in lines])
    for name in ("last.pt", "best.pt"):
        content = torch.load(run / "checkpoints" / name, weights_only=True)
        for what in ("model", "optimiser", "next_epoch"):
            found[f"{name}: {what}"] = archive.digest_of(_values(content.get(what)))
    return found | {path.name: of_hdf5(path) for path in (run / "checkpoints").glob("*.h5")}


def _values(content: object) -> list[object]:
    """All values in nested dictionaries and lists. Names are sorted, because a loaded optimiser has its names in
    another order.
    """
    if isinstance(content, dict):
        named = sorted(content.items(), key=lambda item: repr(item[0]))
        return [each for name, value in named for each in (name, *_values(value))]
    if isinstance(content, (list, tuple)):
        return [each for value in content for each in _values(value)]
    return [content]


CONVERT = Job(
    "convert",
    ("convert", "sbm:nodes=20000,blocks=3,degree=12,features=16", "graph.h5", "--undirected"),
    of_file("graph.h5"),
)
PARTITION = Job("partition", ("partition", _GRAPH, "parts.h5", "--parts", "4", "--method", "ldg"), of_file("parts.h5"))
PARTITION_ON_RANKS = Job("partition on 2 ranks", PARTITION.words, of_file("parts.h5"), ranks=2)
PLAN = Job("plan", ("plan", "parts-none.h5", "--strategy", "all"), of_file("parts-none.h5"), copied="parts-none.h5")


def training(ranks: int, policy: str, every: int) -> Job:
    """A ``train`` command with a checkpoint every few epochs."""
    parts = _PARTS if ranks == 2 else _MORE_PARTS
    words = ("train", parts, "--out", "run", *_TRAINING, "--checkpoint-every", str(every), *POLICIES[policy])
    name = f"train on {ranks} ranks" + (f", {policy}" if policy else "") + (", checkpoints each epoch" * (every == 1))
    return Job(name, words, of_training, again=("--resume",), ranks=ranks, replays="adaqp" in policy)


PREPARATION = (
    ("convert", "sbm:nodes=2000,blocks=3,degree=6,features=16", "graph.h5", "--undirected"),
    ("partition", "graph.h5", "parts-2.h5", "--parts", "2", "--method", "ldg"),
    ("partition", "graph.h5", "parts-4.h5", "--parts", "4", "--method", "ldg"),
    ("partition", "graph.h5", "parts-none.h5", "--parts", "4", "--method", "ldg", "--plan", "none"),
)
