"""Files that all ranks write, each its own bytes: plain MPI-IO, so that no parallel HDF5 is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.base.byte_sink import ByteSink, LocalFile
from hpcgnn.world.agreement import raise_on_all_ranks
from hpcgnn.world.world import World

_MOST_BYTES = 1 << 30  # written by one call: MPI-IO's counts are C ints


@contextlib.contextmanager
def open_for_writing(world: World, path: str) -> Iterator[ByteSink]:
    """Open an existing file for disjoint writes by all ranks. Collective.

    Closing is collective and blocks. So a rank that raises does not close the file: its abort must not wait for the others.
    """
    with raise_on_all_ranks(world, f"write {path}"):
        sink = world.open_shared(path)
    yield sink
    with raise_on_all_ranks(world, f"write {path}"):
        sink.close()


@dataclass
class MpiFile:
    """An open MPI file; ``write(byte_offset, array)`` is independent, so ranks may write different numbers of slabs.

    Open MPI 4 reports success even if the system has written a part of the bytes only, or none because the disk is full. So
    each write compares the number of bytes that MPI reports with the number asked for, and writes the rest without MPI, which
    either succeeds or raises the reason.

    status: an ``MPI.Status`` of mpi4py, which holds the number of bytes written. blocking: makes the context of calls that wait
    for other ranks.
    """

    path: str
    handle: Any
    status: Any
    blocking: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def write(self, byte_offset: int, array: np.ndarray) -> None:
        """See :class:`hpcgnn.base.byte_sink.ByteSink`."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, data.size, _MOST_BYTES):
            piece = data[start : start + _MOST_BYTES]
            written = self._written(byte_offset + start, piece)
            if written < piece.size:
                with LocalFile(self.path) as file:
                    file.write(byte_offset + start + written, piece[written:])

    def _written(self, byte_offset: int, piece: np.ndarray) -> int:
        """Number of bytes of ``piece`` that MPI has written."""
        try:
            self.handle.Write_at(byte_offset, piece, self.status)
        except RuntimeError:  # mpi4py's MPI.Exception
            return 0
        return max(self.status.count, 0)

    def close(self) -> None:
        """See :class:`hpcgnn.base.byte_sink.ByteSink`."""
        try:
            with self.blocking():
                self.handle.Close()
        except RuntimeError as error:
            raise OSError(str(error)) from error
