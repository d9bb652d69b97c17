"""A user's program that ends on rank 1 as its first argument says."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world import raise_on_all_ranks


def fail(*_: object) -> None:
    raise ZeroDivisionError("of rank 1")


def main(how: str, folder: Path) -> None:
    graph = hpcgnn.load(folder / "parts.h5")
    world = graph.world
    notes = (folder / f"notes-{world.rank}").open("w")  # closed when Python ends
    notes.write("kept")
    # a launcher mixes the lines of ranks that write at the same time
    sys.stderr = (folder / f"said-{world.rank}").open("w", buffering=1)
    is_second = world.rank == 1
    if how == "raises in on_epoch":
        model = hpcgnn.build_model(hpcgnn.ModelConfig(layers=2, hidden=8), graph)
        config = hpcgnn.TrainConfig(epochs=3)
        hpcgnn.Trainer(model, graph, config, on_epoch=fail if is_second else lambda record: None).fit()
    elif how == "exits" and is_second:
        sys.exit(3)
    elif how == "refused on all":
        with raise_on_all_ranks(world, "go on"):
            if is_second:
                raise HpcgnnError("all say no")
    world.allreduce(torch.ones(1))
    sys.stdout.write("end\n")


main(sys.argv[1], Path(sys.argv[2]))
