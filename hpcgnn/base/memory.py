"""The peak memory of this process, and a setting of the C library that keeps freed memory for reuse."""

from __future__ import annotations

import ctypes
import resource
import sys

# options of mallopt() in glibc's <malloc.h>
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def peak_memory_bytes(*, or_of_children: bool = False) -> int:
    """The largest resident memory of this process so far, in bytes.

    With ``or_of_children`` the largest one of this process and of the processes that it has started and waited for.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if or_of_children:
        peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def keep_freed_memory() -> bool:
    """Make the C library take large blocks from its heap, and never return freed memory to the system.

    A training step frees and allocates the same sizes again and again, and the page faults of fresh memory cost more than most
    computations on it. Only our own commands call this, because a library must not decide it for other programs. Returns
    False where the C library has no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 1 << 26))
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in settings)
