"""What a contender works on, and how it is registered."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import Csr

DIRECTIONS = ("forward", "backward")
# What a call gives: several results where it computes several things.
Result = torch.Tensor | tuple[torch.Tensor, ...]
# A product ready to run: everything that can be made in advance has been. Each call gives a fresh result.
Call = Callable[[], Result]
Prepare = Callable[[Any, str], Call]


@dataclass(frozen=True)
class Unfinished:
    """A call whose result is compared with ours after ``finish``, which is not timed."""

    call: Call
    finish: Callable[[Any], Result]

    def __call__(self) -> Result:
        """What is timed."""
        return self.call()


@dataclass(frozen=True)
class Counted:
    """A call that does so many multiply-adds."""

    call: Call
    multiply_adds: float

    def __call__(self) -> Result:
        """What is timed."""
        return self.call()


class Problem:
    """A matrix and the features to multiply it with: ``x`` forward, the gradient ``dz`` backward.

    All of it is on ``device``; numbers are drawn on the host, so that they are the same on every device.
    """

    def __init__(self, csr: Csr, width: int, seed: int = 0, device: Device = CPU) -> None:
        self.device = device
        self.csr = csr.to(device.where)
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
        """(entries,) float32 weights, for contenders that have them."""
        drawn = torch.rand(self.csr.num_entries, generator=torch.Generator().manual_seed(self._seed + 2)) + 0.5
        return drawn.to(self.device.where)

    def operand(self, direction: str) -> tuple[Csr, torch.Tensor]:
        """The matrix and the rows that it gathers: itself and ``x``, or its transpose and ``dz``."""
        return (self.csr, self.x) if direction == "forward" else (self.csr.transpose(), self.dz)

    def exact(self, direction: str) -> tuple[torch.Tensor, ...] | None:
        """What there is to compute, in float64; None where errors are not measured."""
        return None

    def _normal(self, rows: int, stream: int) -> torch.Tensor:
        drawn = torch.randn(rows, self.width, generator=torch.Generator().manual_seed(self._seed + stream))
        return drawn.to(self.device.where)


@dataclass(frozen=True)
class Contender:
    """One way to compute what is measured.

    ``prepare(problem, direction)`` gives the product to time. ``family`` groups ways of one library. ``modules`` must be
    importable. ``tolerance`` is how far the result may lie from ours, relative to its size; None where it is another quantity.
    ``dtype``: with which it is measured, where types are chosen. ``ceiling``: the name of what it could reach at most.
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
        """Why this machine cannot run it, or None."""
        for module in self.modules:
            try:
                importlib.import_module(module)
            except Exception as error:  # a library built for another torch fails in ways of its own
                return f"{module}: {' '.join(str(error).split())[:120] or type(error).__name__}"
        return None


def with_autograd(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Problem, str], Call]:
    """Forward is ``function(x)``; backward is what autograd does for it, of which only the backward part is timed."""
    return lambda problem, direction: autograd_call(function, problem, direction)


def autograd_call(function: Callable[[torch.Tensor], torch.Tensor], problem: Problem, direction: str) -> Call:
    """See :func:`with_autograd`."""
    if direction == "forward":
        return lambda: function(problem.x)
    leaf = problem.x.detach().requires_grad_()
    out = function(leaf)
    return lambda: torch.autograd.grad(out, leaf, problem.dz, retain_graph=True)[0]
