"""See :mod:`hpcgnn.kernels.edges`."""

from __future__ import annotations

import ctypes

import torch

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.native.library import function, pointer, threads
from hpcgnn.kernels.native.spmm import csr_argument

_SDDMM = {"dot": 0, "add": 1, "left": 2}


def sddmm(csr: Csr, a: torch.Tensor, b: torch.Tensor | None, op: str, heads: int, out: torch.Tensor) -> None:
    """Write ``op`` of row r of ``a`` and row c of ``b`` to ``out`` for each entry (r, c); ``left`` is ``a`` alone."""
    function("sddmm", a.dtype)(
        _whole(csr),
        pointer(a),
        pointer(b),
        ctypes.c_int64(a.shape[1]),
        ctypes.c_int(_SDDMM[op]),
        ctypes.c_int64(heads),
        pointer(out),
        threads(),
    )


def edge_softmax(csr: Csr, scores: torch.Tensor, out: torch.Tensor) -> None:
    """Write the softmax over each row's entries of ``scores`` (entries, H) to ``out``."""
    function("edge_softmax", scores.dtype)(
        _whole(csr), pointer(scores), ctypes.c_int64(scores.shape[1]), pointer(out), threads()
    )


def edge_softmax_backward(csr: Csr, alpha: torch.Tensor, gradient: torch.Tensor, out: torch.Tensor) -> None:
    """Write ``alpha * (gradient - the row's sum of alpha * gradient)``, all (entries, H), to ``out``."""
    function("edge_softmax_backward", alpha.dtype)(
        _whole(csr), pointer(alpha), pointer(gradient), ctypes.c_int64(alpha.shape[1]), pointer(out), threads()
    )


def edge_sum(csr: Csr, values: torch.Tensor, out: torch.Tensor) -> None:
    """Write the sum of each row's entries of ``values`` (entries, F) to ``out`` (R, F)."""
    function("edge_sum", values.dtype)(
        _whole(csr), pointer(values), ctypes.c_int64(values.shape[1]), pointer(out), threads()
    )


def max_shares(
    csr: Csr,
    weight: torch.Tensor | None,
    x: torch.Tensor,
    z: torch.Tensor,
    gradient: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write ``gradient`` over the number of the row's entries that attain the maximum ``z``, all (R, F), to ``out``."""
    _max_gradient("max_shares", csr, weight, x, z, gradient, out)


def max_backward(
    transpose: Csr,
    weight: torch.Tensor | None,
    x: torch.Tensor,
    z: torch.Tensor,
    shares: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write the gradient of ``x`` (C, F) to ``out``, from :func:`max_shares`; ``weight`` is in the transpose's order."""
    _max_gradient("max_backward", transpose, weight, x, z, shares, out)


def max_weight_backward(
    csr: Csr, weight: torch.Tensor, x: torch.Tensor, z: torch.Tensor, shares: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the gradient of ``weight`` (entries, H) to ``out``, from :func:`max_shares`."""
    _max_gradient("max_weight_backward", csr, weight, x, z, shares, out)


def _max_gradient(
    name: str,
    csr: Csr,
    weight: torch.Tensor | None,
    x: torch.Tensor,
    z: torch.Tensor,
    gradient: torch.Tensor,
    out: torch.Tensor,
) -> None:
    function(name, x.dtype)(
        _whole(csr),
        pointer(weight),
        ctypes.c_int64(1 if weight is None else weight.shape[1]),
        pointer(x),
        ctypes.c_int64(x.shape[1]),
        pointer(z),
        pointer(gradient),
        pointer(out),
        threads(),
    )


def _whole(csr: Csr):  # type: ignore[no-untyped-def]  # see csr_argument
    return csr_argument(csr, (0, csr.num_rows))
