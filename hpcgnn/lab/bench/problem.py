"""The problem that contenders solve, and the registration of a contender."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import Csr
from hpcgnn.lab.bench.names import DIRECTIONS

# The result of a call: a tuple if it computes several tensors.
Result = torch.Tensor | tuple[torch.Tensor, ...]
# A product that is ready to run, with everything prepared that can be made in advance. Each call returns a new result.
Call = Callable[[], Result]
Prepare = Callable[[Any, str], Call]


@dataclass(frozen=True)
class Unfinished:
    """A call whose result is compared with ours after ``finish``; only the call is timed."""

    call: Call
    finish: Callable[[Any], Result]

    def __call__(self) -> Result:
        """Make the timed call."""
        return self.call()


@dataclass(frozen=True)
class Counted:
    """A call with a known number of multiply-adds."""

    call: Call
    multiply_adds: float

    def __call__(self) -> Result:
        """Make the timed call."""
        return self.call()


class Problem:
    """A matrix and the features to multiply it with: ``x`` forward, the gradient ``dz`` backward.

    All tensors are on ``device``; numbers are drawn on the host, so that they are the same on every device.
    """

    def __init__(self, csr: Csr, width: int, seed: int = 0, device: Device = CPU) -> None:
        self.device = device
        self.csr = csr.to(device.torch_device)
        self.width = width
        self._seed = seed

    @cached_property
    def x(self) -> torch.Tensor:
        """(columns, width) float32 features."""
        return self._normal(self.csr.num_cols, 0)

    @cached_property
    def dz(self) -> torch.Tensor:
        """(rows, width) float32 gradient of the result."""
        return self._normal(self.csr.num_rows, 1)

    @cached_property
    def edge_index(self) -> torch.Tensor:
        """(2, entries) int64: source, destination; sorted by destination."""
        return torch.stack((self.csr.indices.long(), self.csr.entry_rows()))

    @cached_property
    def weight(self) -> torch.Tensor:
        """(entries,) float32 weights, for contenders that use them."""
        drawn = torch.rand(self.csr.num_entries, generator=torch.Generator().manual_seed(self._seed + 2)) + 0.5
        return drawn.to(self.device.torch_device)

    def operand(self, direction: str) -> tuple[Csr, torch.Tensor]:
        """The matrix and the rows that it gathers: itself and ``x``, or its transpose and ``dz``."""
        return (self.csr, self.x) if direction == "forward" else (self.csr.transpose(), self.dz)

    def exact(self, direction: str) -> tuple[torch.Tensor, ...] | None:
        """The exact results of a direction in float64; None if errors are not measured."""
        return None

    def _normal(self, rows: int, stream: int) -> torch.Tensor:
        drawn = torch.randn(rows, self.width, generator=torch.Generator().manual_seed(self._seed + stream))
        return drawn.to(self.device.torch_device)


@dataclass(frozen=True)
class Contender:
    """One way to solve a problem.

    prepare: ``prepare(problem, direction)`` returns the call to time. family: groups the ways of one library. modules: modules
    that must be importable. tolerance: largest difference of the result to ours, relative to its size; None if the result is
    another quantity. dtype: the ``--dtype`` with which it is measured. ceiling: name of the contender that is its upper limit.
    """

    name: str
    label: str
    family: str
    prepare: Prepare
    modules: tuple[str, ...] = ()
    directions: tuple[str, ...] = DIRECTIONS
    tolerance: float | None = 1e-4
    dtype: str = "float32"
    ceiling: str = ""

    def missing(self) -> str | None:
        """The reason why this machine cannot run it; None if it can."""
        for module in self.modules:
            try:
                importlib.import_module(module)
            except Exception as error:  # a library that was built for another torch may raise any error
                return f"{module}: {' '.join(str(error).split())[:120] or type(error).__name__}"
        return None


def with_autograd(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Problem, str], Call]:
    """A contender's ``prepare``: forward calls ``function(x)``; backward calls autograd's backward pass of it alone."""
    return lambda problem, direction: autograd_call(function, problem, direction)


def autograd_call(function: Callable[[torch.Tensor], torch.Tensor], problem: Problem, direction: str) -> Call:
    """See :func:`with_autograd`."""
    if direction == "forward":
        return lambda: function(problem.x)
    leaf = problem.x.detach().requires_grad_()
    out = function(leaf)
    return lambda: torch.autograd.grad(out, leaf, problem.dz, retain_graph=True)[0]
