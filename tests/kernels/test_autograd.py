"""Rules of autograd for the kernels. The tests of each operator compare its gradients with torch's."""

from __future__ import annotations

import pytest
import torch
from under_test import BACKENDS, Case, not_refused

from hpcgnn.kernels import edge_softmax, edge_sum, gather_rows, scatter_rows, sddmm, spmm

SMALL = Case()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_recorded_where_no_gradient_is_needed(backend):
    csr, _, _ = SMALL.build(backend)
    x = torch.ones(SMALL.cols, 6, requires_grad=True)
    assert spmm(csr, x, backend=backend).grad_fn is not None
    assert spmm(csr, x.detach(), backend=backend).grad_fn is None
    with torch.no_grad():
        assert not spmm(csr, x, backend=backend).requires_grad
        assert not spmm(csr, x, out=torch.zeros(SMALL.rows, 6), backend=backend).requires_grad


def test_gradients_of_gradients_are_refused():
    x = torch.ones(SMALL.cols, 6, requires_grad=True)
    (gradient,) = torch.autograd.grad((spmm(SMALL.build()[0], x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, requires_grad=True)


def test_wrong_arguments_are_refused_by_name():
    (csr, _, _), rows, cols, entries = SMALL.build(), SMALL.rows, SMALL.cols, SMALL.entries
    half, int8 = (torch.ones(cols, 2, dtype=dtype) for dtype in (torch.bfloat16, torch.int8))
    calls = [
        ("out", lambda: spmm(csr, leaf(cols, 2), out=torch.zeros(rows, 2))),
        ("out", lambda: spmm(csr, torch.ones(cols, 2), out=leaf(rows, 2))),
        ("x must be float32", lambda: spmm(csr, leaf(cols, 2, dtype=torch.bfloat16))),
        ("x must be float32", lambda: spmm(csr, half, leaf(entries))),
        ("scale", lambda: spmm(csr, int8, scale=leaf(cols))),
        ("csr.weight", lambda: spmm(csr.with_weight(leaf(entries)), torch.ones(cols, 2))),
        ("reduce", lambda: spmm(csr, leaf(cols, 2), reduce="min")),
        ("x must have shape", lambda: spmm(csr, leaf(cols + 1, 2))),
        ("weight", lambda: spmm(csr, leaf(cols, 2), leaf(entries, dtype=torch.float64))),
        ("x must be float32", lambda: gather_rows(leaf(1, 2, dtype=torch.bfloat16), torch.tensor([0]))),
        ("index", lambda: gather_rows(leaf(1, 2), torch.tensor([1]))),
        ("index", lambda: scatter_rows(torch.tensor([1, 1]), leaf(2, 2), 3)),
        ("b must be", lambda: sddmm(csr, leaf(rows, 2), leaf(cols, 3))),
        ("scores", lambda: edge_softmax(csr, leaf(entries + 1))),
        ("values", lambda: edge_sum(csr, leaf(entries + 1))),
    ]
    assert not_refused(calls) == []
