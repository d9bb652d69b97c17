"""The problem that contenders solve, the registration of a contender, and the timing of calls."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch

from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import Csr
from hpcgnn.lab.bench.names import DIRECTIONS

# The result of a call: a tuple if it computes several tensors.
Result = torch.Tensor | tuple[torch.Tensor, ...]
# A product that is ready to run, with everything prepared that can be made in advance. Each call returns a new result.
Call = Callable[[], Result]
Prepare = Callable[[Any, str], Call]
T = TypeVar("T")
# On a GPU, several calls are timed together, for at least this time, because one call may be shorter than its start.
_TOGETHER_SECONDS = 0.01
_MOST_TOGETHER = 100


@dataclass(frozen=True)
class Special:
    """A call that is timed alone: its result is compared with ours after ``finish``. multiply_adds: their number, if known."""

    call: Call
    finish: Callable[[Any], Result] | None = None
    multiply_adds: float | None = None

    def __call__(self) -> Result:
        """Make the timed call."""
        return self.call()


def normal(rows: int, columns: int, stream: int, device: Device) -> torch.Tensor:
    """(rows, columns) float32 on a device, drawn on the host, so that they are the same on every device."""
    drawn = torch.randn(rows, columns, generator=torch.Generator().manual_seed(stream))
    return drawn.to(device.torch_device)


class Problem:
    """A matrix and the features to multiply it with: ``x`` forward, the gradient ``dz`` backward. All tensors are on
    ``device``."""

    def __init__(self, csr: Csr, width: int, device: Device = CPU) -> None:
        self.device, self.csr, self.width = device, csr.to(device.torch_device), width

    @cached_property
    def x(self) -> torch.Tensor:
        """(columns, width) float32 features."""
        return normal(self.csr.num_cols, self.width, 0, self.device)

    @cached_property
    def dz(self) -> torch.Tensor:
        """(rows, width) float32 gradient of the result."""
        return normal(self.csr.num_rows, self.width, 1, self.device)

    @cached_property
    def edge_index(self) -> torch.Tensor:
        """(2, entries) int64: source, destination; sorted by destination."""
        return torch.stack((self.csr.indices.long(), self.csr.entry_rows()))

    @cached_property
    def weight(self) -> torch.Tensor:
        """(entries,) float32 weights, for contenders that use them."""
        drawn = torch.rand(self.csr.num_entries, generator=torch.Generator().manual_seed(2)) + 0.5
        return drawn.to(self.device.torch_device)

    def operand(self, direction: str) -> tuple[Csr, torch.Tensor]:
        """The matrix and the rows that it gathers: itself and ``x``, or its transpose and ``dz``."""
        return (self.csr, self.x) if direction == "forward" else (self.csr.transpose(), self.dz)

    def exact(self, direction: str) -> tuple[torch.Tensor, ...] | None:
        """The exact results of a direction in float64; None if errors are not measured."""
        return None


@dataclass(frozen=True)
class Contender:
    """One way to solve a problem.

    prepare: ``prepare(problem, direction)`` returns the call to time. modules: modules that must be importable. tolerance:
    largest difference of the result to ours, relative to its size; None if the result is another quantity. dtype: the
    ``--dtype`` with which it is measured. ceiling: name of the contender that is its upper limit. modes: modes of ``hpcgnn bench
    aggregate`` in which it is measured.
    """

    name: str
    label: str
    prepare: Prepare
    modules: tuple[str, ...] = ()
    directions: tuple[str, ...] = DIRECTIONS
    tolerance: float | None = 1e-4
    dtype: str = "float32"
    ceiling: str = ""
    modes: tuple[str, ...] = ("kernel",)

    def missing(self) -> str | None:
        """The reason why this machine cannot run it; None if it can."""
        for module in self.modules:
            try:
                importlib.import_module(module)
            except Exception as error:  # a library that was built for another torch may raise any error
                return f"{module}: {' '.join(str(error).split())[:120] or type(error).__name__}"
        return None


def autograd_call(function: Callable[[torch.Tensor], torch.Tensor], problem: Problem, direction: str) -> Call:
    """The call of a contender: forward ``function(x)``; backward autograd's backward pass of it alone."""
    if direction == "forward":
        return lambda: function(problem.x)
    leaf = problem.x.detach().requires_grad_()
    out = function(leaf)
    return lambda: torch.autograd.grad(out, leaf, problem.dz, retain_graph=True)[0]


def seconds_of(device: Device, call: Callable[[], object], calls: int = 1) -> float:
    """Seconds of one call, as the mean of ``calls`` consecutive ones, between two of the device's marks, so that the host's time
    to start them does not count. Freeing the last result is not timed."""
    started = device.mark()
    for _ in range(calls):
        result = call()
    ended = device.mark()
    del result
    return device.seconds_between(started, ended) / calls


def calls_together(device: Device, one: float) -> int:
    """Number of calls of ``one`` seconds each to time together; 1 on the host, where a call has ended when it returns."""
    if device.torch_device.type == "cpu":
        return 1
    return min(max(math.ceil(_TOGETHER_SECONDS / max(one, 1e-9)), 1), _MOST_TOGETHER)


def fastest(choices: Iterable[T], run: Callable[[T], object], device: Device, tries: int) -> T:
    """The choice with which ``run`` is fastest, in the best of several tries."""
    return min(choices, key=lambda choice: min(seconds_of(device, lambda: run(choice)) for _ in range(tries)))
