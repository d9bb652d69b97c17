"""Heaps of HDF5 files, where the text of attributes stands: looked at before HDF5 does.

All other metadata of a file of ours has checksums by HDF5. Its global heaps have none, and HDF5 walks through one by the
sizes that it tells: an object of size 0 keeps it there for ever (a block of zeros is enough). So the sizes are walked here
first ("III.E. Disk Format: Level 1E - Global Heap" of the HDF5 file format specification).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import h5py

_MARK = b"GCOL\x01\0\0\0"  # of a heap, with its version
_HEADER_BYTES = 16  # of a heap: mark and size; of an object: index, references, nothing, size
_LEAST_BYTES = 4096
# Metadata between two arrays is some KiB. A longer gap is memory that HDF5 has given up, or no file of ours.
_LONGEST_GAP = 1 << 20


def heap_problem(file: h5py.File) -> str:
    """What is wrong with a heap of ``file``, or an empty string."""
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
    """Ranges of bytes of the file that are in no array."""
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
    """Whether objects of a heap follow each other to its end; ``heap`` may go on behind it."""
    end = int.from_bytes(heap[8:16], "little")
    if end < _LEAST_BYTES or end > len(heap):
        return False
    place = _HEADER_BYTES
    while place + _HEADER_BYTES <= end:
        index = int.from_bytes(heap[place : place + 2], "little")
        length = int.from_bytes(heap[place + 8 : place + 16], "little")
        if index == 0:  # what is free, with its header
            if length < _HEADER_BYTES:
                return False
            place += length
        else:
            place += _HEADER_BYTES + (length + 7) // 8 * 8
    return place <= end
