"""See :mod:`hpcgnn.kernels.edges`."""

from __future__ import annotations

from torch import Tensor

from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.native.library import constant, function, threads
from hpcgnn.kernels.native.spmm import csr_argument

OPERATIONS = {"dot": "HPCGNN_DOT", "add": "HPCGNN_ADD", "left": "HPCGNN_LEFT"}


def sddmm(csr: Csr, a: Tensor, b: Tensor | None, op: str, heads: int, out: Tensor) -> None:
    """Write ``op`` of row r of ``a`` and row c of ``b`` to ``out`` for each entry (r, c); ``left`` is ``a`` alone."""
    function("sddmm", a.dtype)(
        csr=csr_argument(csr),
        a=a,
        b=b,
        width=a.shape[1],
        op=constant(OPERATIONS[op]),
        heads=heads,
        out=out,
        threads=threads(),
    )


def edge_softmax(csr: Csr, scores: Tensor, out: Tensor) -> None:
    """Write the softmax over each row's entries of ``scores`` (entries, H) to ``out``."""
    function("edge_softmax", scores.dtype)(
        csr=csr_argument(csr), scores=scores, width=scores.shape[1], out=out, threads=threads()
    )


def edge_softmax_backward(csr: Csr, alpha: Tensor, gradient: Tensor, out: Tensor) -> None:
    """Write ``alpha * (gradient - the row's sum of alpha * gradient)``, all (entries, H), to ``out``."""
    function("edge_softmax_backward", alpha.dtype)(
        csr=csr_argument(csr), alpha=alpha, gradient=gradient, width=alpha.shape[1], out=out, threads=threads()
    )


def edge_sum(csr: Csr, values: Tensor, out: Tensor) -> None:
    """Write the sum of each row's entries of ``values`` (entries, F) to ``out`` (R, F)."""
    function("edge_sum", values.dtype)(
        csr=csr_argument(csr), values=values, width=values.shape[1], out=out, threads=threads()
    )
