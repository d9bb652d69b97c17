"""Memory for results that is kept and reused, in huge pages where the system provides them.

A fresh large tensor costs a page fault for every 4 KiB at the first access, which takes longer than the aggregation that fills
it. So the pool hands out tensors over memory that it keeps: when the last tensor (or view, or autograd graph) that uses a buffer
is gone, the buffer can be handed out again. The process's own allocator stays as it is.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

Provider = Callable[[int, int, torch.dtype], Tensor]
_PRESENT = threading.local()  # ranks that are threads have one each

# Smaller results come from torch's allocator, because the C library keeps memory of such sizes itself.
LEAST_BYTES = 1 << 20
_HUGE_PAGE_BYTES = 1 << 21
# A smaller result in a large buffer wastes memory that is there already; a buffer of its own would be there for ever.
_MOST_TIMES = 4
_CPU = torch.device("cpu")
# Tensors of these types are made without a view: autograd adds up gradients in place only if no other tensor shares the memory.
_NUMPY_DTYPES: dict[torch.dtype, type] = {torch.float32: np.float32, torch.float64: np.float64}


class BufferPool:
    """Hands out uninitialised tensors over retained memory.

    All its buffers together, used or not, take at most twice the largest number of bytes that was in use at one time;
    :meth:`clear` gives the unused ones back to the system. A buffer is reused for requests of at most its size and at least a
    quarter of it; a request takes the smallest one that fits. new_memory: makes a buffer of a number of bytes; None: memory of
    the system.
    """

    def __init__(self, new_memory: Callable[[int], Any] | None = None) -> None:
        self._new_memory = new_memory or _map
        self._free: list[Any] = []
        # Tensors may end on any thread, and in a garbage collection that starts while this thread holds the lock. So buffers
        # come back through a queue that needs no lock.
        self._returned: collections.deque[Any] = collections.deque()
        self._lock = threading.Lock()
        self._used_bytes = self._most_used_bytes = 0

    def empty(self, rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A (rows, width) tensor of any type, contiguous, at the start of a page if large; its values are arbitrary."""
        num_bytes = rows * width * dtype.itemsize
        if num_bytes < LEAST_BYTES:
            return torch.empty(rows, width, dtype=dtype)
        memory = self.take(num_bytes)
        known = _NUMPY_DTYPES.get(dtype)
        array = np.ndarray((rows, width) if known else num_bytes, known or np.uint8, memory)
        # torch keeps the array until the last tensor over it is gone; the end of the array shows that the memory is free.
        weakref.finalize(array, self.give_back, memory).atexit = False
        tensor = torch.from_numpy(array)
        return tensor if known else tensor.view(dtype).view(rows, width)

    @property
    def free_bytes(self) -> int:
        """Bytes kept that no tensor uses."""
        with self._lock:
            self._take_back()
            return sum(map(len, self._free))

    def clear(self) -> None:
        """Give unused memory back to the system."""
        with self._lock:
            self._take_back()
            self._free.clear()

    @property
    def held_bytes(self) -> int:
        """Bytes of all its buffers, used or not."""
        with self._lock:
            self._take_back()
            return self._used_bytes + sum(map(len, self._free))

    def give_back(self, memory: Any) -> None:
        """Let the buffer be handed out again."""
        self._returned.append(memory)

    def take(self, num_bytes: int) -> Any:
        """A buffer of at least so many bytes, which is used until :meth:`give_back`."""
        with self._lock:
            self._take_back()
            size = math.ceil(num_bytes / _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
            fitting = [memory for memory in self._free if size <= len(memory) <= size * _MOST_TIMES]
            memory = min(fitting, key=len) if fitting else self._new_memory(size)
            self._free = [other for other in self._free if other is not memory]
            self._used_bytes += len(memory)
            self._most_used_bytes = max(self._most_used_bytes, self._used_bytes)
            self._drop_excess()
            return memory

    def _take_back(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
            self._used_bytes -= len(self._free[-1])

    def _drop_excess(self) -> None:
        """Forget buffers, those that have been free for longest first."""
        excess = self._used_bytes + sum(map(len, self._free)) - 2 * self._most_used_bytes
        while excess > 0:
            excess -= len(self._free.pop(0))


def _map(size: int) -> mmap.mmap:
    # Private: with a shared mapping, a forked process would write into its parent's results, and there would be no huge pages.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages gives ordinary ones
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@functools.cache
def default_pool() -> BufferPool | None:
    """The pool of this process, or None where ``HPCGNN_BUFFER_POOL=off`` asks for torch's allocator."""
    return None if os.environ.get("HPCGNN_BUFFER_POOL", "on") == "off" else BufferPool()


def empty(rows: int, width: int, dtype: torch.dtype, device: torch.device = _CPU) -> Tensor:
    """An uninitialised (rows, width) tensor for a result: in this machine's memory from :func:`default_pool`, if there is one.

    On other devices it comes from torch, whose allocator keeps memory there itself.
    """
    provider: Provider | None = getattr(_PRESENT, "provider", None)
    if provider is not None and device.type == "cpu":
        return provider(rows, width, dtype)
    return provided(rows, width, dtype, device)


def provided(rows: int, width: int, dtype: torch.dtype, device: torch.device = _CPU) -> Tensor:
    """The result of :func:`empty` where nothing takes its place."""
    pool = default_pool() if device.type == "cpu" else None
    return torch.empty(rows, width, dtype=dtype, device=device) if pool is None else pool.empty(rows, width, dtype)


@contextlib.contextmanager
def provided_by(provider: Provider) -> Iterator[None]:
    """In this context, on this thread, ``provider(rows, width, dtype)`` makes the results in this machine's memory."""
    before = getattr(_PRESENT, "provider", None)
    _PRESENT.provider = provider
    try:
        yield
    finally:
        _PRESENT.provider = before
