"""One HDF5 file that all ranks write: rank 0 lays it out and names it, every rank writes its slabs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcgnn.base import whole_file
from hpcgnn.data import h5
from hpcgnn.world import World, raise_on_all_ranks
from hpcgnn.world.world import open_for_writing


@contextlib.contextmanager
def replacing(world: World, path: str | Path, *, force: bool, inputs: Iterable[str | Path] = ()) -> Iterator[Path]:
    """Like :func:`hpcgnn.base.whole_file.replacing`, for all ranks: every rank gets the temporary name that rank 0 chose.
    Collective."""
    with contextlib.ExitStack() as stack:
        name = ""
        with raise_on_all_ranks(world, f"write {path}"):
            if world.rank == 0:
                name = str(stack.enter_context(whole_file.replacing(path, force=force, inputs=inputs)))
        yield Path(world.broadcast(name))
        with raise_on_all_ranks(world, f"write {path}"):
            stack.close()


@contextlib.contextmanager
def writing(
    world: World, path: Path, schema: h5.Schema, attributes: Mapping[str, Any] | None
) -> Iterator[h5.SlabWriter]:
    """Create ``path`` with the datasets of ``schema``, and give every rank a writer of their slabs. Collective.

    attributes: of the file; None to continue a file that a killed run has created with the same ``schema``.
    """
    offsets: dict[str, int] = {}
    with raise_on_all_ranks(world, f"{'open' if attributes is None else 'create'} {path}"):
        if world.rank == 0:
            offsets = h5.byte_offsets(path, schema) if attributes is None else h5.create(path, schema, attributes)
    offsets = world.broadcast(offsets)
    with open_for_writing(world, str(path)) as sink:
        yield h5.SlabWriter(sink, offsets, schema)
