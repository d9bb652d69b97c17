"""How much memory this process has used."""

from __future__ import annotations

import resource
import sys


def peak_memory_bytes() -> int:
    """The largest resident set of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
