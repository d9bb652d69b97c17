"""A checksum for each slab of each array, so that a byte that changed on disk or on its way is named, not trained on.

xxh3 (64 bits, the xxhash package), which takes less time than the memory needs to deliver the bytes. They stand beside the
arrays in the file:

    /checksums (arrays, slabs) uint64    of the bytes of each slab of each array as stored, arrays in the order of their names; of
                                         one that is not in slabs, the first is of all of it and the others are 0
    attribute attributes_checksum        of the attributes that say what the file holds

Damage is found where a changed bit would be used, and by whoever reads it. It is no protection against somebody who writes
both the data and the checksum; what must hold for safety is checked by value as well (:mod:`hpcgnn.data.checks`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import h5py
import numpy as np
import xxhash

from hpcgnn.byte_sink import LocalFile
from hpcgnn.data import h5
from hpcgnn.data.schema import WHOLE, Rule
from hpcgnn.data.stored import ByteSource, StoredArray

NAME = "checksums"
_ATTRIBUTES = "attributes_checksum"


def of_pieces(pieces: Iterable[np.ndarray]) -> int:
    """The checksum of bytes (m,) uint8 that come one piece after the other."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece.data)
    return digest.intdigest()


def of_arrays(arrays: Iterable[np.ndarray]) -> int:
    """The checksum of the bytes of contiguous arrays, one after the other."""
    return of_pieces(array.reshape(-1).view(np.uint8) for array in arrays)


def of_attributes(attributes: Mapping[str, Any]) -> int:
    """The checksum of names and values."""
    return xxhash.xxh3_64_intdigest(json.dumps(attributes, sort_keys=True).encode())


def stored(
    group: h5py.Group,
    source: ByteSource,
    names: Iterable[str],
    slabs: int,
    attributes: Mapping[str, Any],
    *,
    whole: Iterable[str],
) -> dict[str, np.ndarray]:
    """(slabs,) checksums of the arrays ``names`` of ``group``, of which ``whole`` are not in slabs.

    That of its attributes is compared at once.
    """
    rows = sorted(names)
    if h5.child(group, NAME) is None:
        raise h5.damaged(source.path, f"{group.name} has no checksums")
    rule = Rule((len(rows), slabs), np.dtype(np.uint64), WHOLE, high=2**64 - 1)
    table = StoredArray(group, source, NAME, rule).read()
    for name in whole:
        if table[rows.index(name), 1:].any():
            raise h5.damaged(source.path, f"{group.name} has more than one checksum of {name}, which is not in slabs")
    if h5.attribute(group, _ATTRIBUTES, int) != of_attributes(attributes):
        raise h5.damaged(source.path, f"the checksum of the attributes of {group.name} is not that of what was written")
    return dict(zip(rows, table, strict=True))


def store(group: h5py.Group, table: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> None:
    """Write checksums (slabs,) uint64 of each array, in place of any that ``group`` has."""
    if NAME in group:
        del group[NAME]
    values = np.stack([table[name] for name in sorted(table)])
    offsets = h5.add_datasets(group, {NAME: (values.shape, values.dtype)})
    # h5py would keep them until the dataset is closed, and only print that the disk is full then.
    with LocalFile(group.file.filename) as file:
        for offset in offsets.values():
            file.write(offset, values)
    group.attrs[_ATTRIBUTES] = np.uint64(of_attributes(attributes))
