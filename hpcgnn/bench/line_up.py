"""Who is measured on the host and on a device, and what is required of ours there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from hpcgnn.bench import ours
from hpcgnn.bench.ceilings import copy_call, gather_on, int8_sized
from hpcgnn.bench.contenders import DEVICE_RIVALS, RIVALS
from hpcgnn.bench.problem import Call, Contender, Problem

HOST_NAME = "cpu"  # as torch calls it


@dataclass(frozen=True)
class LineUp:
    """Of one kind of device.

    ours, rivals: who compares. beside: what is measured beside them, the ceilings among it. converted: and with other types
    (``--dtype``). variants: of ours, for the ablation.
    faster: by mode and family of rivals, how many times as fast as the fastest of the family ours has to be. names: of
    families, in a report. least_of_ceiling: the share of the row-gather ceiling that ours has to reach. least_of_copy: the
    share of copy bandwidth that quantization has to reach.
    """

    ours: tuple[Contender, ...]
    rivals: tuple[Contender, ...]
    beside: tuple[Contender, ...]
    converted: tuple[Contender, ...]
    variants: tuple[Contender, ...]
    faster: dict[str, dict[str, float]]
    names: dict[str, str]
    least_of_ceiling: float
    least_of_copy: float

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
    faster={"kernel": {"dgl": 2, "torch.mm": 3, "pyg": 8}, "user": {"dgl": 3, "torch.mm": 4, "pyg": 25}},
    names={"dgl": "DGL's libxsmm kernel", "torch.mm": 'torch.sparse.mm(A, x, "sum")', "pyg": "PyG's default"},
    least_of_ceiling=0.85,
    least_of_copy=0.6,
)
# The kernels are those that training takes on the device.
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
    faster={"kernel": {"torch.mm": 1.5, "pyg": 2}},
    names={"torch.mm": "torch.sparse.mm (cuSPARSE)", "pyg": "PyG's scatter"},
    least_of_ceiling=0.8,
    least_of_copy=0.7,
)


def line_up(device: str) -> LineUp:
    """Of a device as torch calls it, such as ``cuda:0``."""
    return HOST if device == HOST_NAME else DEVICE
