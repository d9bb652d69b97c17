"""Arithmetic on rows of 8-bit integers (Tango §3.3), on every backend.

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
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import INT8
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.edges import check_heads
from hpcgnn.kernels.keyed import check_key

MOST_CODE = 127
MOST_TERMS = (2**31 - 1) // MOST_CODE**2  # products that an int32 sum can hold


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

    def float(self) -> Tensor:
        """The numbers as (n, F) float32."""
        return self.codes.float() * self.scale[:, None]


def dot_products(backend: str = "auto", torch_device: torch.device | str = "cpu") -> bool:
    """Return whether the backend's kernels on this device use instructions that add the products of four 8-bit integers."""
    return choose(INT8, backend, x=torch.empty(0, device=torch_device)).dot_products()


def gathers_bytes(backend: str = "auto", torch_device: torch.device | str = "cpu") -> bool:
    """Return whether summing many gathered rows on this device is faster with 8-bit integers than with float32, as far as
    measured.
    """
    return choose(INT8, backend, x=torch.empty(0, device=torch_device)).gathers_bytes()


def quantize_rows(
    x: Tensor, factor: Tensor | None = None, *, key: int | None = None, backend: str = "auto"
) -> Int8Rows:
    """``x`` (n, F) float32, with each row multiplied by its ``factor`` (n,) float32 if given, as 8-bit integers.

    key: key of the rounding noise, in [0, 2**64); None: values are rounded to the nearest.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_float("x", x)
    check_key("key", key)
    if factor is not None and (factor.shape != x.shape[:1] or factor.dtype != torch.float32):
        raise WrongValueError(
            f"factor must be float32 of shape ({x.shape[0]},), not {factor.dtype} {tuple(factor.shape)}"
        )
    kernels = choose(INT8, backend, x=x, factor=factor)
    codes = buffers.empty(x.shape[0], x.shape[1], torch.int8, x.device)
    rows = Int8Rows(codes, torch.empty(x.shape[0], device=x.device))
    kernels.quantize_rows(x.contiguous(), None if factor is None else factor.contiguous(), key, rows.codes, rows.scale)
    return rows


def product(
    x: Int8Rows,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    *,
    weight_key: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """``x @ weight`` computed with 8-bit integers, plus ``bias`` in each row.

    Args:
        x: (n, F) quantized rows.
        weight: (F, H) float32, of any strides; each of its columns is quantized like a row, with noise of ``weight_key``.
        bias: (H,) float32.
        out: (n, H) contiguous float32 to which the product is added; None makes a new tensor.
        weight_key: key of the noise for ``weight``; None: values are rounded to the nearest.

    Returns:
        ``out``, or the new (n, H) float32 tensor.

    Raises:
        ValueError: naming the argument that is wrong, also where F is more than :data:`MOST_TERMS`.
    """
    _check_operand("x", x)
    _check_weight(x, weight)
    check_key("weight_key", weight_key)
    shape = x.shape[0], weight.shape[1]
    if bias is not None and (bias.shape != weight.shape[1:] or bias.dtype != torch.float32):
        raise WrongValueError(f"bias must be float32 of shape ({shape[1]},), not {bias.dtype} {tuple(bias.shape)}")
    if out is not None and (out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous()):
        raise WrongValueError(f"out must be contiguous float32 of shape {shape}, not {out.dtype} {tuple(out.shape)}")
    kernels = choose(INT8, backend, weight=weight, x=x.codes, bias=bias, out=out)
    accumulate = out is not None
    if out is None:
        out = buffers.empty(*shape, torch.float32, weight.device)
    bias = None if bias is None else bias.contiguous()
    kernels.product(x.codes, x.scale, weight, weight_key, bias, accumulate, out)
    return out


def weight_gradient(
    x: Int8Rows, dy: Tensor, *, key: int | None = None, sums: bool = False, backend: str = "auto"
) -> tuple[Tensor, Tensor | None]:
    """``x.T @ dy`` (F, H) computed with 8-bit integers, and, if ``sums``, the float32 sums of the columns of ``dy`` (H,).

    The rows of ``dy`` (n, H) float32 are multiplied by the scales of the rows of ``x``, and quantized in blocks of 256 rows,
    with a scale for each column of a block, and noise of ``key``. The integer sums of blocks are added in float32: first those
    of 1,024 rows, then these sums. So the result does not depend on the number of threads, and n may be any number.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_operand("x", x)
    _check_float("dy", dy)
    check_key("key", key)
    if dy.shape[0] != x.shape[0]:
        raise WrongValueError(f"dy must have as many rows as x, {x.shape[0]}, not {dy.shape[0]}")
    kernels = choose(INT8, backend, dy=dy, x=x.codes)
    dweight = dy.new_empty(x.shape[1], dy.shape[1])
    column_sums = dy.new_empty(dy.shape[1]) if sums else None
    kernels.weight_gradient(x.codes, x.scale, dy.contiguous(), key, dweight, column_sums)
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
        raise WrongValueError(f"{name} must be a float32 matrix, not {x.dtype} of shape {tuple(x.shape)}")


def _check_weight(x: Int8Rows, weight: Tensor) -> None:
    _check_float("weight", weight)
    if weight.shape[0] != x.shape[1]:
        raise WrongValueError(
            f"weight must have a row for each of the {x.shape[1]} columns of x, not {weight.shape[0]}"
        )
    _check_terms(x.shape[1])


def _check_terms(terms: int) -> None:
    if terms > MOST_TERMS:
        raise WrongValueError(
            f"int32 holds the sum of {MOST_TERMS} products of 8-bit integers, not of {terms}: use float32"
        )
