"""The row-gather ceiling of a GPU with a graph's own indices: a kernel that reads rows and writes next to nothing.

It is written in Triton, like the kernels that are measured beside it.
"""

# Triton reads annotations, and knows only its own types.
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from hpcgnn.devices import Device
from hpcgnn.kernels import Csr
from hpcgnn.kernels.triton.launch import launch
from hpcgnn.lab.bench import clock
from hpcgnn.lab.bench.problem import Call

# Numbers of rows that a program reads at a time, and of its warps; the ceiling is the best of them.
_SHAPES = ((4, 1), (8, 1), (16, 1), (8, 2), (16, 4), (32, 4), (64, 8))
_STEPS = 16  # steps of a program
_TRIES = 3


def gather_call(csr: Csr, x: torch.Tensor, device: Device) -> Call:
    """A call that reads the rows of ``x`` (columns, F) that the entries of ``csr`` name, in their order, and writes a sum for
    each program.

    The number of rows that are read at a time is the fastest of several, which are tried here.
    """

    def run(rows: int, warps: int) -> torch.Tensor:
        programs = triton.cdiv(csr.num_entries, rows * _STEPS)
        sums = torch.empty(programs, device=x.device)
        launch(
            _gather,
            programs,
            csr.indices,
            x,
            sums,
            csr.num_entries,
            x.shape[1],
            COLUMNS=triton.next_power_of_2(x.shape[1]),
            ROWS=rows,
            STEPS=_STEPS,
            num_warps=warps,
        )
        return sums

    def seconds(shape: tuple[int, int]) -> float:
        run(*shape)  # the first call compiles
        return min(clock.seconds(device, lambda: run(*shape)) for _ in range(_TRIES))

    best = min(_SHAPES, key=seconds)
    return lambda: run(*best)


@triton.jit
def _gather(indices, x, sums, entries, width, COLUMNS: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr):
    """Sum the rows that STEPS times ROWS entries of each program name."""
    first = tl.program_id(0).to(tl.int64) * (ROWS * STEPS)
    column = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(STEPS):
        entry = first + step * ROWS + tl.arange(0, ROWS)
        exists = entry < entries
        source = tl.load(indices + entry, mask=exists, other=0).to(tl.int64)
        total += tl.load(x + source[:, None] * width + column, mask=exists[:, None] & (column < width), other=0.0)
    tl.store(sums + tl.program_id(0), tl.sum(total))
