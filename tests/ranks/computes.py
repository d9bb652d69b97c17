"""Programs for ranks that choose the arithmetic of dense products."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence

import pytest
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli.main import main
from hpcgnn.nn import compute
from hpcgnn.nn.compute import Bfloat16, choose_compute, resumed_compute
from hpcgnn.nn.config import AUTO, FLOAT32
from hpcgnn.world import World


def choose(world: World, asked: str, dtype: torch.dtype = torch.float32) -> str:
    """The chosen arithmetic."""
    return choose_compute(world, asked, dtype)


def refused(world: World, asked: str) -> str:
    """The sentence that refuses an arithmetic."""
    with pytest.raises(HpcgnnError) as found:
        choose_compute(world, asked, torch.float32)
    return str(found.value)


def resume(world: World, before: dict[str, str]) -> str:
    """The arithmetic with which a run of ``auto`` continues, for which float32 is chosen now."""
    return resumed_compute(world, AUTO, FLOAT32, before)


def pretending(world: World, speedups: Sequence[float], words: Sequence[object]) -> tuple[int, str]:
    """The exit code and the errors of a command line, on ranks whose CPUs pretend to be this much faster at bfloat16."""
    speedup = speedups[world.rank]
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(errors):
        patch.setattr(compute, "is_native", lambda torch_device=None: speedup > 0)
        patch.setattr(compute, "processor", lambda: f"CPU of speedup {speedup}")
        patch.setattr(compute, "bfloat16", lambda backend="auto", torch_device=None: Bfloat16("torch", speedup))
        patch.setattr(sys, "argv", ["hpcgnn", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), errors.getvalue()
