"""See :mod:`hpcgnn.kernels.spmm`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.native.library import function, load, pointer, threads

_REDUCE = {"sum": 0, "mean": 1, "max": 2}


@dataclass(frozen=True)
class Tuning:
    """How the kernel goes about it; results do not depend on it. ``hpcgnn bench aggregate --ablation`` measures each.

    prefetch: how many entries ahead rows are fetched into the caches; 0 is not at all.
    tile_bytes: columns are taken in tiles of at most this size; the registers are the limit (512 bytes or 1 KiB).
    tasks_a_thread: rows are cut into about this many tasks of equal work for each thread; 1 is a static share.
    streaming: results are stored past the caches.
    split_rows: threads share rows that have very many entries.
    """

    prefetch: int = 12
    tile_bytes: int = 1024
    tasks_a_thread: int = 64
    streaming: bool = False
    split_rows: bool = True


DEFAULT_TUNING = Tuning()


class _Tuning(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in Tuning.__dataclass_fields__]


class _Csr(ctypes.Structure):
    _fields_ = [
        ("first_row", ctypes.c_int64),
        ("last_row", ctypes.c_int64),
        ("indptr", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("heavy", ctypes.c_void_p),
        ("num_heavy", ctypes.c_int64),
    ]


def csr_argument(csr: Csr, rows: tuple[int, int]):  # type: ignore[no-untyped-def]  # ctypes has no public type for byref
    """Rows ``[rows[0], rows[1])`` of ``csr`` as the kernels take them; valid while ``csr`` lives."""
    heavy = csr.heavy_rows(segment_entries())
    return ctypes.byref(_Csr(*rows, csr.indptr.data_ptr(), csr.indices.data_ptr(), heavy.data_ptr(), heavy.numel()))


def segment_entries() -> int:
    """Rows are summed in segments of this many entries."""
    return load().hpcgnn_segment_entries()  # type: ignore[union-attr]


def spmm(
    csr: Csr,
    rows: tuple[int, int],
    weight: torch.Tensor | None,
    x: torch.Tensor,
    scale: torch.Tensor | None,
    reduce: str,
    accumulate: bool,
    out: torch.Tensor,
    tuning: Tuning = DEFAULT_TUNING,
) -> None:
    """Write rows ``[rows[0], rows[1])`` of ``csr @ x`` to the same rows of ``out``, or add them."""
    function("spmm", x.dtype)(
        csr_argument(csr, rows),
        pointer(weight),
        ctypes.c_int64(1 if weight is None or weight.dim() == 1 else weight.shape[1]),
        pointer(x),
        pointer(scale),
        ctypes.c_int64(x.shape[1]),
        pointer(out),
        ctypes.c_int(_REDUCE[reduce]),
        ctypes.c_int(accumulate),
        ctypes.byref(_Tuning(*(int(getattr(tuning, name)) for name in Tuning.__dataclass_fields__))),
        threads(),
    )
