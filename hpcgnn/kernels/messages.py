"""Rows of a wire buffer, quantized or plain.

A wire buffer is one contiguous run of bytes. The payload of row i begins at byte ``payload_at[i]``, and the parameters of a
quantized row (zero-point and scale, two bfloat16 numbers) begin at byte ``params_at[i]``. Both may lie anywhere, so that a buffer
can hold the rows of each receiver grouped by bit-width. ``bits`` is the bit-width of a row:

- 1, 2, 4, 8: codes of this many bits, and parameters. This is the stochastic quantization of AdaQP (§2.3) and SuperGCN (§2.4),
  see below. Without a key, the form is the same, but values are rounded to the centres of cells: see :func:`encode_rows`.
- 16: bfloat16, rounded to the nearest, ties to even, as by :func:`hpcgnn.kernels.pack_bf16`; no parameters.
- 32: float32, unchanged; no parameters.

*The grid.* A row's zero-point is its minimum, rounded down to bfloat16; its scale S is ``(maximum - zero-point) / (2**bits -
1)``, rounded up to bfloat16. The code of a value x is ``floor((x - zero-point) / S + u)``, one of the two nearest steps. u in
(0, 1) comes from 16 random bits, which are a function of (key, row number in ``x``, column) alone. The decoded value is
``zero-point + code * S``. Sender and receiver use the rounded zero-point and scale, and no value lies outside the grid.

*The noise.* Decoding is unbiased: E[decoded] = x, to within S / 2**17, because u has 2**16 values, and float32 rounding. The
variance of an element is ``S**2 * f * (1 - f)``, where f in [0, 1) is the position of x between two steps. That is at most
S**2 / 4, and S**2 / 6 on average over uniform f, so a row of D elements has ``D * S**2 / 6`` (AdaQP Theorem 1; SuperGCN §2.4).
Rows and columns round independently of each other. Two messages with one key would use the same u: give each message its own key.

*Special rows.*

- A row with a NaN or an infinity has NaN parameters and decodes to NaN as a whole, so that the problem shows.
- A constant row has scale 0 and is exact if bfloat16 can hold the value; else S is about the gap between two bfloat16 numbers.
- A value beyond ±2**126 (8.5e37) counts as ±2**126, so that no difference overflows.
- A tiny range gets S = 2**-110 (7.7e-34), the smallest scale, and stays unbiased.
- -0.0 becomes 0.0.

Every backend, instruction set and number of threads gives the same bytes. Only :mod:`hpcgnn.kernels.packing` and the kernels
know which bits hold which column.

All functions raise ValueError, which names the argument, where one is wrong. They take these arguments: ``buffer`` (any number,)
contiguous uint8; ``payload_at`` and ``params_at`` (n,) contiguous int64 byte offsets, of which ``params_at`` is ignored for 16
and 32 bits, where it may be None; ``backend``, one of :func:`hpcgnn.kernels.backends` or ``auto``. ``check=False`` is for offsets
and rows that are right by construction: it skips the checks that take O(n) time, and then a wrong offset may overwrite other
memory.

*Rows of 8-bit integers.* A code of an 8-bit row stands for ``zero-point + code * S`` here, and for ``code * S`` in
:mod:`hpcgnn.kernels.int8`. With ``zero-point = -128 * S``, and 128 added to the codes, both are the same numbers. So a row of
8-bit integers travels without conversion to float32 and a second rounding (:func:`encode_codes`, :func:`decode_codes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.errors import WrongValueError
from hpcgnn.base.typed import MESSAGE_BITS, QUANTIZED_BITS
from hpcgnn.kernels import buffers, packing
from hpcgnn.kernels.backend import Operator, choose, misfit
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.keyed import check_key
from hpcgnn.kernels.library import bound, native
from hpcgnn.kernels.narrow import NARROW
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.kernels.spmm import DEFAULT_TUNING, SPMM, csr_argument

# A count: an int, or, if reading it would wait for a device, an int64 tensor without dimensions on that device.
DeviceCount = int | Tensor
Encode = Callable[[Tensor, int | None, Tensor], DeviceCount]  # a function of (x, key, buffer)
_MIDDLE = 128  # the number that is added to a code of an 8-bit integer
_ROWS_AT_ONCE = 1 << 14  # limits memory: an index takes 8 bytes for each byte that it names


class MessageKernels(Protocol):
    """Every backend writes the same bytes.

    A module may also have ``bind_encode(rows, bits, payload_at, params_at, width)`` and ``bind_spmm_rows(csr, payload_at,
    params_at, bits, width)``: faster forms of two functions for the same arguments in each epoch, as functions of (x, key,
    buffer) and of (buffer, out).
    """

    def encode_rows(
        self, x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor,
        params_at: Tensor | None,
    ) -> DeviceCount:  # fmt: skip
        """Write row ``rows[i]`` of ``x`` (n, F) float32 to its place in ``buffer``; return the number of rows not finite."""
        values = x[rows]
        if bits in QUANTIZED_BITS:
            assert params_at is not None, "checked before"
            payload = torch.empty(rows.numel(), payload_bytes(x.shape[1], bits), dtype=torch.uint8)
            params = torch.empty(rows.numel(), 2, dtype=torch.bfloat16)
            _quantize(values, rows.numpy(), bits, key, payload, params)
            buffer[_bytes(params_at, PARAMS_BYTES)] = params.view(torch.uint8)
        elif bits == 16:
            packed = torch.empty(values.shape, dtype=torch.bfloat16)
            NARROW.reference.pack_bf16(values, None, packed)
            payload = packed.view(torch.uint8)
        else:
            payload = values.view(torch.uint8)
        buffer[_bytes(payload_at, payload.shape[1])] = payload
        return _not_finite(values)

    def decode_rows(
        self, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor, rows: Tensor,
        accumulate: bool,
    ) -> DeviceCount:  # fmt: skip
        """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (n, F), or add it; return the number of rows not finite."""
        payload = buffer[_bytes(payload_at, payload_bytes(out.shape[1], bits))]
        if bits in QUANTIZED_BITS:
            assert params_at is not None, "checked before"
            params = buffer[_bytes(params_at, PARAMS_BYTES)].view(torch.bfloat16).float()
            byte, shift = packing.places(out.shape[1], bits)
            codes = payload.numpy()[:, byte] >> shift & np.uint8(2**bits - 1)
            values = params[:, :1] + torch.from_numpy(codes).float() * params[:, 1:]  # zero-point + code * scale
            not_finite = _not_finite(params)
        else:
            words = payload.flatten().view(torch.bfloat16 if bits == 16 else torch.float32)
            values = words.float().view(rows.numel(), out.shape[1])
            not_finite = _not_finite(values)
        out[rows] = out[rows] + values if accumulate else values
        return not_finite

    def spmm_rows(
        self, csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor
    ) -> None:
        """Add the product of ``csr``, with ``csr.weight`` (float32) or ones, and the C rows of ``buffer`` to ``out`` (R, F)."""
        decode_and_add(self.decode_rows, SPMM.reference.spmm, csr, buffer, payload_at, params_at, bits, out)


def decode_and_add(
    decode: Callable[..., DeviceCount], add: Callable[..., None], csr: Csr, buffer: Tensor, payload_at: Tensor,
    params_at: Tensor | None, bits: int, out: Tensor,
) -> None:  # fmt: skip
    """:meth:`MessageKernels.spmm_rows` by way of a matrix with the decoded rows. decode: ``decode_rows``. add: ``spmm``."""
    decoded = buffers.empty(csr.num_cols, out.shape[1], torch.float32)
    decode(buffer, payload_at, params_at, bits, decoded, torch.arange(csr.num_cols), False)
    add(csr, csr.weight, decoded, None, True, out)


def _bytes(at: Tensor, count: int) -> Tensor:
    """(n, count) positions of the ``count`` bytes that begin at each of ``at`` (n,)."""
    return at[:, None] + torch.arange(count, device=at.device)


def _not_finite(values: Tensor) -> int:
    """The number of rows of ``values`` with a NaN or an infinity."""
    return int((~values.isfinite()).any(1).sum())


def _quantize(x: Tensor, numbers: np.ndarray, bits: int, key: int | None, payload: Tensor, params: Tensor) -> None:
    """Write the codes of ``x`` (n, F) to ``payload`` and their zero-points and scales to ``params``.

    The noise of a row depends on its number in ``numbers`` (n,) int64. Without a key, values are rounded to the centres of cells.
    """
    top, one = 2**bits - 1, np.float32(2**packing.FRACTION_BITS)
    values = x.numpy()
    is_finite = np.isfinite(values).all(axis=1)
    values = np.where(is_finite[:, None], values, np.float32(0))
    zero, scale = _parameters(values, bits, to_centres=key is None)
    per_step = np.divide(one, scale, out=np.zeros_like(scale), where=scale > 0)
    with np.errstate(over="ignore"):  # values beyond packing.LARGEST may overflow; the result is clamped
        steps = ((values - zero[:, None]) * per_step[:, None]).clip(0, one * np.float32(top))
    added = packing.HALF if key is None else packing.noise(key, numbers, values.shape[1])
    codes = ((steps.astype(np.int32) + added) >> packing.FRACTION_BITS).astype(np.uint8)
    codes[~is_finite] = 0
    byte, shift = packing.places(values.shape[1], bits)
    packed = payload.numpy()
    packed[:] = 0
    for one_shift in range(0, 8, bits):  # no two columns with the same shift share a byte
        columns = np.flatnonzero(shift == one_shift)
        packed[:, byte[columns]] |= codes[:, columns] << np.uint8(one_shift)
    patterns = params.view(torch.uint16).numpy()
    patterns[:] = np.stack([zero, scale], axis=1).view(np.uint32) >> np.uint32(16)
    patterns[~is_finite] = packing.NAN


def _parameters(values: np.ndarray, bits: int, to_centres: bool) -> tuple[np.ndarray, np.ndarray]:
    """(n,) zero-points and scales of finite rows, as float32 numbers that bfloat16 can hold."""
    if values.shape[1] == 0:
        return np.zeros(values.shape[0], np.float32), np.zeros(values.shape[0], np.float32)
    smallest = values.min(axis=1).clip(-packing.LARGEST, packing.LARGEST) + np.float32(0)  # -0 becomes 0
    largest = values.max(axis=1).clip(-packing.LARGEST, packing.LARGEST)
    if to_centres:
        scale = _scale(smallest, largest, 2**bits)
        pattern = (smallest + scale / np.float32(2)).view(np.uint32)
        return _upper_half(
            pattern + np.uint32(0x7FFF) + (pattern >> np.uint32(16) & np.uint32(1))
        ), scale  # ties to even
    pattern = smallest.view(np.uint32)
    zero = _upper_half(np.where(smallest < 0, pattern + np.uint32(0xFFFF), pattern))  # towards -infinity
    return zero, _scale(zero, largest, 2**bits - 1)


def _scale(low: np.ndarray, high: np.ndarray, steps: int) -> np.ndarray:
    """The smallest bfloat16 of which ``steps`` steps reach from low to high, at least the smallest scale; 0 if high <= low."""
    scale = np.maximum((high - low) / np.float32(steps), packing.SMALLEST_SCALE)
    return np.where(high > low, _upper_half(scale.view(np.uint32) + np.uint32(0xFFFF)), np.float32(0))


def _upper_half(pattern: np.ndarray) -> np.ndarray:
    return (pattern & np.uint32(0xFFFF0000)).view(np.float32)


class _Native(MessageKernels):
    def encode_rows(
        self, x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor,
        params_at: Tensor | None,
    ) -> int:  # fmt: skip
        return native(
            "encode_rows", count=rows.numel(), rows=rows, width=x.shape[1], bits=bits, to_centres=key is None, key=key or 0,
            x=x, buffer=buffer, payload_at=payload_at, params_at=params_at,
        )  # fmt: skip

    def bind_encode(
        self, rows: Tensor, bits: int, payload_at: Tensor, params_at: Tensor | None, width: int
    ) -> Callable[[Tensor, int | None, Tensor], int]:
        fixed = {"count": rows.numel(), "rows": rows, "payload_at": payload_at, "params_at": params_at}
        kernel = bound("encode_rows", width=width, bits=bits, **fixed)

        def encode(x: Tensor, key: int | None, buffer: Tensor) -> int:
            threads, to_centres = torch.get_num_threads(), key is None
            return kernel(
                to_centres=to_centres, key=key or 0, x=x.data_ptr(), buffer=buffer.data_ptr(), threads=threads
            )

        return encode

    def decode_rows(
        self, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor, rows: Tensor,
        accumulate: bool,
    ) -> int:  # fmt: skip
        return native(
            "decode_rows", count=rows.numel(), rows=rows, width=out.shape[1], bits=bits, buffer=buffer,
            payload_at=payload_at, params_at=params_at, out=out, accumulate=accumulate,
        )  # fmt: skip

    def bind_spmm_rows(
        self, csr: Csr, payload_at: Tensor, params_at: Tensor | None, bits: int, width: int
    ) -> Callable[[Tensor, Tensor], None]:
        fixed = {"csr": csr_argument(csr), "weight": csr.weight, "tuning": DEFAULT_TUNING.arguments[False]}
        places = {"payload_at": payload_at, "params_at": params_at}
        kernel = bound("spmm_rows", bits=bits, width=width, **fixed, **places)
        return lambda buffer, out: kernel(buffer=buffer.data_ptr(), out=out.data_ptr(), threads=torch.get_num_threads())

    def spmm_rows(
        self, csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor
    ) -> None:
        native(
            "spmm_rows", csr=csr_argument(csr), weight=csr.weight, buffer=buffer, payload_at=payload_at, params_at=params_at,
            bits=bits, width=out.shape[1], out=out, tuning=DEFAULT_TUNING.arguments[False],
        )  # fmt: skip


class Int8MessageKernels(Protocol):
    """Every backend writes the same bytes. The reference takes tensors of any device."""

    def encode_codes(
        self, codes: Tensor, scale: Tensor, rows: Tensor, buffer: Tensor, payload_at: Tensor, params_at: Tensor
    ) -> DeviceCount:
        """Write row ``rows[i]`` of ``codes`` (m, F) and ``scale`` (m,) to its place; return the number of NaN scales."""
        chosen = scale[rows]
        params = torch.stack((-_MIDDLE * chosen, chosen), 1).bfloat16().view(torch.uint8)
        buffer[_bytes(params_at, PARAMS_BYTES)] = params
        for first in range(0, rows.numel(), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            buffer[_bytes(payload_at[some], codes.shape[1])] = codes[rows[some]].view(torch.uint8) ^ _MIDDLE
        nonfinite = chosen.isnan().sum()
        return int(nonfinite) if nonfinite.is_cpu else nonfinite

    def decode_codes(
        self, buffer: Tensor, payload_at: Tensor, params_at: Tensor, codes: Tensor, scale: Tensor, rows: Tensor
    ) -> DeviceCount:
        """Reverse :meth:`encode_codes`; return the number of rows that have another form, whose results are useless."""
        params = buffer[_bytes(params_at, PARAMS_BYTES)].view(torch.bfloat16).float()
        scale[rows] = params[:, 1]
        for first in range(0, rows.numel(), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            codes[rows[some]] = (buffer[_bytes(payload_at[some], codes.shape[1])] ^ _MIDDLE).view(torch.int8)
        others = ((params[:, 0] != -_MIDDLE * params[:, 1]) & ~params[:, 1].isnan()).sum()
        return int(others) if others.is_cpu else others


class _NativeInt8(Int8MessageKernels):
    def encode_codes(
        self, codes: Tensor, scale: Tensor, rows: Tensor, buffer: Tensor, payload_at: Tensor, params_at: Tensor
    ) -> DeviceCount:
        return native(
            "encode_int8", count=rows.numel(), rows=rows, width=codes.shape[1], codes=codes, scale=scale, buffer=buffer,
            payload_at=payload_at, params_at=params_at,
        )  # fmt: skip

    def decode_codes(
        self, buffer: Tensor, payload_at: Tensor, params_at: Tensor, codes: Tensor, scale: Tensor, rows: Tensor
    ) -> DeviceCount:
        return native(
            "decode_int8", count=rows.numel(), rows=rows, width=codes.shape[1], buffer=buffer, payload_at=payload_at,
            params_at=params_at, codes=codes, scale=scale,
        )  # fmt: skip


MESSAGES: Operator[MessageKernels] = Operator("messages", MessageKernels, _Native())
INT8_MESSAGES: Operator[Int8MessageKernels] = Operator(
    "int8_messages", Int8MessageKernels, _NativeInt8(), of_features=False
)


def encode_rows(
    x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None,
    backend: str = "auto", *, check: bool = True,
) -> DeviceCount:  # fmt: skip
    """Write row ``rows[i]`` of ``x`` (m, F) contiguous float32 to ``buffer``, for each i; other bytes stay as they are.

    The bytes of a row depend on the row, its number in ``x``, ``bits`` and ``key`` alone, not on their place in ``buffer``. No
    two rows may share bytes of ``buffer``.

    ``key=None`` is for error feedback, where a message carries the difference of a row to the sum that the receiver holds. Each
    value is rounded, without noise, to the nearest centre of ``2**bits`` cells between the row's least and largest value.

    - The scale S is ``(largest - least) / 2**bits``, rounded up to bfloat16, and at least 2**-110.
    - The zero-point Z is ``least + S / 2`` in float32, to the nearest bfloat16, ties to even.
    - The code is ``floor((x - Z) / S + 1 / 2)``, computed in the fixed point of the noise and clamped to [0, ``2**bits - 1``].
    - The error of a decoded value is at most S / 2, plus the rounding of Z, at most ``2**-8 * abs(Z)``, and that of float32. So
      each message shrinks the largest magnitude of the differences to little more than ``2**-bits + 2**-8`` of itself. With
      noise, the error would be up to a whole step of a coarser grid, and at 1 bit differences would grow.
    - Special rows are treated as with noise, except that a constant row is rounded to the nearest bfloat16.

    Args:
        rows: (n,) contiguous int64; a row may be named more than once.
        key: in [0, 2**64), or None to round to the centres of cells. Ignored for 16 and 32 bits.

    Returns:
        The number of the n rows that hold a NaN or an infinity. These rows are written, too: up to 8 bits as NaN.
    """
    check_key("key", key)
    _check_matrix("x", x)
    kernels = choose(MESSAGES, backend, x=x, rows=rows, buffer=buffer, payload_at=payload_at, params_at=params_at)
    _check_rows(rows, x.shape[0], check)
    _check_places(buffer, payload_at, params_at, bits, rows.numel(), x.shape[1], check)
    _check_apart("x", x, buffer)
    return kernels.encode_rows(x.detach(), rows, bits, key, buffer, payload_at, params_at)


def decode_rows(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor, rows: Tensor,
    accumulate: bool = False, backend: str = "auto", *, check: bool = True,
) -> DeviceCount:  # fmt: skip
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F) contiguous float32, or add it with ``accumulate``.

    Args:
        rows: (n,) contiguous int64, all different.

    Returns:
        The number of the n rows that are not finite: up to 8 bits by their parameters, else by their values. A finite number that
        bfloat16 cannot hold arrives as an infinity.
    """
    _check_matrix("out", out)
    kernels = choose(MESSAGES, backend, out=out, rows=rows, buffer=buffer, payload_at=payload_at, params_at=params_at)
    _check_rows(rows, out.shape[0], check)
    if check:
        _check_distinct(rows, out.shape[0])
    _check_places(buffer, payload_at, params_at, bits, rows.numel(), out.shape[1], check)
    _check_apart("out", out, buffer)
    return kernels.decode_rows(buffer, payload_at, params_at, bits, out.detach(), rows, accumulate)


def spmm_rows(
    csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, num_columns: int, out: Tensor,
    backend: str = "auto", *, check: bool = True,
) -> None:  # fmt: skip
    """``out += csr @ decoded``, where row i of ``decoded`` (n, num_columns) is row i of ``buffer``.

    The result has the same bits as :func:`decode_rows` into a matrix and ``spmm(csr, decoded, out=out)`` on the same backend, if
    that packs no columns; native and jit agree in their bits. The native kernel decodes in registers, without a matrix.

    Args:
        csr: (R, n) matrix of ones, or with float32 ``csr.weight``.
        out: (R, num_columns) contiguous float32 to add to.
    """
    _check_matrix("out", out)
    if out.shape != (csr.num_rows, num_columns):
        raise misfit("out", out, f"float32 of shape ({csr.num_rows}, {num_columns})")
    if csr.weight is not None and csr.weight.dtype != torch.float32:
        raise WrongValueError(f"csr.weight must be float32, not {csr.weight.dtype}")
    where = {"payload_at": payload_at, "params_at": params_at}
    kernels = choose(MESSAGES, backend, out=out, buffer=buffer, csr=csr.indices, weight=csr.weight, **where)
    _check_places(buffer, payload_at, params_at, bits, csr.num_cols, num_columns, check)
    _check_apart("out", out, buffer)
    kernels.spmm_rows(csr, buffer, payload_at, params_at, bits, out.detach())


def encoder(
    kernels: MessageKernels, rows: Tensor, bits: int, payload_at: Tensor, params_at: Tensor, width: int
) -> Encode:
    """:func:`encode_rows` as a function of (x, key, buffer) that checks nothing, for the same rows and places in each epoch."""
    if hasattr(kernels, "bind_encode"):
        return kernels.bind_encode(rows, bits, payload_at, params_at, width)
    return lambda x, key, buffer: kernels.encode_rows(x, rows, bits, key, buffer, payload_at, params_at)


def adder(
    kernels: MessageKernels, csr: Csr, payload_at: Tensor, params_at: Tensor, bits: int, width: int
) -> Callable[[Tensor, Tensor], None]:
    """:func:`spmm_rows` as a function of (buffer, out) that checks nothing, for the same matrix and places in each epoch."""
    if hasattr(kernels, "bind_spmm_rows"):
        return kernels.bind_spmm_rows(csr, payload_at, params_at, bits, width)
    return lambda buffer, out: kernels.spmm_rows(csr, buffer, payload_at, params_at, bits, out)


def encode_codes(
    x: Int8Rows, rows: Tensor, buffer: Tensor, payload_at: Tensor, params_at: Tensor, backend: str = "auto"
) -> DeviceCount:
    """Write row ``rows[i]`` of ``x`` (m, F) to ``buffer``, in the form that :func:`decode_rows` reads as 8 bits; return the
    number of the n rows that held a NaN or an infinity before they were quantized.

    Scales must be numbers that bfloat16 can hold, as those of :func:`hpcgnn.kernels.int8.quantize_rows` are. Nothing is checked.
    rows: (n,) contiguous int64.
    """
    kernels = choose(INT8_MESSAGES, backend, x=x.codes, rows=rows, buffer=buffer)
    return kernels.encode_codes(x.codes, x.scale, rows, buffer, payload_at, params_at)


def decode_codes(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor, out: Int8Rows, rows: Tensor, backend: str = "auto"
) -> DeviceCount:
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F), see :func:`encode_codes`; return the number of rows that do
    not have its form. Unless it is 0, ``out`` is useless."""
    kernels = choose(INT8_MESSAGES, backend, out=out.codes, rows=rows, buffer=buffer)
    return kernels.decode_codes(buffer, payload_at, params_at, out.codes, out.scale, rows)


def _check_matrix(name: str, x: Tensor) -> None:
    if x.dim() != 2 or x.dtype != torch.float32 or not x.is_contiguous():
        raise misfit(name, x, "a contiguous float32 matrix")


def _check_numbers(name: str, numbers: Tensor) -> None:
    if numbers.dim() != 1 or numbers.dtype != torch.int64 or not numbers.is_contiguous():
        raise misfit(name, numbers, "contiguous int64 of shape (n,)")


def _check_rows(rows: Tensor, size: int, check: bool) -> None:
    _check_numbers("rows", rows)
    if check and rows.numel():
        least, most = map(int, torch.aminmax(rows))
        if least < 0 or most >= size:
            raise WrongValueError(f"rows must lie in [0, {size}), not reach from {least} to {most}")


def _check_distinct(rows: Tensor, size: int) -> None:
    """Raise ValueError if ``rows`` names a row twice. Takes O(n) time: only the marks that were set are read."""
    positions, marks = torch.arange(rows.numel(), device=rows.device), rows.new_empty(size)
    marks[rows] = positions
    twice = marks[rows] != positions
    if bool(twice.any()):
        raise WrongValueError(f"rows must name each row at most once, but they name row {int(rows[twice][0])} again")


def _check_places(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, count: int, num_columns: int, check: bool
) -> None:
    if bits not in MESSAGE_BITS:
        raise WrongValueError(f"bits must be 1, 2, 4, 8, 16 or 32, not {bits}")
    if buffer.dim() != 1 or buffer.dtype != torch.uint8 or not buffer.is_contiguous():
        raise misfit("buffer", buffer, "contiguous one-dimensional uint8")
    _check_offsets("payload_at", payload_at, count, buffer.numel() - payload_bytes(num_columns, bits), check)
    if bits in QUANTIZED_BITS:
        if params_at is None:
            raise WrongValueError(f"params_at must be given for {bits} bits")
        _check_offsets("params_at", params_at, count, buffer.numel() - PARAMS_BYTES, check)


def _check_offsets(name: str, offsets: Tensor, count: int, last: int, check: bool) -> None:
    _check_numbers(name, offsets)
    if offsets.numel() != count:
        raise WrongValueError(f"{name} must hold {count} offsets, one for each row, not {offsets.numel()}")
    if check and count:
        least, most = map(int, torch.aminmax(offsets))
        if least < 0 or most > last:
            raise WrongValueError(
                f"{name} must lie in [0, {last}], inside the buffer, not reach from {least} to {most}"
            )


def _check_apart(name: str, matrix: Tensor, buffer: Tensor) -> None:
    if matrix.numel() and matrix.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr():
        raise WrongValueError(f"{name} must not share memory with buffer")
