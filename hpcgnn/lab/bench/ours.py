"""Our aggregation and its variants: with weights, with narrow storage, and with each optimisation switched off in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from hpcgnn.kernels import Csr, spmm
from hpcgnn.kernels.buffers import BufferPool
from hpcgnn.kernels.int8 import quantize_rows
from hpcgnn.kernels.spmm import DEFAULT_TUNING, NativeSpmm, Tuning
from hpcgnn.lab.bench.ceilings import copy_call, gather_call
from hpcgnn.lab.bench.problem import Call, Contender, Prepare, Problem, autograd_call

KEY = 1  # key of the rounding noise of 8-bit integers, as in training
# Values that switch a field off, where this is not 0 or the other boolean.
_OFF = {"tile_bytes": 64, "tasks_a_thread": 1}


class Aggregate(torch.autograd.Function):
    """``csr @ x`` whose backward is the product with the kept transpose, as in training."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, csr: Csr, weight: torch.Tensor | None, backend: str) -> torch.Tensor:
        """The product, (rows, width) in a new tensor."""
        ctx.csr, ctx.backend = (csr if weight is None else csr.with_weight(weight)).transpose(), backend
        return spmm(csr, x, weight, backend=backend)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The gradient of ``x``."""
        return spmm(ctx.csr, grads[0], backend=ctx.backend), None, None, None


def ours(backend: str) -> Prepare:
    """Our aggregation as training runs it, with the kernels of ``backend``."""

    def prepare(problem: Problem, direction: str) -> Call:
        problem.csr.transpose()
        return autograd_call(lambda x: Aggregate.apply(x, problem.csr, None, backend), problem, direction)

    return prepare


def narrow_and_weighted(backend: str) -> tuple[Contender, ...]:
    """Ours with weights, and with features stored in fewer bytes, with the kernels of ``backend``."""

    def weighted(problem: Problem, direction: str) -> Call:
        weight = problem.weight
        if direction == "forward":
            return lambda: spmm(problem.csr, problem.x, weight, backend=backend)
        return autograd_call(lambda x: Aggregate.apply(x, problem.csr, weight, backend), problem, direction)

    def bfloat16(problem: Problem, direction: str) -> Call:
        csr, x = problem.operand(direction)
        narrow = x.bfloat16()
        return lambda: spmm(csr, narrow, backend=backend)

    def int8(problem: Problem, direction: str) -> Call:
        # A row's largest magnitude becomes 127: spmm could gather such rows where accuracy allows it.
        csr, x = problem.operand(direction)
        scale = x.abs().amax(1).clamp(min=1e-30) / 127
        narrow = (x / scale[:, None]).round().to(torch.int8)
        return lambda: spmm(csr, narrow, scale=scale, backend=backend)

    return (
        Contender("ours.weighted", "ours, weighted", "ours.weighted", weighted, tolerance=None),
        Contender("ours.bf16", "ours, bfloat16 storage", "ours.bf16", bfloat16, tolerance=2e-2),
        Contender("ours.int8", "ours, int8 storage", "ours.int8", int8, tolerance=5e-2),
    )


def converted(backend: str) -> tuple[Contender, ...]:
    """The contenders of ``--dtype int8``; their times include all conversions."""

    def int8(problem: Problem, direction: str) -> Call:
        csr, x = problem.operand(direction)

        def call() -> torch.Tensor:
            rows = quantize_rows(x, key=KEY)
            return spmm(csr, rows.codes, backend=backend, scale=rows.scale)

        return call

    def stored(problem: Problem, direction: str) -> Call:
        """Keeps x in 8 bits from forward to backward, and adds in float32."""
        csr, x = problem.operand(direction)
        kept = [quantize_rows(problem.x, key=KEY)]

        def forward() -> torch.Tensor:
            kept[0] = quantize_rows(x, key=KEY)
            return spmm(csr, x, backend=backend)

        def backward() -> torch.Tensor:
            kept[0].float()
            return spmm(csr, x, backend=backend)

        return forward if direction == "forward" else backward

    return (
        Contender("ours.int8.counted", "ours int8, quantization counted", "ours.int8.counted", int8, tolerance=5e-2,
                  dtype="int8", ceiling="ceiling.gather.int8"),
        Contender("exact", "EXACT-like storage", "exact", stored, dtype="int8", ceiling="ceiling.gather"),
    )  # fmt: skip


def _huge_pages(problem: Problem, direction: str) -> Call:
    csr, x = problem.operand(direction)
    x = _in_huge_pages(x)
    return lambda: spmm(csr, x, backend="native")


def _huge_page_gather(problem: Problem, direction: str) -> Call:
    csr, x = problem.operand(direction)
    return gather_call(csr, _in_huge_pages(x))


def _in_huge_pages(x: torch.Tensor) -> torch.Tensor:
    return BufferPool().empty(*x.shape).copy_(x)


def _tuned(tuning: Tuning) -> Callable[[Problem, str], Call]:
    def prepare(problem: Problem, direction: str) -> Call:
        csr, x = problem.operand(direction)

        def call() -> torch.Tensor:
            out = torch.empty(csr.num_rows, x.shape[1])
            NativeSpmm().spmm(csr, None, x, None, False, out, tuning)
            return out

        return call

    return prepare


def tuning_variants() -> list[Contender]:
    """Ours with each field of :class:`Tuning` switched off, or on if it is off by default."""
    found = []
    for field in dataclasses.fields(Tuning):
        usual = getattr(DEFAULT_TUNING, field.name)
        other = not usual if isinstance(usual, bool) else _OFF.get(field.name, 0)
        tuning = Tuning(**(dataclasses.asdict(DEFAULT_TUNING) | {field.name: other}))
        label = f"{field.name} {usual} → {other}".replace("True", "on").replace("False", "off")
        found.append(Contender(f"ours.tuning.{field.name}", label, "ours.tuning", _tuned(tuning)))
    return found


MEASURED_BESIDE = (
    Contender(
        "ceiling.gather", "row-gather ceiling", "ceiling", lambda p, d: gather_call(*p.operand(d)), tolerance=None
    ),
    Contender("ceiling.copy", "copy", "ceiling", lambda p, d: copy_call(p.operand(d)[1]), tolerance=None),
    *narrow_and_weighted("native"),
)
SWITCHED_OFF = (
    Contender("ceiling.gather.huge", "row-gather ceiling, features in huge pages", "ceiling", _huge_page_gather,
              tolerance=None),
    Contender("ours.huge", "features in huge pages too", "ours.huge", _huge_pages),
    *tuning_variants(),
)  # fmt: skip
