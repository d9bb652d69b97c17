"""The division of the sparse kernels' work in Triton into tasks and vectors, and rows of bytes at any place."""

from __future__ import annotations

import gc
import weakref
from itertools import product

import pytest
import torch
from under_test import TRITON
from under_test import TRITON_SEGMENT as SEGMENT

from hpcgnn.kernels import Csr, edge_softmax, edge_sum
from hpcgnn.kernels.triton import launch
from hpcgnn.kernels.triton import rows as row_kernels
from hpcgnn.kernels.triton.tasks import plan_of, vector

pytestmark = [
    pytest.mark.skipif(not launch.interprets(), reason="some are given tensors of the host"),
    pytest.mark.usefixtures("short_segments"),
]
LENGTHS = [3, 2 * SEGMENT + 5, 0, SEGMENT, SEGMENT + 1, 2, 0, 40]
COLUMNS = 50


def csr_of(lengths: list[int], columns: int = COLUMNS) -> Csr:
    indptr = torch.tensor([0, *lengths]).cumsum(0)
    return Csr(indptr, torch.randint(0, columns, (int(indptr[-1]),)), columns)


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


def test_rows_of_bytes_that_start_anywhere():
    index = torch.tensor([3, -1, 0, 3, 7], dtype=torch.int32)
    offsets = (0, 0), (1, 0), (0, 1), (2, 4), (4, 8), (8, 2)
    for num_bytes, (of_x, of_out) in product((1, 2, 3, 4, 6, 12, 16, 40, 400), offsets):
        x = torch.randint(0, 256, (8 * num_bytes + of_x,), dtype=torch.uint8)[of_x:].view(8, num_bytes)
        out = torch.full((5 * num_bytes + of_out,), 77, dtype=torch.uint8)[of_out:].view(5, num_bytes)
        row_kernels.gather_rows(x, index, out)
        expected = x[index.long()]
        expected[1] = 0
        assert torch.equal(out, expected)


def test_vectors_divide_rows_and_fill_16_bytes_at_most():
    assert [vector(width, 4) for width in (0, 1, 6, 100, 256)] == [4, 1, 2, 4, 4]
    assert [vector(width, 2) for width in (12, 64)] == [4, 8]
    assert vector(32, 1) == 16


def test_the_same_bits_in_each_run():
    csr = csr_of(LENGTHS)
    scores = torch.randn(csr.num_entries, 8)
    for function in (edge_softmax, edge_sum):
        assert torch.equal(function(csr, scores, TRITON), function(csr, scores, TRITON))
