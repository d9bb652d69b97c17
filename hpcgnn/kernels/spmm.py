"""The product of a sparse and a dense matrix, and sums of rows by an index made from it (SuperGCN §3.2).

These functions are not differentiable; :mod:`hpcgnn.kernels.autograd` wraps them.
They raise ValueError, which names the argument, where one is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_choice
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import Operator, choose, misfit
from hpcgnn.kernels.csr import Csr, HotColumns, as_columns
from hpcgnn.kernels.library import Struct, bound, function, native, segment_entries, struct
from hpcgnn.kernels.rows import cluster
from hpcgnn.kernels.sizes import scaled

_REDUCTIONS = ("sum", "mean")
# The type in which features are added, by the type in which they are stored.
_VALUE_TYPE = {torch.float64: torch.float64} | dict.fromkeys((torch.float32, torch.bfloat16, torch.int8), torch.float32)


class SpmmKernels(Protocol):
    """A module may also have ``bind(csr, dtype, width)``, which returns a faster form of its ``spmm`` with the same arguments,
    for this matrix with ``csr.weight``, and ``x`` of one type and width. It must not refer to ``csr``, which keeps it. And it
    may have ``by_blocks(csr, x, scale)``, see :func:`_by_blocks`."""

    def spmm(
        self, csr: Csr, weight: Tensor | None, x: Tensor, scale: Tensor | None, accumulate: bool, out: Tensor
    ) -> None:
        """Write ``csr @ x`` to ``out`` (R, F), or add it.

        x: (C, F) float32, float64, bfloat16 or int8. out: float32, or float64 for float64 ``x``. weight: (E,), or (E, H)
        for H equal groups of columns, of the type of ``out``; ``csr.weight`` is ignored. scale: (C,) float32, for int8 ``x``.
        """
        source = csr.indices.long()
        values = x[source].to(out.dtype)
        if scale is not None:
            values = values * scale[source, None]
        if weight is not None:
            weight = as_columns(weight)
            values = values * weight.repeat_interleave(values.shape[1] // weight.shape[1], dim=1)
        result = torch.zeros_like(out).index_add_(0, csr.entry_rows(), values)
        if accumulate:
            result += out
        out.copy_(result)


# -- native ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """Parameters of the native kernel's schedule. ``hpcgnn bench aggregate --ablation`` measures each.

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
    def arguments(self) -> tuple[Struct, Struct]:
        """The tuning as the kernels take it: for results that are stored as usual, and for those stored past the caches."""
        names = "prefetch_bytes", "tile_bytes", "tasks_a_thread", "split_rows"
        fields = {name: getattr(self, name) for name in names}
        return struct("hpcgnn_tuning")(streaming=False, **fields), struct("hpcgnn_tuning")(streaming=True, **fields)


DEFAULT_TUNING = Tuning()
Packed = tuple[HotColumns, Tensor]
# Copying a row pays off if it is used at least this often, and x is too large for the caches.
_LEAST_USES = 16
LEAST_BYTES_TO_PACK = 32 << 20


class NativeSpmm(SpmmKernels):
    """The kernels in C++."""

    def spmm(
        self, csr: Csr, weight: Tensor | None, x: Tensor, scale: Tensor | None, accumulate: bool, out: Tensor,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:  # fmt: skip
        """Write ``csr @ x`` to ``out``, or add it."""
        hot, packed = pack(csr, weight, x, tuning) or (None, None)
        if scale is not None and hot is not None:
            scale = _with_hot(scale, hot)
        streaming = 0 < tuning.streaming_bytes <= out.nbytes and not accumulate
        native(
            "spmm", x.dtype, csr=csr_argument(csr, hot), weight=weight, heads=_heads(weight), x=x, packed=packed, scale=scale,
            width=x.shape[1], out=out, accumulate=accumulate, tuning=tuning.arguments[streaming],
        )  # fmt: skip

    def by_blocks(self, csr: Csr, x: Tensor, scale: Tensor | None) -> Callable[[Csr, Tensor], None]:
        """See :func:`_by_blocks`. Rows that many entries name are copied once, and no scaled copy of float32 rows is made."""
        if scale is not None and x.dtype not in (torch.float32, torch.int8):
            return _by_blocks(self, csr, x, scale)
        whole, packed = pack(csr, csr.weight, x) or (None, None)
        scales = scale if scale is None or whole is None else _with_hot(scale, whole)

        def run(block: Csr, out: Tensor) -> None:
            hot = None if whole is None else _hot_columns(block, block.weight, x)
            native(
                "spmm", x.dtype, csr=csr_argument(block, hot), weight=block.weight, heads=1, x=x, packed=packed,
                scale=scales, width=x.shape[1], out=out, accumulate=False, tuning=DEFAULT_TUNING.arguments[False],
            )  # fmt: skip

        return run

    def bind(self, csr: Csr, dtype: torch.dtype, width: int) -> Callable[..., None]:
        """:meth:`spmm` for ``x`` of one type and width, with ``csr.weight``; the kernel's other arguments are made once."""
        weight, heads = csr.weight, _heads(csr.weight)
        if _may_pack(weight, csr.num_cols * width * dtype.itemsize, DEFAULT_TUNING):
            return self.spmm
        kernel = bound("spmm", dtype, csr=csr_argument(csr), weight=weight, heads=heads, packed=None, width=width)
        plain, streaming = DEFAULT_TUNING.arguments
        out_bytes = csr.num_rows * width * (8 if dtype is torch.float64 else 4)
        writing = streaming if out_bytes >= DEFAULT_TUNING.streaming_bytes else plain

        def multiply(_csr: Csr, _weight: Any, x: Tensor, scale: Tensor | None, accumulate: bool, out: Tensor) -> None:
            kernel(
                x=x.data_ptr(), scale=None if scale is None else scale.data_ptr(), out=out.data_ptr(), accumulate=accumulate,
                tuning=plain if accumulate else writing, threads=torch.get_num_threads(),
            )  # fmt: skip

        return multiply


def _may_pack(weight: Tensor | None, num_bytes: int, tuning: Tuning) -> bool:
    # Weights of heads are made for one product: the order of a matrix's hot columns would be 4 bytes an entry more for no gain.
    return bool(tuning.hot_bytes) and (weight is None or weight.dim() == 1) and num_bytes >= scaled(LEAST_BYTES_TO_PACK)


def pack(csr: Csr, weight: Tensor | None, x: Tensor, tuning: Tuning = DEFAULT_TUNING) -> Packed | None:
    """The columns whose rows of ``x`` are worth copying before the product, and the copies, if there are any."""
    hot = _hot_columns(csr, weight, x, tuning)
    if hot is None:
        return None
    job = {"width": x.shape[1], "tuning": tuning.arguments[False]}
    rows = buffers.empty(hot.columns.numel(), function("spmm_packed_columns", x.dtype)(**job), x.dtype)
    native("spmm_pack", x.dtype, **job, hot_rows=hot.columns, num_hot=hot.columns.numel(), x=x, packed=rows)
    return hot, rows


def _hot_columns(csr: Csr, weight: Tensor | None, x: Tensor, tuning: Tuning = DEFAULT_TUNING) -> HotColumns | None:
    if not _may_pack(weight, x.nbytes, tuning):
        return None
    most = tuning.hot_bytes // min(tuning.tile_bytes, x.shape[1] * x.element_size())
    # Without weights, a row's entries can be added in any order: grouped by hot column, entries find their rows of x in the
    # caches. The order belongs to the matrix, so it is the same for any number of threads.
    return csr.hot_columns(most, _LEAST_USES, grouped=weight is None)


def _with_hot(scale: Tensor, hot: HotColumns) -> Tensor:
    """``scale`` (C,) after the scales of hot columns, of which the kernel reads the p-th one at ~p."""
    return torch.cat((scale[hot.columns].flip(0), scale))[hot.columns.numel() :]


def _heads(weight: Tensor | None) -> int:
    return 1 if weight is None or weight.dim() == 1 else weight.shape[1]


def csr_argument(csr: Csr, hot: HotColumns | None = None) -> Struct:
    """The native kernels' structure for ``csr``. hot: from ``csr``, which keeps both."""

    def make() -> Struct:
        heavy = torch.nonzero(csr.row_lengths() > segment_entries()).flatten()  # threads share these rows
        hot_indices, num_hot = (None, 0) if hot is None else (hot.indices, hot.columns.numel())
        return struct("hpcgnn_csr")(
            rows=csr.num_rows, indptr=csr.indptr, indices=csr.indices, heavy=heavy, num_heavy=heavy.numel(),
            hot_indices=hot_indices, num_hot=num_hot,
        )  # fmt: skip

    return csr.kept(("native", id(hot)), make)


SPMM: Operator[SpmmKernels] = Operator("spmm", SpmmKernels, NativeSpmm())

# -- every backend -----------------------------------------------------------------------------------------------------


def spmm(
    csr: Csr, x: Tensor, weight: Tensor | None = None, reduce: str = "sum", out: Tensor | None = None,
    backend: str = "auto", *, scale: Tensor | None = None, accumulate: bool = True,
) -> Tensor:  # fmt: skip
    """``csr @ x``, see :func:`hpcgnn.kernels.autograd.spmm`."""
    weight = csr.weight if weight is None else weight
    check_choice("reduce", reduce, _REDUCTIONS)
    _check_spmm(csr, x, weight, out, scale)
    kernels = choose(SPMM, backend, x=x, weight=weight, out=out, scale=scale, csr=csr.indices)
    if reduce == "mean":  # training scales rows by a plan's diagonal instead
        sums = spmm(csr, x, weight, backend=backend, scale=scale)
        sums /= csr.row_lengths().clamp(min=1).to(sums.dtype)[:, None]
        if out is None:
            return sums
        return out.add_(sums) if accumulate else out.copy_(sums)
    accumulate = accumulate and out is not None
    if out is None:
        out = buffers.empty(csr.num_rows, x.shape[1], _VALUE_TYPE[x.dtype], x.device)
    kernels.spmm(csr, weight, x.contiguous(), scale, accumulate, out)
    return out


def multiply(
    csr: Csr, x: Tensor, out: Tensor | None = None, backend: str = "auto", *, scale: Tensor | None = None,
    accumulate: bool = True,
) -> Tensor:  # fmt: skip
    """:func:`spmm` for callers of this package, in each epoch: the kernels are chosen once for each matrix, type and width.

    Only what protects memory is checked: shapes and types of ``x`` and ``out``, and that the host has ``x`` if it has ``csr``.
    ``out`` must be on the same device, and ``scale`` must be (C,) float32.
    """
    wrong = x.dim() != 2 or x.shape[0] != csr.num_cols or type(x) is not Tensor or x.is_neg()
    wrong = wrong or (x.dtype is torch.int8) != (scale is not None) or x.is_cpu != csr.indices.is_cpu
    if out is not None:
        fits = out.shape == (csr.num_rows, x.shape[-1]) and out.dtype is _VALUE_TYPE.get(x.dtype)
        wrong = wrong or not (fits and out.is_contiguous())
    if wrong:
        return spmm(csr, x, out=out, backend=backend, scale=scale, accumulate=accumulate)
    run = csr.products.get((x.dtype, x.shape[1], backend)) or _bind(csr, x, backend, scale)
    if out is None:
        out, accumulate = buffers.empty(csr.num_rows, x.shape[1], _VALUE_TYPE[x.dtype], x.device), False
    run(csr, csr.weight, x.contiguous(), scale, accumulate, out)
    return out


def _bind(csr: Csr, x: Tensor, backend: str, scale: Tensor | None) -> Callable[..., None]:
    _check_spmm(csr, x, csr.weight, None, scale)
    kernels: Any = choose(SPMM, backend, x=x, weight=csr.weight, scale=scale, csr=csr.indices)
    run = kernels.bind(csr, x.dtype, x.shape[1]) if hasattr(kernels, "bind") else kernels.spmm
    csr.products[x.dtype, x.shape[1], backend] = run
    return run


def products_by_blocks(
    csr: Csr, x: Tensor, rows: int, backend: str = "auto", *, scale: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """``csr @ (scale * x)`` in blocks of ``rows`` rows, each with its place; a block's memory is that of the last one.

    x, scale: see :func:`multiply`; for x of another type than int8, ``scale`` is of its type. Without ``scale``, all bits are
    those of :func:`multiply`.
    """
    if rows >= csr.num_rows and (x.dtype is torch.int8 or scale is None):
        yield slice(0, csr.num_rows), multiply(csr, x, backend=backend, scale=scale)
        return
    _check_spmm(csr, x, csr.weight, None, scale if x.dtype is torch.int8 else None)
    kernels: Any = choose(SPMM, backend, x=x, weight=csr.weight, scale=scale, csr=csr.indices)
    given = csr, x.contiguous(), scale
    run = kernels.by_blocks(*given) if hasattr(kernels, "by_blocks") else _by_blocks(kernels, *given)
    memory = buffers.empty(min(rows, csr.num_rows), x.shape[1], _VALUE_TYPE[x.dtype], x.device)
    for place, block in csr.row_blocks(rows):
        run(block, memory[: block.num_rows])
        yield place, memory[: block.num_rows]


def _by_blocks(kernels: SpmmKernels, csr: Csr, x: Tensor, scale: Tensor | None) -> Callable[[Csr, Tensor], None]:
    """A function that writes ``block @ (scale * x)`` to ``out``, for each block of rows of ``csr`` (:meth:`Csr.row_blocks`)."""
    if scale is not None and x.dtype is not torch.int8:
        x, scale = torch.mul(x, scale[:, None], out=buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device)), None
    return lambda block, out: kernels.spmm(block, block.weight, x, scale, False, out)


def add_rows(index: Tensor, src: Tensor, num_rows: int, backend: str = "auto") -> Tensor:
    """(num_rows, F) tensor whose row r is the sum of the rows of ``src`` (E, F) with ``index`` (E,) equal to r.

    This is the gradient of :func:`hpcgnn.kernels.gather_rows`. The sources are clustered by destination first (SuperGCN §3.2.1),
    so that no two threads write the same row.
    """
    if index.dim() != 1 or index.numel() != src.shape[0]:
        raise WrongValueError("index must hold one int32 or int64 integer per row of src")
    if src.shape[0] > 2**31 - 1:
        raise WrongValueError(f"src must have at most 2**31 - 1 rows, not {src.shape[0]}")
    indptr, order = cluster(index, num_rows, backend)
    matrix = Csr(indptr, order, src.shape[0], check=False)
    matrix.each_column_once = True
    return spmm(matrix, src, backend=backend)


def _check_spmm(csr: Csr, x: Tensor, weight: Tensor | None, out: Tensor | None, scale: Tensor | None) -> None:
    if x.dim() != 2 or x.shape[0] != csr.num_cols:
        raise WrongValueError(f"x must have shape ({csr.num_cols}, F), not {tuple(x.shape)}")
    if x.dtype not in _VALUE_TYPE:
        raise misfit("x", x, "float32, float64, bfloat16 or int8")
    value_type, width = _VALUE_TYPE[x.dtype], x.shape[1]
    if weight is not None:
        _check_weight(csr, weight, width, value_type)
    if (scale is not None) != (x.dtype == torch.int8):
        raise WrongValueError("scale must be given for int8 x, and for no other")
    if scale is not None and (
        scale.shape != (csr.num_cols,) or scale.dtype != torch.float32 or not scale.is_contiguous()
    ):
        raise WrongValueError(f"scale must be contiguous float32 of shape ({csr.num_cols},)")
    if out is not None and (out.shape != (csr.num_rows, width) or out.dtype != value_type or not out.is_contiguous()):
        raise WrongValueError(f"out must be contiguous {value_type} of shape ({csr.num_rows}, {width})")
    if out is not None and out.numel() and _share_memory(out, x):
        raise WrongValueError("out must not share memory with x, whose rows are read after rows of out are written")


def _share_memory(out: Tensor, x: Tensor) -> bool:
    """Return whether ``out``, which is contiguous, and ``x`` may have an element in common."""
    if out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() or not x.numel():
        return False
    apart = out.data_ptr() + out.nbytes <= x.data_ptr() or x.data_ptr() + x.nbytes <= out.data_ptr()
    return not (x.is_contiguous() and apart)


def _check_weight(csr: Csr, weight: Tensor, width: int, value_type: torch.dtype) -> None:
    if weight.dim() not in (1, 2) or weight.shape[0] != csr.num_entries or weight.dtype != value_type:
        raise misfit("weight", weight, f"{value_type} of shape ({csr.num_entries},) or ({csr.num_entries}, heads)")
    if weight.dim() == 2 and (weight.shape[1] == 0 or width % weight.shape[1]):
        raise WrongValueError(f"weight has {weight.shape[1]} heads, which do not divide the {width} columns of x")
    if not weight.is_contiguous():
        raise WrongValueError("weight must be contiguous")
