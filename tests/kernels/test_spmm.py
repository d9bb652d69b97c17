"""One body for every backend: against dense products, on the shapes that break kernels."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.kernels import Csr, index_add, resolve, spmm

BACKENDS = ["native", "jit", "reference"]
WIDTHS = [1, 3, 16, 64, 100, 130]


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Every backend; the native one was built with the package, as the tests' environment has a compiler."""
    return resolve(request.param)


def random_csr(rows: int, cols: int, entries: int, seed: int = 0, dtype: torch.dtype = torch.float32):
    """A matrix with duplicates and, beside it, its weights and its dense form with and without them."""
    rng = np.random.default_rng(seed)
    row, col = np.sort(rng.integers(0, rows, entries)), rng.integers(0, cols, entries)
    weight = torch.from_numpy(rng.standard_normal(entries)).to(dtype)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows))))
    ones = torch.from_numpy(sp.coo_matrix((np.ones(entries), (row, col)), (rows, cols)).toarray()).to(dtype)
    weighted = torch.from_numpy(sp.coo_matrix((weight.double(), (row, col)), (rows, cols)).toarray()).to(dtype)
    return Csr(indptr, col, cols), weight, ones, weighted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_equals_the_dense_product(backend, width, dtype):
    csr, weight, ones, weighted = random_csr(50, 40, 300, dtype=dtype)
    x = torch.randn(40, width, dtype=dtype)
    torch.testing.assert_close(spmm(csr, x, backend=backend), ones @ x)
    torch.testing.assert_close(spmm(csr, x, weight, backend=backend), weighted @ x)


def test_transpose_with_weights(backend):
    csr, weight, _, weighted = random_csr(50, 40, 300)
    x = torch.randn(50, 7)
    torch.testing.assert_close(spmm(csr.with_weight(weight).transpose(), x, backend=backend), weighted.T @ x)
    other = csr.with_weight(weight * 2)  # shares the structure of the transpose, not its values
    torch.testing.assert_close(spmm(other.transpose(), x, backend=backend), 2 * weighted.T @ x)


def test_transposing_twice_keeps_new_weights_where_they_are():
    csr = Csr(torch.tensor([0, 2, 3]), torch.tensor([1, 0, 0]), 2)
    weight = torch.tensor([1.0, 2.0, 3.0])
    once = csr.transpose().with_weight(weight)
    eye = torch.eye(2)
    assert torch.equal(spmm(once.transpose(), eye), spmm(once, eye).T)


def test_accumulates_into_out_or_overwrites_it(backend):
    csr, _, ones, _ = random_csr(50, 40, 300)
    x, start = torch.randn(40, 9), torch.randn(50, 9)
    torch.testing.assert_close(spmm(csr, x, out=start.clone(), backend=backend), start + ones @ x)
    torch.testing.assert_close(spmm(csr, x, out=start.clone(), backend=backend, accumulate=False), ones @ x)


def test_a_row_range_leaves_the_other_rows_alone(backend):
    csr, _, ones, _ = random_csr(50, 40, 300)
    x, out = torch.randn(40, 5), torch.full((50, 5), 7.0)
    spmm(csr, x, out=out, backend=backend, accumulate=False, rows=(10, 20))
    expected = torch.full((50, 5), 7.0)
    expected[10:20] = (ones @ x)[10:20]
    torch.testing.assert_close(out, expected)


def test_mean_of_empty_rows_is_zero(backend):
    csr = Csr(torch.tensor([0, 0, 2]), torch.tensor([1, 0]), 2)
    x = torch.tensor([[1.0], [3.0]])
    assert spmm(csr, x, reduce="mean", backend=backend).tolist() == [[0.0], [2.0]]


@pytest.mark.parametrize(("rows", "cols", "width"), [(0, 4, 3), (4, 0, 3), (4, 4, 0)])
def test_empty_shapes(backend, rows, cols, width):
    csr = Csr(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), cols)
    result = spmm(csr, torch.ones(cols, width), backend=backend)
    assert result.shape == (rows, width)
    assert not result.any()


def test_non_contiguous_input(backend):
    csr, _, ones, _ = random_csr(50, 40, 300)
    x = torch.randn(9, 40).T
    torch.testing.assert_close(spmm(csr, x, backend=backend), ones @ x)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_backends_agree_bit_for_bit_on_any_graph(data):
    rows, cols = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    csr, weight, _, _ = random_csr(rows, cols, data.draw(st.integers(0, 120)), data.draw(st.integers(0, 1000)))
    x = torch.randn(cols, data.draw(st.integers(1, 70)))
    native = spmm(csr, x, weight, backend="native")
    assert torch.equal(native, spmm(csr, x, weight, backend="jit"))
    torch.testing.assert_close(native, spmm(csr, x, weight, backend="reference"))


def test_the_same_bits_for_any_number_of_threads(backend):
    csr, weight, _, _ = random_csr(500, 400, 9000)
    x, threads = torch.randn(400, 33), torch.get_num_threads()
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(spmm(csr, x, weight, backend=backend))
    torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_index_add(backend):
    index, src = torch.randint(0, 20, (200,)), torch.randn(200, 6)
    expected = torch.zeros(25, 6).index_add_(0, index, src)
    torch.testing.assert_close(index_add(index, src, 25, backend=backend), expected)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([1, 2], [0, 0], 1), "indptr"),
        (([0, 2, 1], [0], 1), "indptr"),
        (([0, 1], [0, 0], 1), "indices"),
        (([0, 1], [3], 2), "indices"),
        (([0, 1], [-1], 2), "indices"),
        (([0, 1], [0.5], 2), "indices"),
    ],
)
def test_wrong_matrices_are_refused_by_name(arguments, named):
    indptr, indices, num_cols = arguments
    with pytest.raises(ValueError, match=named):
        Csr(torch.tensor(indptr), torch.tensor(indices), num_cols)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ({"x": torch.ones(3, 2)}, "x must have shape"),
        ({"x": torch.ones(2, 2, dtype=torch.int64)}, "x must be float32"),
        ({"weight": torch.ones(3)}, "weight"),
        ({"out": torch.ones(5, 2)}, "out"),
        ({"reduce": "min"}, "reduce"),
        ({"backend": "cuda"}, "backend"),
    ],
)
def test_wrong_arguments_are_refused_by_name(override, named):
    csr = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match=named):
        spmm(**({"csr": csr, "x": torch.ones(2, 2)} | override))
