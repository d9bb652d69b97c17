"""Rows of floats in few bits, for messages and for the features of one aggregation: one entry to every backend.

:func:`quantize` is the stochastic quantization of AdaQP (§3) and SuperGCN (§4); :func:`pack_bf16` and :func:`pack_int8`
are the narrow formats that :func:`hpcgnn.kernels.spmm` reads. For sums of differences, which must not grow, rows can be
rounded without noise: :func:`hpcgnn.kernels.messages.encode_rows` says how, and :func:`dequantize` decodes them too.
"""

from __future__ import annotations

import torch

from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import implementation
from hpcgnn.kernels.packing import QUANTIZED_BITS, payload_bytes


def quantize(
    x: torch.Tensor,
    bits: int,
    key: int,
    *,
    backend: str = "auto",
    payload: torch.Tensor | None = None,
    params: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each element of ``x`` as ``bits`` bits, rounded at random to one of the two nearest steps of its row's grid.

    A row's zero-point is its minimum, rounded down to bfloat16; its scale S is ``(maximum - zero-point) / (2**bits - 1)``,
    rounded up to bfloat16. The code is ``floor((x - zero-point) / S + u)`` with u in (0, 1) from 16 random bits, a
    function of (``key``, row number in ``x``, column) alone. The decoded value is ``zero-point + code * S``; both sides
    use the rounded zero-point and scale, and no value lies outside the grid.

    Decoding is unbiased, E[decoded] = x: to within S / 2**17, as u is one of 2**16 values, and float32 rounding. The
    variance of an element is ``S**2 * f * (1 - f)``, where f is how far it lies between two steps: at most S**2 / 4, and
    S**2 / 6 on average over values that lie anywhere between two steps, so that a row of D of them has ``D * S**2 / 6``
    (AdaQP Theorem 1; SuperGCN §4). Rows and columns round independently of each other. Two calls with one key use the
    same u: use a key for each message.

    What becomes of unusual rows:

    - NaN or an infinity anywhere: the parameters are NaN and the whole row decodes to NaN, so that trouble shows.
    - Constant: scale 0 and exact, if bfloat16 can hold the value; else S is about the gap between two bfloat16 numbers.
    - Beyond ±2**126 (8.5e37), a value is taken as ±2**126, so that no difference overflows.
    - Tiny ranges: S is at least 2**-110 (7.7e-34), still unbiased.
    - -0.0 is 0.0.

    Every backend, instruction set and number of threads gives the same bytes. Which bits hold which column is known to
    :func:`dequantize` alone.

    Args:
        x: (n, F) float32; copied if it is not contiguous.
        bits: 1, 2, 4 or 8.
        key: in [0, 2**64), for instance from :func:`hpcgnn.kernels.keyed.derive_key`.
        backend: ``auto``, ``native``, ``jit`` or ``reference``.
        payload: (n, ceil(F * bits / 8)) contiguous uint8 to write to, for instance part of a send buffer.
        params: (n, 2) contiguous bfloat16 to write to.

    Returns:
        payload: (n, ceil(F * bits / 8)) uint8.
        params: (n, 2) bfloat16: zero-point and scale.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_bits(bits)
    _check_float32("x", x)
    if not 0 <= key < 2**64:
        raise ValueError(f"key must lie in [0, 2**64), not be {key}")
    rows, width = x.shape[0], payload_bytes(x.shape[1], bits)
    payload = _result("payload", payload, (rows, width), torch.uint8)
    params = _result("params", params, (rows, 2), torch.bfloat16)
    implementation("quantize", backend).quantize(_plain(x), bits, key, payload, params)
    return payload, params


def dequantize(
    payload: torch.Tensor,
    params: torch.Tensor,
    bits: int,
    num_columns: int,
    *,
    backend: str = "auto",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The (n, num_columns) float32 rows that :func:`quantize` stored: ``zero-point + code * scale``.

    Args:
        payload: (n, ceil(num_columns * bits / 8)) uint8; copied if it is not contiguous.
        params: (n, 2) bfloat16: zero-point and scale; copied if it is not contiguous.
        bits: as given to :func:`quantize`.
        num_columns: F, the width of the rows.
        backend: ``auto``, ``native``, ``jit`` or ``reference``.
        out: (n, num_columns) contiguous float32 to overwrite; a new tensor if None.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_bits(bits)
    if num_columns < 0:
        raise ValueError(f"num_columns must not be negative, as {num_columns} is")
    if payload.dim() != 2 or payload.dtype != torch.uint8:
        raise ValueError(f"payload must be a uint8 matrix, not {payload.dtype} of shape {tuple(payload.shape)}")
    rows, width = payload.shape[0], payload_bytes(num_columns, bits)
    if payload.shape[1] != width:
        raise ValueError(f"payload must have {width} bytes a row for num_columns={num_columns}, not {payload.shape[1]}")
    if params.shape != (rows, 2) or params.dtype != torch.bfloat16:
        raise ValueError(f"params must be bfloat16 of shape ({rows}, 2), not {params.dtype} of {tuple(params.shape)}")
    out = _result("out", out, (rows, num_columns), torch.float32)
    implementation("quantize", backend).dequantize(_plain(payload), _plain(params), bits, out)
    return out


def pack_bf16(x: torch.Tensor, *, backend: str = "auto", out: torch.Tensor | None = None) -> torch.Tensor:
    """``x`` (n, F) float32 as bfloat16: to the nearest, ties to even; a NaN stays one (always 0x7FC0).

    ``out`` is (n, F) contiguous bfloat16 to overwrite; a new tensor if None.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_float32("x", x)
    out = _result("out", out, (x.shape[0], x.shape[1]), torch.bfloat16)
    implementation("quantize", backend).pack_bf16(_plain(x), out)
    return out


def unpack_bf16(x: torch.Tensor, *, backend: str = "auto", out: torch.Tensor | None = None) -> torch.Tensor:
    """``x`` (n, F) bfloat16 as float32, exactly. ``out`` is (n, F) contiguous float32; a new tensor if None.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    if x.dim() != 2 or x.dtype != torch.bfloat16:
        raise ValueError(f"x must be a bfloat16 matrix, not {x.dtype} of shape {tuple(x.shape)}")
    out = _result("out", out, (x.shape[0], x.shape[1]), torch.float32)
    implementation("quantize", backend).unpack_bf16(_plain(x), out)
    return out


def pack_int8(x: torch.Tensor, *, backend: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` (n, F) float32 as int8 with a scale for each row, for ``spmm(csr, values, scale=scale)``.

    A row's scale is its largest magnitude / 127, and its values are the nearest multiples of that, ties to even. A row of
    zeros has scale 0. A row with a NaN or an infinity has scale NaN and values 0: it stands for NaN in every column. Rows
    whose largest magnitude is below 2**-110 are stored with the scale of that one.

    Returns:
        values: (n, F) int8, in [-127, 127].
        scale: (n,) float32.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_float32("x", x)
    values, scale = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])
    implementation("quantize", backend).pack_int8(_plain(x), values, scale)
    return values, scale


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous()


def _result(name: str, given: torch.Tensor | None, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """``given``, checked, or a new tensor."""
    if given is None:
        return buffers.empty(shape[0], shape[1], dtype) if dtype == torch.float32 else torch.empty(shape, dtype=dtype)
    if given.shape != shape or given.dtype != dtype or not given.is_contiguous() or given.device.type != "cpu":
        raise ValueError(
            f"{name} must be contiguous {dtype} of shape {shape}, not {given.dtype} of {tuple(given.shape)}"
        )
    return given


def _check_bits(bits: int) -> None:
    if bits not in QUANTIZED_BITS:
        raise ValueError(f"bits must be 1, 2, 4 or 8, not {bits}")


def _check_float32(name: str, x: torch.Tensor) -> None:
    if x.dim() != 2 or x.dtype != torch.float32 or x.device.type != "cpu":
        raise ValueError(f"{name} must be a float32 matrix, not {x.dtype} of shape {tuple(x.shape)}")
