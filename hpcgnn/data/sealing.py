"""Computation of the checksums of a file that has been written (:mod:`hpcgnn.data.checksums`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from hpcgnn.arguments import check_path
from hpcgnn.data import checksums, h5, plan_store
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.data.parts_file import PartsFile, reader_of
from hpcgnn.data.schema import WHOLE


def slab_checksums(reader: SlabReader, slabs: Iterable[int]) -> dict[str, np.ndarray]:
    """The (slabs,) uint64 checksums of each array, for ``slabs``; those of other slabs, which other ranks may compute, are 0."""
    small = {name for name, rule in reader.rules.items() if rule.rows == WHOLE}
    table = {name: np.zeros(reader.num_slabs, np.uint64) for name in reader.rules}
    for slab in slabs:
        for name in reader.rules:
            if name not in small or slab == 0:
                rows = reader.slab_rows(name, slab)
                table[name][slab] = checksums.of_pieces(reader.arrays[name].pieces(*rows))
    return table


def store(reader: SlabReader, table: Mapping[str, np.ndarray]) -> None:
    """Write the checksums of :func:`slab_checksums` to the reader's file, which is open for writing."""
    with h5.writing(reader.path, "checksums"):
        checksums.store(reader.file, table, reader.attributes)


def seal(path: str | Path) -> None:
    """Write the checksums of the present contents, plans included, to a ``graph.h5`` or ``parts.h5`` that a program has changed.

    Raises HpcgnnError where the file cannot be read or written.
    """
    check_path("path", path)
    with reader_of(path)(path, "r+", sealed=False) as reader:
        store(reader, slab_checksums(reader, range(reader.num_slabs)))
        if isinstance(reader, PartsFile):
            plan_store.seal_plans(reader)
