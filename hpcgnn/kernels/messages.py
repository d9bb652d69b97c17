"""Rows of a wire buffer, quantized or plain, on every backend.

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

All functions take these arguments: ``buffer`` (any number,) contiguous uint8; ``payload_at`` and ``params_at`` (n,) contiguous
int64 byte offsets, of which ``params_at`` is ignored for 16 and 32 bits, where it may be None; ``backend``, one of
:func:`hpcgnn.kernels.backends` or ``auto``. ``check=False`` is for offsets and rows that are right by construction: it skips the
checks that take O(n) time, and then a wrong offset may overwrite other memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hpcgnn.base.errors import WrongValueError
from hpcgnn.base.typed import MESSAGE_BITS, QUANTIZED_BITS
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import MESSAGES, DeviceCount, MessageKernels
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.keyed import check_key
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes

Encode = Callable[[Tensor, int | None, Tensor], DeviceCount]  # a function of (x, key, buffer)


def encode_rows(
    x: Tensor,
    rows: Tensor,
    bits: int,
    key: int | None,
    buffer: Tensor,
    payload_at: Tensor,
    params_at: Tensor | None,
    backend: str = "auto",
    *,
    check: bool = True,
) -> DeviceCount:
    """Write row ``rows[i]`` of ``x`` (m, F) contiguous float32 to ``buffer``, for each i; other bytes stay as they are.

    The bytes of a row depend on the row, its number in ``x``, ``bits`` and ``key`` alone, not on their place in ``buffer``. No
    two rows may share bytes of ``buffer``.

    ``key=None`` is for error feedback, where a message carries the difference of a row to the sum that the receiver holds. Each
    value is rounded, without noise, to the nearest centre of ``2**bits`` cells between the row's least and largest value.

    - The scale S is ``(largest - least) / 2**bits``, rounded up to bfloat16, and at least 2**-110.
    - The zero-point Z is ``least + S / 2`` in float32, to the nearest bfloat16, ties to even.
    - The code is ``floor((x - Z) / S + 1 / 2)``, computed in the fixed point of the noise and clamped to [0, ``2**bits - 1``].
    - The error of a decoded value is at most S / 2, plus the rounding of Z, at most ``2**-8 * abs(Z)``, and that of float32. So
      each
      message shrinks the largest magnitude of the differences to little more than ``2**-bits + 2**-8`` of itself. With noise, the
      error would be up to a whole step of a coarser grid, and at 1 bit differences would grow.
    - Special rows are treated as with noise, except that a constant row is rounded to the nearest bfloat16.

    Args:
        rows: (n,) contiguous int64; a row may be named more than once.
        key: in [0, 2**64), or None to round to the centres of cells. Ignored for 16 and 32 bits.

    Returns:
        The number of the n rows that hold a NaN or an infinity, a :data:`~hpcgnn.kernels.contract.DeviceCount`. These rows are
        written, too: up to 8 bits as NaN.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    check_key("key", key)
    _check_matrix("x", x)
    kernels = choose(MESSAGES, backend, x=x, rows=rows, buffer=buffer, payload_at=payload_at, params_at=params_at)
    _check_rows(rows, x.shape[0], check)
    _check_places(buffer, payload_at, params_at, bits, rows.numel(), x.shape[1], check)
    _check_apart("x", x, buffer)
    return kernels.encode_rows(x.detach(), rows, bits, key, buffer, payload_at, params_at)


def decode_rows(
    buffer: Tensor,
    payload_at: Tensor,
    params_at: Tensor | None,
    bits: int,
    out: Tensor,
    rows: Tensor,
    accumulate: bool = False,
    backend: str = "auto",
    *,
    check: bool = True,
) -> DeviceCount:
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F) contiguous float32, or add it with ``accumulate``.

    Args:
        rows: (n,) contiguous int64, all different.

    Returns:
        The number of the n rows that are not finite, a :data:`~hpcgnn.kernels.contract.DeviceCount`: up to 8 bits by their
        parameters, else by their values. A finite number that bfloat16 cannot hold arrives as an infinity.

    Raises:
        ValueError: naming the argument that is wrong.
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
    csr: Csr,
    buffer: Tensor,
    payload_at: Tensor,
    params_at: Tensor | None,
    bits: int,
    num_columns: int,
    out: Tensor,
    backend: str = "auto",
    *,
    check: bool = True,
) -> None:
    """``out += csr @ decoded``, where row i of ``decoded`` (n, num_columns) is row i of ``buffer``.

    The result has the same bits as :func:`decode_rows` into a matrix and ``spmm(csr, decoded, out=out)`` on the same backend, if
    that packs no columns; native and jit agree in their bits. The native kernel decodes in registers, without a matrix.

    Args:
        csr: (R, n) matrix of ones, or with float32 ``csr.weight``.
        out: (R, num_columns) contiguous float32 to add to.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_matrix("out", out)
    if out.shape != (csr.num_rows, num_columns):
        raise WrongValueError(f"out must have shape ({csr.num_rows}, {num_columns}), not {tuple(out.shape)}")
    if csr.weight is not None and csr.weight.dtype != torch.float32:
        raise WrongValueError(f"csr.weight must be float32, not {csr.weight.dtype}")
    places = {"payload_at": payload_at, "params_at": params_at}
    kernels = choose(MESSAGES, backend, out=out, buffer=buffer, csr=csr.indices, weight=csr.weight, **places)
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


def _check_matrix(name: str, x: Tensor) -> None:
    if x.dim() != 2 or x.dtype != torch.float32 or not x.is_contiguous():
        raise WrongValueError(f"{name} must be a contiguous float32 matrix, not {x.dtype} of shape {tuple(x.shape)}")


def _check_numbers(name: str, numbers: Tensor) -> None:
    if numbers.dim() != 1 or numbers.dtype != torch.int64 or not numbers.is_contiguous():
        raise WrongValueError(
            f"{name} must be contiguous int64 of shape (n,), not {numbers.dtype} of {tuple(numbers.shape)}"
        )


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
        raise WrongValueError(
            f"buffer must be contiguous one-dimensional uint8, not {buffer.dtype} of {tuple(buffer.shape)}"
        )
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
                f"{name} must lie in [0, {last}] for rows inside the buffer, not from {least} to {most}"
            )


def _check_apart(name: str, matrix: Tensor, buffer: Tensor) -> None:
    if matrix.numel() and matrix.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr():
        raise WrongValueError(f"{name} must not share memory with buffer")
