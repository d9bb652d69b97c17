"""Arithmetic on rows of 8-bit integers (Tango §3.3).

*The grid.* A row's scale S is ``max(abs(x)) / 127``, rounded up to bfloat16, and at least 2**-110. The code of a value x is
``floor(x / S + u)``, clamped to [-127, 127], and stands for ``code * S``. The grid is symmetric, so 0 is exact. With a key, u in
(0, 1) comes from 16 random bits that are a function of (key, row number, column) alone (Tango Eq. 3), and E[code * S] = x to
within S / 2**17. Without a key, u is 1/2, which rounds to the nearest. Each row has a scale of its own, where Tango has one for
each tensor, for three reasons: the scale is found while the row is in the first-level cache, a node with many neighbours does
not coarsen the grid of others, and a row of 8-bit messages (:mod:`hpcgnn.kernels.messages`) has the same form, with ``zero-point
= -128 * S``.

*Special rows.* A row with a NaN or an infinity gets scale NaN and codes 0, so that every result of the row is NaN. A row of zeros
gets scale 0. Values beyond ±2**126 count as ±2**126. -0.0 becomes 0.

*Sums* of products are exact in int32 and become float32 at the end; at most :data:`MOST_TERMS` products fit into a sum. Codes and
scales are the same from every backend, instruction set and number of threads; products differ at most by the rounding of their
float32 factors.

These functions are not differentiable; :mod:`hpcgnn.kernels.int8_autograd` wraps them.
They raise ValueError, which names the argument, where one is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers, packing
from hpcgnn.kernels.backend import Operator, choose, misfit
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.edges import check_heads
from hpcgnn.kernels.keyed import check_key
from hpcgnn.kernels.library import has_dot_products, isa, native
from hpcgnn.kernels.spmm import csr_argument

MOST_CODE = 127
MOST_TERMS = (2**31 - 1) // MOST_CODE**2  # products that an int32 sum can hold
ROWS_OF_A_BLOCK = 256  # rows of a gradient that are quantized together
ROWS_OF_A_SEGMENT = 1024  # rows whose sums are added before those of segments
_TOP = np.float32(MOST_CODE)


@dataclass(frozen=True)
class Int8Rows:
    """Rows of (n, F) numbers, ``codes * scale``. codes: (n, F) int8, contiguous. scale: (n,) float32, contiguous."""

    codes: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        """(n, F)."""
        return self.codes.shape

    @property
    def num_bytes(self) -> int:
        """Bytes of both tensors."""
        return self.codes.numel() + 4 * self.scale.numel()

    def rows(self, place: slice) -> Int8Rows:
        """Some of the rows."""
        return Int8Rows(self.codes[place], self.scale[place])

    def float(self) -> Tensor:
        """The numbers as (n, F) float32."""
        return self.codes.float() * self.scale[:, None]


class Int8Kernels(Protocol):
    """codes, a, b: int8. Keys lie in [0, 2**64); with None, values are rounded to the nearest."""

    def dot_products(self) -> bool:
        """Return whether kernels here use instructions that add products of four 8-bit integers."""
        return False

    def gathers_bytes(self) -> bool:
        """Return whether sums of many gathered rows (:mod:`hpcgnn.kernels.spmm`) are faster with integers than with float32."""
        return False

    def quantize_rows(self, x: Tensor, factor: Tensor | None, key: int | None, codes: Tensor, scale: Tensor) -> None:
        """Quantize the rows of ``x`` (n, F) float32, times ``factor`` (n,) float32, to ``codes`` (n, F) and ``scale`` (n,)."""
        values = (x if factor is None else x * factor[:, None]).numpy()
        found = _scales(np.abs(values).max(axis=1, initial=0))
        scale.numpy()[:] = found
        codes.numpy()[:] = _codes(values, found[:, None], key, np.arange(values.shape[0]))

    def product(
        self, codes: Tensor, scale: Tensor, weight: Tensor, weight_key: int | None, bias: Tensor | None,
        accumulate: bool, out: Tensor,
    ) -> None:  # fmt: skip
        """Write ``(codes * scale) @ weight + bias`` to ``out`` (n, H), or add it; ``codes`` (n, F), ``scale`` (n,), ``weight``
        (F, H; any strides), whose columns are quantized with noise of ``weight_key``, ``bias`` (H,)."""
        columns, column_scale = codes.new_empty(weight.shape[::-1]), scale.new_empty(weight.shape[1])
        self.quantize_rows(weight.T.contiguous(), None, weight_key, columns, column_scale)
        sums = (codes.double() @ columns.double().T).float()  # exact: sums of products are far below 2**53
        y = sums * (scale[:, None] * column_scale)
        if bias is not None:
            y += bias
        torch.add(out, y, out=out) if accumulate else out.copy_(y)

    def weight_gradient(
        self, codes: Tensor, scale: Tensor, dy: Tensor, dy_scale: Tensor | None, key: int | None, dweight: Tensor,
        sums: Tensor | None,
    ) -> None:  # fmt: skip
        """Write ``(codes * scale).T @ dy`` to ``dweight`` (F, H), and column sums of ``dy`` (n, H) to ``sums`` (H,). dy: float32,
        or int8 with ``dy_scale`` (n,)."""
        dy = dy if dy_scale is None else Int8Rows(dy, dy_scale).float()
        dweight.zero_()
        for segment in range(0, dy.shape[0], ROWS_OF_A_SEGMENT):
            of_segment = torch.zeros_like(dweight)
            for first in range(segment, min(segment + ROWS_OF_A_SEGMENT, dy.shape[0]), ROWS_OF_A_BLOCK):
                rows = slice(first, min(first + ROWS_OF_A_BLOCK, dy.shape[0]))
                values = (dy[rows] * scale[rows, None]).numpy()
                column_scale = _scales(np.abs(values).max(axis=0, initial=0))
                numbers = np.arange(rows.start, rows.stop)
                dy_codes = torch.from_numpy(_codes(values, column_scale[None, :], key, numbers))
                products = (codes[rows].double().T @ dy_codes.double()).float()
                of_segment += products * torch.from_numpy(column_scale)
            dweight += of_segment
        if sums is not None:
            torch.sum(dy, 0, out=sums)

    def sddmm(self, csr: Csr, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int, out: Tensor) -> None:
        """Like ``sddmm`` of :class:`hpcgnn.kernels.edges.EdgeKernels` with op ``dot``, for the rows ``a * a_scale`` (R, F) and
        ``b * b_scale`` (C, F); a_scale: (R,). b_scale: (C,). out: float32."""
        rows, columns = csr.entry_rows(), csr.indices.long()
        products = (a[rows].double() * b[columns].double()).view(rows.numel(), heads, a.shape[1] // heads)
        torch.mul(products.sum(2).float(), (a_scale[rows] * b_scale[columns])[:, None], out=out)


def _scales(largest: np.ndarray) -> np.ndarray:
    """(k,) float32 scales, which bfloat16 can hold, from the (k,) largest magnitudes; NaN where these are not finite."""
    with np.errstate(invalid="ignore"):
        wanted = np.maximum(np.minimum(largest, packing.LARGEST) / _TOP, packing.SMALLEST_SCALE).astype(np.float32)
    rounded = ((wanted.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    found = np.where(largest > 0, rounded, np.float32(0))
    return np.where(np.isfinite(largest), found, np.float32(np.nan)).astype(np.float32)


def _codes(values: np.ndarray, scale: np.ndarray, key: int | None, numbers: np.ndarray) -> np.ndarray:
    """(k, F) int8 codes of ``values`` (k, F), whose rows have these ``numbers`` (k,); ``scale`` broadcasts to their shape."""
    one, is_good = np.float32(2**packing.FRACTION_BITS), np.isfinite(scale) & (scale > 0)
    per_step = np.divide(one, scale, out=np.zeros_like(scale), where=is_good)
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond LARGEST may overflow; the result is clamped
        steps = np.where(is_good, values * per_step, np.float32(0)).clip(-one * _TOP, one * _TOP)
    noise = packing.HALF if key is None else packing.noise(key, numbers, values.shape[1])
    return ((steps.astype(np.int32) + noise) >> packing.FRACTION_BITS).astype(np.int8)


class _Native(Int8Kernels):
    def dot_products(self) -> bool:
        return has_dot_products()

    def gathers_bytes(self) -> bool:
        """It is faster with registers of 64 bytes, by the study `products`. With shorter ones, the conversion of bytes to floats
        costs as much time as the smaller rows save."""
        return isa() == "avx512"

    def quantize_rows(self, x: Tensor, factor: Tensor | None, key: int | None, codes: Tensor, scale: Tensor) -> None:
        (rows, width), rounding = x.shape, {"to_nearest": key is None, "key": key or 0}
        native("quantize_int8", rows=rows, width=width, x=x, factor=factor, codes=codes, scale=scale, **rounding)

    def product(
        self, codes: Tensor, scale: Tensor, weight: Tensor, weight_key: int | None, bias: Tensor | None,
        accumulate: bool, out: Tensor,
    ) -> None:  # fmt: skip
        (rows, depth), width, (row_stride, column_stride) = codes.shape, weight.shape[1], weight.stride()
        _best(
            "dense_int8", rows=rows, depth=depth, width=width, codes=codes, scale=scale, weight=weight,
            row_stride=row_stride, column_stride=column_stride, weight_to_nearest=weight_key is None,
            weight_key=weight_key or 0, bias=bias, accumulate=accumulate, y=out,
        )  # fmt: skip

    def weight_gradient(
        self, codes: Tensor, scale: Tensor, dy: Tensor, dy_scale: Tensor | None, key: int | None, dweight: Tensor,
        sums: Tensor | None,
    ) -> None:  # fmt: skip
        (rows, depth), width = codes.shape, dy.shape[1]
        floats, integers = (dy, None) if dy_scale is None else (None, dy)
        _best(
            "dense_gradient_int8", rows=rows, depth=depth, width=width, codes=codes, scale=scale, dy=floats,
            dy_codes=integers, dy_scale=dy_scale, to_nearest=key is None, key=key or 0, dweight=dweight, sums=sums,
        )  # fmt: skip

    def sddmm(self, csr: Csr, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int, out: Tensor) -> None:
        rows = {"a": a, "a_scale": a_scale, "b": b, "b_scale": b_scale, "width": a.shape[1]}
        _best("sddmm_int8", csr=csr_argument(csr), **rows, heads=heads, out=out)


def _best(name: str, **arguments: Any) -> None:
    """Call the variant of the native kernel ``name`` for the best instructions of this CPU."""
    native(f"{name}_dot" if has_dot_products() else name, **arguments)


INT8: Operator[Int8Kernels] = Operator("int8", Int8Kernels, _Native(), of_features=False)


def dot_products(backend: str = "auto", torch_device: torch.device | str = "cpu") -> bool:
    """Return whether the backend's kernels on this device use instructions that add the products of four 8-bit integers."""
    return choose(INT8, backend, x=torch.empty(0, device=torch_device)).dot_products()


def gathers_bytes(backend: str = "auto", torch_device: torch.device | str = "cpu") -> bool:
    """Return whether sums of many gathered rows on this device are faster with 8-bit integers, as far as measured."""
    return choose(INT8, backend, x=torch.empty(0, device=torch_device)).gathers_bytes()


def quantize_rows(
    x: Tensor, factor: Tensor | None = None, *, key: int | None = None, backend: str = "auto"
) -> Int8Rows:
    """``x`` (n, F) float32, with each row multiplied by its ``factor`` (n,) float32 if given, as 8-bit integers.

    key: key of the rounding noise, in [0, 2**64); None: values are rounded to the nearest.
    """
    _check_float("x", x)
    check_key("key", key)
    if factor is not None and (factor.shape != x.shape[:1] or factor.dtype != torch.float32):
        raise misfit("factor", factor, f"float32 of shape ({x.shape[0]},)")
    kernels = choose(INT8, backend, x=x, factor=factor)
    codes = buffers.empty(x.shape[0], x.shape[1], torch.int8, x.device)
    rows = Int8Rows(codes, torch.empty(x.shape[0], device=x.device))
    kernels.quantize_rows(x.contiguous(), None if factor is None else factor.contiguous(), key, rows.codes, rows.scale)
    return rows


def product(
    x: Int8Rows, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None, *,
    weight_key: int | None = None, backend: str = "auto", accumulate: bool = True,
) -> Tensor:  # fmt: skip
    """``x @ weight`` computed with 8-bit integers, plus ``bias`` in each row.

    Args:
        x: (n, F) quantized rows.
        weight: (F, H) float32, of any strides; each of its columns is quantized like a row, with noise of ``weight_key``.
        bias: (H,) float32.
        out: (n, H) contiguous float32 to which the product is added; None makes a new tensor.
        weight_key: key of the noise for ``weight``; None: values are rounded to the nearest.
        accumulate: False overwrites ``out`` instead of adding to it.

    Returns:
        ``out``, or the new (n, H) float32 tensor.

    Raises:
        ValueError: naming the argument that is wrong, also where F is more than :data:`MOST_TERMS`.
    """
    _check_operand("x", x)
    _check_float("weight", weight)
    if weight.shape[0] != x.shape[1]:
        raise WrongValueError(f"weight must have a row for each of the {x.shape[1]} columns of x, not {len(weight)}")
    _check_terms(x.shape[1])
    check_key("weight_key", weight_key)
    shape = x.shape[0], weight.shape[1]
    if bias is not None and (bias.shape != weight.shape[1:] or bias.dtype != torch.float32):
        raise misfit("bias", bias, f"float32 of shape ({shape[1]},)")
    if out is not None and (out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous()):
        raise misfit("out", out, f"contiguous float32 of shape {shape}")
    kernels = choose(INT8, backend, weight=weight, x=x.codes, bias=bias, out=out)
    accumulate = accumulate and out is not None
    if out is None:
        out = buffers.empty(*shape, torch.float32, weight.device)
    bias = None if bias is None else bias.contiguous()
    kernels.product(x.codes, x.scale, weight, weight_key, bias, accumulate, out)
    return out


def weight_gradient(
    x: Int8Rows, dy: Tensor | Int8Rows, *, key: int | None = None, sums: bool = False, backend: str = "auto"
) -> tuple[Tensor, Tensor | None]:
    """``x.T @ dy`` (F, H) computed with 8-bit integers, and, if ``sums``, the float32 sums of the columns of ``dy`` (H,).

    The rows of ``dy`` (n, H) float32 are multiplied by the scales of the rows of ``x``, and quantized in blocks of 256 rows,
    with a scale for each column of a block, and noise of ``key``. The integer sums of blocks are added in float32: first those
    of 1,024 rows, then these sums. So the result does not depend on the number of threads, and n may be any number.

    If ``dy`` is quantized by rows already, for another product, its integers are what is multiplied and quantized again, and the
    floats are not read. Both roundings have mean 0 with independent noise, so the result does, too: the variance of the error is
    the sum of theirs.
    """
    values, dy_scale = (dy.codes, dy.scale) if isinstance(dy, Int8Rows) else (dy, None)
    _check_operand("x", x)
    if isinstance(dy, Int8Rows):
        _check_operand("dy", dy)
    else:
        _check_float("dy", dy)
    check_key("key", key)
    if dy.shape[0] != x.shape[0]:
        raise WrongValueError(f"dy must have as many rows as x, {x.shape[0]}, not {dy.shape[0]}")
    kernels = choose(INT8, backend, dy=values, x=x.codes)
    dweight = x.scale.new_empty(x.shape[1], dy.shape[1])
    column_sums = x.scale.new_empty(dy.shape[1]) if sums else None
    kernels.weight_gradient(x.codes, x.scale, values.contiguous(), dy_scale, key, dweight, column_sums)
    return dweight, column_sums


def sddmm(csr: Csr, a: Int8Rows, b: Int8Rows, heads: int | None = None, backend: str = "auto") -> Tensor:
    """:func:`hpcgnn.kernels.edges.sddmm` with op ``dot``, of 8-bit integers (Tango §3.3), with a float32 result.

    Products of codes are added as integers. a: (R, F). b: (C, F).

    Raises:
        ValueError: naming the argument that is wrong, also where a head has more than :data:`MOST_TERMS` columns.
    """
    _check_operand("a", a)
    _check_operand("b", b)
    width = a.shape[1]
    if a.shape[0] != csr.num_rows or b.shape != (csr.num_cols, width):
        raise WrongValueError(
            f"a must have {csr.num_rows} rows, and b {csr.num_cols}, of as many columns: they are {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    if heads is not None:
        check_heads("dot", heads, width)
    _check_terms(width // (heads or 1))
    kernels = choose(INT8, backend, a=a.codes, b=b.codes, csr=csr.indices)
    out = buffers.empty(csr.num_entries, heads or 1, torch.float32, a.codes.device)
    if out.numel():
        kernels.sddmm(csr, a.codes, a.scale, b.codes, b.scale, heads or 1, out)
    return out[:, 0] if heads is None else out


def _check_operand(name: str, x: Int8Rows) -> None:
    if x.codes.dim() != 2 or x.codes.dtype != torch.int8 or not x.codes.is_contiguous():
        raise WrongValueError(f"{name}.codes must be contiguous int8 of two dimensions, not {x.codes.dtype}")
    if x.scale.shape != x.codes.shape[:1] or x.scale.dtype != torch.float32 or not x.scale.is_contiguous():
        raise WrongValueError(f"{name}.scale must be contiguous float32 of shape ({x.shape[0]},)")


def _check_float(name: str, x: Tensor) -> None:
    if x.dim() != 2 or x.dtype != torch.float32:
        raise misfit(name, x, "a float32 matrix")


def _check_terms(terms: int) -> None:
    if terms > MOST_TERMS:
        raise WrongValueError(
            f"int32 holds the sum of {MOST_TERMS} products of 8-bit integers, not of {terms}: use float32"
        )
