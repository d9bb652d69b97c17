"""A checksum for each slab of each array, so that a byte that has changed on disk or in transfer is reported, and not used.

The checksums are xxh3 (64 bits, of the xxhash package), which is faster than the memory delivers the bytes. They are stored in
the file as ``/checksums`` (arrays, slabs) uint64, in the order of the arrays' names; an array without slabs has its checksum in
the first column, and 0 in the others. ``attributes_checksum`` is that of the attributes that describe the file.

Each reader compares the checksums of the slabs that it reads. They do not protect against somebody who changes both data and
checksum, so all values on which memory safety depends are checked as well (:mod:`hpcgnn.data.stored`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import h5py
import numpy as np
import xxhash

from hpcgnn.base.byte_sink import LocalFile
from hpcgnn.data import h5
from hpcgnn.data.schema import WHOLE, Rule
from hpcgnn.data.stored import ByteSource, StoredArray

NAME = "checksums"
_ATTRIBUTES = "attributes_checksum"


def of_pieces(pieces: Iterable[np.ndarray]) -> int:
    """The checksum of bytes that come in pieces (m,) uint8, one after the other."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece.data)
    return digest.intdigest()


def of_arrays(arrays: Iterable[np.ndarray]) -> int:
    """The checksum of the bytes of contiguous arrays, one after the other."""
    return of_pieces(array.reshape(-1).view(np.uint8) for array in arrays)


def of_slabs(
    arrays: Mapping[str, StoredArray], slab_rows: Callable[[str, int], tuple[int, int]], num_slabs: int,
    slabs: Iterable[int], then: Callable[[int], object] = lambda slab: None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The (num_slabs,) uint64 checksums of each array, for ``slabs``; those of other slabs, which other ranks may compute, are
    0. then: is called after each slab, whose bytes are still in the system's cache."""
    table = {name: np.zeros(num_slabs, np.uint64) for name in arrays}
    for slab in slabs:
        for name, array in arrays.items():
            if array.rule.rows != WHOLE or slab == 0:
                table[name][slab] = of_pieces(array.pieces(*slab_rows(name, slab)))
        then(slab)
    return table


def of_attributes(attributes: Mapping[str, Any]) -> int:
    """The checksum of the names and values of attributes."""
    return xxhash.xxh3_64_intdigest(json.dumps(attributes, sort_keys=True).encode())


def stored(
    group: h5py.Group, source: ByteSource, names: Iterable[str], slabs: int, attributes: Mapping[str, Any], *,
    whole: Iterable[str],
) -> dict[str, np.ndarray]:  # fmt: skip
    """Read the (slabs,) uint64 checksums of each array of ``names`` in ``group``, and compare that of its attributes. whole:
    the arrays without slabs. Raises HpcgnnError where checksums are missing or contradict the attributes."""
    rows = sorted(names)
    if h5.child(group, NAME) is None:
        raise h5.damaged(source.path, f"{group.name} has no checksums")
    rule = Rule((len(rows), slabs), np.dtype(np.uint64), WHOLE, high=2**64 - 1)
    table = StoredArray(group, source, NAME, rule).read()
    for name in whole:
        if table[rows.index(name), 1:].any():
            raise h5.damaged(source.path, f"{group.name} has more than one checksum of {name}, which is not in slabs")
    if h5.attribute(group, _ATTRIBUTES, int) != of_attributes(attributes):
        raise h5.damaged(source.path, f"the checksum of the attributes of {group.name} does not match them")
    return dict(zip(rows, table, strict=True))


def store(group: h5py.Group, table: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> None:
    """Write the checksums (slabs,) uint64 of each array, and replace those that ``group`` has."""
    if NAME in group:
        del group[NAME]
    values = np.stack([table[name] for name in sorted(table)])
    offsets = h5.add_datasets(group, {NAME: (values.shape, values.dtype)})
    # h5py would keep the values in memory until the dataset is closed, and then only print that the disk is full.
    with LocalFile(group.file.filename) as file:
        file.write(offsets[NAME], values)
    group.attrs[_ATTRIBUTES] = np.uint64(of_attributes(attributes))
