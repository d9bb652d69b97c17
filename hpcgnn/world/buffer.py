"""Memory that ranks exchange, an address, a size and a device, and the collective under way that moves it."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hpcgnn.base.arguments import is_plain
from hpcgnn.base.errors import WrongTypeError

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

    Values = TypeVar("Values", torch.Tensor, np.ndarray)
else:  # programs without tensors, such as `hpcgnn partition`, never import torch, and save the memory that it takes
    Values = TypeVar("Values")


@dataclass(frozen=True, eq=False)
class Buffer:
    """Contiguous rows of bytes. dtype: numpy's name of an element's type, for reductions. device: torch's name of the device
    ("cpu", "cuda:0"). owner: the tensor or array that holds the memory; this reference keeps it alive."""

    address: int
    rows: int
    row_bytes: int
    dtype: str
    device: str
    owner: Any

    @classmethod
    def of(cls, values: torch.Tensor | np.ndarray) -> Buffer:
        """The memory of a contiguous tensor or array; its rows are those of the first dimension. ValueError is raised where it is
        not contiguous: rows would arrive in a copy that the caller never sees."""
        shape = tuple(values.shape) or (1,)
        if is_tensor(values):
            if not is_plain(values):
                raise WrongTypeError(
                    f"only a torch.Tensor itself is exchanged, not the subclass {type(values).__name__}"
                )
            is_contiguous, address, device = values.is_contiguous(), values.data_ptr(), str(values.device)
            item_bytes, dtype = values.element_size(), str(values.dtype).removeprefix("torch.")
        else:
            is_contiguous, address, device = values.flags.c_contiguous, values.ctypes.data, "cpu"
            item_bytes, dtype = values.itemsize, values.dtype.name
        if not is_contiguous:
            raise ValueError(f"only contiguous memory can be exchanged, not a view of shape {shape}")
        return cls(address, shape[0], item_bytes * math.prod(shape[1:]), dtype, device, values)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    def on_host(self) -> np.ndarray:
        """(rows, row_bytes) uint8 view of the memory; ValueError where it is that of a device."""
        if self.device != "cpu":
            raise ValueError(f"memory of {self.device} cannot be read here: copy it to the host first")
        if not self.num_bytes:
            return np.empty((self.rows, self.row_bytes), np.uint8)
        memory = (ctypes.c_uint8 * self.num_bytes).from_address(self.address)
        return np.ctypeslib.as_array(memory).reshape(self.rows, self.row_bytes)


def is_tensor(values: object) -> TypeIs[torch.Tensor]:
    """Return whether ``values`` is a torch tensor; this never imports torch, as no tensor exists before."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def on_host(values: Values) -> Values:
    """``values`` in memory of the host, copied if they are on a device: small collectives go through the host."""
    return values.cpu() if is_tensor(values) else values


def beside(values: Values, result: Values) -> Values:
    """``result`` on the device of ``values``."""
    return result.to(values.device) if is_tensor(values) and is_tensor(result) else result


def contiguous(values: Values) -> Values:
    """``values``, copied if they are not contiguous; with at least one dimension."""
    if is_tensor(values):
        return values.reshape(tuple(values.shape) or (1,)).contiguous()
    return np.ascontiguousarray(values)


def empty(values: Values, *shape: int) -> Values:
    """Uninitialised memory of this shape, with the type and on the device of ``values``."""
    return values.new_empty(shape) if is_tensor(values) else np.empty(shape, values.dtype)


@dataclass(frozen=True)
class Neighbours:
    """The ranks that exchange rows with this one. handle: private to the world that made it. sources, destinations: (k,) ranks
    that send rows to this rank, and that receive rows from it."""

    handle: Any
    sources: np.ndarray
    destinations: np.ndarray


@dataclass(eq=False)
class Segments:
    """A buffer with the rows for, or from, each rank. counts: (size,) int64 number of rows of each rank. starts: (size,) int64
    row at which each rank's segment begins; None: the segments are contiguous, in rank order. for_mpi: the segments as the
    world that moves them has passed them to MPI before, among the ranks ``among`` or all ranks."""

    buffer: Buffer
    counts: np.ndarray
    starts: np.ndarray | None = None
    for_mpi: Any = None
    among: Neighbours | None = None

    @cached_property
    def begins(self) -> np.ndarray:
        """(size,) int64 :attr:`starts`, or their values for contiguous segments."""
        return np.cumsum(self.counts) - self.counts if self.starts is None else self.starts


@dataclass(eq=False)
class Pending:
    """The request of a started collective, which has MPI's ``Test()``, or None if it was complete when it started.

    what: its name in error messages. buffers: objects to keep alive until it ends. seconds: time from the start until a test
    found it complete; 0 before. arrive: to be called after the wait, and returns the seconds on the wire; None where the received
    bytes are in their place by then.
    """

    request: Any
    what: str
    buffers: tuple[Any, ...]
    started_at: float
    seconds: float = 0.0
    error: Exception | None = None
    arrive: Callable[[], float] | None = None

    @classmethod
    def started(cls, request: Any, what: str, *buffers: Any) -> Pending:
        """A collective that starts now."""
        return cls(request, what, buffers, time.perf_counter())

    @classmethod
    def done(cls, what: str) -> Pending:
        """A collective that was complete as soon as it started."""
        return cls(None, what, (), time.perf_counter(), seconds=1e-9)

    def test(self) -> bool:
        """Let MPI make progress; true once this is complete. An error that MPI raised is raised again by each later call."""
        if self.error is not None:  # MPI forgets it: a request that failed is null afterwards
            raise self.error
        if not self.seconds:
            try:
                complete = self.request.Test()
            except Exception as error:
                self.error = error
                raise
            if complete:
                self.seconds = time.perf_counter() - self.started_at
        return self.seconds > 0
