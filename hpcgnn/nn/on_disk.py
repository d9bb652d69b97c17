"""Products and aggregations of features on disk, block of rows by block of rows.

Shapes: n owned nodes, F features, H columns of a weight, s rows to send.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.kernels import Csr, buffers, dense, pack_bf16
from hpcgnn.kernels.autograd import layer_product, recorded
from hpcgnn.kernels.spmm import multiply
from hpcgnn.nn.compute import Rounded
from hpcgnn.nn.config import FLOAT32


class DiskOperand:
    """Features on disk (n, F) for products in the arithmetic ``compute``. Each product reads them once, and so does its gradient,
    which adds up those of the blocks in the order of the file."""

    def __init__(self, x: FeaturesOnDisk, compute: str = FLOAT32) -> None:
        self.x, self._compute = x, compute

    def times(self, weight: Tensor, bias: Tensor | None, plus: Tensor | None, backend: str) -> Tensor:
        """``x @ weight + bias + plus``, (n, F) times (F, H); differentiable. See :func:`hpcgnn.nn.linear.matmul`."""

        def run(ctx: Any, weight: Tensor, bias: Tensor | None, plus: Tensor | None) -> Tensor:
            y = buffers.empty(self.x.shape[0], weight.shape[1], weight.dtype)
            for rows, block in self.x.blocks():
                added = None if plus is None else plus[rows].clone()  # whose memory the product may take
                if self._compute == FLOAT32:
                    y[rows] = layer_product(block, weight, bias, added, backend)
                else:
                    y[rows] = Rounded(block, self._compute).times(weight, bias, added, backend)
            return y

        def back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
            needs_weight, needs_bias, needs_plus = ctx.needs_input_grad[-3:]
            dweight = self.weight_gradient(dy, backend) if needs_weight else None
            return dweight, dy.sum(0) if needs_bias else None, dy if needs_plus else None

        return recorded(run, back, weight, bias, plus)

    def weight_gradient(self, dy: Tensor, backend: str = "auto") -> Tensor:
        """``x.T @ dy`` (F, H), for dy (n, H)."""
        total = dy.new_zeros(self.x.shape[1], dy.shape[1])
        for rows, block in self.x.blocks():
            if self._compute == FLOAT32:
                total += dense.run_weight_gradient(dense.kernels_for(block, backend), block, dy[rows])[0]
            else:
                total += Rounded(block, self._compute).weight_gradient(dy[rows], backend)
        return total


class DiskRows:
    """``x' = Dr x`` of one aggregation of features on disk, in the place of a tensor (n, F).

    right: (n, 1) Dr, or None for the identity. local: L, whose product is asked for last. One pass over the file serves the rows
    to send and L: each block is multiplied by its columns of both matrices. rounds: whether ``x'`` is rounded to bfloat16.
    """

    def __init__(self, x: FeaturesOnDisk, right: Tensor | None, local: Csr, *, rounds: bool = False) -> None:
        self._x, self._right, self._local, self._rounds = x, right, local, rounds
        self._sums: Tensor | None = None  # L x', once another matrix was asked for

    def times(self, matrix: Csr, out: Tensor | None, backend: str) -> Tensor:
        """``matrix @ x'``, for a matrix (rows, n); in ``out`` (rows, F) if given."""
        if matrix is self._local and self._sums is not None:
            sums, self._sums = self._sums, None
            return sums
        result = self._new(matrix) if out is None else out.zero_()
        products = [(matrix, result)]
        if matrix is not self._local:
            self._sums = self._new(self._local)
            products.append((self._local, self._sums))
        for rows, block in self._x.blocks():
            if self._right is not None:
                block *= self._right[rows]
            if self._rounds:
                block = pack_bf16(block, backend=backend)
            for factor, sums in products:
                multiply(columns_of(factor, rows), block, sums, backend)
        return result

    def _new(self, matrix: Csr) -> Tensor:
        return buffers.empty(matrix.num_rows, self._x.shape[1], self._x.dtype).zero_()


def columns_of(matrix: Csr, columns: slice) -> Csr:
    """A range of columns of a matrix, (num_rows, columns). Entries of a row are in the order of their columns.

    It is made of the same rows of the transpose, which backward passes need anyway, in O(num_rows + its entries) time; kept, all
    ranges would take another matrix's memory and a row pointer for each range."""
    transpose = matrix.transpose()
    begin, end = (int(transpose.indptr[place]) for place in (columns.start, columns.stop))
    indptr = transpose.indptr[columns.start : columns.stop + 1] - begin
    weight = None if transpose.weight is None else transpose.weight[begin:end]
    part = Csr(indptr, transpose.indices[begin:end], matrix.num_rows, weight, check=False).transpose()
    part.each_column_once = (
        True  # a block is small enough for the caches: no rows are copied, so uses need not be counted
    )
    return part


def add_scaled(sums: Tensor, factor: Tensor, x: FeaturesOnDisk) -> Tensor:
    """``sums + factor * x``, (n, F); differentiable in ``sums`` and in ``factor`` (1,)."""

    def run(ctx: Any, sums: Tensor, factor: Tensor) -> Tensor:
        y = buffers.empty(sums.shape[0], sums.shape[1], sums.dtype)
        for rows, block in x.blocks():
            torch.add(sums[rows], block.mul_(factor), out=y[rows])
        return y

    def back(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        needs_sums, needs_factor = ctx.needs_input_grad[-2:]
        total = dy.new_zeros(1)
        for rows, block in x.blocks() if needs_factor else ():
            total += block.mul_(dy[rows]).sum()
        return dy if needs_sums else None, total if needs_factor else None

    return recorded(run, back, sums, factor)
