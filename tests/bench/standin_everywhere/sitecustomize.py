"""With this folder first in PYTHONPATH, every Python process takes the stand-in device of tests/standin for its one GPU.

So commands and ranks that a test starts run what they would run with ``--device cuda``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch
from standin import standin

from hpcgnn import devices
from hpcgnn.comm import devices as choice
from hpcgnn.devices.gpus import Gpus
from hpcgnn.kernels import backend


class OneGpu(Gpus):
    """The stand-in."""

    def problem(self) -> str | None:
        """None."""

    def count(self) -> int:
        """One."""
        return 1

    def identity(self, number: int) -> str:
        """All processes have the same."""
        return "the stand-in"

    def device(self, number: int) -> devices.Device:
        """Whatever its number."""
        return standin()


standin()
choice.Gpus = OneGpu  # type: ignore[misc]
backend.problem_on = lambda kind: None
torch.set_num_threads(1)
