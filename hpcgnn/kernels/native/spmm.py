"""See :mod:`hpcgnn.kernels.spmm`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hpcgnn.kernels import buffers
from hpcgnn.kernels.csr import Csr, HotColumns
from hpcgnn.kernels.native.library import bound, function, segment_entries, struct, threads


@dataclass(frozen=True)
class Tuning:
    """Parameters of the kernel's schedule. ``hpcgnn bench aggregate --ablation`` measures each.

    Only ``hot_bytes`` affects results, in the last bits of unweighted sums of a large ``x``: so it is a constant, and not taken
    from the machine.

    prefetch_bytes: bytes of coming rows that are being fetched into the second-level cache; 0 prefetches none.
    tile_bytes: largest size of a tile of columns; the registers limit it (to 512 bytes in AVX-512).
    tasks_a_thread: rows are cut into about this many tasks of equal work for each thread; 1 gives each thread one static share.
    streaming_bytes: results of at least this size are stored past the caches; 0 never does so.
    split_rows: whether threads share rows that have very many entries.
    hot_bytes: rows of ``x`` that many entries name are copied, so that each tile of them is contiguous and stays in a part of the
        third-level cache: at most this many bytes of each tile. 0 copies none.
    """

    prefetch_bytes: int = 12 << 10
    tile_bytes: int = 512
    tasks_a_thread: int = 64
    streaming_bytes: int = 16 << 20
    split_rows: bool = True
    hot_bytes: int = 8 << 20

    @cached_property
    def arguments(self) -> tuple[ctypes.Structure, ctypes.Structure]:
        """The tuning as the kernels take it: for results that are stored as usual, and for those stored past the caches."""
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
# Copying a row pays off if it is used at least this often, and x is too large for the caches.
_LEAST_USES = 16
_LEAST_BYTES_TO_PACK = 32 << 20
_arguments: WeakKeyDictionary[Csr, ctypes.Structure] = WeakKeyDictionary()  # a cache: matrices do not change


@dataclass(frozen=True)
class Packed:
    """Copies of the rows of ``x`` that many entries of a matrix name. hot: their numbers."""

    hot: HotColumns
    rows: Tensor


def spmm(
    csr: Csr,
    weight: Tensor | None,
    x: Tensor,
    scale: Tensor | None,
    accumulate: bool,
    out: Tensor,
    tuning: Tuning = DEFAULT_TUNING,
) -> None:
    """Write ``csr @ x`` to ``out``, or add it."""
    packed = pack(csr, weight, x, tuning)
    if scale is not None and packed is not None:  # the kernel reads the scale of the p-th hot row at ~p
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


def bind(csr: Csr, dtype: torch.dtype, width: int) -> Callable[..., None]:
    """:func:`spmm` for ``x`` of one type and width, with ``csr.weight``; the kernel's other arguments are made once."""
    weight, heads = csr.weight, _heads(csr.weight)
    if _may_pack(weight, csr.num_cols * width * dtype.itemsize, DEFAULT_TUNING):
        return spmm
    kernel = bound("spmm", dtype, csr=csr_argument(csr), weight=weight, heads=heads, packed=None, width=width)
    plain, streaming = DEFAULT_TUNING.arguments
    out_bytes = csr.num_rows * width * (8 if dtype is torch.float64 else 4)
    writing = streaming if out_bytes >= DEFAULT_TUNING.streaming_bytes else plain

    def multiply(
        _csr: Csr, _weight: Tensor | None, x: Tensor, scale: Tensor | None, accumulate: bool, out: Tensor
    ) -> None:
        kernel(
            x=x.data_ptr(),
            scale=None if scale is None else scale.data_ptr(),
            out=out.data_ptr(),
            accumulate=accumulate,
            tuning=plain if accumulate else writing,
            threads=torch.get_num_threads(),
        )

    return multiply


def _may_pack(weight: Tensor | None, num_bytes: int, tuning: Tuning) -> bool:
    return bool(tuning.hot_bytes) and _heads(weight) == 1 and num_bytes >= _LEAST_BYTES_TO_PACK


def pack(csr: Csr, weight: Tensor | None, x: Tensor, tuning: Tuning = DEFAULT_TUNING) -> Packed | None:
    """The rows of ``x`` that are worth copying before the product, if there are any."""
    if not _may_pack(weight, x.numel() * x.element_size(), tuning):
        return None
    most = tuning.hot_bytes // min(tuning.tile_bytes, x.shape[1] * x.element_size())
    # Without weights, a row's entries can be added in any order: grouped by hot column, entries find their rows of x in the
    # caches. The order belongs to the matrix, so it is the same for any number of threads.
    hot = csr.hot_columns(most, _LEAST_USES, grouped=weight is None)
    if hot is None:
        return None
    job = {"width": x.shape[1], "tuning": tuning.arguments[False]}
    rows = buffers.empty(hot.columns.numel(), function("spmm_packed_columns", x.dtype)(**job), x.dtype)
    function("spmm_pack", x.dtype)(
        **job, hot_rows=hot.columns, num_hot=hot.columns.numel(), x=x, packed=rows, threads=threads()
    )
    return Packed(hot, rows)


def _heads(weight: Tensor | None) -> int:
    return 1 if weight is None or weight.dim() == 1 else weight.shape[1]


def csr_argument(csr: Csr, hot: HotColumns | None = None) -> ctypes.Structure:
    """The kernels' structure for ``csr``; valid while ``csr`` and ``hot`` live."""
    known = _arguments.get(csr) if hot is None else None
    if known is not None:
        return known
    heavy = csr.heavy_rows(segment_entries())  # csr keeps this tensor alive
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
