"""See :mod:`hpcgnn.kernels.rows`."""

from __future__ import annotations

from torch import Tensor

from hpcgnn.kernels.native.library import function, threads


def gather_rows(x: Tensor, index: Tensor, out: Tensor) -> None:
    """Write row ``index[k]`` of ``x`` (n, bytes) uint8, zeros for a negative one, to row k of ``out``."""
    function("gather_rows", index.dtype)(
        x=x, row_bytes=x.shape[1], index=index, count=index.numel(), out=out, threads=threads()
    )


def cluster(index: Tensor, indptr: Tensor, order: Tensor) -> None:
    """Write the stable order that sorts ``index`` to ``order``, and each row's range in it to ``indptr``."""
    function("cluster", index.dtype)(
        index=index, count=index.numel(), rows=indptr.numel() - 1, indptr=indptr, order=order, threads=threads()
    )
