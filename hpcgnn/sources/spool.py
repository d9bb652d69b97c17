"""Temporary arrays on disk, for data that does not fit into memory.

A spool's file is unlinked as soon as it is open, so that it vanishes with the process, however that ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_PIECE_BYTES = 16 << 20


class Spool:
    """A growing one-dimensional array of ``dtype`` in an unnamed file in ``folder``.

    A full disk raises ``OSError``, which :func:`hpcgnn.base.whole_file.replacing` turns into one sentence.
    """

    def __init__(self, folder: Path, dtype: np.dtype | type) -> None:
        self.dtype = np.dtype(dtype)
        self.size = 0
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open for the spool's life

    def append(self, array: np.ndarray) -> None:
        """Add ``array``, cast to the spool's dtype, at the end."""
        data = np.ascontiguousarray(array, dtype=self.dtype).view(np.uint8).data
        position = self.size * self.dtype.itemsize
        self.size += array.size
        while data:
            written = os.pwrite(self._file.fileno(), data[: 1 << 30], position)
            data, position = data[written:], position + written

    def read(self, first: int, last: int) -> np.ndarray:
        """Elements ``[first, last)`` as a new array."""
        array = np.empty(last - first, self.dtype)
        self.read_into(array, first)
        return array

    def read_into(self, out: np.ndarray, first: int) -> None:
        """Fill the contiguous ``out`` with the elements from ``first`` on."""
        data, position = out.view(np.uint8).data, first * self.dtype.itemsize
        while data:
            count = os.preadv(self._file.fileno(), [data[: 1 << 30]], position)
            if count == 0:
                raise ValueError(f"a spool of {self.size} elements has none at {first}+{out.size}")
            data, position = data[count:], position + count

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """All elements in order, in pieces of bounded size, as ``(index of the first, elements)``."""
        step = _PIECE_BYTES // self.dtype.itemsize
        for first in range(0, self.size, step):
            yield first, self.read(first, min(first + step, self.size))

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()
