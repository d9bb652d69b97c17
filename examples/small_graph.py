"""Shared by the examples: their command-line arguments, and a small generated graph for --small."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcgnn.partition import partition
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.sources.convert import convert
from hpcgnn.world import World, whole_job

GRAPH = "sbm:nodes=600,blocks=4,degree=8,features=16,homophily=0.9"
SMALL_EPOCHS = 20


def arguments(description: str | None, epochs: int) -> argparse.Namespace:
    """Parse the command line: ``parts``, a path or None, ``small`` and ``epochs``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="?", help="a file made by `hpcgnn partition`, with as many parts as there are ranks"
    )
    parser.add_argument("--small", action="store_true", help="make a small graph instead, and train for 20 epochs")
    parser.add_argument("--epochs", type=int, help=f"{epochs} by default")
    given = parser.parse_args()
    if (given.parts is None) != given.small:
        parser.error("give either a file with parts or --small")
    given.epochs = given.epochs or (SMALL_EPOCHS if given.small else epochs)
    return given


@contextlib.contextmanager
def parts_of(given: argparse.Namespace) -> Iterator[Path]:
    """The given parts file, or that of a small graph, which is removed afterwards. Collective."""
    if not given.small:
        yield Path(given.parts)
        return
    world = whole_job()
    with _shared_folder(world) as folder:
        if world.rank == 0:
            convert(GRAPH, folder / "graph.h5")
        options = PartitionOptions(world.size, method="random", jobs=1)
        world.broadcast(None)  # the file is there
        partition(world, str(folder / "graph.h5"), str(folder / "parts.h5"), options)
        yield folder / "parts.h5"
        world.broadcast(None)  # all ranks have read it


@contextlib.contextmanager
def _shared_folder(world: World) -> Iterator[Path]:
    """A temporary folder that all ranks use; they run on one machine. Collective."""
    with tempfile.TemporaryDirectory() if world.rank == 0 else contextlib.nullcontext() as mine:
        yield Path(world.broadcast(mine))
