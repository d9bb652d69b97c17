"""Matrices that a step has quantized are found again, and their products have float32's gradients, except for noise of mean 0.

Statistical tests draw with fixed keys, so that they give the same verdict every time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from under_test import Case
from under_test import random_rows as numbers
from wires import assert_same_rows

from hpcgnn.kernels import int8_autograd as integers
from hpcgnn.kernels import keyed, spmm
from hpcgnn.kernels.int8 import Int8Rows, quantize_rows
from hpcgnn.kernels.quantizer import CacheCounts, Quantizer

KEY = keyed.derive_key(8, 8)
SPARSE = Case(60, 40, 150)  # with parallel entries, empty rows and empty columns
KEYS = 64  # number of runs that are averaged: their noise is an eighth of that of one run
HEADS = 4
ONE = 20 * 16 + 4 * 20  # bytes of the rows of a small tensor


@pytest.fixture
def quantizer():
    """A quantizer in the middle of a run."""
    made = Quantizer("native")
    made.begin(KEY)
    return made


def is_near(rows: Int8Rows, x: torch.Tensor) -> bool:
    """Return whether the rows are within a step of those of ``x``, as random rounding allows."""
    return bool(((rows.float() - x).abs() <= rows.scale[:, None]).all())


def test_a_tensor_is_quantized_once(quantizer):
    x, other = torch.randn(2, 20, 16)
    rows = quantizer.rows(x)
    assert quantizer.rows(x) is quantizer.find(x) is rows
    assert_same_rows(rows, quantize_rows(x, key=keyed.derive_key(KEY, 1)))
    quantizer.rows(other)
    assert quantizer.take_counts() == CacheCounts(quantized=2, reused=2, most_bytes=2 * ONE)
    assert quantizer.take_counts() == CacheCounts()
    kept = Int8Rows(torch.zeros(20, 16, dtype=torch.int8), torch.zeros(20))
    assert quantizer.keep(x, kept) is quantizer.rows(x) is kept


WRITES = (
    lambda x: x.mul_(-3),
    lambda x: x[4:, 2].fill_(50.0),
    lambda x: x.detach().add_(10),
)  # in place, by a view, and detached
STEPS = st.tuples(st.sampled_from(["new", "write", "drop", "step"]), st.integers(0, 2))


@settings(deadline=None, max_examples=40)
@given(steps=st.lists(STEPS, min_size=1, max_size=20))
def test_rows_are_those_of_a_tensor_and_of_a_factor_as_they_are_now(steps):
    """Also if a new tensor has the address of one that ended; the memory of what ended is counted no more."""
    quantizer, tensors, factors = Quantizer("native"), {}, [None, *torch.rand(2, 20)]
    for turn, (what, which) in enumerate([("new", 0), *steps]):
        if what == "new":
            tensors[which] = torch.randn(20, 16)
            assert quantizer.find(tensors[which]) is None
        elif what == "write" and which in tensors:
            WRITES[turn % 3](tensors[which])
            assert quantizer.find(tensors[which]) is None
        elif what == "drop":
            tensors.pop(which, None)
        elif what == "step":
            codes = [weakref.ref(rows.codes) for rows in map(quantizer.find, tensors.values()) if rows is not None]
            quantizer.begin(turn)
            assert all(each() is None for each in codes), "another step knows nothing of the last one"
        factors[1] = torch.rand(20)  # the one before is gone, and is not taken for no factor
        for number, x in tensors.items():
            factor = factors[-(turn + number) % 3]
            rows = quantizer.rows(x, factor)
            assert quantizer.rows(x, factor) is rows
            assert is_near(rows, x if factor is None else x * factor[:, None])
            del rows
    assert quantizer.counts.most_bytes <= 4 * ONE


def test_an_entry_ends_with_its_tensor(quantizer):
    """This needs no garbage collection, because no object keeps the tensor or forms a cycle with it."""
    x, factor = torch.randn(200, 16), torch.rand(200)
    gone, rows = weakref.ref(x), quantizer.rows(x, factor)
    codes, factors = weakref.ref(rows.codes), weakref.ref(factor)
    del rows, factor
    assert factors() is None
    assert codes() is not None
    del x
    assert gone() is None
    assert codes() is None


def test_noise_differs_from_call_to_call_and_repeats_with_the_step_unless_there_is_none(quantizer):
    keys = [quantizer.next_key() for _ in range(1000)]
    assert len(set(keys)) == 1000
    quantizer.begin(KEY)
    assert [quantizer.next_key() for _ in range(1000)] == keys
    quantizer.begin(KEY + 1)
    assert not set(keys) & {quantizer.next_key() for _ in range(1000)}
    same = torch.randn(20, 16)
    assert not torch.equal(quantizer.rows(same).codes, quantizer.rows(same.clone()).codes)
    to_the_nearest = Quantizer("native", is_stochastic=False)
    to_the_nearest.begin(KEY)
    assert to_the_nearest.next_key() is None
    assert_same_rows(to_the_nearest.rows(same), quantize_rows(same))


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The difference relative to the norm."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def dense_results(quantizer: Quantizer | None) -> dict[str, torch.Tensor]:
    """The results of a product and its gradients; in float64 without a quantizer."""
    kind = torch.float32 if quantizer else torch.float64
    shapes = {"x": (300, 96), "weight": (96, 40), "bias": (40,), "plus": (300, 40)}
    given = {name: numbers(*shape, seed=n).to(kind) for n, (name, shape) in enumerate(shapes.items())}
    leaves = {name: value.requires_grad_() for name, value in given.items()}
    x, weight, bias, plus = leaves.values()
    y = x @ weight + bias + plus if quantizer is None else integers.dense(x, weight, bias, plus, quantizer)
    y.backward(numbers(300, 40, seed=9).to(kind))
    return {"y": y.detach()} | {name: leaf.grad for name, leaf in leaves.items()}


def spmm_results(quantizer: Quantizer | None, weights: str | None = "heads") -> dict[str, torch.Tensor]:
    """The same for an aggregation."""
    kind = torch.float32 if quantizer else torch.float64
    (csr, *_), x = SPARSE.build(), numbers(40, 24 * HEADS).to(kind).requires_grad_()
    shape = (csr.num_entries, HEADS) if weights == "heads" else (csr.num_entries,)
    weight = numbers(*shape, seed=1).to(kind)
    if weights == "stored":
        csr = csr.with_weight(weight)
    given = weight.requires_grad_() if weights in ("one", "heads") else None
    z = integers.spmm(csr, x, given, quantizer) if quantizer else spmm(csr, x, given, backend="reference")
    z.backward(numbers(60, 24 * HEADS, seed=9).to(kind))
    return {"z": z.detach(), "x": x.grad} | ({} if given is None else {"weight": given.grad})


def head_results(quantizer: Quantizer | None) -> dict[str, torch.Tensor]:
    """The same for products of heads with vectors, as in attention's scores."""
    kind = torch.float32 if quantizer else torch.float64
    x, vectors = (
        numbers(*shape, seed=n).to(kind).requires_grad_() for n, shape in enumerate([(3000, 96), (HEADS, 24)])
    )
    by_heads = x.view(-1, HEADS, 24)
    scores = integers.head_products(x, vectors, quantizer) if quantizer else (by_heads * vectors).sum(2)
    scores.backward(numbers(3000, HEADS, seed=9).to(kind))
    return {"scores": scores.detach(), "x": x.grad, "vectors": vectors.grad}


def averages(results, count: int) -> dict[str, torch.Tensor]:
    """The averages over this many steps, each with its own noise."""
    sums: dict[str, torch.Tensor] = {}
    for key in range(count):
        quantizer = Quantizer("native")
        quantizer.begin(key)
        for name, value in results(quantizer).items():
            sums[name] = sums.get(name, 0) + value.double()
    return {name: value / count for name, value in sums.items()}


def test_results_and_gradients_are_near_those_of_float32(backend):
    exact, found = dense_results(None), dense_results(Quantizer(backend))
    assert max(off(found[name], exact[name]) for name in ("bias", "plus")) < 1e-6  # these are not products
    cases = [(exact, found, {"y", "x", "weight"})]
    for weights in (None, "stored", "one", "heads"):
        wanted = {"z", "x", "weight"} if weights in ("one", "heads") else {"z", "x"}
        cases.append((spmm_results(None, weights), spmm_results(Quantizer(backend), weights), wanted))
        assert cases[-1][1].keys() == wanted
    for exact, found, wanted in cases:
        assert all(value.dtype == torch.float32 for value in found.values())
        for name in wanted:
            assert 1e-4 < off(found[name], exact[name]) < 0.02, name


def test_noise_has_mean_0():
    for results in (dense_results, spmm_results):
        exact, one, mean = results(None), averages(results, 1), averages(results, KEYS)
        for name in exact.keys() - {"bias", "plus"}:
            assert off(mean[name], exact[name]) < 1.3 * off(one[name], exact[name]) / KEYS**0.5


def test_products_of_heads_are_float32_and_keep_integers(quantizer):
    """Only the gradient of the vectors has the noise of the integers, and its mean is 0."""
    exact, found, mean = head_results(None), head_results(quantizer), averages(head_results, KEYS)
    for name in ("scores", "x"):
        assert off(found[name], exact[name]) < 1e-6, name
    assert 1e-5 < off(found["vectors"], exact["vectors"]) < 0.02
    assert off(mean["vectors"], exact["vectors"]) < 1.3 * off(found["vectors"], exact["vectors"]) / KEYS**0.5
    assert quantizer.counts.quantized == 1
    x, vectors = numbers(300, 96).requires_grad_(), numbers(HEADS, 24).requires_grad_()
    kept = kept_for_gradients(lambda: integers.head_products(x, vectors, quantizer), x.numel())
    assert [tensor.dtype for tensor in kept] == [torch.int8]


def kept_for_gradients(call: Callable[[], object], least: int) -> list[torch.Tensor]:
    """The tensors of at least this many elements that autograd keeps."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        call()
    return [tensor for tensor in kept if tensor.numel() >= least]


def test_what_is_kept_for_the_gradients_is_integers_and_shared(quantizer):
    """An aggregation with constant weights keeps nothing of its rows."""
    x, weights = numbers(300, 96).requires_grad_(), numbers(2, 96, 40, seed=1).requires_grad_()
    (csr, *_), edges = Case(50, 300, 500).build(), numbers(500, HEADS)

    def products() -> None:
        for weight in weights:
            integers.dense(x, weight, None, None, quantizer)
        integers.spmm(csr, x, edges.clone().requires_grad_(), quantizer)

    large = kept_for_gradients(products, x.numel())
    assert [tensor.dtype for tensor in large] == [torch.int8] * 3
    assert len({tensor.data_ptr() for tensor in large}) == 1
    assert quantizer.counts == CacheCounts(quantized=1, reused=2, most_bytes=300 * 96 + 4 * 300)
    assert kept_for_gradients(lambda: integers.spmm(csr, x, edges[:, 0].contiguous(), quantizer), x.numel()) == []


def test_a_gradient_of_two_products_is_quantized_once_and_none_that_nobody_wants(quantizer):
    """Tango's other use of its cache: the gradients of an operator's inputs are all computed from one gradient of its result."""
    x, weights = numbers(300, 96).requires_grad_(), numbers(2, 96, 40, seed=1).requires_grad_()
    y = integers.dense(x, weights[0], None, None, quantizer) + integers.dense(x, weights[1], None, None, quantizer)
    quantizer.take_counts()
    y.backward(numbers(300, 40, seed=9))
    found = quantizer.take_counts()
    assert (found.quantized, found.reused) == (1, 1)
    rows, edges = numbers(40, 24).requires_grad_(), numbers(150, HEADS).requires_grad_()
    integers.spmm(SPARSE.build()[0], rows, edges, quantizer).backward(numbers(60, 24))
    assert quantizer.take_counts().quantized == 2  # its rows, and one gradient for two results
    x, weight, bias = numbers(300, 96), numbers(96, 40, seed=1), numbers(40)
    y = integers.dense(x, weight, bias.requires_grad_(), None, quantizer)
    y.backward(torch.ones(300, 40))
    assert bias.grad.tolist() == [300.0] * 40
    assert (x.grad, weight.grad) == (None, None)
    assert quantizer.take_counts().quantized == 1
    assert not integers.dense(x, weight, bias.detach(), None, quantizer).requires_grad


def test_memory_of_what_is_added_is_used_again_unless_it_is_a_leaf(quantizer):
    x, weight, added = numbers(300, 96), numbers(96, 40, seed=1).requires_grad_(), numbers(300, 40, seed=2)
    leaf = added.clone().requires_grad_()
    y = integers.dense(x, weight, None, leaf, quantizer)
    assert y.data_ptr() != leaf.data_ptr()
    assert torch.equal(leaf, added)
    plus = leaf * 1
    quantizer.rows(plus)
    y = integers.dense(x, weight, None, plus, quantizer)
    assert y.data_ptr() == plus.data_ptr()
    assert off(y.detach(), (x @ weight).detach() + added) < 0.02
    assert quantizer.find(plus) is None, "its memory holds something else now"
