"""One test body for every backend, compared with dense products, with shapes that are difficult for kernels."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from under_test import BACKENDS, TRITON

from hpcgnn.kernels import Csr, resolve, spmm
from hpcgnn.kernels.csr import as_columns
from hpcgnn.kernels.native import spmm as native_spmm
from hpcgnn.kernels.native.library import segment_entries
from hpcgnn.kernels.native.spmm import Tuning

WIDTHS = [1, 3, 16, 40, 100, 256, 602]


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Every backend. The native one was built with the package, because the tests' environment has a compiler."""
    return resolve(request.param)


def random_csr(rows: int, cols: int, entries: int, seed: int = 0, dtype: torch.dtype = torch.float32):
    """A matrix with parallel entries, its weights, and its dense form with and without them."""
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
    other = csr.with_weight(weight * 2)  # shares the structure of the transpose, but not its values
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


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("heads", [None, 1, 2])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_reductions_with_weights_and_heads(backend, reduce, heads, width):
    """Compared with a loop over rows; also added to earlier values."""
    width = width * (heads or 1)
    csr, weight, _, _ = random_csr(20, 30, 90, dtype=torch.float64)
    weight = weight if heads is None else torch.randn(90, heads, dtype=torch.float64)
    x, start = torch.randn(30, width, dtype=torch.float64), torch.randn(20, width, dtype=torch.float64)
    values = x[csr.indices.long()] * as_columns(weight).repeat_interleave(width // (heads or 1), 1)
    rows = values.split(csr.row_lengths().tolist())
    function = torch.mean if reduce == "mean" else torch.sum
    expected = torch.stack([function(v, 0) if len(v) else torch.zeros(width, dtype=torch.float64) for v in rows])
    torch.testing.assert_close(spmm(csr, x, weight, reduce, backend=backend), expected)
    torch.testing.assert_close(spmm(csr, x, weight, reduce, start.clone(), backend), start + expected)
    overwritten = spmm(csr, x, weight, reduce, start.clone(), backend, accumulate=False)
    torch.testing.assert_close(overwritten, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_narrow_storage_is_added_in_float32(backend, width):
    csr, weight, ones, weighted = random_csr(50, 40, 300)
    x = torch.randn(40, width).bfloat16()
    torch.testing.assert_close(spmm(csr, x, backend=backend), ones @ x.float())
    torch.testing.assert_close(spmm(csr, x, weight, backend=backend), weighted @ x.float())
    bytes_, scale = torch.randint(-128, 128, (40, width), dtype=torch.int8), torch.rand(40)
    stands_for = bytes_.float() * scale[:, None]
    torch.testing.assert_close(spmm(csr, bytes_, scale=scale, backend=backend), ones @ stands_for, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(
        spmm(csr, bytes_, weight, scale=scale, backend=backend), weighted @ stands_for, rtol=1e-5, atol=1e-3
    )


def test_out_must_not_be_x():
    x = torch.ones(2, 2)
    with pytest.raises(ValueError, match="out must not share memory"):
        spmm(Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), 2), x, out=x)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_long_rows_are_summed_in_segments_in_every_backend(reduce, accumulate):
    """The matrix has a row of several segments, a row of exactly one segment, and short rows in between."""
    segment = segment_entries()
    lengths = torch.tensor([3, 2 * segment + 5, 0, segment, segment + 1, 2])
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    csr = Csr(indptr, torch.randint(0, 50, (int(lengths.sum()),)), 50)
    assert csr.heavy_rows(segment).tolist() == [1, 4]
    x, weight, start = torch.randn(50, 19), torch.randn(csr.num_entries), torch.randn(6, 19)
    found = {
        backend: spmm(csr, x, weight, reduce, start.clone(), backend, accumulate=accumulate) for backend in BACKENDS
    }
    assert torch.equal(found["native"], found["jit"])
    for one in found.values():
        torch.testing.assert_close(one, found["reference"], rtol=1e-4, atol=1e-3)


TUNINGS = {
    "plain": Tuning(
        prefetch_bytes=0, tile_bytes=64, tasks_a_thread=1, streaming_bytes=0, split_rows=False, hot_bytes=0
    ),
    "packed": Tuning(hot_bytes=1 << 20),
    "few packed": Tuning(hot_bytes=8 << 10, tile_bytes=128),
    "streaming": Tuning(streaming_bytes=1, hot_bytes=0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("width", [1, 16, 40, 100, 602])
@pytest.mark.parametrize("tuning", TUNINGS)
def test_tuning_does_not_change_a_bit_in_the_same_order(monkeypatch, tuning, width, dtype):
    monkeypatch.setattr(native_spmm, "_LEAST_BYTES_TO_PACK", 0)
    monkeypatch.setattr(native_spmm, "_LEAST_USES", 4)
    skewed = torch.randint(0, 400, (9000,)) * torch.randint(0, 2, (9000,)) * torch.randint(0, 2, (9000,))
    csr = Csr(torch.arange(0, 9001, 18), skewed, 400)
    x = (torch.randn(400, width) * 50).to(dtype)
    scale = torch.rand(400) if dtype == torch.int8 else None
    weight = torch.randn(9000, dtype=torch.float64 if dtype == torch.float64 else torch.float32)

    def expected_of(matrix: Csr, values: torch.Tensor | None) -> torch.Tensor:
        """numba's result; for bytes, whose products the native kernel fuses with their sums, the native kernel's default
        result.
        """
        expected = spmm(matrix, x, values, scale=scale, backend="jit")
        if dtype != torch.int8:
            return expected
        fused = torch.full_like(expected, torch.nan)
        native_spmm.spmm(matrix, values, x, scale, False, fused, Tuning(hot_bytes=0))
        torch.testing.assert_close(fused, expected, rtol=1e-5, atol=1e-3)
        return fused

    for values in (None, weight):
        expected = expected_of(csr, values)
        packed = native_spmm.pack(csr, values, x, TUNINGS[tuning])
        assert (packed is not None) == (TUNINGS[tuning].hot_bytes > 0)
        out = torch.full_like(expected, torch.nan)
        native_spmm.spmm(csr, values, x, scale, False, out, TUNINGS[tuning])
        if values is None and packed is not None:  # sums of ones have another, fixed order
            hot = packed.hot
            columns = torch.where(hot.indices < 0, hot.columns[(~hot.indices).clamp(min=0).long()], hot.indices)
            expected = expected_of(Csr(csr.indptr, columns, 400), None)
        assert torch.equal(out, expected)


def test_matrices_go_when_they_are_dropped():
    """This needs no garbage collection: a gradient of gather_rows creates a matrix in each call."""
    csr, weight, _, _ = random_csr(20, 30, 90)
    spmm(csr, torch.ones(30, 2))
    csr.transpose().transpose_order  # noqa: B018  # caches
    weighted = csr.with_weight(weight)
    assert weighted.transpose().transpose() is weighted
    watched = [weakref.ref(csr), weakref.ref(csr.transpose()), weakref.ref(weighted), weakref.ref(weighted.transpose())]
    gc.disable()
    try:
        del csr, weighted
        assert [reference() for reference in watched] == [None] * 4
    finally:
        gc.enable()


def test_a_transpose_outlives_its_origin():
    csr, _, ones, _ = random_csr(20, 30, 90)
    transpose = csr.transpose()
    del csr
    torch.testing.assert_close(spmm(transpose.transpose(), torch.eye(30)), ones)
    order = transpose.transpose_order.long()
    rows = torch.repeat_interleave(torch.arange(30), transpose.row_lengths())
    assert torch.equal(transpose.transpose().indices, rows[order].int())


def test_hot_columns_are_those_that_most_entries_name():
    csr = Csr(torch.tensor([0, 5, 9]), torch.tensor([3, 1, 3, 3, 0, 3, 1, 2, 3]), 5)
    hot = csr.hot_columns(most=2, least_uses=2)
    assert hot.columns.tolist() == [3, 1]
    assert hot.indices.tolist() == [~0, ~1, ~0, ~0, 0, ~0, ~1, 2, ~0]
    assert csr.hot_columns(most=1, least_uses=6) is None  # too few entries would benefit
    grouped = csr.hot_columns(most=2, least_uses=2, grouped=True)
    assert grouped.indices.tolist() == [~0, ~0, ~0, ~1, 0, ~0, ~0, ~1, 2]


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
    for other in ("jit", TRITON):
        assert torch.equal(native, spmm(csr, x, weight, backend=other))
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


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_is_written_to_the_given_arrays_later_changes_no_matrix(kind):
    """Compiled code would read the changed arrays without checking the indices."""
    given = np.array([0, 2, 3]), np.array([1, 0, 1], np.int32), np.array([1.0, 2.0, 3.0], np.float32)
    if kind == "torch":
        given = tuple(torch.tensor(values) for values in given)
    csr, x = Csr(given[0], given[1], 2, given[2]), torch.eye(2)
    before = spmm(csr, x)
    given[0][:] = 10**12
    given[1][:] = 2**30
    given[2][:] = np.nan
    assert torch.equal(spmm(csr, x), before)
    if kind == "torch":
        given[1].untyped_storage().resize_(0)
        assert torch.equal(spmm(csr, x), before)
        assert csr.transpose().indices.max() == 1


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ({"x": torch.ones(3, 2)}, "x must have shape"),
        ({"x": torch.ones(2, 2, dtype=torch.int64)}, "x must be float32"),
        ({"weight": torch.ones(3)}, "weight"),
        ({"out": torch.ones(5, 2)}, "out"),
        ({"reduce": "max"}, "reduce"),
        ({"x": torch.ones(2, 2, dtype=torch.int8)}, "scale"),
        ({"scale": torch.ones(2)}, "scale"),
        ({"weight": torch.ones(2, 3)}, "heads"),
        ({"x": torch.ones(2, 2, device="meta")}, "x must be on the CPU"),
        ({"backend": "cuda"}, "backend"),
    ],
)
def test_wrong_arguments_are_refused_by_name(override, named):
    csr = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), 2)
    with pytest.raises(ValueError, match=named):
        spmm(**({"csr": csr, "x": torch.ones(2, 2)} | override))
