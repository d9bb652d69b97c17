"""How kernels are started, and whether they can be."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import torch

_RANK = 3  # above all that run on CPUs, whose tensors it does not take


def interprets() -> bool:
    """Whether Triton's interpreter runs the kernels, on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def devices() -> tuple[str, ...]:
    """Types of torch devices whose tensors are taken; ``cuda`` is torch's name for AMD's too."""
    return ("cuda", "cpu") if interprets() else ("cuda",)


def rank() -> int | None:
    """An interpreter is only for those who ask for it."""
    return None if interprets() else _RANK


@functools.cache
def missing() -> str | None:
    """Why it cannot run here; None where it can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed: pip install 'hpcgnn[gpu]'"
    if not interprets() and not torch.cuda.is_available():
        return "this machine has no GPU that torch can use (TRITON_INTERPRET=1 interprets its kernels on CPUs, slowly)"
    return None


def launch(kernel: Any, programs: int, *arguments: Any, num_warps: int = 4, **constants: Any) -> None:
    """Start ``programs`` programs of a kernel on the device of its first tensor; nothing happens for none.

    No multiply-add is fused, as in all kernels of this project that a sum or a message goes through: a result has the bits that
    CPUs give it.
    """
    if programs == 0:
        return
    device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[(programs,)](*arguments, **constants, num_warps=num_warps, enable_fp_fusion=False)
    else:
        kernel[(programs,)](*arguments, **constants, num_warps=num_warps, enable_fp_fusion=False)
