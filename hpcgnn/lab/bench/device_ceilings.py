"""The row-gather ceiling of a GPU with a graph's own indices: a kernel in Triton that reads rows and writes next to nothing."""

# Triton reads annotations, and knows only its own types.
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from hpcgnn.devices import Device
from hpcgnn.kernels import Csr
from hpcgnn.kernels.triton.launch import launch
from hpcgnn.lab.bench.problem import Call, fastest

# Numbers of rows that a program reads at a time, and of its warps; the ceiling is the best of them.
_SHAPES = ((4, 1), (8, 1), (16, 1), (8, 2), (16, 4), (32, 4), (64, 8))
_STEPS = 16  # steps of a program


def gather_call(csr: Csr, x: torch.Tensor, device: Device) -> Call:
    """See :func:`hpcgnn.lab.bench.ceilings.gather_call`; there is a sum for each program."""
    entries, width = csr.num_entries, x.shape[1]

    def run(shape: tuple[int, int]) -> torch.Tensor:
        rows, warps = shape
        programs = triton.cdiv(entries, rows * _STEPS)
        sums, columns = torch.empty(programs, device=x.device), triton.next_power_of_2(width)
        operands = (csr.indices, x, sums, entries, width)
        launch(_gather, programs, *operands, COLUMNS=columns, ROWS=rows, STEPS=_STEPS, num_warps=warps)
        return sums

    for shape in _SHAPES:
        run(shape)  # the first call compiles
    best = fastest(_SHAPES, run, device, tries=3)
    return lambda: run(best)


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
