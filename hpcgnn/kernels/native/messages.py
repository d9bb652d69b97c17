"""See :mod:`hpcgnn.kernels.messages`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.native.library import bound, function, threads
from hpcgnn.kernels.native.spmm import DEFAULT_TUNING, csr_argument


def encode_rows(
    x: Tensor, rows: Tensor, bits: int, key: int | None, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None
) -> int:
    """Write row ``rows[i]`` of ``x`` (m, F) to its place in ``buffer``; return the number of rows that are not finite."""
    return function("encode_rows")(
        count=rows.numel(),
        rows=rows,
        width=x.shape[1],
        bits=bits,
        to_centres=key is None,
        key=key or 0,
        x=x,
        buffer=buffer,
        payload_at=payload_at,
        params_at=params_at,
        threads=threads(),
    )


def bind_encode(
    rows: Tensor, bits: int, payload_at: Tensor, params_at: Tensor | None, width: int
) -> Callable[[Tensor, int | None, Tensor], int]:
    """:func:`encode_rows` as a function of (x, key, buffer), for the same rows and places in each call."""
    kernel = bound(
        "encode_rows", count=rows.numel(), width=width, bits=bits, rows=rows, payload_at=payload_at, params_at=params_at
    )

    def encode(x: Tensor, key: int | None, buffer: Tensor) -> int:
        threads, to_centres = torch.get_num_threads(), key is None
        return kernel(to_centres=to_centres, key=key or 0, x=x.data_ptr(), buffer=buffer.data_ptr(), threads=threads)

    return encode


def decode_rows(
    buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor, rows: Tensor, accumulate: bool
) -> int:
    """Write row i of ``buffer`` to row ``rows[i]`` of ``out`` (m, F), or add it; return the number of rows that are not
    finite."""
    return function("decode_rows")(
        count=rows.numel(),
        rows=rows,
        width=out.shape[1],
        bits=bits,
        buffer=buffer,
        payload_at=payload_at,
        params_at=params_at,
        out=out,
        accumulate=accumulate,
        threads=threads(),
    )


def bind_spmm_rows(
    csr: Csr, payload_at: Tensor, params_at: Tensor | None, bits: int, width: int
) -> Callable[[Tensor, Tensor], None]:
    """:func:`spmm_rows` as a function of (buffer, out), for the same matrix and places in each call."""
    kernel = bound(
        "spmm_rows", csr=csr_argument(csr), weight=csr.weight, payload_at=payload_at, params_at=params_at, bits=bits,
        width=width, tuning=DEFAULT_TUNING.arguments[False],
    )  # fmt: skip
    return lambda buffer, out: kernel(buffer=buffer.data_ptr(), out=out.data_ptr(), threads=torch.get_num_threads())


def spmm_rows(csr: Csr, buffer: Tensor, payload_at: Tensor, params_at: Tensor | None, bits: int, out: Tensor) -> None:
    """Add ``csr`` times the rows of ``buffer`` to ``out`` (R, F)."""
    function("spmm_rows")(
        csr=csr_argument(csr),
        weight=csr.weight,
        buffer=buffer,
        payload_at=payload_at,
        params_at=params_at,
        bits=bits,
        width=out.shape[1],
        out=out,
        tuning=DEFAULT_TUNING.arguments[False],
        threads=threads(),
    )
