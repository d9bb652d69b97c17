"""The division of the sparse kernels' work into tasks, made once for each structure of a matrix.

A task is at most :data:`SEGMENT` entries of one row. A row with more entries, a hub, is divided into several tasks, here called
parts. Each part writes its sum to a row of scratch memory, and :func:`join` adds these in order. So no program waits for another
one, and the bits are the same in each run.
"""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.triton.launch import interprets, launch

SEGMENT = 1024
LANES = 64 if torch.version.hip else 32  # lanes of a warp
_WINDOW = 8192  # rows that a large GPU computes at about the same time
_MOST_COLUMNS = 1024  # columns of an interpreted program
_VECTOR_BYTES = 16  # most bytes that a lane reads at once


@dataclass(frozen=True)
class Tasks:
    """The entries of all rows, divided into tasks. Parts of hubs come first, row after row, because they take longest.

    The other tasks are whole rows, including empty ones. They are ordered by windows of consecutive rows, so that the rows that
    neighbouring tasks read are still in the caches, and within a window by descending length, so that the tasks of one program
    have about equal lengths.

    begin: (tasks,) int64 first entry.
    length: (tasks,) int32 number of entries, at most SEGMENT.
    row: (tasks,) int32 row of the result.
    parts: number of the first tasks that are parts of hubs; the sum of part p goes to row p of the scratch memory.
    hub_of: (parts,) int32 number of the hub to which a part belongs.
    hubs: (hubs,) int32 row of the result of each hub.
    hub_parts: (hubs + 1,) int32 first part of each hub, and one more at the end.
    """

    begin: Tensor
    length: Tensor
    row: Tensor
    parts: int
    hub_of: Tensor
    hubs: Tensor
    hub_parts: Tensor

    @property
    def count(self) -> int:
        """Number of tasks."""
        return self.row.numel()

    def scratch(self, width: int, like: Tensor) -> Tensor:
        """(parts, width) memory for the sums of parts, of the type and on the device of ``like``; its values are arbitrary."""
        return like.new_empty(self.parts, width)


def tasks_of(csr: Csr) -> Tasks:
    """The tasks of a matrix. The first call waits for the device, to read the number of parts."""
    return csr.kept("device tasks", lambda: _divided(csr))


def rows_of_entries(csr: Csr) -> Tensor:
    """(entries,) int32 row of each entry."""
    return csr.kept("entry rows", lambda: csr.entry_rows(torch.int32))


def _divided(csr: Csr) -> Tasks:
    lengths, begins = csr.row_lengths(), csr.indptr[:-1]
    rows = torch.arange(lengths.numel(), dtype=torch.int32, device=lengths.device)
    # Shorter rows come later within a window. Hubs have the smallest keys of all; their parts replace them.
    by_window = torch.div(rows, _WINDOW, rounding_mode="floor").long() * (SEGMENT + 1) + SEGMENT - lengths
    order = torch.argsort(torch.where(lengths > SEGMENT, -1, by_window), stable=True)
    num_hubs = int((lengths > SEGMENT).sum()) if csr.num_entries > SEGMENT else 0
    hubs, whole = order[:num_hubs], order[num_hubs:]
    parts_of = torch.div(lengths[hubs] + SEGMENT - 1, SEGMENT, rounding_mode="floor")
    hub_parts = torch.cat((parts_of.new_zeros(1), parts_of.cumsum(0)))
    hub_of = torch.repeat_interleave(torch.arange(num_hubs, device=lengths.device), parts_of)
    first = (torch.arange(hub_of.numel(), device=lengths.device) - hub_parts[hub_of]) * SEGMENT
    return Tasks(
        begin=torch.cat((begins[hubs][hub_of] + first, begins[whole])),
        length=torch.cat(((lengths[hubs][hub_of] - first).clamp(max=SEGMENT), lengths[whole])).int(),
        row=torch.cat((hubs[hub_of], whole)).int(),
        parts=hub_of.numel(),
        hub_of=hub_of.int(),
        hubs=hubs.int(),
        hub_parts=hub_parts.int(),
    )


def vector(row_values: int, value_bytes: int) -> int:
    """Number of values that a lane may read at once: it divides the ``row_values`` values of a row, and fills at most 16 bytes.

    Kernels take widths as numbers of such vectors. So they know that rows begin at a multiple of a vector, without being compiled
    for each width.
    """
    most = max(1, _VECTOR_BYTES // value_bytes)
    return min(most, row_values & -row_values) if row_values else most


def columns_of_a_program(width: int, value_bytes: int) -> int:
    """Number of columns, a power of two, that a warp reads when each of its lanes reads 16 bytes; fewer for a small ``width``."""
    most = _MOST_COLUMNS if interprets() else LANES * _VECTOR_BYTES // value_bytes
    return min(most, triton.next_power_of_2(max(1, width)))


def tasks_of_a_program(columns: int, value_bytes: int) -> int:
    """Number of rows, a power of two, of ``columns`` columns (a power of two) that fill the reads of a warp."""
    return 64 if interprets() else max(1, LANES * _VECTOR_BYTES // (columns * value_bytes))


def join(tasks: Tasks, partial: Tensor, accumulate: bool, out: Tensor, *, by_hub: bool = False) -> None:
    """Write each hub's rows of ``partial`` (parts, width), added in order, to its row of ``out`` (rows, width), or add them.

    The other rows of ``out`` stay as they are. by_hub: ``out`` is (hubs, width), with a row for each hub.
    """
    width = partial.shape[1]
    block = columns_of_a_program(width, 16)  # few columns for each program, because hubs are few
    launch(
        add_parts, tasks.hubs.numel() * triton.cdiv(width, block),
        partial, tasks.hubs, tasks.hub_parts, out, tasks.parts, width,
        BLOCK=block, ACCUMULATE=accumulate, BY_HUB=by_hub, num_warps=1,
    )  # fmt: skip


_PARTS_AT_ONCE = tl.constexpr(8)  # parts that each thread reads at once


@triton.jit(do_not_specialize=["parts"])
def add_parts(
    partial, hubs, hub_parts, out, parts, width, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr, BY_HUB: tl.constexpr
):
    """See :func:`join`. Without ``hub_parts``, all ``parts`` are those of one hub, the row 0 of ``out``."""
    tiles = tl.cdiv(width, BLOCK)
    hub = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    exists = columns < width
    if hub_parts is None:
        first, last, row = hub, parts, hub.to(tl.int64)
    else:
        first, last = tl.load(hub_parts + hub), tl.load(hub_parts + hub + 1)
        row = hub.to(tl.int64) if BY_HUB else tl.load(hubs + hub).to(tl.int64)
    to = out + row * width + columns
    source = partial + first.to(tl.int64) * width + columns
    total = tl.load(source, mask=exists, other=0.0)
    if ACCUMULATE:
        total = tl.load(to, mask=exists, other=0.0) + total
    end = tl.where(exists, last, 0)  # columns that do not exist have no parts
    for part in range(first + 1, last, _PARTS_AT_ONCE):
        for k in tl.static_range(_PARTS_AT_ONCE):
            source += width
            value = tl.load(source, mask=part + k < end, other=0.0)
            total = tl.where(part + k < end, total + value, total)
    tl.store(to, total, mask=exists)
