"""Norm, ReLU and dropout in one pass, compared with torch, in all backends, for any number of threads and instruction set."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from under_test import BACKENDS

from hpcgnn.kernels import DropoutMask, Norm, activation, dropout, keyed
from hpcgnn.kernels.native import library

WIDTHS = (1, 3, 16, 40, 100, 256, 602)
EPS = 1e-5
KEY = keyed.derive_key(3, 1, 4)


def arguments(rows, width, dtype=torch.float32, *, with_norm=True, probability=0.4):
    random = torch.Generator().manual_seed(rows + width)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=random).to(dtype)

    x = draw(rows, width) * 3 + draw(rows, 1) * 10
    norm = Norm(draw(width) + 1, draw(width), EPS) if with_norm else None
    ids = torch.randint(0, 2**62, (rows,), generator=random)
    return x, norm, DropoutMask(ids, KEY, probability) if probability else None, draw(rows, width)


def gradients(x, norm, mask, dy, backend):
    """The result y, and the gradients of x, weight and bias."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, *((norm.weight, norm.bias) if norm else ()))]
    y = activation(leaves[0], Norm(*leaves[1:], norm.eps) if norm else None, mask, backend)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def by_torch(x, norm, mask, dy):
    """The same by torch's operations, with dropout as a product with its mask."""
    leaves = [tensor.double().requires_grad_() for tensor in (x, *((norm.weight, norm.bias) if norm else ()))]
    y = F.layer_norm(leaves[0], x.shape[1:], *leaves[1:], EPS) if norm else leaves[0]
    y = y.relu()
    if mask is not None:
        y = y * dropout(torch.ones(x.shape, dtype=torch.float64), mask.ids, mask.key, mask.probability)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.double())]


def assert_close(found, expected, dtype):
    """Check equality up to rounding, relative to the largest value of each matrix, because sums cancel."""
    bound = 2e-5 if dtype == torch.float32 else 1e-12
    if found[0].shape[1] <= 3:  # rows with almost no variance: rounding errors are divided by the root of eps
        bound /= EPS**0.5
    for one, other in zip(found, expected, strict=True):
        largest = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one.double(), other.double(), rtol=bound, atol=bound * largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("probability", [0, 0.4])
@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_and_gradients_are_those_of_torch(backend, width, with_norm, probability, dtype):
    given = arguments(333, width, dtype, with_norm=with_norm, probability=probability)
    x, norm, _, _ = given
    if norm is not None:  # where rounding decides the sign before ReLU, a gradient may be 0 or not
        before = F.layer_norm(x.double(), x.shape[1:], norm.weight.double(), norm.bias.double(), EPS)
        given[3][before.abs() < 1e-4] = 0
    assert_close(gradients(*given, backend), by_torch(*given), dtype)


@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows(backend, with_norm):
    x, norm, mask, dy = arguments(0, 16, with_norm=with_norm)
    found = gradients(x, norm, mask, dy, backend)
    assert [tuple(tensor.shape) for tensor in found] == [(0, 16), (0, 16), *([(16,)] * 2 if norm else [])]
    assert all(bool((tensor == 0).all()) for tensor in found)


@pytest.mark.parametrize("value", [0.0, 0.1, 12345.678, -3e4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_one_value_have_no_variance(backend, value):
    _, norm, mask, dy = arguments(50, 100)
    x = torch.full((50, 100), value)
    found = gradients(x, norm, mask, dy, backend)
    torch.testing.assert_close(found[0], dropout(norm.bias.relu().repeat(50, 1), mask.ids, KEY, mask.probability))
    assert all(bool(tensor.isfinite().all()) for tensor in found)
    if backend == "native":
        assert bool((found[2] == 0).all()), "the gradient of weight is a sum of products with 0"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mean_far_from_zero_costs_few_digits(backend):
    x, norm, mask, dy = arguments(64, 256)
    x = (x * 8).round() / 8 + 4096  # exact in float32
    found, expected = (gradients(x, norm, mask, dy, backend), by_torch(x, norm, mask, dy))
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mask_is_that_of_dropout(backend, with_norm):
    x, norm, mask, dy = arguments(200, 100, with_norm=with_norm)
    y, dx, *_ = gradients(x, norm, mask, dy, backend)
    kept = activation(x, norm, None, backend)
    assert torch.equal(y, dropout(kept, mask.ids, mask.key, mask.probability))
    if norm is None:
        assert torch.equal(dx, dropout(dy * (x > 0), mask.ids, mask.key, mask.probability))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_is_not_taken_for_a_negative_number(backend):
    x, norm, _, _ = arguments(8, 40)
    x[3, 5] = torch.nan
    assert bool(activation(x, norm, None, backend)[3].isnan().all())
    assert activation(x, None, None, backend).isnan().nonzero().tolist() == [[3, 5]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_and_frozen_norms(backend):
    x, norm, mask, dy = arguments(70, 40)
    wide = torch.cat((x, x), 1)[:, :40].requires_grad_()
    (dx,) = torch.autograd.grad(activation(wide, norm, mask, backend), wide, dy.t().contiguous().t())
    assert torch.equal(dx, gradients(x, norm, mask, dy, backend)[1])


def test_bits_are_the_same_for_any_threads():
    before, found = torch.get_num_threads(), []
    try:
        for rows, width in ((1, 7), (1000, 100), (20_001, 256)):  # the last one is stored past the caches
            given = arguments(rows, width)
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                found.append(gradients(*given, "native"))
            for other in found[-2:]:
                assert all(map(torch.equal, found[-3], other))
    finally:
        torch.set_num_threads(before)


def test_bad_arguments_are_named():
    x, norm, mask, _ = arguments(10, 4)
    with pytest.raises(ValueError, match="x must"):
        activation(x.half(), norm, mask)
    with pytest.raises(ValueError, match="weight must"):
        activation(x, Norm(norm.weight[:3], norm.bias, EPS), mask)
    with pytest.raises(ValueError, match="bias must"):
        activation(x, Norm(norm.weight, norm.bias.double(), EPS), mask)
    with pytest.raises(ValueError, match="ids must"):
        activation(x, norm, DropoutMask(mask.ids[:9], KEY, 0.5))
    with pytest.raises(ValueError, match="probability must"):
        activation(x, norm, DropoutMask(mask.ids, KEY, 1.0))


PROGRAM = """
import hashlib, json, torch
from test_activation import arguments, gradients
from hpcgnn.kernels.native import library

digest, ran = hashlib.sha256(), set()
for width in (1, 19, 256):
    for with_norm in (True, False):
        for probability in (0, 0.4):
            found = gradients(*arguments(301, width, with_norm=with_norm, probability=probability), "native")
            ran.add(library.last_isa())
            for tensor in found:
                digest.update(tensor.numpy().tobytes())
print(json.dumps([sorted(ran), digest.hexdigest()]))
"""


def run(isa):
    env = os.environ | {"HPCGNN_ISA": isa, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, env=env)
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def digest():
    return run("")[1]


@pytest.mark.slow
@pytest.mark.parametrize("isa", library.isas())
def test_instruction_sets_give_the_same_bits(digest, isa):
    assert run(isa) == [[isa], digest]
