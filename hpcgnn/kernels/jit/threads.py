"""numba's threads: as many as torch uses, and without a second OpenMP runtime."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba
import torch

if "NUMBA_THREADING_LAYER" not in os.environ:
    # numba's OpenMP layer would load the system's runtime by file name, beside the one that torch brings. The threads of
    # "workqueue", numba's own pool, sleep while torch works.
    numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]


P = ParamSpec("P")
R = TypeVar("R")
_ONE_CALLER = threading.RLock()  # autograd runs backward on threads of its own


def on_torch_threads(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that calls parallel ones: they run on as many threads as torch uses, for one caller at a time, as the
    pool requires."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _ONE_CALLER:
            numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
            return function(*args, **kwargs)

    return call
