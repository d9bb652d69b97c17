"""A grouped product equals the products of its blocks, one by one."""

from __future__ import annotations

import pytest
import torch
from under_test import BACKENDS, TRITON

from hpcgnn.nn.grouped import grouped_product

SIZES = (5, 0, 700, 1)  # also a block without rows, and one that is large enough for kernels of our own


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_equal_products_one_by_one(backend, parts, monkeypatch):
    if backend == TRITON:
        monkeypatch.setattr("hpcgnn.kernels.triton.dense._MOST", 500)
    dtype, limit = (torch.float64, 1e-12) if backend == "reference" else (torch.float32, 1e-4)
    torch.manual_seed(0)
    x, weights, given = (
        torch.randn(shape, dtype=torch.float64)
        for shape in ((sum(SIZES), 96), (len(SIZES), parts, 96 // parts, 72 // parts), (sum(SIZES), 72))
    )
    leaves = [each.to(dtype, copy=True).requires_grad_() for each in (x, weights)]
    found = grouped_product(*leaves, SIZES, backend)
    found.backward(given.to(dtype))
    wanted_leaves = [x.requires_grad_(), weights.requires_grad_()]
    wanted = torch.cat([a @ torch.block_diag(*w) for a, w in zip(x.split(SIZES), weights.unbind(), strict=True)])
    wanted.backward(given)
    for mine, theirs in [(found, wanted), *((a.grad, b.grad) for a, b in zip(leaves, wanted_leaves, strict=True))]:
        assert float((mine - theirs).detach().abs().max()) <= limit * float(theirs.detach().abs().max())


def test_the_gradient_may_take_the_place_of_x_and_a_second_pass_is_an_error():
    torch.manual_seed(0)
    x, weights = torch.randn(sum(SIZES), 8).requires_grad_(), torch.randn(len(SIZES), 2, 4, 3).requires_grad_()
    wanted = torch.autograd.grad(grouped_product(x, weights, SIZES).square().sum(), (x, weights))
    rows = x * 1
    total = grouped_product(rows, weights, SIZES, reuse_x=True).square().sum()
    found = torch.autograd.grad(total, (rows, weights), retain_graph=True)
    assert all(map(torch.equal, found, wanted))
    assert found[0].data_ptr() == rows.data_ptr()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(total, weights)
