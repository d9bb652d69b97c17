"""How much memory this process has used, and what becomes of memory that it frees."""

from __future__ import annotations

import ctypes
import resource
import sys

# of mallopt(), in glibc's <malloc.h>
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def peak_memory_bytes(*, or_of_children: bool = False) -> int:
    """The largest resident set of this process so far; or of a process that it has started and waited for, if that was larger."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if or_of_children:
        peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def keep_freed_memory() -> bool:
    """Have the C library take large blocks from its heap and never give the heap back: what was touched stays touched.

    A training step frees and allocates the same sizes again and again, and the first touch of fresh memory costs more than
    most of what is done with it. For processes of our own: nothing that is imported may decide this for others. False
    where the C library has no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, 1 << 26))
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in settings)
