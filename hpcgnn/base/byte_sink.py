"""Open files that are written at byte offsets, by one process or by many."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

_MOST_BYTES = 1 << 30  # written by one call of pwrite


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file's name to errors of the system, which do not have it where the file is open already."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


class ByteSink(Protocol):
    """A file that is open for writing; several may be open on one path, each for other bytes."""

    def write(self, byte_offset: int, array: np.ndarray) -> None:
        """Write the bytes of ``array`` at ``byte_offset``. Raises OSError. Not collective."""

    def close(self) -> None:
        """Close the file. Collective if a world opened it (:meth:`hpcgnn.world.world.World.open_shared`)."""


class LocalFile:
    """A :class:`ByteSink` over ``pwrite``, for ranks of one process."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY)

    def write(self, byte_offset: int, array: np.ndarray) -> None:
        """See :class:`ByteSink`."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while data.size:
            with naming(self._path):
                written = os.pwrite(self._descriptor, data[:_MOST_BYTES].data, byte_offset)
            data, byte_offset = data[written:], byte_offset + written

    def close(self) -> None:
        """See :class:`ByteSink`."""
        with naming(self._path):
            os.close(self._descriptor)

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
