"""See :mod:`hpcgnn.kernels.int8`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpcgnn.kernels import packing
from hpcgnn.kernels.csr import Csr

ROWS_OF_A_BLOCK = 256  # rows of a gradient that are quantized together
ROWS_OF_A_SEGMENT = 1024  # rows whose sums are added before those of segments
_TOP = np.float32(127)


def dot_products() -> bool:
    """Return whether special instructions multiply 8-bit integers."""
    return False


def gathers_bytes() -> bool:
    """Return whether summing gathered rows is faster with 8-bit integers."""
    return False


def quantize_rows(x: Tensor, factor: Tensor | None, key: int | None, codes: Tensor, scale: Tensor) -> None:
    """Quantize the rows of ``x`` (n, F), times ``factor`` (n,), to ``codes`` (n, F) and ``scale`` (n,)."""
    values = (x if factor is None else x * factor[:, None]).numpy()
    found = scales(np.abs(values).max(axis=1, initial=0))
    scale.numpy()[:] = found
    codes.numpy()[:] = codes_of(values, found[:, None], key, np.arange(values.shape[0]))


def product(
    codes: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_key: int | None,
    bias: Tensor | None,
    accumulate: bool,
    out: Tensor,
) -> None:
    """``out`` = ``(codes * scale) @ weight + bias``; the columns of ``weight`` are quantized with noise of ``weight_key``."""
    columns = torch.empty(weight.shape[1], weight.shape[0], dtype=torch.int8)
    column_scale = torch.empty(weight.shape[1])
    quantize_rows(weight.T.contiguous(), None, weight_key, columns, column_scale)
    sums = (codes.double() @ columns.double().T).float()  # exact: sums of products are far below 2**53
    y = sums * (scale[:, None] * column_scale)
    if bias is not None:
        y += bias
    torch.add(out, y, out=out) if accumulate else out.copy_(y)


def weight_gradient(
    codes: Tensor, scale: Tensor, dy: Tensor, key: int | None, dweight: Tensor, sums: Tensor | None
) -> None:
    """Write ``(codes * scale).T @ dy`` to ``dweight`` (F, H), and the sums of the columns of ``dy`` to ``sums`` (H,)."""
    dweight.zero_()
    for segment in range(0, dy.shape[0], ROWS_OF_A_SEGMENT):
        of_segment = torch.zeros_like(dweight)
        for first in range(segment, min(segment + ROWS_OF_A_SEGMENT, dy.shape[0]), ROWS_OF_A_BLOCK):
            rows = slice(first, min(first + ROWS_OF_A_BLOCK, dy.shape[0]))
            values = (dy[rows] * scale[rows, None]).numpy()
            column_scale = scales(np.abs(values).max(axis=0, initial=0))
            numbers = np.arange(rows.start, rows.stop)
            dy_codes = torch.from_numpy(codes_of(values, column_scale[None, :], key, numbers))
            products = (codes[rows].double().T @ dy_codes.double()).float()
            of_segment += products * torch.from_numpy(column_scale)
        dweight += of_segment
    if sums is not None:
        torch.sum(dy, 0, out=sums)


def sddmm(csr: Csr, a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, heads: int, out: Tensor) -> None:
    """Write the products of row r of ``a`` and row c of ``b``, codes with scales, to ``out`` for each entry (r, c)."""
    rows, columns = csr.entry_rows(), csr.indices.long()
    products = (a[rows].double() * b[columns].double()).view(rows.numel(), heads, a.shape[1] // heads).sum(2).float()
    torch.mul(products, (a_scale[rows] * b_scale[columns])[:, None], out=out)


def scales(largest: np.ndarray) -> np.ndarray:
    """(k,) float32 scales, which bfloat16 can hold, from the (k,) largest magnitudes; NaN where these are not finite."""
    with np.errstate(invalid="ignore"):
        wanted = np.maximum(np.minimum(largest, packing.LARGEST) / _TOP, packing.SMALLEST_SCALE).astype(np.float32)
    rounded = ((wanted.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    found = np.where(largest > 0, rounded, np.float32(0))
    return np.where(np.isfinite(largest), found, np.float32(np.nan)).astype(np.float32)


def codes_of(values: np.ndarray, scale: np.ndarray, key: int | None, numbers: np.ndarray) -> np.ndarray:
    """(k, F) int8 codes of ``values`` (k, F), whose rows have these ``numbers`` (k,); ``scale`` broadcasts to their shape."""
    one, is_good = np.float32(2**packing.FRACTION_BITS), np.isfinite(scale) & (scale > 0)
    per_step = np.divide(one, scale, out=np.zeros_like(scale), where=is_good)
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond LARGEST may overflow; the result is clamped
        steps = np.where(is_good, values * per_step, np.float32(0)).clip(-one * _TOP, one * _TOP)
    noise = packing.HALF if key is None else packing.noise(key, numbers, values.shape[1])
    return ((steps.astype(np.int32) + noise) >> packing.FRACTION_BITS).astype(np.int8)
