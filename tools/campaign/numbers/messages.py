"""The guarantees of quantization for every row of any values, and the agreement of all kernels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.exchange import codecs
from hpcgnn.kernels import library
from hpcgnn.kernels.messages import decode_rows, encode_rows
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes

LARGEST, SMALLEST_SCALE = 2.0**126, 2.0**-110
_STEP_UP = 1 + 2.0**-7  # a scale is rounded up to bfloat16
_ROUNDING = 2.0**-7  # relative rounding error of a zero-point
_WIDTHS = (1, 3, 8, 17, 64, 130)


def beyond_bound(x: np.ndarray, decoded: np.ndarray, bits: int, *, has_noise: bool) -> str:
    """A phrase about a value of ``x`` (n, F) whose decoded value differs by more than the row's step; empty if there is none.

    Rows with a NaN or an infinity must be NaN throughout; values beyond 2**126 count as 2**126.
    """
    is_finite = np.isfinite(x).all(1)
    if not np.isnan(decoded[~is_finite]).all():
        return f"row {int(np.flatnonzero(~is_finite)[0])} has a NaN or an infinity, and came as numbers"
    x, decoded = x[is_finite].astype(np.float64), decoded[is_finite].astype(np.float64)
    if not x.size:
        return ""
    if not np.isfinite(decoded).all():
        return "a finite row came with a NaN or an infinity"
    is_beyond = np.abs(x) > LARGEST  # such a value gets the last code, which rounding may put beyond 2**126
    x = x.clip(-LARGEST, LARGEST)
    low, high = x.min(1), x.max(1)
    largest = np.abs(x).max(1)
    # The rounded zero-point is below the smallest value, so the grid is longer by that difference.
    steps = 2**bits - 1 if has_noise else 2**bits
    scale = np.maximum((high - low + _ROUNDING * np.abs(low) * has_noise) / steps, SMALLEST_SCALE) * _STEP_UP
    allowed = scale * (1 if has_noise else 0.5) + (not has_noise) * 2.0**-8 * (np.abs(low) + scale)
    allowed += 2.0**-22 * largest + (low == high) * _ROUNDING * largest + 2.0**-149
    off = np.abs(x - decoded) - allowed[:, None] - is_beyond * _ROUNDING * LARGEST
    if (off <= 0).all():
        return ""
    row, column = np.unravel_index(int(off.argmax()), off.shape)
    return f"{x[row, column]!r} in a row from {low[row]!r} to {high[row]!r} came as {decoded[row, column]!r} in {bits} bits"


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Inside the context, decode every quantized message of this process again, and compare it with the rows that were sent."""
    problems: list[str] = []

    def encode(x: torch.Tensor, rows: torch.Tensor, bits: int, key: int | None, *where: Any, **how: Any) -> Any:
        nonfinite = encode_rows(x, rows, bits, key, *where, **how)
        if bits in QUANTIZED_BITS and rows.numel():
            out = torch.zeros(rows.numel(), x.shape[1])
            decode_rows(*where, bits, out, torch.arange(rows.numel()), backend="reference", check=False)
            wrong = beyond_bound(x[rows].numpy(), out.numpy(), bits, has_noise=key is not None)
            if wrong:
                problems.append(wrong)
        return nonfinite

    with mock.patch.object(codecs, "encode_rows", encode):
        yield problems


def rows_out_of_the_ordinary(rng: np.random.Generator, width: int) -> dict[str, np.ndarray]:
    """Unusual rows (F,), by description."""
    x = rng.standard_normal(width)
    top = np.finfo(np.float32).max
    sign = np.where(rng.random(width) < 0.5, -1.0, 1.0)
    rows = {
        "usual": x, "1e30": 1e30 * x, "1e-30": 1e-30 * x, "denormal": 1e-40 * x, "smallest denormal": 1.4e-45 * sign,
        "zeros": 0 * x, "negative zeros": -0.0 * np.abs(x), "both zeros": 0.0 * sign, "constant": np.full(width, 0.7),
        "constant 1e30": np.full(width, 1e30), "constant denormal": np.full(width, 3e-42), "largest": top * sign,
        "constant largest": np.full(width, top), "constant smallest": np.full(width, -top), "range overflows": 3e38 * sign,
        "beyond 2**126": 1.5e38 * x, "subnormal range beside 1": 1 + 1.2e-7 * (rng.random(width) < 0.5),
        "subnormal range beside 1e-38": 1.2e-38 + 1e-44 * rng.random(width),
        "one huge": np.where(np.arange(width) == 0, 1e38, 1e-3 * x),
        "one tiny": np.where(np.arange(width) == 0, 1e-40, 1.0), "magnitudes": sign * 10.0 ** rng.uniform(-44, 38, width),
        "halves of steps": rng.integers(0, 256, width) / 2, "2**24 + 1": 2.0**24 + rng.integers(0, 3, width),
        "around 2**-110": 2.0**-110 * x, "around 2**126": 2.0**126 * (1 + 1e-6 * x),
        "around 2**-126": 2.0**-126 * (1 + 0.5 * sign),
    }  # fmt: skip
    for what, value in (("NaN", np.nan), ("an infinity", np.inf), ("minus infinity", -np.inf)):
        for where, column in (("first", 0), ("last", width - 1)):
            rows[f"{what} {where}"] = np.where(np.arange(width) == column, value, x)
    rows["infinities"] = np.inf * sign
    rows["a NaN of another pattern"] = x
    with np.errstate(over="ignore"):
        found = {name: row.astype(np.float32) for name, row in rows.items()}
    found["a NaN of another pattern"].view(np.uint32)[width // 2] = 0xFF8000FF
    return found


def ways() -> dict[str, tuple[str, str]]:
    """The backend and instruction set of every kernel that runs here, by name."""
    return {"reference": ("reference", ""), "jit": ("jit", "")} | {
        f"native, {isa}": ("native", isa) for isa in library.isas()
    }


def _through_a_message(
    x: torch.Tensor, bits: int, key: int | None, way: tuple[str, str]
) -> tuple[int, bytes, torch.Tensor]:
    """The number of rows of ``x`` (n, F) that are not finite, the bytes of their message, and the (n, F) decoded rows, by the
    kernels of a backend and an instruction set.
    """
    (backend, isa), numbers = way, torch.arange(x.shape[0])
    payload_at = numbers * payload_bytes(x.shape[1], bits)
    payloads = x.shape[0] * payload_bytes(x.shape[1], bits)
    params_at = payloads + numbers * PARAMS_BYTES if bits in QUANTIZED_BITS else None
    buffer = torch.zeros(payloads + (0 if params_at is None else x.shape[0] * PARAMS_BYTES), dtype=torch.uint8)
    out = torch.full_like(x, torch.nan)
    with mock.patch.dict(os.environ, {"HPCGNN_ISA": isa}):
        nonfinite = encode_rows(x, numbers, bits, key, buffer, payload_at, params_at, backend=backend)
        decode_rows(buffer, payload_at, params_at, bits, out, numbers, backend=backend)
    return int(nonfinite), buffer.numpy().tobytes(), out


def problem_of_kernels(rng: np.random.Generator, width: int, bits: int, *, has_noise: bool) -> str:
    """A phrase about a defect of the kernels of messages for all unusual rows at once, in random order; empty if there is none.

    Quantized values must be within a step of their row, 16 bits must be the nearest bfloat16, and 32 bits the value itself. All
    kernels must make the same bytes, decode the same numbers, and count the rows that are not finite.
    """
    x = torch.from_numpy(rng.permutation(np.stack(list(rows_out_of_the_ordinary(rng, width).values()))))
    key = int(rng.integers(2**63)) if has_noise and bits in QUANTIZED_BITS else None
    at, first = f"at {width} columns and {bits} bits", ("", b"", b"")
    for name, way in ways().items():
        nonfinite, message, decoded = _through_a_message(x, bits, key, way)
        if bits in QUANTIZED_BITS:
            if wrong := beyond_bound(x.numpy(), decoded.numpy(), bits, has_noise=has_noise):
                return f"{name}: {wrong}"
        elif _bits_of(decoded) != _bits_of(x if bits == 32 else x.bfloat16().float()):
            return f"{name} decodes other numbers than torch {at}"
        if nonfinite != int((~x.isfinite()).any(1).sum()):
            return f"{name} finds {nonfinite} rows that are not finite, {at}"
        # 32 bits are the values themselves, and the bits of a NaN are not specified.
        found = (name, b"" if bits == 32 else message, _bits_of(decoded))
        first = first if first[0] else found
        for what, mine, theirs in (("bytes", found[1], first[1]), ("numbers", found[2], first[2])):
            if mine != theirs:
                return f"{name} makes other {what} than {first[0]} {at}"
    return ""


def _bits_of(decoded: torch.Tensor) -> bytes:
    """The bits of values with all NaNs made equal, because their bits are not specified."""
    values = decoded.numpy().copy()
    values[np.isnan(values)] = np.nan
    return values.tobytes()


def kernel_cases() -> Iterator[tuple[int, int, bool]]:
    """Combinations of columns, bit-widths, and rounding with or without noise."""
    for width in _WIDTHS:
        for bits in (*QUANTIZED_BITS, 16, 32):
            yield width, bits, True
            if bits in QUANTIZED_BITS:
                yield width, bits, False
