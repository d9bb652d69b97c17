"""numba's threads: as many as torch's, and no second OpenMP runtime for them."""

from __future__ import annotations

import os

import numba
import torch

if "NUMBA_THREADING_LAYER" not in os.environ:
    # numba's OpenMP layer asks for the system's runtime by file name, beside the one that torch brings; its own pool
    # sleeps while torch works. It allows one caller at a time, which is all that kernels need.
    numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]


def use_torch_threads() -> int:
    """To be called before a parallel function; returns the number of threads."""
    count = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    numba.set_num_threads(count)
    return count
