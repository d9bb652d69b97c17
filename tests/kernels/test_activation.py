"""Norm, ReLU and dropout in one pass, compared with torch, in all backends; and keyed dropout alone: the same mask from every
backend, independent of the distribution of nodes, and fair.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from under_test import numbers, on_every_backend, seeds, turned, widths

from hpcgnn.kernels import Csr, DropoutMask, Norm, activation, dropout, keyed
from hpcgnn.kernels.activation import Shift, activate, activation_kernels, column_sums, relu_backward
from hpcgnn.nn.layers import DropoutKeys, KeyedDropout

EPS = 1e-5
KEY = keyed.derive_key(3, 1, 4)


@dataclass(frozen=True)
class Layer:
    """The operations between two layers."""

    rows: int = 20
    width: int = 40
    with_norm: bool = True
    probability: float = 0.4
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def arguments(self) -> tuple[torch.Tensor, Norm | None, DropoutMask | None, torch.Tensor]:
        """x, norm, mask and the gradient of the result."""
        draw = numbers(self.seed)
        x = (draw(self.rows, self.width) * 3 + draw(self.rows, 1) * 10).to(self.dtype)
        weight, bias, dy = (draw(*shape).to(self.dtype) for shape in ((self.width,), (self.width,), x.shape))
        norm = Norm(weight + 1, bias, EPS) if self.with_norm else None
        ids = (draw(self.rows).abs() * 2.0**58).long()
        return x, norm, DropoutMask(ids, KEY, self.probability) if self.probability else None, dy


layers = st.builds(
    Layer,
    rows=st.integers(1, 90),
    width=widths,
    with_norm=st.booleans(),
    probability=st.sampled_from([0, 0.4]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64]),
    seed=seeds,
)


def gradients(x, norm, mask, dy, backend):
    """The result y, and the gradients of x, weight and bias."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, *((norm.weight, norm.bias) if norm else ()))]
    y = activation(leaves[0], Norm(*leaves[1:], norm.eps) if norm else None, mask, backend)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def by_torch(x, norm, mask, dy):
    """The same by torch's operations, with dropout as a product with its mask."""
    leaves = [tensor.clone().double().requires_grad_() for tensor in (x, *((norm.weight, norm.bias) if norm else ()))]
    y = F.layer_norm(leaves[0], x.shape[1:], *leaves[1:], EPS) if norm else leaves[0]
    y = y.relu()
    if mask is not None:
        y = y * dropout(torch.ones(x.shape, dtype=torch.float64), mask.ids, mask.key, mask.probability, "reference")
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.double())]


def assert_close(found, expected, dtype):
    """Check equality up to rounding, relative to the largest value of each matrix, because sums cancel."""
    bound = 2e-5 if dtype == torch.float32 else 1e-12
    if found[0].shape[1] <= 3:  # rows with almost no variance: rounding errors are divided by the root of eps
        bound /= EPS**0.5
    for one, other in zip(found, expected, strict=True):
        largest = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one.double(), other.double(), rtol=bound, atol=bound * largest)


EXAMPLES = [
    Layer(rows=0),
    Layer(rows=0, with_norm=False),
    Layer(width=3, probability=0, dtype=torch.float64),
    Layer(rows=333, width=100),
    Layer(rows=333, width=40, with_norm=False),
    Layer(width=602),
]


@on_every_backend(30, *({"layer": layer} for layer in EXAMPLES), layer=layers)
def test_values_and_gradients_are_those_of_torch(backend, layer):
    x, norm, mask, dy = layer.arguments()
    if norm is not None:  # where rounding decides the sign before ReLU, a gradient may be 0 or not
        before = F.layer_norm(x.double(), x.shape[1:], norm.weight.double(), norm.bias.double(), EPS)
        dy[before.abs() < 1e-4] = 0
    found = gradients(x, norm, mask, dy, backend)
    assert_close(found, by_torch(x, norm, mask, dy), layer.dtype)
    if mask is not None:  # that of dropout
        kept = activation(x, norm, None, backend)
        assert torch.equal(found[0], dropout(kept, mask.ids, mask.key, mask.probability, "reference"))
    if mask is not None and norm is None:
        assert torch.equal(found[1], dropout(dy * (x > 0), mask.ids, mask.key, mask.probability, "reference"))
    wide = torch.cat((x, x), 1)[:, : layer.width].requires_grad_()  # a view, and a norm that is not trained
    (dx,) = torch.autograd.grad(activation(wide, norm, mask, backend), wide, turned(dy))
    assert torch.equal(dx, found[1])


def test_rows_of_one_value_have_no_variance(backend):
    _, norm, mask, dy = Layer(50, 100).arguments()
    for value in (0.0, 0.1, 12345.678, -3e4):
        found = gradients(torch.full((50, 100), value), norm, mask, dy, backend)
        expected = dropout(norm.bias.relu().repeat(50, 1), mask.ids, KEY, mask.probability)
        torch.testing.assert_close(found[0], expected)
        assert all(bool(tensor.isfinite().all()) for tensor in found)
        if backend == "native":
            assert bool((found[2] == 0).all()), "the gradient of weight is a sum of products with 0"


def test_a_mean_far_from_zero_costs_few_digits(backend):
    x, *others = Layer(64, 256).arguments()
    x = (x * 8).round() / 8 + 4096  # exact in float32
    found, expected = gradients(x, *others, backend), by_torch(x, *others)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-3, atol=1e-3)


def test_nan_is_not_taken_for_a_negative_number(backend):
    x, norm, _, _ = Layer(8).arguments()
    x[3, 5] = torch.nan
    assert bool(activation(x, norm, None, backend)[3].isnan().all())
    assert activation(x, None, None, backend).isnan().nonzero().tolist() == [[3, 5]]


@on_every_backend(
    30,
    {"rows": 0, "width": 7, "dtype": torch.float32, "key": KEY, "probability": 0.3, "seed": 0},
    rows=st.integers(0, 300), width=widths, dtype=st.sampled_from([torch.float32, torch.float64]),
    key=st.integers(0, 2**64 - 1), probability=st.sampled_from([0, 0.3, 0.9]), seed=seeds,
)  # fmt: skip
def test_backends_drop_the_same_bit_for_bit(backend, rows, width, dtype, key, probability, seed):
    draw = numbers(seed)
    x, ids = draw(rows, width).to(dtype), (draw(rows).abs() * 2.0**58).long()
    found = dropout(x, ids, key, probability, backend=backend)
    assert torch.equal(found, dropout(x, ids, key, probability, backend="reference"))


def test_rate_and_scale_of_dropout():
    kept = dropout(torch.ones(4000, 50), torch.arange(4000), KEY, 0.3)
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    rate = (kept == 0).float().mean()
    # The standard deviation is 0.001 over 200,000 draws; rows and columns must be fair, too.
    assert abs(rate - 0.3) < 0.005
    assert ((kept == 0).float().mean(0) - 0.3).abs().max() < 0.04
    assert ((kept == 0).float().mean(1) - 0.3).abs().max() < 0.35


def test_epochs_layers_and_seeds_draw_anew_and_a_node_the_same_wherever_it_is():
    x, ids, order = torch.ones(200, 40), torch.arange(200), torch.randperm(200)
    assert torch.equal(dropout(x, ids, KEY, 0.5)[order], dropout(x, ids[order], KEY, 0.5))
    masks = [dropout(x, ids, keyed.derive_key(*words), 0.5) for words in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    for k, mask in enumerate(masks):
        for other in masks[k + 1 :]:
            assert 0.45 < (mask == other).float().mean() < 0.55


def test_sparse_features_are_dropped_as_dense_ones():
    dense = torch.randn(30, 12) * (torch.rand(30, 12) < 0.3)
    csr = dense.to_sparse_csr()
    sparse = Csr(csr.crow_indices(), csr.col_indices(), 12, csr.values())
    drop = KeyedDropout(DropoutKeys(torch.arange(30) * 7), 2, 0.5)
    kept, leaf = drop(sparse), dense.requires_grad_()
    found, wanted = (
        torch.sparse_csr_tensor(kept.indptr, kept.indices.long(), kept.weight, (30, 12)).to_dense(),
        drop(leaf),
    )
    torch.testing.assert_close(found, wanted)
    wanted.sum().backward()
    assert torch.equal((leaf.grad != 0) & (leaf != 0), wanted != 0), "the gradient has the same mask"


@pytest.mark.parametrize(("dtype", "probability"), [(torch.float32, 0.4), (torch.float64, 0)])
def test_a_shift_before_relu_has_a_gradient_that_follows_from_a_bit_of_each_value(backend, dtype, probability):
    """Forward, the gradient over its own memory or not, and the sums of its columns; the bit of a NaN is set."""
    x, _, mask, dy = Layer(333, 40, False, probability, dtype).arguments()
    bias = torch.linspace(-3, 3, 40, dtype=dtype)
    kernels = activation_kernels(x, None, mask, backend)
    y, positive = activate(kernels, x, Shift(bias), mask)
    assert positive.dtype == torch.uint8
    assert positive.shape == (333, 5)
    factor = torch.ones_like(x) if mask is None else dropout(torch.ones_like(x), mask.ids, KEY, mask.probability)
    torch.testing.assert_close(y, (x + bias).relu() * factor)
    wanted, sums = dy * factor * (x + bias > 0), torch.empty(40, dtype=torch.float64)
    given = dy.clone()
    dx = relu_backward(kernels, given, positive, mask, sums, overwrites=False)
    torch.testing.assert_close(dx, wanted)
    assert torch.equal(given, dy)
    torch.testing.assert_close(sums, wanted.double().sum(0))
    assert relu_backward(kernels, given, positive, mask, overwrites=True) is given
    assert torch.equal(given, dx)
    torch.testing.assert_close(column_sums(x, backend), x.double().sum(0))
    x[3] = torch.nan
    y, positive = activate(kernels, x, Shift(bias), mask)
    found = relu_backward(kernels, dy, positive, mask, overwrites=False)
    assert torch.equal(found[3], dy[3] * (mask.scale if mask else 1) * y[3].isnan())
