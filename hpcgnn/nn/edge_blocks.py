"""Sums and scores over edges that have features, made for one block of edges after the other.

The message of such an edge is not linear in its ends: it is a row of its own. All of them together would be by far the largest
matrix of a model, and PyG makes several of it. Here, a block's rows stay in the caches and are gone before the next block;
the backward pass computes them again, once in the order of the targets and once in that of the sources, so that no two edges
write the same row at the same time. Sums have a fixed order, so results do not depend on the number of threads.

Shapes: R rows (targets), C columns (sources), E entries (edges) of a matrix, D features of an edge, F columns of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hpcgnn.kernels import Csr, buffers, dense, edges
from hpcgnn.kernels.autograd import Gradients, recorded
from hpcgnn.kernels.rows import gather_rows
from hpcgnn.kernels.sizes import block_size

# Values of a block's rows: 4 MiB in float32, which caches hold and for which threads need not meet too often; on GPUs, where a
# kernel takes a while to start, 64 MiB.
_VALUES, _VALUES_OF_GPUS = 1 << 20, 1 << 24


@dataclass(frozen=True)
class EdgeFeatures:
    """values: (E, D) features of the entries of a matrix. weight: (D, F). bias: (F,) or None."""

    values: Tensor
    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True)
class _Block:
    """Some entries of a matrix that follow each other, and the rows that have them; the first and the last row may have others,
    too. csr: the matrix of these rows with these entries only."""

    entries: slice
    rows: slice
    csr: Csr

    def of(self, values: Tensor, order: Tensor | None) -> Tensor:
        """The (entries, ...) values of this block. order: the entry of ``values`` for each of the matrix's, if not the same."""
        return values[self.entries] if order is None else gather_rows(values, order[self.entries], check=False)


def _blocks(csr: Csr, width: int) -> list[_Block]:
    """The blocks of ``csr`` for rows of ``width`` columns, made once."""
    size = block_size((_VALUES if csr.indices.is_cpu else _VALUES_OF_GPUS) // max(width, 1), csr.num_entries)
    return csr.structure.kept(("blocks", size), lambda: _cut(csr, size))


def _cut(csr: Csr, size: int) -> list[_Block]:
    firsts = torch.arange(0, csr.num_entries, size, device=csr.device)
    lasts = (firsts + size).clamp(max=csr.num_entries) - 1
    first_rows, last_rows = (torch.searchsorted(csr.indptr, each, right=True) - 1 for each in (firsts, lasts))
    blocks = []
    for first, last, row, end in zip(*(each.tolist() for each in (firsts, lasts, first_rows, last_rows)), strict=True):
        count = last + 1 - first
        indptr = (csr.indptr[row : end + 2] - first).clamp(0, count)
        part = Csr(indptr, csr.indices[first : last + 1], csr.num_cols, check=False)
        blocks.append(_Block(slice(first, last + 1), slice(row, end + 1), part))
    return blocks


def relu_sums(csr: Csr, x: Tensor, features: EdgeFeatures, backend: str = "auto") -> Tensor:
    """(R, F) sums ``z_r = sum_e relu(x_c + values_e weight + bias)`` over the entries e = (r, c) of each row (GINE's messages).

    Differentiable in ``x`` (C, F), ``weight`` and ``bias``; backward keeps only ``x``. float32 or float64. Not collective.
    """
    values = features.values
    kernels = dense.kernels_for(x, backend)

    def run(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        z = x.new_zeros(csr.num_rows, x.shape[1])
        for block in _blocks(csr, x.shape[1]):
            rows = gather_rows(x, block.csr.indices, backend, check=False)
            rows = dense.run_product(kernels, values[block.entries], weight, bias, rows, "float32").relu_()
            z[block.rows] += edges.edge_sum(block.csr, rows, backend)
        return z

    def back(ctx: Any, dz: Tensor) -> Gradients:
        x, weight, bias = ctx.saved_tensors
        dz, needs_x = dz.contiguous(), ctx.needs_input_grad[-3]
        dx, dweight, dbias = torch.zeros_like(x) if needs_x else None, torch.zeros_like(weight), torch.zeros_like(bias)
        for block in _blocks(csr.structure.transpose(), x.shape[1]):
            given = block.of(values, csr.transpose_order)
            rows = edges.repeat_rows(block.csr, x[block.rows], backend)
            rows = dense.run_product(kernels, given, weight, bias, rows, "float32")
            gradient = gather_rows(dz, block.csr.indices, backend, check=False)
            gradient = torch.ops.aten.threshold_backward(gradient, rows, 0, grad_input=gradient)
            if dx is not None:
                dx[block.rows] += edges.edge_sum(block.csr, gradient, backend)
            dweight += dense.run_weight_gradient(kernels, given, gradient)[0]
            dbias += gradient.sum(0)
        return dx, dweight, dbias

    return recorded(run, back, x, features.weight, features.bias)


def joint_scores(
    csr: Csr,
    ends: tuple[Tensor, Tensor],
    attend: Tensor,
    features: EdgeFeatures | None,
    slope: float,
    backend: str = "auto",
) -> Tensor:
    """(E, H) scores ``attend_h · leaky_relu(a_r + b_c + values_e weight)_h`` of each entry e = (r, c) and head h (GATv2's).

    Differentiable in all but ``csr`` and ``values``; backward keeps none of the joint rows. float32 or float64. Not collective.

    Args:
        csr: (R, C) matrix, of which only the structure is used.
        ends: ``a`` (R, F) and ``b`` (C, F).
        attend: (H, F / H) vectors.
        features: of the entries, without a bias; None: the entries have none.
        slope: positive slope of the leaky ReLU for negative values.
        backend: kernel backend, one of ``hpcgnn.kernels.backends()``, or ``auto``.
    """
    joint = JointScores(csr, None if features is None else features.values, slope, backend)

    def run(ctx: Any, a: Tensor, b: Tensor, attend: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(a, b, attend, weight)
        return joint.of_edges(a, b, attend, weight)

    def back(ctx: Any, gradient: Tensor) -> Gradients:
        a, b, attend, weight = ctx.saved_tensors
        return joint.gradients(a, b, attend, weight, gradient, torch.zeros_like(b))

    return recorded(run, back, *ends, attend, None if features is None else features.weight)


@dataclass(frozen=True)
class JointScores:
    """:func:`joint_scores` and their gradients, not differentiable. values: (E, D) features of the edges, or None."""

    csr: Csr
    values: Tensor | None
    slope: float
    backend: str

    def of_edges(self, a: Tensor, b: Tensor, attend: Tensor, weight: Tensor | None) -> Tensor:
        """(E, H) scores."""
        by_head, kernels = torch.block_diag(*attend[:, :, None]), dense.kernels_for(a, self.backend)
        scores = buffers.empty(self.csr.num_entries, attend.shape[0], a.dtype, a.device)
        for block, rows in self._joint(self.csr, a, b, weight, None):
            scores[block.entries] = dense.run_product(kernels, rows, by_head, None, None, "float32")
        return scores

    def gradients(
        self, a: Tensor, b: Tensor, attend: Tensor, weight: Tensor | None, gradient: Tensor, db: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The gradients of a, b, attend and weight, from ``gradient`` (E, H), that of the scores; b's is added to ``db``."""
        csr, kernels, values = self.csr, dense.kernels_for(a, self.backend), self.values
        by_head = torch.block_diag(*attend[:, :, None])
        da, dhead = torch.zeros_like(a), torch.zeros_like(by_head)
        dweight = None if weight is None else torch.zeros_like(weight)

        def of_rows(block: _Block, rows: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
            """The gradient of the block's scores, and that of the argument of its leaky ReLU."""
            of_scores = block.of(gradient, order)
            of_joint = dense.run_product(kernels, of_scores, by_head.T, None, None, "float32")
            return of_scores, torch.ops.aten.leaky_relu_backward(of_joint, rows, self.slope, True, grad_input=of_joint)

        for block, rows in self._joint(csr, a, b, weight, None):
            of_scores, of_joint = of_rows(block, rows, None)
            da[block.rows] += edges.edge_sum(block.csr, of_joint, self.backend)
            dhead += dense.run_weight_gradient(kernels, rows, of_scores)[0]
            if values is not None and dweight is not None:
                dweight += dense.run_weight_gradient(kernels, values[block.entries], of_joint)[0]
        order = csr.transpose_order
        for block, rows in self._joint(csr.structure.transpose(), b, a, weight, order):
            db[block.rows] += edges.edge_sum(block.csr, of_rows(block, rows, order)[1], self.backend)
        return da, db, dhead.view(*attend.shape, attend.shape[0]).diagonal(dim1=0, dim2=2).T, dweight

    def _joint(
        self, csr: Csr, a: Tensor, b: Tensor, weight: Tensor | None, order: Tensor | None
    ) -> Iterator[tuple[_Block, Tensor]]:
        """Each block of ``csr``, and its (entries, F) rows after the leaky ReLU."""
        kernels = dense.kernels_for(a, self.backend)
        for block in _blocks(csr, a.shape[1]):
            rows = edges.sddmm(block.csr, a[block.rows], b, "add", backend=self.backend)
            if self.values is not None and weight is not None:
                rows = dense.run_product(kernels, block.of(self.values, order), weight, None, rows, "float32")
            yield block, F.leaky_relu_(rows, self.slope)
