"""Products of sparse and dense matrices on every backend, compared with plain torch in float64 and with its gradients."""

from __future__ import annotations

import copy
import gc
import importlib
import weakref
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from under_test import BACKENDS, FLOATS, TRITON, Case, cases, numbers, on_every_backend, on_threads, segment_of

from hpcgnn.kernels import Csr, spmm
from hpcgnn.kernels.csr import as_columns
from hpcgnn.kernels.sizes import scaled_by
from hpcgnn.kernels.spmm import Tuning, multiply, products_by_blocks

DTYPES = (*FLOATS, torch.bfloat16, torch.int8)


@dataclass(frozen=True)
class Product(Case):
    """A product and its options.

    weights: None; ``stored`` in the matrix; ``shared``, stored in a matrix that shares the structure of another; or ``given``,
    (entries,) or (entries, heads). into: what happens to ``out``, or None.
    """

    weights: str | None = None
    reduce: str = "sum"
    into: str | None = None
    infinite: bool = False

    @property
    def sums(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def arguments(self, csr: Csr, weight: torch.Tensor) -> tuple[Csr, list[torch.Tensor]]:
        """The matrix, and the argument ``weight`` if there is one."""
        if self.weights == "stored":
            return Csr(csr.indptr, csr.indices, csr.num_cols, weight), []
        if self.weights == "shared":
            return csr.with_weight(weight), []
        return csr, [] if self.weights is None else [weight]

    def factors(self, weight: torch.Tensor) -> torch.Tensor:
        """(entries, F) factors of the values of each entry."""
        weight = torch.ones_like(weight) if self.weights is None else weight
        return as_columns(weight).repeat_interleave(self.columns, 1)


def products() -> st.SearchStrategy[Product]:
    options = {"reduce": st.sampled_from(["sum", "mean"]), "into": st.sampled_from([None, None, "add", "overwrite"])}
    options["dtype"] = st.sampled_from([torch.float32, *DTYPES])
    one_head = cases(Product, **options, heads=st.none(), weights=st.sampled_from([None, "stored", "shared", "given"]))
    return one_head | cases(Product, **options, heads=st.sampled_from([1, 2, 3, 5]), weights=st.just("given"))


def weight_of(case: Product, csr: Csr) -> torch.Tensor:
    return numbers(case.seed + 1)(csr.num_entries, *([] if case.heads is None else [case.heads])).to(case.sums)


def check_values(backend: str, case: Product) -> None:
    """Every backend but the reference has the bits of the native one, which tests/native compares with plain loops. But for bytes
    the native one rounds less often, and Triton cuts a hub into other segments.
    """
    (csr, row, col), draw, is_bytes = case.build(backend), numbers(case.seed), case.dtype == torch.int8
    x, start = draw(csr.num_cols, case.width), draw(csr.num_rows, case.width).to(case.sums)
    if is_bytes:
        x = (50 * x).clamp(-128, 127)
    if case.infinite:
        x[0, 0], x[1, 1] = torch.inf, torch.nan
    x, weight, lengths = case.arrange(x), weight_of(case, csr), csr.row_lengths()
    scale = draw(csr.num_cols).abs().float() if is_bytes else None
    terms = x[col].double() * case.factors(weight) * (1 if scale is None else scale[col, None])
    expected = terms.new_zeros(start.shape).index_add(0, row, terms)
    if case.reduce == "mean":
        expected /= lengths.clamp(min=1)[:, None]
    expected += start if case.into == "add" else 0

    matrix, given_weight = case.arguments(csr, weight)
    options = {"reduce": case.reduce, "scale": scale, "accumulate": case.into != "overwrite"}

    def found_by(name: str) -> torch.Tensor:
        out = None if case.into is None else start.clone()
        found = spmm(matrix, x, *given_weight, backend=name, out=out, **options)
        assert found is out or out is None
        return found

    found = found_by(backend)
    if case.reduce == "sum" and not given_weight:
        for _ in range(2):  # the second call uses the kernel that the first has bound
            out = None if case.into is None else start.clone()
            again = multiply(matrix, x, out, backend, scale=scale, accumulate=case.into != "overwrite")
            torch.testing.assert_close(again, found, rtol=0, atol=0, equal_nan=True)
    atol = 0.05 if is_bytes else 1e-3
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=atol, equal_nan=True)
    if backend == "jit" or (backend == TRITON and max(lengths.tolist(), default=0) <= segment_of(backend)):
        bounds = {"rtol": 1e-4, "atol": atol} if is_bytes else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(found, found_by("native"), **bounds, equal_nan=True)


def check_gradients(backend: str, case: Product) -> None:
    csr, row, col = case.build(backend)
    weight, lengths = weight_of(case, csr), csr.row_lengths().clamp(min=1)[:, None]

    def plain(x: torch.Tensor, *given_weight: torch.Tensor) -> torch.Tensor:
        values = x[col] * case.factors(*given_weight or [weight.double()])
        sums = x.new_zeros(csr.num_rows, case.width).index_add(0, row, values)
        return sums / lengths if case.reduce == "mean" else sums

    matrix, given_weight = case.arguments(csr, weight)
    function = partial(spmm, matrix, reduce=case.reduce, backend=backend)
    case.check(function, plain, numbers(case.seed)(csr.num_cols, case.width), *given_weight)


OF_HUBS = [
    {},
    {"weights": "given", "dtype": torch.bfloat16, "into": "add"},
    {"weights": "stored", "dtype": torch.float64, "reduce": "mean"},
    {"columns": 2, "heads": 2, "weights": "given", "dtype": torch.float64},
    {"columns": 2, "heads": 2, "weights": "given", "dtype": torch.int8, "into": "overwrite"},
]
OTHERS = [
    {"rows": 0, "weights": "given"},
    {"cols": 0, "weights": "given"},
    {"entries": 0, "heads": 2, "weights": "given", "reduce": "mean", "into": "add"},
    {"columns": 0},
    {"infinite": True, "weights": "given"},
    {"rows": 150, "cols": 100, "entries": 900, "columns": 33, "weights": "given", "into": "overwrite"},
    {"columns": 1100, "weights": "given"},
    {"columns": 16, "heads": 40, "weights": "given", "dtype": torch.bfloat16},
    {"columns": 32, "heads": 3, "weights": "given", "dtype": torch.int8},
]
EXAMPLES = [Product(**{"hubs": True, "cols": 3, "columns": 3} | each) for each in OF_HUBS] + [
    Product(**each) for each in OTHERS
]


@on_every_backend(40, *({"case": case} for case in EXAMPLES), case=products())
def test_values_and_gradients(backend, case):
    check_values(backend, case)
    if case.dtype in FLOATS and case.into is None and not case.infinite:
        check_gradients(backend, case)


def test_transposes_know_their_weights_and_orders():
    csr, row, col = Case(20, 30, 90).build()
    weight, dense = numbers(0)(90), torch.zeros(20, 30, dtype=torch.float64)
    dense.index_put_((row, col), weight, accumulate=True)
    rows, columns = (torch.eye(n, dtype=torch.float64) for n in dense.shape)
    weighted, doubled = csr.with_weight(weight), csr.with_weight(2 * weight)
    torch.testing.assert_close(spmm(weighted.transpose(), rows), dense.T)
    torch.testing.assert_close(spmm(doubled.transpose(), rows), 2 * dense.T)  # another matrix of the same structure
    assert torch.equal(weighted.transpose().weight, weight[csr.transpose_order])
    assert torch.equal(weighted.transpose().transpose().weight, weight)
    values, transpose = torch.arange(90), csr.transpose()
    assert torch.equal(values[csr.transpose_order][transpose.transpose_order], values)
    again = transpose.with_weight(weight)
    assert torch.equal(spmm(again.transpose(), columns), spmm(again, rows).T)
    del csr, weighted, doubled  # a transpose outlives its origin
    plain = torch.zeros(20, 30).index_put_((row, col), torch.ones(90), accumulate=True)
    assert torch.equal(spmm(transpose.transpose(), torch.eye(30)), plain)


TUNINGS = {
    "plain": Tuning(0, tile_bytes=64, tasks_a_thread=1, streaming_bytes=0, split_rows=False, hot_bytes=0),
    "packed": Tuning(hot_bytes=1 << 20),
    "few packed": Tuning(hot_bytes=8 << 10, tile_bytes=128),
    "streaming": Tuning(streaming_bytes=1, hot_bytes=0),
}


@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS)
def test_no_tuning_changes_a_sum(monkeypatch, tuning):
    """Of small whole numbers and powers of two, in any order. tests/native compares the bits of sums that are rounded."""
    module = importlib.import_module("hpcgnn.kernels.spmm")
    monkeypatch.setattr(module, "LEAST_BYTES_TO_PACK", 0)
    monkeypatch.setattr(module, "_LEAST_USES", 4)
    for width, dtype in product((1, 16, 40, 100, 602), DTYPES):
        rng, sums = np.random.default_rng(width), Product(dtype=dtype).sums
        csr = Csr(torch.arange(0, 6001, 24), rng.integers(0, 400, 6000) * (rng.random(6000) < 0.25), 400)
        x = torch.from_numpy(rng.integers(-8, 9, (400, width))).to(dtype)
        scale = torch.from_numpy(2.0 ** rng.integers(-3, 3, 400)).float() if dtype == torch.int8 else None
        for values in (None, torch.from_numpy(rng.integers(-8, 9, 6000)).to(sums)):
            packed = module.pack(csr, values, x, tuning)
            assert (packed is not None) == (tuning.hot_bytes > 0)
            found = torch.full((250, width), torch.nan, dtype=sums)
            module.NativeSpmm().spmm(csr, values, x, scale, False, found, tuning)
            assert torch.equal(found, spmm(csr, x, values, scale=scale, backend="jit"))
    evenly_used = Csr(torch.arange(0, 6001, 24), torch.arange(6000) % 400, 400)
    assert evenly_used.hot_columns(most=10, least_uses=2) is None, "too few entries would benefit"


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "triton-on-gpu"])  # which copies them
def test_matrices_go_when_they_are_dropped(backend):
    """This needs no garbage collection: a gradient of gather_rows creates a matrix in each call."""
    csr, _, _ = Case(20, 30, 90).build()
    spmm(csr, torch.ones(30, 2), backend=backend)
    multiply(csr, torch.ones(30, 2), backend=backend)
    assert torch.equal(multiply(copy.deepcopy(csr), torch.ones(30, 2)), multiply(csr, torch.ones(30, 2)))
    csr.transpose().transpose_order  # noqa: B018  # caches
    weighted = csr.with_weight(torch.ones(90))
    assert weighted.transpose().transpose() is weighted
    watched = [weakref.ref(csr), weakref.ref(csr.transpose()), weakref.ref(weighted), weakref.ref(weighted.transpose())]
    gc.disable()
    try:
        del csr, weighted
        assert [reference() for reference in watched] == [None] * 4
    finally:
        gc.enable()


def test_a_matrix_has_a_kernel_for_each_type_and_width():
    csr, _, _ = Case(20, 30, 90).build()
    for dtype, width in product(FLOATS, (3, 7)):
        x = torch.randn(30, width, dtype=dtype)
        assert torch.equal(multiply(csr, x), spmm(csr, x))


@pytest.mark.parametrize(("dtype", "weighted"), [*zip(DTYPES, (True, False, False, True), strict=True)])
def test_blocks_of_rows_have_the_bits_of_the_whole_product(backend, weighted, dtype):
    """Also with rows that many entries name, which are copied once for all blocks."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 90, (70,), generator=generator)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    indices = torch.randint(0, 40, (int(indptr[-1]),), generator=generator)
    weight = torch.rand(indices.numel(), generator=generator) if weighted else None
    csr = Csr(indptr, indices, 40, weight if dtype != torch.float64 or weight is None else weight.double())
    x, scale = (torch.randn(40, 24, generator=generator) * 9).to(dtype), torch.rand(40, generator=generator) + 0.5
    scales = {"scale": scale} if dtype == torch.int8 else {}
    with scaled_by(0):
        whole = multiply(csr, x, backend=backend, **scales)
        found = [(place, rows.clone()) for place, rows in products_by_blocks(csr, x, 16, backend, **scales)]
        assert torch.equal(torch.cat([rows for _, rows in found]), whole)
        assert [place.start for place, _ in found] == [0, 16, 32, 48, 64]
        ((place, rows),) = products_by_blocks(csr, x, 70, backend, **scales)
        assert place == slice(0, 70)
        assert torch.equal(rows, whole)
        if dtype in FLOATS:
            scale = scale.to(dtype)
            scaled = [rows.clone() for _, rows in products_by_blocks(csr, x, 16, backend, scale=scale)]
            wanted = multiply(csr, x * scale[:, None], backend=backend)
            torch.testing.assert_close(torch.cat(scaled), wanted, rtol=1e-5, atol=1e-4)


def test_the_same_bits_for_any_number_of_threads(backend):
    csr, _, _ = Case(150, 100, 3000, hubs=True).build(backend)
    draw, results = numbers(0), []
    x, weight = draw(100, 33).float(), draw(csr.num_entries).float()
    for count in (1, 2, 3):
        with on_threads(count):
            results.append(spmm(csr, x, weight, backend=backend))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_nothing_is_recorded_where_no_gradient_is_needed(backend):
    csr, x = Case().build()[0], torch.ones(6, 6, requires_grad=True)
    assert spmm(csr, x.detach(), backend=backend).grad_fn is None
    with torch.no_grad():
        assert not spmm(csr, x, backend=backend).requires_grad
        assert not spmm(csr, x, out=torch.zeros(7, 6), backend=backend).requires_grad


@pytest.mark.parametrize(("heads", "reduce"), [(None, "mean"), (3, "sum")])
def test_gradients_of_gradients(heads, reduce):
    csr = Case().build()[0]
    x = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(csr.num_entries, *([heads] if heads else []), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, weight: spmm(csr, x, weight, reduce), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x: spmm(csr, x**2, None, reduce), (x,))


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
