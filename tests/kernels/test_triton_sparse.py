"""Tests of the sparse kernels in Triton: hubs that several tasks sum, the same bits as other backends, plans."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from under_test import TRITON

from hpcgnn.kernels import Csr, edge_softmax, edge_sum, gather_rows, sddmm, spmm
from hpcgnn.kernels.edges import edge_softmax_backward, repeat_rows
from hpcgnn.kernels.triton import launch
from hpcgnn.kernels.triton import rows as row_kernels
from hpcgnn.kernels.triton import tasks as tasks_module
from hpcgnn.kernels.triton.tasks import plan_of, vector

pytestmark = pytest.mark.skipif(not launch.interprets(), reason="some are given tensors of the host")
SEGMENT = 64  # smaller than for a GPU, because the interpreter needs time for each entry
LENGTHS = [3, 2 * SEGMENT + 5, 0, SEGMENT, SEGMENT + 1, 2, 0, 40]
COLUMNS = 50


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    monkeypatch.setattr(tasks_module, "SEGMENT", SEGMENT)


def csr_of(lengths: list[int], columns: int = COLUMNS) -> Csr:
    indptr = torch.tensor([0, *lengths]).cumsum(0)
    return Csr(indptr, torch.randint(0, columns, (int(indptr[-1]),)), columns)


def segments(csr: Csr, row: int) -> list[slice]:
    """The entries of a row, as divided among its tasks."""
    begin, end = csr.indptr[row : row + 2].tolist()
    return [slice(first, min(first + SEGMENT, end)) for first in range(begin, end, SEGMENT)]


def test_tasks_cover_each_entry_once_and_each_row():
    csr = csr_of(LENGTHS)
    tasks = plan_of(csr).tasks
    assert tasks.parts == 5
    assert tasks.hubs.tolist() == [1, 4]
    assert tasks.hub_parts.tolist() == [0, 3, 5]
    assert tasks.hub_of.tolist() == [0, 0, 0, 1, 1]
    assert tasks.row[:5].tolist() == [1, 1, 1, 4, 4]
    assert sorted(tasks.row[5:].tolist()) == [0, 2, 3, 5, 6, 7]
    pieces = zip(tasks.begin.tolist(), tasks.length.tolist(), strict=True)
    assert sorted(entry for begin, length in pieces for entry in range(begin, begin + length)) == list(
        range(csr.num_entries)
    )
    assert max(tasks.length.tolist()) == SEGMENT
    whole = tasks.length[tasks.parts :].tolist()
    assert whole == sorted(whole, reverse=True)  # fewer rows than a window has
    assert torch.equal(plan_of(csr).entry_rows, csr.entry_rows(torch.int32))


def test_one_plan_for_a_structure_that_goes_with_it():
    csr = csr_of([1, 2])
    plan = plan_of(csr)
    assert plan_of(csr.with_weight(torch.ones(3))) is plan
    watched = [weakref.ref(csr), weakref.ref(plan)]
    gc.disable()
    try:
        del csr, plan
        assert [reference() for reference in watched] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "int8"])
@pytest.mark.parametrize("heads", [None, 1, 2])
@pytest.mark.parametrize("accumulate", [False, True])
def test_sums_have_the_bits_of_a_loop_over_entries(accumulate, heads, kind):
    """A row may be divided among several tasks: each starts from 0, and their sums are added in order."""
    csr, dtype = csr_of([*LENGTHS, 17]), getattr(torch, kind)
    sums = torch.float64 if kind == "float64" else torch.float32
    x, scale = (torch.randn(COLUMNS, 6) * 20).to(dtype), torch.rand(COLUMNS) if kind == "int8" else None
    weight = None if heads is None else torch.randn(csr.num_entries, heads, dtype=sums)
    start = torch.randn(csr.num_rows, 6, dtype=sums)
    found = spmm(csr, x, weight, out=start.clone(), accumulate=accumulate, scale=scale, backend=TRITON)
    source = csr.indices.long()
    factor = torch.ones(csr.num_entries, 6, dtype=sums) if scale is None else scale[source, None].expand(-1, 6)
    factor = factor if weight is None else factor * weight.repeat_interleave(6 // (heads or 1), 1)
    terms = x[source].to(sums) * factor
    for row in range(csr.num_rows):
        pieces = segments(csr, row)
        total = start[row] if accumulate else torch.zeros(6, dtype=sums)
        for piece in pieces:
            part = total if len(pieces) == 1 else torch.zeros(6, dtype=sums)
            for term in terms[piece]:
                part = part + term
            total = part if len(pieces) == 1 else total + part
        assert torch.equal(found[row], total), row


@pytest.mark.parametrize("width", [1, 20, 33, 128])
def test_rows_that_are_one_task_have_the_bits_of_the_native_kernel(width):
    csr = csr_of([5, 0, 30, 1, SEGMENT, 18])
    x, weight = torch.randn(COLUMNS, width), torch.randn(csr.num_entries)
    for values in (None, weight):
        assert torch.equal(spmm(csr, x, values, backend=TRITON), spmm(csr, x, values, backend="native"))
    transpose = csr.with_weight(weight).transpose()
    back = torch.randn(csr.num_rows, width)
    assert torch.equal(spmm(transpose, back, backend=TRITON), spmm(transpose, back, backend="native"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("heads", "columns"), [(1, 1), (1, 128), (8, 32), (3, 7), (5, 33), (40, 2), (1, 1500)])
def test_dot_products_have_the_bits_of_the_native_kernel(heads, columns, dtype):
    csr = csr_of([4, 0, 40, 3])
    a, b = (torch.randn(rows, heads * columns, dtype=dtype) for rows in (4, COLUMNS))
    native, triton = (sddmm(csr, a, b, heads=heads, backend=name) for name in ("native", TRITON))
    assert torch.equal(native, triton)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_hubs_of_entries(heads, dtype):
    csr = csr_of([3, 5 * SEGMENT + 7, 0, SEGMENT + 1, 9])
    scores = torch.randn(csr.num_entries, heads, dtype=dtype) * 4
    scores[csr.indptr[1] + 3 * SEGMENT] = 60  # the largest score of every other part is far below that of the hub
    scores[csr.indptr[3] : csr.indptr[3] + SEGMENT] = -torch.inf  # a part without finite scores
    rtol, atol = (1e-6, 1e-7) if dtype == torch.float32 else (1e-13, 1e-15)
    alpha = edge_softmax(csr, scores, TRITON)
    exact = edge_softmax(csr, scores.double(), "reference")
    torch.testing.assert_close(alpha.double(), exact, rtol=rtol, atol=atol)
    gradient = torch.randn_like(scores)
    total = edge_sum(csr, exact * gradient, "reference")
    expected = exact * (gradient - repeat_rows(csr, total, "reference"))
    found = edge_softmax_backward(csr, alpha, gradient, TRITON)
    torch.testing.assert_close(found.double(), expected, rtol=10 * rtol, atol=10 * atol)
    summed = edge_sum(csr, scores.clamp(min=-9), TRITON)
    expected = edge_sum(csr, scores.clamp(min=-9).double(), "reference")
    torch.testing.assert_close(summed.double(), expected, rtol=100 * rtol, atol=1e4 * atol)


def test_a_hub_with_a_nan_is_nan_and_one_of_nothing_is_zeros():
    csr = csr_of([2 * SEGMENT, 2 * SEGMENT, 2])
    scores = torch.zeros(csr.num_entries)
    scores[5], scores[2 * SEGMENT : 4 * SEGMENT] = torch.nan, -torch.inf
    alpha = edge_softmax(csr, scores, TRITON)
    assert alpha[: 2 * SEGMENT].isnan().all()
    assert not alpha[2 * SEGMENT : 4 * SEGMENT].any()
    assert alpha[4 * SEGMENT :].tolist() == [0.5, 0.5]


def test_the_exponential_is_accurate_to_2e_7():
    differences = torch.linspace(-87, 0, 2_001)
    csr = Csr(torch.arange(0, 4_003, 2), torch.zeros(4_002, dtype=torch.int32), 1)
    found = edge_softmax(csr, torch.stack((differences, torch.zeros(2_001)), 1).flatten(), TRITON)[::2]
    exact = torch.exp(differences.double())
    assert (found / (exact / (1 + exact)) - 1).abs().max() < 4e-7  # including the errors of the sum and of the division
    below = edge_softmax(csr_of([2]), torch.tensor([-87.1, 0.0]), TRITON)
    assert below.tolist() == [0, 1]


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 4, 6, 12, 16, 40, 400])
def test_rows_of_bytes_that_start_anywhere(num_bytes):
    index = torch.tensor([3, -1, 0, 3, 7], dtype=torch.int32)
    for of_x, of_out in ((0, 0), (1, 0), (0, 1), (2, 4), (4, 8), (8, 2)):
        x = torch.randint(0, 256, (8 * num_bytes + of_x,), dtype=torch.uint8)[of_x:].view(8, num_bytes)
        out = torch.full((5 * num_bytes + of_out,), 77, dtype=torch.uint8)[of_out:].view(5, num_bytes)
        row_kernels.gather_rows(x, index, out)
        expected = x[index.long()]
        expected[1] = 0
        assert torch.equal(out, expected)
    assert torch.equal(gather_rows(x, index[:1], TRITON), x[3:4])


def test_vectors_divide_rows_and_fill_16_bytes_at_most():
    assert [vector(width, 4) for width in (0, 1, 6, 100, 256)] == [4, 1, 2, 4, 4]
    assert [vector(width, 2) for width in (12, 64)] == [4, 8]
    assert vector(32, 1) == 16


def test_the_same_bits_in_each_run():
    csr, x = csr_of(LENGTHS), torch.randn(COLUMNS, 40)
    scores = torch.randn(csr.num_entries, 8)
    first, second = (
        (spmm(csr, x, scores, backend=TRITON), edge_softmax(csr, scores, TRITON), edge_sum(csr, scores, TRITON))
        for _ in range(2)
    )
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
