"""The start of kernels, and the conditions under which they can run."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

_LEAST_VERSION = (3, 3)


def interprets() -> bool:
    """Return whether Triton's interpreter runs the kernels, on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def missing() -> str | None:
    """The reason why it cannot run here; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed: pip install 'hpcgnn[gpu]'"
    if not interprets() and not torch.cuda.is_available():
        return "this machine has no GPU that torch can use (TRITON_INTERPRET=1 interprets its kernels on CPUs, slowly)"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < _LEAST_VERSION:
        return f"triton {triton.__version__} is older than 3.3: torch 2.7 and later install a newer one"
    return None if interprets() else _problem_of_the_driver(triton)


def _problem_of_the_driver(triton: Any) -> str | None:
    """The reason why Triton cannot start kernels, or None: at the first start it compiles a few lines of C."""
    try:
        triton.runtime.driver.active.utils  # noqa: B018 - the access compiles it
    except Exception as error:  # compilers and drivers raise errors of many types
        said = " ".join(str(error).split())
        return f"triton cannot start kernels, for which it needs a C compiler and Python's headers ({said})"
    return None


def launch(kernel: Any, programs: int, *arguments: Any, num_warps: int = 4, **constants: Any) -> None:
    """Start ``programs`` programs of a kernel on the device of its first tensor; do nothing if ``programs`` is 0.

    Multiply-adds are not fused, as in all kernels of this project that compute sums or messages, so that results have the same
    bits as on CPUs.
    """
    if programs == 0:
        return
    device = next(each.device for each in arguments if isinstance(each, Tensor))
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[(programs,)](*arguments, **constants, num_warps=num_warps, enable_fp_fusion=False)
    else:
        kernel[(programs,)](*arguments, **constants, num_warps=num_warps, enable_fp_fusion=False)


WARP = 1024  # values of a warp's tile on a GPU: 32 for each thread, so that several loads are under way at a time
_INTERPRETED = 1 << 16  # the same for the interpreter, where a program of any size takes a millisecond or more
_MOST_WARPS = 16


def padded(width: int) -> int:
    """The smallest power of two of at least ``width``: the width of a tile for rows of ``width`` values."""
    return 1 << (max(width, 1) - 1).bit_length()


def rows_of_tile(rows: int, width: int, values: int) -> int:
    """Number of rows, at least one, of a tile of ``values`` values with ``width`` values in a row; all are powers of two.

    rows: rows of the matrix. Tiles on GPUs do not depend on it, because each size of tile needs another compilation.
    """
    if interprets():
        return max(1, min(_INTERPRETED // width, padded(rows)))
    return max(1, values // width)


def warps(values: int) -> int:
    """Number of warps of a program with a tile of ``values`` values: one for each :data:`WARP`, up to a limit."""
    return min(max(values // WARP, 1), _MOST_WARPS)
