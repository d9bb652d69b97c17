"""See :mod:`hpcgnn.kernels.spmm`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from hpcgnn.kernels import buffers
from hpcgnn.kernels.csr import Csr, HotColumns
from hpcgnn.kernels.native.library import function, load, pointer, threads

_REDUCE = {"sum": 0, "mean": 1, "max": 2}


@dataclass(frozen=True)
class Tuning:
    """How the kernel goes about it. ``hpcgnn bench aggregate --ablation`` measures each field.

    Results depend on ``hot_bytes`` alone, in the last bits of unweighted sums of large ``x``: so it is a constant, and not
    taken from the machine.

    prefetch_bytes: how much of the rows to come is being fetched into the second-level cache; 0 is nothing.
    tile_bytes: columns are taken in tiles of at most this size; the registers are the limit (512 bytes in AVX-512).
    tasks_a_thread: rows are cut into about this many tasks of equal work for each thread; 1 is a static share.
    streaming_bytes: results of at least this size are stored past the caches; 0 is never.
    split_rows: threads share rows that have very many entries.
    hot_bytes: rows of x that many entries name are copied, so that a tile of them is dense; this much of each tile, in a
        part of the third-level cache. 0 is none.
    """

    prefetch_bytes: int = 12 << 10
    tile_bytes: int = 512
    tasks_a_thread: int = 64
    streaming_bytes: int = 16 << 20
    split_rows: bool = True
    hot_bytes: int = 8 << 20


DEFAULT_TUNING = Tuning()
# A copy pays where a row is used this often, and where x does not fit into the caches anyway.
_LEAST_USES = 16
_LEAST_BYTES_TO_PACK = 32 << 20


class _Tuning(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32) for name in ("prefetch_bytes", "tile_bytes", "tasks_a_thread", "streaming", "split_rows")
    ]


class _Csr(ctypes.Structure):
    _fields_ = [
        ("first_row", ctypes.c_int64),
        ("last_row", ctypes.c_int64),
        ("indptr", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("heavy", ctypes.c_void_p),
        ("num_heavy", ctypes.c_int64),
        ("hot_indices", ctypes.c_void_p),
        ("num_hot", ctypes.c_int64),
    ]


@dataclass(frozen=True)
class Packed:
    """Rows of one x that were copied for one matrix, and which they are."""

    hot: HotColumns
    rows: torch.Tensor


def prepare(
    csr: Csr, weight: torch.Tensor | None, x: torch.Tensor, reduce: str, tuning: Tuning = DEFAULT_TUNING
) -> Packed | None:
    """What :func:`spmm` wants to know of ``x`` before it starts, to be made once for all row ranges; None is nothing."""
    heads = 1 if weight is None or weight.dim() == 1 else weight.shape[1]
    size = x.numel() * x.element_size()
    if not tuning.hot_bytes or reduce == "max" or heads > 1 or size < _LEAST_BYTES_TO_PACK:
        return None
    most = tuning.hot_bytes // min(tuning.tile_bytes, x.shape[1] * x.element_size())
    # Ones can be added in any order: those of rows used alike, one after the other, meet in the caches. That order belongs
    # to the matrix, so it is the same for any number of threads.
    hot = csr.hot_columns(most, _LEAST_USES, grouped=weight is None)
    if hot is None:
        return None
    columns = ctypes.c_int64()
    function("spmm_packed_columns", x.dtype)(ctypes.c_int64(x.shape[1]), tuning_argument(tuning), ctypes.byref(columns))
    rows = buffers.empty(hot.columns.numel(), columns.value, x.dtype)
    function("spmm_pack", x.dtype)(
        pointer(hot.columns),
        ctypes.c_int64(hot.columns.numel()),
        pointer(x),
        ctypes.c_int64(x.shape[1]),
        tuning_argument(tuning),
        pointer(rows),
        threads(),
    )
    return Packed(hot, rows)


def spmm(
    csr: Csr,
    rows: tuple[int, int],
    weight: torch.Tensor | None,
    x: torch.Tensor,
    scale: torch.Tensor | None,
    reduce: str,
    accumulate: bool,
    out: torch.Tensor,
    prepared: Packed | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> None:
    """Write rows ``[rows[0], rows[1])`` of ``csr @ x`` to the same rows of ``out``, or add them."""
    if scale is not None and prepared is not None:  # as the kernel wants it: the p-th hot row's at ~p
        columns = prepared.hot.columns
        scale = torch.cat((scale[columns].flip(0), scale))[columns.numel() :]
    out_bytes = out.numel() * out.element_size()
    streaming = 0 < tuning.streaming_bytes <= out_bytes and not accumulate
    function("spmm", x.dtype)(
        csr_argument(csr, rows, None if prepared is None else prepared.hot),
        pointer(weight),
        ctypes.c_int64(1 if weight is None or weight.dim() == 1 else weight.shape[1]),
        pointer(x),
        pointer(None if prepared is None else prepared.rows),
        pointer(scale),
        ctypes.c_int64(x.shape[1]),
        pointer(out),
        ctypes.c_int(_REDUCE[reduce]),
        ctypes.c_int(accumulate),
        tuning_argument(tuning, streaming),
        threads(),
    )


def csr_argument(csr: Csr, rows: tuple[int, int], hot: HotColumns | None = None):  # type: ignore[no-untyped-def]
    """Rows ``[rows[0], rows[1])`` of ``csr`` as the kernels take them; valid while ``csr`` lives."""
    heavy = csr.heavy_rows(segment_entries())
    packed = (None, 0) if hot is None else (hot.indices.data_ptr(), hot.columns.numel())
    return ctypes.byref(
        _Csr(*rows, csr.indptr.data_ptr(), csr.indices.data_ptr(), heavy.data_ptr(), heavy.numel(), *packed)
    )


def segment_entries() -> int:
    """Rows are summed in segments of this many entries."""
    return load().hpcgnn_segment_entries()  # type: ignore[union-attr]


def tuning_argument(tuning: Tuning, streaming: bool = False):  # type: ignore[no-untyped-def]  # see csr_argument
    """``tuning`` as the kernels take it."""
    return ctypes.byref(
        _Tuning(tuning.prefetch_bytes, tuning.tile_bytes, tuning.tasks_a_thread, streaming, tuning.split_rows)
    )
