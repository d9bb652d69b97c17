"""See :mod:`hpcgnn.kernels.messages`."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.triton.launch import interprets, launch
from hpcgnn.kernels.triton.plain import decode_words, encode_words
from hpcgnn.kernels.triton.quantize import dequantize_rows, lanes, last_stride, quantize_rows
from hpcgnn.kernels.triton.spmm_rows import spmm_rows as gather_rows
from hpcgnn.kernels.triton.tasks import join, plan_of
from hpcgnn.kernels.triton.tiles import WARP, padded, rows_of_tile, warps
from hpcgnn.kernels.triton.words import Alignments

_ALIGNMENTS = Alignments()
_VALUES = 4 * WARP  # values of a tile: with fewer, programs would end faster than a GPU starts new ones
_SUMS = 32  # most sums of a thread in spmm_rows
_ENTRIES_AT_ONCE = 8  # entries whose bytes each thread of spmm_rows reads at once


def encode_rows(
    x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None
) -> Tensor:
    """Write row ``rows[i]`` of ``x`` (m, F) to its place in ``buffer``; return the number of rows not finite, () int64."""
    tile, num_warps = _tile(rows.numel(), x.shape[1], bits, max(8 // bits, 2) if bits in QUANTIZED_BITS else 1)
    nonfinite = _new_counts(rows, tile["ROWS"])
    constants = tile | {"ALIGNMENT": _ALIGNMENTS.of(payload_at, buffer), "num_warps": num_warps}
    count = rows.numel()
    if params_at is not None and bits in QUANTIZED_BITS:
        launch(
            quantize_rows, nonfinite.numel(), x, rows, key or 0, buffer, payload_at, params_at, nonfinite, count, **constants,
            CENTRES=key is None, PARAMS_ALIGNMENT=_ALIGNMENTS.of(params_at, buffer),
        )  # fmt: skip
    else:
        launch(encode_words, nonfinite.numel(), x, rows, buffer, payload_at, nonfinite, count, **constants)
    return nonfinite.sum()


def decode_rows(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor, rows: Tensor, accumulate: bool
) -> Tensor:
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F), or add it; return the number of rows not finite, ()
    int64."""
    tile, num_warps = _tile(rows.numel(), out.shape[1], bits, max(8 // bits, 1))
    nonfinite = _new_counts(rows, tile["ROWS"])
    constants = tile | {
        "ALIGNMENT": _ALIGNMENTS.of(payload_at, buffer),
        "ACCUMULATE": accumulate,
        "num_warps": num_warps,
    }
    count = rows.numel()
    if params_at is not None and bits in QUANTIZED_BITS:
        launch(
            dequantize_rows, nonfinite.numel(), buffer, payload_at, params_at, out, rows, nonfinite, count, **constants,
            PARAMS_ALIGNMENT=_ALIGNMENTS.of(params_at, buffer),
        )  # fmt: skip
    else:
        launch(decode_words, nonfinite.numel(), buffer, payload_at, out, rows, nonfinite, count, **constants)
    return nonfinite.sum()


def spmm_rows(csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor) -> None:
    """Add ``csr`` times the rows of ``buffer`` to ``out`` (R, F); the bits are those of :func:`decode_rows` and spmm."""
    if out.numel() == 0 or csr.num_entries == 0:
        return
    tasks, width, slots = plan_of(csr).tasks, out.shape[1], max(8 // bits, 1)
    count = lanes(width, bits, slots) if bits in QUANTIZED_BITS else width
    vector = min(_SUMS // slots, 128 // max(bits, 8))
    tile = padded(count) if interprets() else min(padded(count), 32 * vector)
    together = 64 if interprets() else 32 * vector // tile
    partial = tasks.scratch(width, out)
    launch(
        gather_rows, triton.cdiv(tasks.count, together) * triton.cdiv(count, tile),
        tasks.begin, tasks.length, tasks.row, csr.indices, csr.weight, buffer, payload_at, params_at, out, partial,
        tasks.count, tasks.parts,
        WIDTH=width, BITS=bits, SLOTS=slots, STRIDE=last_stride(width, bits), LANES=count,
        ALIGNMENT=_ALIGNMENTS.of(payload_at, buffer),
        PARAMS_ALIGNMENT=1 if params_at is None else _ALIGNMENTS.of(params_at, buffer),
        TASKS=together, TILE=tile, VECTOR=vector, AT_ONCE=2 if interprets() else _ENTRIES_AT_ONCE, num_warps=1,
    )  # fmt: skip
    join(tasks, partial, True, out)


def _tile(rows: int, width: int, bits: int, slots: int) -> tuple[dict[str, int], int]:
    """The constants of a program's tile for kernels of these ``bits``, and its number of warps. slots: columns of a lane."""
    count = lanes(width, bits, slots) if bits in QUANTIZED_BITS else width
    wide = padded(count)
    together = rows_of_tile(rows, wide * slots, _VALUES)
    tile = {"WIDTH": width, "ROWS": together, "PADDED": wide}
    if bits in QUANTIZED_BITS:
        tile |= {"BITS": bits, "SLOTS": slots, "STRIDE": last_stride(width, bits), "LANES": count}
    else:
        tile |= {"BYTES": bits // 8}
    return tile, warps(together * wide * slots)


def _new_counts(rows: Tensor, rows_of_a_program: int) -> Tensor:
    """(programs,) int32 memory for the number of rows of each program that are not finite."""
    return torch.empty(triton.cdiv(rows.numel(), rows_of_a_program), dtype=torch.int32, device=rows.device)
