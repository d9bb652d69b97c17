"""Computation of the checksums and the digests of a file that has been written (:mod:`hpcgnn.data.checksums`,
:mod:`hpcgnn.data.digests`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from hpcgnn.base.arguments import check_path
from hpcgnn.data import checksums, h5, plan_store
from hpcgnn.data.digest_sums import Digests
from hpcgnn.data.digests import FIRST_VERSION
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.data.parts_file import PartsFile, reader_of
from hpcgnn.data.schema import WHOLE


def slab_checksums(
    reader: SlabReader, slabs: Iterable[int], then: Callable[[int], object] = lambda slab: None
) -> dict[str, np.ndarray]:
    """The (slabs,) uint64 checksums of each array, for ``slabs``; those of other slabs, which other ranks may compute, are 0.

    then: is called after each slab, whose bytes are still in the system's cache.
    """
    small = {name for name, rule in reader.rules.items() if rule.rows == WHOLE}
    table = {name: np.zeros(reader.num_slabs, np.uint64) for name in reader.rules}
    for slab in slabs:
        for name in reader.rules:
            if name not in small or slab == 0:
                rows = reader.slab_rows(name, slab)
                table[name][slab] = checksums.of_pieces(reader.arrays[name].pieces(*rows))
        then(slab)
    return table


def store(reader: SlabReader, table: Mapping[str, np.ndarray]) -> None:
    """Write the checksums of :func:`slab_checksums` to the reader's file, which is open for writing."""
    with h5.writing(reader.path, "checksums"):
        checksums.store(reader.file, table, reader.attributes)


def seal(path: str | Path) -> None:
    """Write the checksums and digests of the present contents, plans included, to a ``graph.h5`` or ``parts.h5`` that a program
    has changed. A plan that was made of other edges is no longer used.

    It takes 8 bytes a node for a parts file, and bounded memory for a graph file. Raises HpcgnnError where the file cannot be
    read or written.
    """
    check_path("path", path)
    with reader_of(path)(path, "r+", sealed=False) as reader:
        has_digests = reader.attributes["version"] >= FIRST_VERSION
        digests = Digests(reader)
        table = slab_checksums(reader, range(reader.num_slabs), digests.add if has_digests else lambda slab: None)
        if has_digests:
            reader.attributes |= digests.values()
            with h5.writing(path, "digests"):
                reader.file.attrs.update({name: np.uint64(value) for name, value in digests.values().items()})
        store(reader, table)
        if isinstance(reader, PartsFile):
            plan_store.seal_plans(reader)
