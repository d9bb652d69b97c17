"""Operators over entries and rows on every backend, compared with plain torch in float64 and with its gradients."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.nn.functional import leaky_relu
from under_test import FLOATS, TRITON, Case, cases, numbers, on_every_backend, segment_of, widths

from hpcgnn.kernels import Csr, attention_weights, edge_softmax, edge_sum, gather_rows, scatter_rows, sddmm
from hpcgnn.kernels.edges import repeat_rows
from hpcgnn.kernels.rows import cluster

few_columns = cases(heads=st.sampled_from([None, *range(1, 18)]) | widths)
NOTHING = [{"case": case} for case in (Case(rows=0, heads=2), Case(cols=0, heads=2), Case(entries=0, heads=2))]


def of_heads(values: torch.Tensor, case: Case) -> torch.Tensor:
    """(entries, heads) values, or (entries,) if there is one head."""
    return values[:, 0] if case.heads is None else values


@on_every_backend(
    25,
    *NOTHING,
    {"case": Case(hubs=True, cols=3, columns=3, heads=2)},
    {"case": Case(columns=0)},
    {"case": Case(columns=128, heads=1)},
    {"case": Case(columns=2, heads=40)},
    {"case": Case(columns=1500, dtype=torch.float64)},
    case=cases(),
)
def test_dot_products_and_sums_of_both_ends(backend, case):
    """Every backend but the reference has the bits of the native one, which tests/native compares with a plain loop."""
    (csr, row, col), draw, heads = case.build(backend), numbers(case.seed), case.heads or 1
    csr = csr.with_weight(torch.full((csr.num_entries,), 7.0, dtype=case.dtype))  # values that are not used
    leaves = draw(csr.num_rows, case.width), draw(csr.num_cols, case.width)

    def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return of_heads((a[row] * b[col]).view(csr.num_entries, heads, case.columns).sum(2), case)

    case.check(partial(sddmm, csr, heads=case.heads, backend=backend), plain, *leaves)
    case.check(partial(sddmm, csr, op="add", backend=backend), lambda a, b: a[row] + b[col], *leaves)
    a, b = map(case.arrange, leaves)
    assert torch.equal(sddmm(csr, a, b, "add", backend=backend), a[row] + b[col])
    assert torch.equal(repeat_rows(csr, a, backend), a[row])
    if backend != "reference":
        found, native = (sddmm(csr.structure, a, b, heads=case.heads, backend=name) for name in (backend, "native"))
        assert torch.equal(found, native)


def softmax_by_row(csr: Csr, scores: torch.Tensor) -> torch.Tensor:
    parts = [part.softmax(0) for part in scores.split(csr.row_lengths().tolist())]
    return torch.cat(parts) if parts else scores * 1


@on_every_backend(
    30,
    *NOTHING,
    {"case": Case(hubs=True)},
    {"case": Case(hubs=True, heads=3, dtype=torch.float64)},
    {"case": Case(hubs=True, heads=20)},
    {"case": Case(heads=0)},
    {"case": Case(rows=60, entries=300, heads=602)},
    case=few_columns,
)
def test_softmax_and_sum_of_each_row(backend, case):
    csr, row, _ = case.build(backend)
    values = numbers(case.seed)(csr.num_entries, *([] if case.heads is None else [case.heads]))

    def plain_sum(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(csr.num_rows, *values.shape[1:]).index_add(0, row, values)

    case.check(partial(edge_sum, csr, backend=backend), plain_sum, values)
    scores = values * 4
    if case.hubs:  # the largest score of a row is in its last segment, and its first segment has no finite score
        begin, segment = int(csr.indptr[case.rows]), segment_of(backend)
        scores[begin + 2 * segment + 3], scores[begin : begin + segment] = 60, -torch.inf
    case.check(partial(edge_softmax, csr, backend=backend), partial(softmax_by_row, csr), scores)
    scores = case.arrange(scores)
    rounding = (20 if case.hubs else 2) * (1e-6 if case.dtype == torch.float32 else 1e-14)
    expected = softmax_by_row(csr, scores.double())
    torch.testing.assert_close(edge_softmax(csr, scores, backend).double(), expected, rtol=rounding, atol=rounding / 10)


def test_softmax_of_extreme_scores(backend):
    inf, nan = torch.inf, torch.nan
    large, small = 1 / (1 + np.exp(-1)), 1 - 1 / (1 + np.exp(-1))
    rows = {
        (1e4, 1e4 - 1): (large, small),
        (-1e4, -1e4 - 1): (large, small),
        (-inf, 0.0, 0.0): (0, 0.5, 0.5),
        (-inf, -inf): (0, 0),
        (-inf,): (0,),
        (nan, 1.0): (nan, nan),
        (inf, 1.0): (nan, nan),
        (0, -200.0): (1, np.exp(-200)),  # too small for float32
    }
    for dtype in FLOATS:
        for times, rtol in ((1, 2e-6), (segment_of(backend), 1e-4)):  # the second: most rows have several segments
            lengths = torch.tensor([0, *map(len, rows)]) * times
            csr = Csr(lengths.cumsum(0), torch.zeros(int(lengths.sum()), dtype=torch.int32), 1)
            scores, expected = (
                torch.tensor(sum((row * times for row in of), ()), dtype=dtype) for of in (rows, rows.values())
            )
            found = edge_softmax(csr, scores, backend)
            torch.testing.assert_close(found, expected / times, rtol=rtol, atol=0, equal_nan=True)


@pytest.mark.parametrize(("backend", "count"), [("native", 200_001), (TRITON, 2_001)])
def test_the_exponential_is_accurate_to_2e_7(backend, count):
    differences = torch.linspace(-87, 0, count)
    csr = Csr(torch.arange(0, 2 * count + 1, 2), torch.zeros(2 * count, dtype=torch.int32), 1)
    found = edge_softmax(csr, torch.stack((differences, torch.zeros(count)), 1).flatten(), backend)[::2]
    exact = torch.exp(differences.double())
    assert (found / (exact / (1 + exact)) - 1).abs().max() < 4e-7  # including the errors of the sum and of the division
    one = Csr(torch.tensor([0, 2]), torch.zeros(2, dtype=torch.int32), 1)
    assert edge_softmax(one, torch.tensor([-87.1, 0.0]), backend).tolist() == [0, 1]


@on_every_backend(15, case=few_columns)
def test_attention_weights_are_those_of_three_steps(backend, case):
    (csr, row, col), draw, heads = case.build(backend), numbers(case.seed), case.heads or 1
    leaves = draw(csr.num_rows, heads), draw(csr.num_cols, heads)

    def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return softmax_by_row(csr, leaky_relu(a[row] + b[col], 0.2))

    def weights(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return attention_weights(csr, a, b, 0.2, backend)

    case.check(weights, plain, *leaves)
    a, b = map(case.arrange, leaves)
    scores = leaky_relu(sddmm(csr, a, b, "add", backend=backend), 0.2)
    assert torch.equal(weights(a, b), edge_softmax(csr, scores, backend))


rows_by_index = cases(
    rows=st.integers(1, 100),
    dtype=st.sampled_from([*FLOATS, torch.bfloat16, torch.int8, torch.int64, torch.bool]),
    heads=st.sampled_from([None, None, 1, 2]),
)


@on_every_backend(
    40,
    *(each | {"int_type": torch.int64, "is_sorted": False} for each in (*NOTHING, {"case": Case(columns=0)})),
    {"case": Case(columns=602, entries=70, dtype=torch.float64), "int_type": torch.int32, "is_sorted": False},
    {"case": Case(rows=7, entries=1000, heads=1), "int_type": torch.int64, "is_sorted": False},
    {"case": Case(rows=5000, entries=1000), "int_type": torch.int32, "is_sorted": True},
    case=rows_by_index, int_type=st.sampled_from([torch.int32, torch.int64]), is_sorted=st.booleans(),
)  # fmt: skip
def test_rows_by_index(backend, case, int_type, is_sorted):
    """Gathered, scattered and added rows, and the stable order that sorts an index."""
    rng, tail = np.random.default_rng(case.seed), {None: [case.columns], 1: [], 2: [2, case.columns]}[case.heads]
    index = torch.from_numpy(rng.integers(0, max(case.rows, 1), case.entries if case.rows else 0)).to(int_type)
    index = index.sort().values if is_sorted else index
    once = torch.from_numpy(rng.permutation(2 * case.rows)[: case.rows]).to(int_type)
    values = numbers(case.seed)(case.rows, *tail) * (1 if case.dtype in FLOATS else 20)
    x, scattered = case.arrange(values), torch.zeros(2 * case.rows, *tail, dtype=case.dtype)
    scattered[once] = x
    assert torch.equal(gather_rows(x, index, backend), x[index])
    scatter = partial(scatter_rows, once, num_rows=2 * case.rows, backend=backend)
    assert torch.equal(scatter(x), scattered)
    indptr, order = cluster(index, case.rows, backend)
    assert torch.equal(order, torch.argsort(index, stable=True).int())
    assert indptr.tolist() == [0, *torch.bincount(index, minlength=case.rows).cumsum(0).tolist()]
    if case.dtype in FLOATS:
        case.check(partial(gather_rows, index=index, backend=backend), lambda x: x[index], values)
        case.check(scatter, lambda x: x.new_zeros(scattered.shape).index_add(0, once, x), values)
