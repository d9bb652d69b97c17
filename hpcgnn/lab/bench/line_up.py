"""The contenders on the host and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from hpcgnn.lab.bench import ours
from hpcgnn.lab.bench.ceilings import copy_call, gather_on, int8_sized
from hpcgnn.lab.bench.contenders import DEVICE_RIVALS, RIVALS
from hpcgnn.lab.bench.names import HOST_NAME
from hpcgnn.lab.bench.problem import Call, Contender, Problem


@dataclass(frozen=True)
class LineUp:
    """The contenders on one kind of device.

    ours, rivals: the contenders to compare. beside: others that are measured beside them, such as ceilings. converted: contenders
    with other types (``--dtype``). variants: variants of ours, for the ablation. apart: families of rivals that are also measured
    in processes of their own.
    """

    ours: tuple[Contender, ...]
    rivals: tuple[Contender, ...]
    beside: tuple[Contender, ...]
    converted: tuple[Contender, ...]
    variants: tuple[Contender, ...]
    apart: tuple[str, ...]

    @cached_property
    def by_name(self) -> dict[str, Contender]:
        """Every contender and variant."""
        everyone = (*self.ours, *self.rivals, *self.beside, *self.converted, *self.variants)
        return {contender.name: contender for contender in everyone}


def _gather(problem: Problem, direction: str) -> Call:
    return gather_on(problem.device, *problem.operand(direction))


def _gather_int8(problem: Problem, direction: str) -> Call:
    csr, x = problem.operand(direction)
    return gather_on(problem.device, csr, int8_sized(x))


def _select(problem: Problem, direction: str) -> Call:
    csr, x = problem.operand(direction)
    indices = csr.indices.long()
    return lambda: torch.index_select(x, 0, indices)


def _converted(backend: str, modules: tuple[str, ...] = ()) -> tuple[Contender, ...]:
    ceiling = Contender("ceiling.gather.int8", "row-gather ceiling, int8 rows", "ceiling", _gather_int8, modules,
                        tolerance=None, dtype="int8")  # fmt: skip
    return (*ours.converted(backend), ceiling)


HOST = LineUp(
    ours=(
        Contender("ours", "ours", "ours", ours.ours("native")),
        Contender("ours.jit", "ours, numba", "ours.jit", ours.ours("jit")),
    ),
    rivals=RIVALS,
    beside=ours.MEASURED_BESIDE,
    converted=_converted("native"),
    variants=ours.SWITCHED_OFF,
    apart=("dgl", "torch.mm", "pyg"),
)
# The kernels are those that training uses on the device.
DEVICE = LineUp(
    ours=(Contender("ours", "ours", "ours", ours.ours("auto")),),
    rivals=DEVICE_RIVALS,
    beside=(
        Contender("ceiling.gather", "row-gather ceiling", "ceiling", _gather, ("triton",), tolerance=None),
        Contender("ceiling.copy", "copy", "ceiling", lambda p, d: copy_call(p.operand(d)[1]), tolerance=None),
        Contender("ceiling.select", "row gather that is written (index_select)", "ceiling", _select, tolerance=None),
        *ours.narrow_and_weighted("auto"),
    ),
    converted=_converted("auto", ("triton",)),
    variants=(),
    apart=(),
)


def line_up(device: str) -> LineUp:
    """The contenders on a device, given by torch's name, such as ``cuda:0``."""
    return HOST if device == HOST_NAME else DEVICE
