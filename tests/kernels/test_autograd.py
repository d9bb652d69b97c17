"""Gradients of the kernels, compared with finite differences in float64, and every backend in float32 compared with float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from under_test import BACKENDS

import hpcgnn.kernels as kernels
from hpcgnn.kernels import (
    Csr,
    attention_weights,
    edge_softmax,
    edge_sum,
    gather_rows,
    scatter_rows,
    sddmm,
    spmm,
)
from hpcgnn.kernels.csr import as_columns

REDUCTIONS = ["sum", "mean"]
WEIGHTS = [None, "stored", "shared structure", 1, 3]  # 1: (entries,); 3: that many heads
ROWS, COLS, ENTRIES, WIDTH = 7, 6, 20, 6


@pytest.fixture(params=BACKENDS)
def backend(request):
    return kernels.resolve(request.param)


def some_csr(rows: int = ROWS, cols: int = COLS, entries: int = ENTRIES) -> Csr:
    """A matrix that is not square, with parallel entries (the last entry of a row repeats its first), an empty row and an empty
    column.
    """
    rng = np.random.default_rng(3)
    row = np.sort(rng.integers(1, rows, entries))
    col = rng.integers(0, cols - 1, entries)
    col[-1] = col[row == row[-1]][0]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows))))
    return Csr(indptr, col, cols)


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()


def entry_rows(csr: Csr) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(csr.num_rows), csr.row_lengths())


def plain_spmm(csr: Csr, x: torch.Tensor, weight: torch.Tensor | None, reduce: str) -> torch.Tensor:
    """The same in torch's own differentiable operators."""
    weight = csr.weight if weight is None else weight
    values = x[csr.indices.long()]
    if weight is not None:
        columns = as_columns(weight)
        values = values * columns.repeat_interleave(x.shape[1] // columns.shape[1], 1)
    rows = entry_rows(csr)[:, None].expand_as(values)
    out = torch.zeros(csr.num_rows, x.shape[1], dtype=x.dtype)
    return out.scatter_reduce(0, rows, values, reduce, include_self=False)


def with_weights(csr: Csr, kind: object, dtype: torch.dtype = torch.float64) -> tuple[Csr, torch.Tensor | None]:
    """The matrix, and the weight to pass; see WEIGHTS."""
    entries = csr.num_entries
    if kind == "stored":
        stored = leaf(entries, seed=1).detach().to(dtype)
        return Csr(csr.indptr, csr.indices, csr.num_cols, stored), None
    if kind == "shared structure":
        return csr.with_weight(leaf(entries, seed=1).detach().to(dtype)), None
    if kind is None:
        return csr, None
    return csr, leaf(*((entries,) if kind == 1 else (entries, kind)), dtype=dtype, seed=1)


def gradients(out: torch.Tensor, *leaves: torch.Tensor | None) -> list[torch.Tensor]:
    """Gradients of a product with fixed numbers, so that no symmetry hides a mistake."""
    wanted = [tensor for tensor in leaves if tensor is not None]
    factor = leaf(*out.shape, seed=9).detach().to(out.dtype)
    return list(torch.autograd.grad((out * factor).sum(), wanted))


def right_gradients(backend: str, function: Callable, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Run gradcheck; for interpreted kernels, on one combination of all elements instead of each element."""
    return gradcheck(function, inputs, fast_mode=backend == "triton")


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_spmm_against_finite_differences(backend, reduce, kind):
    csr, weight = with_weights(some_csr(), kind)
    inputs = (leaf(COLS, WIDTH),) if weight is None else (leaf(COLS, WIDTH), weight)
    assert right_gradients(backend, lambda x, w=None: spmm(csr, x, w, reduce, backend=backend), inputs)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("width", [3, 48])
def test_spmm_in_float32_against_float64(backend, width, reduce, kind):
    csr = some_csr(50, 40, 400)
    exact_csr, exact_weight = with_weights(csr, kind)
    exact_x = leaf(40, width)
    expected = gradients(plain_spmm(exact_csr, exact_x, exact_weight, reduce), exact_x, exact_weight)
    csr, weight = with_weights(csr, kind, torch.float32)
    x = leaf(40, width, dtype=torch.float32)
    found = gradients(spmm(csr, x, weight, reduce, backend=backend), x, weight)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", ["x", "weight"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_gradient_of_one_input_alone(backend, reduce, which):
    csr, (x, weight) = some_csr(), (leaf(COLS, WIDTH), leaf(ENTRIES, seed=1))
    both = dict(zip(("x", "weight"), gradients(plain_spmm(csr, x, weight, reduce), x, weight), strict=True))
    inputs = {"x": x.detach(), "weight": weight.detach()}
    inputs[which].requires_grad_()
    (found,) = gradients(spmm(csr, **inputs, reduce=reduce, backend=backend), inputs[which])
    torch.testing.assert_close(found, both[which])


def test_non_contiguous_inputs_and_gradients(backend):
    csr, x, weight = some_csr(), leaf(WIDTH, COLS), leaf(3, ENTRIES, seed=1)
    for reduce in REDUCTIONS:
        expected = gradients(plain_spmm(csr, x.T, weight.T, reduce).T, x, weight)
        found = gradients(spmm(csr, x.T, weight.T, reduce, backend=backend).T, x, weight)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("heads", [None, 1, 3])
def test_dot_products(backend, heads):
    csr = some_csr()
    inputs = leaf(ROWS, WIDTH), leaf(COLS, WIDTH, seed=1)
    assert right_gradients(backend, lambda a, b: sddmm(csr, a, b, heads=heads, backend=backend), inputs)
    weighted = csr.with_weight(torch.full((ENTRIES,), 7.0, dtype=torch.float64))  # these values are not used
    assert right_gradients(backend, lambda a, b: sddmm(weighted, a, b, heads=heads, backend=backend), inputs)


def test_sums_of_both_ends(backend):
    csr = some_csr()
    inputs = leaf(ROWS, WIDTH), leaf(COLS, WIDTH, seed=1)
    assert right_gradients(backend, lambda a, b: sddmm(csr, a, b, "add", backend=backend), inputs)
    for alone in (0, 1):
        pair = [tensor.detach() for tensor in inputs]
        pair[alone].requires_grad_()
        assert right_gradients(backend, lambda a, b: sddmm(csr, a, b, "add", backend=backend), tuple(pair))
        assert right_gradients(backend, lambda a, b: sddmm(csr, a, b, backend=backend), tuple(pair))


@pytest.mark.parametrize("shape", [(ENTRIES,), (ENTRIES, 1), (ENTRIES, 3), (ENTRIES, 20)])
def test_softmax_and_sum_over_rows(backend, shape):
    csr = some_csr()
    assert right_gradients(backend, lambda scores: edge_softmax(csr, scores, backend), (leaf(*shape),))
    assert right_gradients(backend, lambda values: edge_sum(csr, values, backend), (leaf(*shape),))


@pytest.mark.parametrize("tail", [(), (4,), (2, 3)])
def test_rows_by_index(backend, tail):
    index = torch.tensor([3, 0, 3, 1])
    assert right_gradients(backend, lambda x: gather_rows(x, index, backend), (leaf(5, *tail),))
    index = torch.tensor([3, 0, 1], dtype=torch.int32)
    assert right_gradients(backend, lambda src: scatter_rows(index, src, 6, backend), (leaf(3, *tail),))


def test_attention_weights_are_those_of_three_steps(backend):
    csr, a, b = some_csr(), leaf(ROWS, 3), leaf(COLS, 3, seed=1)
    found = attention_weights(csr, a, b, 0.2, backend)
    wanted = edge_softmax(csr, torch.nn.functional.leaky_relu(sddmm(csr, a, b, "add"), 0.2), backend)
    assert torch.equal(found, wanted)
    assert right_gradients(backend, lambda a, b: attention_weights(csr, a, b, 0.2, backend), (a, b))


def test_attention_in_float32_against_float64(backend):
    """All of these operators in sequence, as in a GAT layer."""
    heads, width, csr = 4, 32, some_csr(50, 50, 400)

    def layer(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        scores = sddmm(csr, x @ left, x @ right, "add", backend=backend)
        alpha = edge_softmax(csr, torch.nn.functional.leaky_relu(scores, 0.2), backend)
        return spmm(csr, x, alpha, backend=backend)

    def plain_layer(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        rows = entry_rows(csr)
        scores = torch.nn.functional.leaky_relu((x @ left)[rows] + (x @ right)[csr.indices.long()], 0.2)
        parts = scores.split(csr.row_lengths().tolist())
        return plain_spmm(csr, x, torch.cat([part.softmax(0) for part in parts]), "sum")

    shapes = ((50, width), (width, heads), (width, heads))
    exact = [leaf(*shape, seed=k) for k, shape in enumerate(shapes)]
    single = [leaf(*shape, dtype=torch.float32, seed=k) for k, shape in enumerate(shapes)]
    expected, found = gradients(plain_layer(*exact), *exact), gradients(layer(*single), *single)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("rows", "cols"), [(0, 4), (4, 0), (4, 4)])
def test_empty_graphs(backend, rows, cols):
    csr = Csr(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), cols)
    x, weight = leaf(cols, 2), leaf(0, 2)
    for reduce in REDUCTIONS:
        found = gradients(spmm(csr, x, weight, reduce, backend=backend), x, weight)
        assert [tensor.shape for tensor in found] == [x.shape, weight.shape]
        assert not found[0].any()
    (found,) = gradients(edge_softmax(csr, weight, backend), weight)
    assert found.shape == weight.shape
    (found,) = gradients(edge_sum(csr, weight, backend), weight)
    assert found.shape == weight.shape


def test_nothing_is_recorded_where_no_gradient_is_needed(backend):
    csr, x = some_csr(), leaf(COLS, WIDTH)
    assert spmm(csr, x, backend=backend).grad_fn is not None
    assert spmm(csr, x.detach(), backend=backend).grad_fn is None
    with torch.no_grad():
        assert not spmm(csr, x, backend=backend).requires_grad
        assert not spmm(csr, x, out=torch.zeros(ROWS, WIDTH, dtype=x.dtype), backend=backend).requires_grad


def test_gradients_of_gradients_are_refused():
    x = leaf(COLS, WIDTH)
    (gradient,) = torch.autograd.grad((spmm(some_csr(), x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def single(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda csr: spmm(csr, single(COLS, 2), out=torch.zeros(ROWS, 2)), "out"),
        (lambda csr: spmm(csr, torch.ones(COLS, 2), out=single(ROWS, 2)), "out"),
        (lambda csr: spmm(csr, single(COLS, 2, dtype=torch.bfloat16)), "x must be float32"),
        (lambda csr: spmm(csr, torch.ones(COLS, 2, dtype=torch.bfloat16), single(ENTRIES)), "x must be float32"),
        (lambda csr: spmm(csr, torch.ones(COLS, 2, dtype=torch.int8), scale=single(COLS)), "scale"),
        (lambda csr: spmm(csr.with_weight(single(ENTRIES)), torch.ones(COLS, 2)), "csr.weight"),
        (lambda csr: spmm(csr, single(COLS, 2), reduce="min"), "reduce"),
        (lambda csr: spmm(csr, single(COLS + 1, 2)), "x must have shape"),
        (lambda csr: spmm(csr, single(COLS, 2), single(ENTRIES, dtype=torch.float64)), "weight"),
        (lambda csr: gather_rows(single(1, 2, dtype=torch.bfloat16), torch.tensor([0])), "x must be float32"),
        (lambda csr: gather_rows(single(1, 2), torch.tensor([1])), "index"),
        (lambda csr: scatter_rows(torch.tensor([1, 1]), single(2, 2), 3), "index"),
        (lambda csr: sddmm(csr, single(ROWS, 2), single(COLS, 3)), "b must be"),
        (lambda csr: edge_softmax(csr, single(ENTRIES + 1)), "scores"),
        (lambda csr: edge_sum(csr, single(ENTRIES + 1)), "values"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call(some_csr())
