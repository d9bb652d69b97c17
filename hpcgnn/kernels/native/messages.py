"""See :mod:`hpcgnn.kernels.messages`."""

from __future__ import annotations

import torch

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.native.library import function, threads
from hpcgnn.kernels.native.spmm import DEFAULT_TUNING, csr_argument


def encode_rows(
    x: torch.Tensor,
    rows: torch.Tensor,
    bits: int,
    key: int | None,
    buffer: torch.Tensor,
    payload_at: torch.Tensor,
    params_at: torch.Tensor | None,
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


def decode_rows(
    buffer: torch.Tensor,
    payload_at: torch.Tensor,
    params_at: torch.Tensor | None,
    bits: int,
    out: torch.Tensor,
    rows: torch.Tensor,
    accumulate: bool,
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


def spmm_rows(
    csr: Csr,
    buffer: torch.Tensor,
    payload_at: torch.Tensor,
    params_at: torch.Tensor | None,
    bits: int,
    out: torch.Tensor,
) -> None:
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
