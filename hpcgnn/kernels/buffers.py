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
# A result takes a part of a free buffer of at most so many times its size: the rest of that buffer is of use for smaller results
# only, until this one is gone.
_MOST_TIMES = 8
_CPU = torch.device("cpu")
# Tensors of these types are made without a view: autograd adds up gradients in place only if no other tensor shares the memory.
_NUMPY_DTYPES: dict[torch.dtype, type] = {torch.float32: np.float32, torch.float64: np.float64}


class Buffer:
    """A part of a piece of memory that a pool made. before, after: its neighbours in that memory, which are other parts."""

    __slots__ = ("after", "before", "first", "is_free", "memory", "size")

    def __init__(self, memory: Any, first: int, size: int) -> None:
        self.memory, self.first, self.size, self.is_free = memory, first, size, False
        self.before: Buffer | None = None
        self.after: Buffer | None = None

    def divide(self, size: int) -> Buffer:
        """Keep ``size`` bytes; return the rest as a buffer of its own."""
        rest = Buffer(self.memory, self.first + size, self.size - size)
        rest.before, rest.after, self.after, self.size = self, self.after, rest, size
        if rest.after is not None:
            rest.after.before = rest
        return rest

    def join(self) -> None:
        """Take the bytes of the buffer after this one, which is then of no more use."""
        assert self.after is not None
        self.size, self.after = self.size + self.after.size, self.after.after
        if self.after is not None:
            self.after.before = self

    @property
    def is_whole(self) -> bool:
        """True if its memory has no other parts."""
        return self.before is None and self.after is None


class BufferPool:
    """Hands out uninitialised tensors over retained memory.

    A request takes the smallest free buffer that is large enough, or a part of it; free parts that are neighbours become one
    again. All memory together, used or not, is at most about twice the largest number of bytes that was in use at one time;
    :meth:`clear` gives unused memory back to the system. new_memory: makes memory of a number of bytes; None: memory of the
    system.
    """

    def __init__(self, new_memory: Callable[[int], Any] | None = None) -> None:
        self._new_memory = new_memory or _map
        self._free: list[Buffer] = []
        # Tensors may end on any thread, and in a garbage collection that starts while this thread holds the lock. So buffers
        # come back through a queue that needs no lock.
        self._returned: collections.deque[Buffer] = collections.deque()
        self._lock = threading.Lock()
        self._used_bytes = self._most_used_bytes = 0

    def empty(self, rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A (rows, width) tensor of any type, contiguous, at the start of a page if large; its values are arbitrary."""
        num_bytes = rows * width * dtype.itemsize
        if num_bytes < LEAST_BYTES:
            return torch.empty(rows, width, dtype=dtype)
        buffer = self.take(num_bytes)
        known = _NUMPY_DTYPES.get(dtype)
        array = np.ndarray((rows, width) if known else num_bytes, known or np.uint8, buffer.memory, buffer.first)
        # torch keeps the array until the last tensor over it is gone; the end of the array shows that the memory is free.
        weakref.finalize(array, self.give_back, buffer).atexit = False
        tensor = torch.from_numpy(array)
        return tensor if known else tensor.view(dtype).view(rows, width)

    @property
    def free_bytes(self) -> int:
        """Bytes kept that no tensor uses."""
        with self._lock:
            self._take_back()
            return self._free_bytes()

    def clear(self) -> None:
        """Give memory that no tensor uses a part of back to the system."""
        with self._lock:
            self._take_back()
            self._free = [each for each in self._free if not each.is_whole]

    @property
    def held_bytes(self) -> int:
        """Bytes of all its buffers, used or not."""
        with self._lock:
            self._take_back()
            return self._used_bytes + self._free_bytes()

    def _free_bytes(self) -> int:
        return sum(each.size for each in self._free)

    def give_back(self, buffer: Buffer) -> None:
        """Let the buffer be handed out again."""
        self._returned.append(buffer)

    def take(self, num_bytes: int) -> Buffer:
        """A buffer of at least so many bytes, which is used until :meth:`give_back`."""
        with self._lock:
            self._take_back()
            size = math.ceil(num_bytes / _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
            fitting = [each for each in self._free if size <= each.size <= size * _MOST_TIMES]
            if fitting:
                buffer = min(fitting, key=lambda each: each.size)
                self._free.remove(buffer)
                buffer.is_free = False
            else:
                buffer = Buffer(self._new_memory(size), 0, size)
            if buffer.size > size:
                self._add(buffer.divide(size))
            self._used_bytes += size
            self._most_used_bytes = max(self._most_used_bytes, self._used_bytes)
            self._drop_excess()
            return buffer

    def _take_back(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._used_bytes -= buffer.size
            self._add(buffer)

    def _add(self, buffer: Buffer) -> None:
        """Make the buffer free, and one with its free neighbours."""
        if (after := buffer.after) is not None and after.is_free:
            self._free.remove(after)
            buffer.join()
        if (before := buffer.before) is not None and before.is_free:
            self._free.remove(before)
            before.join()
            buffer = before
        buffer.is_free = True
        self._free.append(buffer)

    def _drop_excess(self) -> None:
        """Forget memory of which no part is used, that has been free for longest first."""
        excess = self._used_bytes + self._free_bytes() - 2 * self._most_used_bytes
        for each in [each for each in self._free if each.is_whole] if excess > 0 else ():
            self._free.remove(each)
            if (excess := excess - each.size) <= 0:
                break


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
