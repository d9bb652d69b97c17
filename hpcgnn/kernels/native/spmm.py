"""See :mod:`hpcgnn.kernels.spmm`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch

from hpcgnn.kernels import buffers
from hpcgnn.kernels.csr import Csr, HotColumns
from hpcgnn.kernels.native.library import function, segment_entries, struct, threads


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

    @cached_property
    def arguments(self) -> tuple[ctypes.Structure, ctypes.Structure]:
        """This as the kernels take it, for results that are stored as usual and for those that go past the caches."""
        plain, streaming = (
            struct("hpcgnn_tuning")(
                prefetch_bytes=self.prefetch_bytes,
                tile_bytes=self.tile_bytes,
                tasks_a_thread=self.tasks_a_thread,
                streaming=streaming,
                split_rows=self.split_rows,
            )
            for streaming in (False, True)
        )
        return plain, streaming


DEFAULT_TUNING = Tuning()
# A copy pays where a row is used this often, and where x does not fit into the caches anyway.
_LEAST_USES = 16
_LEAST_BYTES_TO_PACK = 32 << 20
_arguments: WeakKeyDictionary[Csr, ctypes.Structure] = WeakKeyDictionary()  # a cache; a matrix does not change


@dataclass(frozen=True)
class Packed:
    """Rows of one x that were copied for one matrix, and which they are."""

    hot: HotColumns
    rows: torch.Tensor


def spmm(
    csr: Csr,
    weight: torch.Tensor | None,
    x: torch.Tensor,
    scale: torch.Tensor | None,
    accumulate: bool,
    out: torch.Tensor,
    tuning: Tuning = DEFAULT_TUNING,
) -> None:
    """Write ``csr @ x`` to ``out``, or add it."""
    packed = pack(csr, weight, x, tuning)
    if scale is not None and packed is not None:  # as the kernel wants it: the p-th hot row's at ~p
        columns = packed.hot.columns
        scale = torch.cat((scale[columns].flip(0), scale))[columns.numel() :]
    out_bytes = out.numel() * out.element_size()
    streaming = 0 < tuning.streaming_bytes <= out_bytes and not accumulate
    function("spmm", x.dtype)(
        csr=csr_argument(csr, None if packed is None else packed.hot),
        weight=weight,
        heads=_heads(weight),
        x=x,
        packed=None if packed is None else packed.rows,
        scale=scale,
        width=x.shape[1],
        out=out,
        accumulate=accumulate,
        tuning=tuning.arguments[streaming],
        threads=threads(),
    )


def pack(csr: Csr, weight: torch.Tensor | None, x: torch.Tensor, tuning: Tuning = DEFAULT_TUNING) -> Packed | None:
    """The rows of ``x`` that are worth copying before the product, if there are any."""
    size = x.numel() * x.element_size()
    if not tuning.hot_bytes or _heads(weight) > 1 or size < _LEAST_BYTES_TO_PACK:
        return None
    most = tuning.hot_bytes // min(tuning.tile_bytes, x.shape[1] * x.element_size())
    # Ones can be added in any order: those of rows used alike, one after the other, meet in the caches. That order belongs
    # to the matrix, so it is the same for any number of threads.
    hot = csr.hot_columns(most, _LEAST_USES, grouped=weight is None)
    if hot is None:
        return None
    job = {"width": x.shape[1], "tuning": tuning.arguments[False]}
    rows = buffers.empty(hot.columns.numel(), function("spmm_packed_columns", x.dtype)(**job), x.dtype)
    function("spmm_pack", x.dtype)(
        **job, hot_rows=hot.columns, num_hot=hot.columns.numel(), x=x, packed=rows, threads=threads()
    )
    return Packed(hot, rows)


def _heads(weight: torch.Tensor | None) -> int:
    return 1 if weight is None or weight.dim() == 1 else weight.shape[1]


def csr_argument(csr: Csr, hot: HotColumns | None = None) -> ctypes.Structure:
    """``csr`` as the kernels take it; valid while ``csr`` and ``hot`` live."""
    known = _arguments.get(csr) if hot is None else None
    if known is not None:
        return known
    heavy = csr.heavy_rows(segment_entries())  # kept by csr
    argument = struct("hpcgnn_csr")(
        rows=csr.num_rows,
        indptr=csr.indptr,
        indices=csr.indices,
        heavy=heavy,
        num_heavy=heavy.numel(),
        hot_indices=None if hot is None else hot.indices,
        num_hot=0 if hot is None else hot.columns.numel(),
    )
    if hot is None:
        _arguments[csr] = argument
    return argument
