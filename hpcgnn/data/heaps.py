"""A check of the heaps of HDF5 files, which hold the text of attributes, before HDF5 reads them.

HDF5 protects all other metadata of our files by checksums. Global heaps have none, and HDF5 goes from object to object by the
sizes that it reads there: an object of size 0 (in a block of zeros, for instance) makes it loop forever. So the sizes are
checked here first ("III.E. Disk Format: Level 1E - Global Heap" of the HDF5 file format specification).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import h5py

_MARK = b"GCOL\x01\0\0\0"  # the first bytes of a heap: its signature and version
_HEADER_BYTES = 16  # a heap's header: mark and size; an object's header: index, reference count, padding, size
_LEAST_BYTES = 4096
# Metadata between two arrays takes some KiB. A longer gap is space that HDF5 has freed, or the file is not ours.
_LONGEST_GAP = 1 << 20


def heap_problem(file: h5py.File) -> str:
    """A phrase about the first heap of ``file`` that HDF5 cannot walk through; empty if there is none."""
    with open(file.filename, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        for first, last in _gaps(file, size):
            content = os.pread(stream.fileno(), min(last - first, _LONGEST_GAP), first)
            start = content.find(_MARK)
            while start >= 0:
                if not _is_walkable(content[start:]):
                    return f"the heap at byte {first + start} does not tell where its objects end"
                start = content.find(_MARK, start + _LEAST_BYTES)
    return ""


def _gaps(file: h5py.File, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of bytes ``[begin, end)`` of the file that belong to no array."""
    extents = []

    def add(_: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset) and item.id.get_offset() is not None:
            extents.append((item.id.get_offset(), item.id.get_storage_size()))

    file.visititems(add)
    end = 0
    for first, length in sorted(extents):
        if first > end:
            yield end, min(first, size)
        end = max(end, first + length)
    if end < size:
        yield end, size


def _is_walkable(heap: bytes) -> bool:
    """Return whether the sizes of a heap's objects lead from one to the next up to its end. ``heap`` may have more bytes after
    it.
    """
    end = int.from_bytes(heap[8:16], "little")
    if end < _LEAST_BYTES or end > len(heap):
        return False
    place = _HEADER_BYTES
    while place + _HEADER_BYTES <= end:
        index = int.from_bytes(heap[place : place + 2], "little")
        length = int.from_bytes(heap[place + 8 : place + 16], "little")
        if index == 0:  # the free space, whose length includes its header
            if length < _HEADER_BYTES:
                return False
            place += length
        else:
            place += _HEADER_BYTES + (length + 7) // 8 * 8
    return place <= end
