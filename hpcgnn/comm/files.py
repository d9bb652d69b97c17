"""Files that all ranks write, each its own bytes: plain MPI-IO, so that no parallel HDF5 is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.byte_sink import ByteSink
from hpcgnn.comm.agreement import together
from hpcgnn.comm.world import World

_MOST_BYTES = 1 << 30  # of one call: MPI-IO's counts are C ints


@contextlib.contextmanager
def open_for_writing(world: World, path: str) -> Iterator[ByteSink]:
    """Open an existing file for disjoint writes by all ranks. Collective.

    Closing is collective and blocks, so a rank that raises leaves it undone: its abort must not wait for the others.
    """
    with together(world, f"write {path}"):
        sink = world.open_shared(path)
    yield sink
    sink.close()


@dataclass
class MpiFile:
    """An open MPI file; ``write(byte_offset, array)`` is independent, so ranks may write different numbers of slabs."""

    handle: Any

    def write(self, byte_offset: int, array: np.ndarray) -> None:
        """See :class:`hpcgnn.byte_sink.ByteSink`."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, data.size, _MOST_BYTES):
            piece = data[start : start + _MOST_BYTES]
            try:
                self.handle.Write_at(byte_offset + start, piece)
            except RuntimeError as error:  # mpi4py's MPI.Exception
                raise OSError(str(error)) from error

    def close(self) -> None:
        """See :class:`hpcgnn.byte_sink.ByteSink`."""
        try:
            self.handle.Close()
        except RuntimeError as error:
            raise OSError(str(error)) from error
