"""Operators over entries and rows: one test body for every backend, compared with plain torch, with shapes that are difficult
for kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from under_test import BACKENDS, TRITON

from hpcgnn.kernels import (
    Csr,
    edge_softmax,
    edge_sum,
    gather_rows,
    resolve,
    scatter_rows,
    sddmm,
)
from hpcgnn.kernels.edges import edge_softmax_backward, repeat_rows
from hpcgnn.kernels.native import library
from hpcgnn.kernels.native.library import segment_entries
from hpcgnn.kernels.rows import cluster
from hpcgnn.kernels.spmm import add_rows

WIDTHS = [1, 3, 16, 40, 100, 256, 602]
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Every backend. The native one was built with the package, because the tests' environment has a compiler."""
    return resolve(request.param)


def random_csr(rows: int, cols: int, entries: int, seed: int = 0) -> tuple[Csr, torch.Tensor, torch.Tensor]:
    """A matrix with parallel entries, empty rows and one row with half of the entries; and the rows and columns of
    its entries.
    """
    rng = np.random.default_rng(seed)
    row = np.concatenate((rng.integers(0, rows, entries - entries // 2), np.full(entries // 2, rows // 2)))
    row, col = np.sort(row), rng.integers(0, cols, entries)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows))))
    return Csr(indptr, col, cols), torch.from_numpy(row), torch.from_numpy(col)


def empty_csr(rows: int, cols: int) -> Csr:
    return Csr(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), cols)


def softmax_by_row(csr: Csr, scores: torch.Tensor) -> torch.Tensor:
    cuts = csr.indptr.tolist()
    parts = [torch.softmax(scores[first:last], 0) for first, last in pairwise(cuts)]
    return torch.cat(parts) if parts else scores


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_sddmm(backend, width, dtype):
    csr, row, col = random_csr(60, 40, 300)
    a, b = torch.randn(60, width, dtype=dtype), torch.randn(40, width, dtype=dtype)
    exact = (a[row].double() * b[col].double()).sum(1).to(dtype)
    # Products of about 1 cancel, so the error relative to the sum is unbounded.
    rounding = width * torch.finfo(dtype).eps
    torch.testing.assert_close(sddmm(csr, a, b, backend=backend), exact, atol=rounding, rtol=1e-5)
    assert torch.equal(sddmm(csr, a, b, "add", backend=backend), a[row] + b[col])
    assert torch.equal(repeat_rows(csr, a, backend), a[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "columns"), [(1, 5), (2, 8), (3, 7), (8, 16), (4, 33)])
def test_sddmm_with_heads(backend, heads, columns, dtype):
    csr, row, col = random_csr(60, 40, 300)
    a, b = torch.randn(60, heads * columns, dtype=dtype), torch.randn(40, heads * columns, dtype=dtype)
    expected = (a[row] * b[col]).view(-1, heads, columns).sum(2)
    torch.testing.assert_close(sddmm(csr, a, b, heads=heads, backend=backend), expected)


def test_dot_products_have_the_same_bits_natively_and_in_numba():
    csr, _, _ = random_csr(60, 40, 300)
    for dtype in DTYPES:
        for width in WIDTHS:
            a, b = torch.randn(60, width, dtype=dtype), torch.randn(40, width, dtype=dtype)
            assert torch.equal(sddmm(csr, a, b, backend="native"), sddmm(csr, a, b, backend="jit"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_softmax_of_each_row(backend, width, dtype):
    csr, row, _ = random_csr(60, 40, 300)
    scores = torch.randn(300, width, dtype=dtype) * 4
    alpha = edge_softmax(csr, scores, backend)
    torch.testing.assert_close(alpha, softmax_by_row(csr, scores), rtol=1e-6, atol=1e-7)
    gradient = torch.randn(300, width, dtype=dtype)
    total = torch.zeros(60, width, dtype=dtype).index_add_(0, row, alpha * gradient)
    expected = alpha * (gradient - total[row])
    torch.testing.assert_close(edge_softmax_backward(csr, alpha, gradient, backend), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 7, 8, 16, 17])
def test_softmax_with_few_heads_and_rows_of_every_length(backend, heads, dtype):
    csr = Csr(torch.arange(40).cumsum(0), torch.zeros(780, dtype=torch.int32), 1)  # rows of 1, 2, ... 39 entries
    scores = torch.randn(780, heads, dtype=dtype) * 4
    expected = softmax_by_row(csr, scores)
    torch.testing.assert_close(edge_softmax(csr, scores, backend), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(edge_sum(csr, expected, backend), torch.ones(39, heads, dtype=dtype))
    if heads == 1:
        found = edge_softmax(csr, scores[:, 0], backend)
        torch.testing.assert_close(found, expected[:, 0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_extreme_scores(backend, dtype):
    inf, nan = torch.inf, torch.nan
    rows = [
        [1e4, 1e4 - 1],
        [-1e4, -1e4 - 1],
        [-inf, 0.0, 0.0],
        [-inf, -inf],
        [-inf],
        [nan, 1.0],
        [inf, 1.0],
        [0, -200.0],
    ]
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    csr = Csr(indptr, torch.zeros(int(indptr[-1]), dtype=torch.int32), 1)
    found = edge_softmax(csr, torch.tensor([score for row in rows for score in row], dtype=dtype), backend)
    large, small = 1 / (1 + np.exp(-1)), 1 - 1 / (1 + np.exp(-1))
    expected = [large, small, large, small, 0, 0.5, 0.5, 0, 0, 0, nan, nan, nan, nan, 1, np.exp(-200)]
    # The value e^-200 is too small for float32.
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype), rtol=2e-6, atol=0, equal_nan=True)


def test_the_exponential_is_accurate_to_2e_7():
    differences = torch.linspace(-87, 0, 200_001)
    csr = Csr(torch.tensor([0, *range(2, 400_003, 2)]), torch.zeros(400_002, dtype=torch.int32), 1)
    found = edge_softmax(csr, torch.stack((differences, torch.zeros(200_001)), 1).flatten(), "native")[::2]
    exact = torch.exp(differences.double())
    assert (found / (exact / (1 + exact)) - 1).abs().max() < 4e-7  # including the errors of the sum and of the division


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_sum_of_each_row(backend, width, dtype):
    csr, row, _ = random_csr(60, 40, 300)
    values = torch.randn(300, width, dtype=dtype)
    expected = torch.zeros(60, width, dtype=dtype).index_add_(0, row, values)
    torch.testing.assert_close(edge_sum(csr, values, backend), expected, rtol=1e-5, atol=1e-5)
    if width == 1:
        torch.testing.assert_close(edge_sum(csr, values[:, 0], backend), expected[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_a_row_that_threads_share(backend, width):
    entries = 3 * segment_entries() + 5
    csr = Csr(torch.tensor([0, 2, 2 + entries, 4 + entries]), torch.zeros(entries + 4, dtype=torch.int32), 1)
    scores = torch.randn(entries + 4, width, dtype=torch.float64)
    expected = softmax_by_row(csr, scores)
    torch.testing.assert_close(edge_softmax(csr, scores, backend), expected)
    torch.testing.assert_close(edge_sum(csr, expected, backend), torch.ones(3, width, dtype=torch.float64))
    gradient = torch.randn_like(scores)
    total = edge_sum(csr, expected * gradient, "reference")
    found = edge_softmax_backward(csr, expected, gradient, backend)
    torch.testing.assert_close(found, expected * (gradient - repeat_rows(csr, total, "reference")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (40,), (2, 5), (602,)])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gather_and_scatter_rows_of_any_type(backend, shape, dtype, index_dtype):
    x = (torch.randn(50, *shape) * 50).to(dtype)
    index = torch.randint(0, 50, (70,)).to(index_dtype)
    assert torch.equal(gather_rows(x, index, backend), x[index])
    index = torch.randperm(80)[:50].to(index_dtype)
    expected = torch.zeros(80, *shape, dtype=dtype)
    expected[index] = x
    assert torch.equal(scatter_rows(index, x, 80, backend), expected)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(("count", "rows"), [(0, 0), (0, 5), (1, 1), (1000, 7), (1000, 1000), (100, 5000)])
def test_cluster_is_a_stable_sort(backend, count, rows, is_sorted, index_dtype):
    index = torch.randint(0, max(rows, 1), (count,)).to(index_dtype)
    index = index.sort().values if is_sorted else index
    indptr, order = cluster(index, rows, backend)
    assert order.tolist() == torch.argsort(index, stable=True).tolist()
    assert indptr.tolist() == [0, *torch.bincount(index, minlength=rows).cumsum(0).tolist()]


@pytest.mark.parametrize("is_sorted", [False, True])
def test_add_rows(backend, is_sorted):
    index, src = torch.randint(0, 20, (200,)), torch.randn(200, 6)
    index = index.sort().values if is_sorted else index
    expected = torch.zeros(25, 6).index_add_(0, index, src)
    torch.testing.assert_close(add_rows(index, src, 25, backend=backend), expected)


def test_the_transpose_of_the_transpose_knows_its_order():
    csr, _, _ = random_csr(30, 40, 200)
    values = torch.arange(200)
    transpose = csr.transpose()
    assert torch.equal(values[csr.transpose_order][transpose.transpose_order], values)
    weighted = csr.with_weight(torch.randn(200))
    assert torch.equal(weighted.transpose().weight, weighted.weight[csr.transpose_order])
    assert torch.equal(weighted.transpose().transpose().weight, weighted.weight)


def test_empty_graphs(backend):
    for rows, cols in ((0, 0), (0, 4), (4, 0), (4, 4)):
        csr = empty_csr(rows, cols)
        assert sddmm(csr, torch.ones(rows, 3), torch.ones(cols, 3), backend=backend).shape == (0,)
        assert sddmm(csr, torch.ones(rows, 4), torch.ones(cols, 4), heads=2, backend=backend).shape == (0, 2)
        assert sddmm(csr, torch.ones(rows, 3), torch.ones(cols, 3), "add", backend=backend).shape == (0, 3)
        assert edge_softmax(csr, torch.ones(0, 2), backend).shape == (0, 2)
        assert torch.equal(edge_sum(csr, torch.ones(0, 2), backend), torch.zeros(rows, 2))
        assert torch.equal(edge_sum(csr, torch.ones(0), backend), torch.zeros(rows))
        assert csr.transpose().num_rows == cols
    csr, _, _ = random_csr(5, 5, 10)
    assert torch.equal(sddmm(csr, torch.ones(5, 0), torch.ones(5, 0), backend=backend), torch.zeros(10))
    assert edge_softmax(csr, torch.ones(10, 0), backend).shape == (10, 0)
    assert edge_sum(csr, torch.ones(10, 0), backend).shape == (5, 0)
    assert gather_rows(torch.ones(3, 0), torch.tensor([1]), backend).shape == (1, 0)
    assert torch.equal(scatter_rows(torch.zeros(0, dtype=torch.int64), torch.ones(0, 2), 3, backend), torch.zeros(3, 2))


def test_non_contiguous_inputs(backend):
    csr, row, col = random_csr(50, 40, 300)
    a, b = torch.randn(18, 50).T[:, ::2], torch.randn(9, 40).T
    torch.testing.assert_close(sddmm(csr, a, b, backend=backend), (a[row] * b[col]).sum(1))
    scores = torch.randn(3, 300).T
    torch.testing.assert_close(edge_softmax(csr, scores, backend), softmax_by_row(csr, scores))
    assert torch.equal(edge_sum(csr, scores, backend), edge_sum(csr, scores.contiguous(), backend))
    index = torch.arange(50).flip(0).repeat_interleave(2)[::2]
    assert torch.equal(gather_rows(a, index, backend), a[index])
    assert torch.equal(scatter_rows(index, a, 50, backend), a.flip(0))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_backends_agree_on_any_graph(data):
    rows, cols = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    csr, _, _ = random_csr(rows, cols, data.draw(st.integers(0, 120)), data.draw(st.integers(0, 1000)))
    heads, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 20))
    a, b = torch.randn(rows, heads * columns), torch.randn(cols, heads * columns)
    scores = {name: sddmm(csr, a, b, heads=heads, backend=name) for name in BACKENDS}
    alpha = {name: edge_softmax(csr, scores["reference"], name) for name in BACKENDS}
    sums = {name: edge_sum(csr, alpha["reference"], name) for name in BACKENDS}
    for name in ("jit", TRITON):
        assert torch.equal(scores["native"], scores[name])
    for found in (scores, alpha, sums):
        for one in found.values():
            torch.testing.assert_close(one, found["reference"], rtol=1e-5, atol=1e-5)
    assert ((sums["native"] - 1).abs() < 1e-5)[csr.row_lengths() > 0].all()
    orders = [cluster(csr.indices, cols, name)[1].tolist() for name in BACKENDS]
    assert all(order == orders[0] for order in orders)


# This program prints a digest of every operator's result. Its arguments: numbers of threads.
DIGEST = """
import hashlib, sys
import torch
from hpcgnn.kernels import Csr, edge_softmax, edge_sum, sddmm
from hpcgnn.kernels.edges import edge_softmax_backward
from hpcgnn.kernels.native import library
from hpcgnn.kernels.rows import cluster
torch.manual_seed(0)
lengths = torch.cat((torch.randint(0, 40, (300,)), torch.tensor([9000]), torch.randint(0, 40, (300,))))
indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
csr = Csr(indptr, torch.randint(0, 500, (int(indptr[-1]),)), 500)
torch.set_num_threads(int(sys.argv[1]))
digest = hashlib.sha256()
for dtype in (torch.float32, torch.float64):
    for width, heads in ((1, 1), (7, 1), (30, 5), (40, 8), (102, 3), (36, 18)):
        a, b = torch.randn(601, width, dtype=dtype), torch.randn(500, width, dtype=dtype)
        scores = sddmm(csr, a, b, heads=heads)
        alpha = edge_softmax(csr, scores)
        gradient = edge_softmax_backward(csr, alpha, scores)
        wide = sddmm(csr, a, b, "add")
        for result in (scores, alpha, gradient, edge_sum(csr, alpha), wide, edge_sum(csr, wide)):
            digest.update(result.contiguous().numpy().tobytes())
for order in cluster(csr.indices, 500):
    digest.update(order.numpy().tobytes())
print(library.last_isa(), digest.hexdigest())
"""


@pytest.mark.slow
def test_the_same_bits_for_any_number_of_threads_and_any_instruction_set():
    digests = {}
    for isa in library.isas():
        for threads in ("1", "2", "3"):
            command = [sys.executable, "-c", DIGEST, threads]
            environment = os.environ | {"HPCGNN_ISA": isa}
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found, digests[isa, threads] = ran.stdout.split()
            assert found == isa
    assert len(set(digests.values())) == 1, digests


CSR = Csr(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 0]), 2)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: sddmm(CSR, torch.ones(3, 2), torch.ones(2, 2)), "a must be"),
        (lambda: sddmm(CSR, torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2)), "a must be"),
        (lambda: sddmm(CSR, torch.ones(2, 2), torch.ones(2, 3)), "b must be"),
        (lambda: sddmm(CSR, torch.ones(2, 2), torch.ones(2, 2).double()), "b must be"),
        (lambda: sddmm(CSR, torch.ones(2, 2), torch.ones(2, 2), "mul"), "op"),
        (lambda: sddmm(CSR, torch.ones(2, 2), torch.ones(2, 2), heads=3), "heads"),
        (lambda: sddmm(CSR, torch.ones(2, 2), torch.ones(2, 2), heads=0), "heads"),
        (lambda: sddmm(CSR, torch.ones(2, 2), torch.ones(2, 2), "add", heads=2), "heads"),
        (lambda: sddmm(CSR, torch.ones(2, 2), torch.ones(2, 2), backend="cuda"), "backend"),
        (lambda: edge_softmax(CSR, torch.ones(2)), "scores"),
        (lambda: edge_softmax(CSR, torch.ones(3, 1, 1)), "scores"),
        (lambda: edge_softmax(CSR, torch.ones(3, dtype=torch.bfloat16)), "scores"),
        (lambda: edge_softmax_backward(CSR, torch.ones(3), torch.ones(2)), "gradient"),
        (lambda: edge_sum(CSR, torch.ones(2, 4)), "values"),
        (lambda: repeat_rows(CSR, torch.ones(3)), "a must be"),
        (lambda: gather_rows(torch.ones(2, 2), torch.tensor([2])), "index"),
        (lambda: gather_rows(torch.ones(2, 2), torch.tensor([-1])), "index"),
        (lambda: gather_rows(torch.ones(2, 2), torch.tensor([0.0])), "index"),
        (lambda: gather_rows(torch.ones(2, 2), torch.tensor([[0]])), "index"),
        (lambda: gather_rows(torch.tensor(1.0), torch.tensor([0])), "x must"),
        (lambda: scatter_rows(torch.tensor([0, 0]), torch.ones(2, 2), 3), "index .* row 0"),
        (lambda: scatter_rows(torch.tensor([0, 3]), torch.ones(2, 2), 3), "index"),
        (lambda: scatter_rows(torch.tensor([0]), torch.ones(2, 2), 3), "index"),
        (lambda: add_rows(torch.tensor([0, 3]), torch.ones(2, 2), 3), "index"),
        (lambda: add_rows(torch.tensor([0, -1]), torch.ones(2, 2), 3), "index"),
        (lambda: add_rows(torch.tensor([0]), torch.ones(2, 2), 3), "index"),
        (lambda: add_rows(torch.tensor([0.0, 1.0]), torch.ones(2, 2), 3), "index"),
        (lambda: cluster(torch.tensor([0, 5]), 5), "index"),
        (lambda: cluster(torch.zeros(0, dtype=torch.int32), -1), "num_rows"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
