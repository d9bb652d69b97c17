"""Arithmetic on rows of 8-bit integers (Tango §3.3): one entry to every backend.

*The grid.* A row's scale S is ``max(abs(x)) / 127``, rounded up to bfloat16, and at least 2**-110; the code of a value x is
``floor(x / S + u)``, kept within [-127, 127], and it stands for ``code * S``. Symmetric: 0 is exact. u is in (0, 1), from 16
random bits that are a function of (key, row number, column) alone (Tango Eq. 3), or 1/2 without a key: to the nearest. With a
key E[code * S] = x, to within S / 2**17. A scale for each row, where Tango has one for each tensor: it is found while the row is
in the first-level cache, a node of many neighbours does not coarsen the grid of the others, and a row of 8-bit messages
(:mod:`hpcgnn.kernels.messages`) has the same form, ``zero-point = -128 * S``.

*Rows out of the ordinary.* A NaN or an infinity: the scale is NaN and all codes are 0, so that trouble shows in all that the
row takes part in. Zeros: scale 0. Beyond ±2**126: taken as that. -0.0 is 0.

*Sums* are of int32, exact, and made float32 at the end: at most :data:`MOST_TERMS` of them fit. Every backend, instruction set
and number of threads gives the same codes and scales; products of them differ at most by how their float32 factors are
rounded.

These functions are not differentiable; :mod:`hpcgnn.kernels.int8_autograd` wraps them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hpcgnn.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import INT8
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.edges import check_heads, check_operation
from hpcgnn.kernels.keyed import check_key

MOST_CODE = 127
MOST_TERMS = (2**31 - 1) // MOST_CODE**2  # of an int32 sum of products


@dataclass(frozen=True)
class Int8Rows:
    """(n, F) numbers ``codes * scale``. codes: (n, F) int8, contiguous. scale: (n,) float32, contiguous."""

    codes: torch.Tensor
    scale: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """(n, F)."""
        return self.codes.shape

    @property
    def num_bytes(self) -> int:
        """Of both tensors."""
        return self.codes.numel() + 4 * self.scale.numel()

    def float(self) -> torch.Tensor:
        """(n, F) float32."""
        return self.codes.float() * self.scale[:, None]


def dot_products(backend: str = "auto", where: torch.device | str = "cpu") -> bool:
    """Whether a device has instructions that add products of four 8-bit integers, and the backend's kernels use them."""
    return choose(INT8, backend, x=torch.empty(0, device=where)).dot_products()


def gathers_bytes(backend: str = "auto", where: torch.device | str = "cpu") -> bool:
    """Whether sums of many gathered rows are faster of 8-bit integers than of float32 on a device, as far as was measured."""
    return choose(INT8, backend, x=torch.empty(0, device=where)).gathers_bytes()


def quantize_rows(
    x: torch.Tensor, factor: torch.Tensor | None = None, *, key: int | None = None, backend: str = "auto"
) -> Int8Rows:
    """``x`` (n, F) float32, each row times its ``factor`` (n,) float32 if there is one, as 8-bit integers.

    key: of the noise, in [0, 2**64); None: to the nearest.

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
    rows = _new_rows(x)
    kernels.quantize_rows(x.contiguous(), None if factor is None else factor.contiguous(), key, rows.codes, rows.scale)
    return rows


def product(
    x: torch.Tensor | Int8Rows,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    *,
    key: int | None = None,
    weight_key: int | None = None,
    backend: str = "auto",
) -> tuple[torch.Tensor, Int8Rows]:
    """``x @ weight`` of 8-bit integers, plus ``bias`` in each row, and x as it was quantized for it.

    Args:
        x: (n, F) float32, which is quantized as it is read, or what that was before.
        weight: (F, H) float32, of any strides; each of its columns is quantized like a row, under ``weight_key``.
        bias: (H,) float32.
        out: (n, H) contiguous float32 that is added to; a new tensor if None.
        key: of the noise for x, where it is not quantized yet; None: to the nearest.

    Returns:
        ``out``, or the new (n, H) float32 tensor; and x.

    Raises:
        ValueError: naming the argument that is wrong, also where F is more than :data:`MOST_TERMS`.
    """
    _check_operand("x", x)
    _check_weight(x, weight)
    check_key("key", key)
    check_key("weight_key", weight_key)
    shape = x.shape[0], weight.shape[1]
    if bias is not None and (bias.shape != weight.shape[1:] or bias.dtype != torch.float32):
        raise WrongValueError(f"bias must be float32 of shape ({shape[1]},), not {bias.dtype} {tuple(bias.shape)}")
    if out is not None and (out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous()):
        raise WrongValueError(f"out must be contiguous float32 of shape {shape}, not {out.dtype} {tuple(out.shape)}")
    values = None if isinstance(x, Int8Rows) else x.contiguous()
    kernels = choose(INT8, backend, weight=weight, x=x.codes if isinstance(x, Int8Rows) else x, bias=bias, out=out)
    accumulate = out is not None
    if out is None:
        out = buffers.empty(*shape, torch.float32, weight.device)
    rows = x if isinstance(x, Int8Rows) else _new_rows(x)
    bias = None if bias is None else bias.contiguous()
    kernels.product(values, key, rows.codes, rows.scale, weight, weight_key, bias, accumulate, out)
    return out, rows


def weight_gradient(
    x: Int8Rows, dy: torch.Tensor, *, key: int | None = None, sums: bool = False, backend: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``x.T @ dy`` (F, H) of 8-bit integers, and the sums of dy's columns (H,), in float32, if ``sums``.

    dy (n, H) float32: its rows, times the scales of x's, are quantized by columns, 256 rows at a time, with noise of ``key``; the
    sums over them are added in float32, those of 1,024 rows first. So the result does not depend on threads, and n may be any
    number.

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


def sddmm(
    csr: Csr, a: Int8Rows, b: Int8Rows, op: str = "dot", heads: int | None = None, backend: str = "auto"
) -> torch.Tensor:
    """:func:`hpcgnn.kernels.edges.sddmm` of 8-bit integers, float32: products are summed as integers, sums are not (Tango §3.3).

    a: (R, F). b: (C, F).

    Raises:
        ValueError: naming the argument that is wrong, also where a head has more than :data:`MOST_TERMS` columns.
    """
    check_operation(op)
    _check_operand("a", a)
    _check_operand("b", b)
    width = a.shape[1]
    if a.shape[0] != csr.num_rows or b.shape != (csr.num_cols, width):
        raise WrongValueError(
            f"a must have {csr.num_rows} rows, and b {csr.num_cols}, of as many columns: they are {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    check_heads(op, heads, width)
    if op == "dot":
        _check_terms(width // (heads or 1))
    kernels = choose(INT8, backend, a=a.codes, b=b.codes, csr=csr.indices)
    out = buffers.empty(csr.num_entries, width if op == "add" else heads or 1, torch.float32, a.codes.device)
    if out.numel():
        kernels.sddmm(csr, a.codes, a.scale, b.codes, b.scale, op, heads or 1, out)
    return out[:, 0] if op == "dot" and heads is None else out


def _new_rows(x: torch.Tensor) -> Int8Rows:
    codes = buffers.empty(x.shape[0], x.shape[1], torch.int8, x.device)
    return Int8Rows(codes, torch.empty(x.shape[0], device=x.device))


def _check_operand(name: str, x: torch.Tensor | Int8Rows) -> None:
    if not isinstance(x, Int8Rows):
        _check_float(name, x)
    elif x.codes.dim() != 2 or x.codes.dtype != torch.int8 or not x.codes.is_contiguous():
        raise WrongValueError(f"{name}.codes must be contiguous int8 of two dimensions, not {x.codes.dtype}")
    elif x.scale.shape != x.codes.shape[:1] or x.scale.dtype != torch.float32 or not x.scale.is_contiguous():
        raise WrongValueError(f"{name}.scale must be contiguous float32 of shape ({x.shape[0]},)")


def _check_float(name: str, x: torch.Tensor) -> None:
    if x.dim() != 2 or x.dtype != torch.float32:
        raise WrongValueError(f"{name} must be a float32 matrix, not {x.dtype} of shape {tuple(x.shape)}")


def _check_weight(x: torch.Tensor | Int8Rows, weight: torch.Tensor) -> None:
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
