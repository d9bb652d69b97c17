"""numba's threads: as many as torch's, and no second OpenMP runtime for them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba
import torch

if "NUMBA_THREADING_LAYER" not in os.environ:
    # numba's OpenMP layer asks for the system's runtime by file name, beside the one that torch brings; its own pool
    # sleeps while torch works.
    numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]


P = ParamSpec("P")
R = TypeVar("R")
_ONE_CALLER = threading.RLock()  # autograd runs backward on threads of its own


def on_torch_threads(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates what calls parallel functions: as many threads as torch has, and one caller at a time, as the pool wants."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _ONE_CALLER:
            numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
            return function(*args, **kwargs)

    return call
