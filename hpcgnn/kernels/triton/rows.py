"""See :mod:`hpcgnn.kernels.rows`. torch sorts the index, because its libraries sort faster than a kernel here would."""

# mypy: disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hpcgnn.kernels.triton.launch import interprets, launch
from hpcgnn.kernels.triton.tasks import vector

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_MOST_COLUMNS = 512  # words of a tile's row, 2 KiB
_WORDS_OF_A_PROGRAM = 2048  # each of 128 lanes makes 4 reads of 16 bytes


def gather_rows(x: Tensor, index: Tensor, out: Tensor) -> None:
    if out.numel() == 0:
        return
    if x.numel() == 0:  # the index names no row
        out.zero_()
        return
    common = x.shape[1] | x.data_ptr() | out.data_ptr() | 4
    word = common & -common  # the bytes of the largest word that divides the rows and to which both tensors are aligned
    words = x.shape[1] // word
    units = vector(words, word)
    columns = min(_MOST_COLUMNS, triton.next_power_of_2(words))
    rows = max(1, (_WORDS_OF_A_PROGRAM << 4 if interprets() else _WORDS_OF_A_PROGRAM) // columns)
    launch(
        _gather, triton.cdiv(index.numel(), rows) * triton.cdiv(words, columns),
        x.view(_WORDS[word]), index, out.view(_WORDS[word]), index.numel(), words // units,
        VECTOR=units, ROWS=rows, COLUMNS=columns,
    )  # fmt: skip


def cluster(index: Tensor, indptr: Tensor, order: Tensor) -> None:
    ordered, positions = torch.sort(index.int(), stable=True)  # row numbers fit in int32, and sort faster
    rows = torch.arange(indptr.numel(), dtype=torch.int32, device=index.device)
    torch.searchsorted(ordered, rows, out=indptr)  # bincount would wait for the device
    order.copy_(positions)


@triton.jit(do_not_specialize=["count"])
def _gather(x, index, out, count, vectors, VECTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    words = vectors * VECTOR
    tiles = tl.cdiv(words, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    source = tl.load(index + row, mask=row < count, other=-1).to(tl.int64)
    value = tl.load(x + source * vectors * VECTOR + column, mask=(source >= 0) & (column < words), other=0)
    tl.store(out + row * vectors * VECTOR + column, value, mask=(row < count) & (column < words))
