"""With this folder first in PYTHONPATH, every Python process uses the stand-in device of tests/standin as its only GPU.

Commands and ranks that a test starts then behave as with ``--device cuda``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

import torch
from standin import standin

from hpcgnn import devices
from hpcgnn.devices.gpu import Gpus
from hpcgnn.kernels import backend
from hpcgnn.world import devices as choice


class OneGpu(Gpus):
    """The stand-in."""

    def problem(self) -> str | None:
        """Return None, because the stand-in can be used."""

    def count(self) -> int:
        """Return 1."""
        return 1

    def identity(self, number: int) -> str:
        """Return the same identity in all processes."""
        return "the stand-in"

    def device(self, number: int) -> devices.Device:
        """Return the stand-in for any number."""
        return standin()


standin()
choice.Gpus = OneGpu  # type: ignore[misc]
backend.problem_on = lambda kind: None
torch.set_num_threads(1)
