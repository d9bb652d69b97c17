"""Dense products: every backend and instruction set compared with float64, the same bits for any number of threads, and
gradients.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from under_test import BACKENDS

from hpcgnn.kernels import dense, dense_product
from hpcgnn.kernels.native import dense as native
from hpcgnn.kernels.native import library

WIDTHS = (1, 3, 40, 100, 256, 602)
SHAPES = [(2100, 256, width) for width in WIDTHS] + [(1031, width, 40) for width in WIDTHS]
SHAPES += [(0, 16, 16), (1, 1, 1), (13, 8, 17), (5, 600, 300), (7, 0, 9), (9, 4, 0), (3000, 1, 1), (1025, 1100, 7)]


def operands(shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """x, weight, bias, plus, dy."""
    rows, depth, width = shape
    sizes = ((rows, depth), (depth, width), (width,), (rows, width), (rows, width))
    return tuple(torch.randn(size, dtype=dtype) for size in sizes)


def assert_close(found: torch.Tensor, terms: torch.Tensor, magnitudes: torch.Tensor) -> None:
    """Check that the error of each element is at most a few roundings of the sum of its terms' magnitudes."""
    assert found.dtype == torch.float32
    assert bool(((found - terms).abs() <= 16 * 2.0**-24 * magnitudes + 1e-30).all())


def by_kernel(shape: tuple[int, int, int], x, weight, bias, plus, dy, compute: str = "float32") -> list[torch.Tensor]:
    """All products of the native kernels, including small ones: y in four variants, dx, dW and the column sums."""
    rows, depth, width = shape
    products = []
    for one_bias in (None, bias):
        for accumulate in (False, True):
            y = plus.clone() if accumulate else torch.full((rows, width), torch.nan)
            native.multiply(x, weight, one_bias, accumulate, y, compute)
            products.append(y)
    dx, dweight, sums = torch.full((rows, depth), torch.nan), torch.full((depth, width), torch.nan), torch.empty(width)
    native.multiply(dy, weight.T, None, False, dx, compute)
    native.contract(x, dy, dweight, sums, compute)
    return [*products, dx, dweight, sums]


def needs(compute: str) -> None:
    if compute == "bf16" and not dense.has_bf16():
        pytest.skip("this CPU has no AVX512_BF16")


def held(compute: str, *given: torch.Tensor) -> list[torch.Tensor]:
    """The float64 values of the operands that the kernels multiply."""
    return [(one.bfloat16() if compute == "bf16" else one).double() for one in given]


@pytest.mark.parametrize("compute", ["float32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_give_what_float64_gives(shape, compute):
    """For bf16, operands are first rounded to bfloat16; then only the float32 sums have errors."""
    needs(compute)
    x, weight, bias, plus, dy = operands(shape)
    found = by_kernel(shape, x, weight, bias, plus, dy, compute)
    sums = dy.double().sum(0), dy.double().abs().sum(0)  # of operands that are not rounded

    def wanted(x, weight, dy, bias, plus, sums):
        y = x @ weight
        return [y, y + plus, y + bias, y + plus + bias, dy @ weight.T, x.T @ dy, sums]

    given = held(compute, x, weight, dy)
    exact = wanted(*given, bias.double(), plus.double(), sums[0])
    magnitudes = wanted(*(one.abs() for one in given), bias.double().abs(), plus.double().abs(), sums[1])
    for one, terms, magnitude in zip(found, exact, magnitudes, strict=True):
        assert_close(one, terms, magnitude)


@pytest.mark.parametrize("compute", ["float32", "bf16"])
@pytest.mark.parametrize("shape", [(2100, 100, 40), (4099, 67, 130)])
def test_threads_do_not_change_a_bit(shape, compute):
    needs(compute)
    threads = torch.get_num_threads()
    given = operands(shape)
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(by_kernel(shape, *given, compute))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def digest() -> str:
    """A digest of the bits of all results, for shapes that use every size of tile."""
    torch.manual_seed(0)
    results = []
    for shape in ((2100, 67, 130), (13, 8, 17), (1025, 600, 40)):
        results += by_kernel(shape, *operands(shape))
    return hashlib.sha256(b"".join(result.numpy().tobytes() for result in results)).hexdigest()


PROGRAM = """
import test_dense
from hpcgnn.kernels.native import library
print(test_dense.digest(), library.last_isa())
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", library.isas())
def test_instruction_sets_have_the_same_bits(isa):
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"HPCGNN_ISA": isa, "PYTHONPATH": path}
    result = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, env=env)
    assert result.stdout.split() == [digest(), isa]


def test_bfloat16_weights_may_lie_in_any_way_and_infinities_stay_where_they_are():
    needs("bf16")
    x, wide, *_ = operands((50, 33, 80))
    weight = wide[:, ::2]
    x[7, 32], x[9, 0] = torch.inf, torch.nan
    y = dense.product(x, weight, compute="bf16")
    contiguous = dense.product(x, weight.contiguous(), compute="bf16")
    torch.testing.assert_close(y, contiguous, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y.isfinite().all(1), torch.tensor([row not in (7, 9) for row in range(50)]))
    dweight, sums = dense.weight_gradient(x, y[:, :33].nan_to_num(0, 0, 0), sums=True, compute="bf16")
    assert dweight.shape == (33, 33)
    assert torch.equal(dweight.isfinite().all(1), torch.tensor([column not in (0, 32) for column in range(33)]))
    assert bool(sums.isfinite().all())


def test_bfloat16_gradients():
    needs("bf16")
    *given, upstream = operands((700, 65, 33))
    given = [one.requires_grad_() for one in given]
    x, weight, bias, plus = exact = [one.detach().bfloat16().double().requires_grad_() for one in given]
    wanted = torch.autograd.grad(x @ weight + bias + plus, exact, upstream.bfloat16().double())
    y = dense_product(*given, compute="bf16")
    torch.testing.assert_close(
        y.double(), (x @ weight).detach() + given[2].detach() + given[3].detach(), rtol=1e-5, atol=1e-4
    )
    for found, one in zip(torch.autograd.grad(y, given, upstream)[:2], wanted[:2], strict=True):
        torch.testing.assert_close(found.double(), one, rtol=1e-5, atol=1e-3)
    dbias, dplus = torch.autograd.grad(dense_product(*given, compute="bf16"), given[2:], upstream)
    torch.testing.assert_close(dbias, upstream.sum(0), rtol=1e-4, atol=1e-4)
    assert torch.equal(dplus, upstream)


def test_bfloat16_is_refused_where_it_does_not_run(monkeypatch):
    x, weight, *_ = operands((6, 4, 3))
    for call in (
        lambda: dense.product(x, weight, compute="int8"),
        lambda: dense.product(x, weight, backend="reference", compute="bf16"),
        lambda: dense.product(x.double(), weight.double(), compute="bf16"),
        lambda: dense.weight_gradient(x, x, backend="jit", compute="bf16"),
    ):
        with pytest.raises(ValueError, match=r"^compute must"):
            call()
    monkeypatch.setattr(library, "isa", lambda: "avx2")
    assert not dense.has_bf16()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1000, 64, 100), (20, 5, 3), (0, 4, 4)])
def test_gradients_of_every_backend(backend, shape):
    *given, upstream = operands(shape)
    given = [one.requires_grad_() for one in given]
    x, weight, bias, plus = exact = [one.detach().double().requires_grad_() for one in given]
    wanted = torch.autograd.grad(x @ weight + bias + plus, exact, upstream.double())
    y = dense_product(*given, backend=backend)
    torch.testing.assert_close(y.double(), (x @ weight + bias + plus).detach(), rtol=1e-5, atol=1e-4)
    for found, one in zip(torch.autograd.grad(y, given, upstream), wanted, strict=True):
        torch.testing.assert_close(found.double(), one, rtol=1e-5, atol=1e-3)


def test_float64_passes_gradcheck():
    *given, _ = operands((7, 5, 3), torch.float64)
    given = [one.requires_grad_() for one in given]
    assert torch.autograd.gradcheck(dense_product, given)


def test_plus_gives_its_memory_but_never_to_wrong_gradients():
    x, weight, bias, plus, _ = (one.requires_grad_() for one in operands((600, 100, 100)))
    kept = plus.detach().clone()
    assert dense_product(x, weight, bias, plus).data_ptr() != plus.data_ptr()
    assert torch.equal(plus, kept)  # a parameter must not change
    inner = dense_product(x, weight)
    outer = dense_product(x, weight, bias, inner)
    assert outer.data_ptr() == inner.data_ptr()
    outer.sum().backward()
    torch.testing.assert_close(weight.grad, 2 * x.detach().sum(0)[:, None].expand(100, 100), rtol=1e-4, atol=1e-3)
    inner = dense_product(x, weight).exp()  # keeps its result for the gradient
    outer = dense_product(x, weight, bias, inner)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outer.sum().backward()


def test_large_products_are_the_kernels_and_small_ones_torchs():
    assert not native.pays(100, 16, 16)
    assert not native.pays(10**6, 256, 1)
    assert native.pays(4096, 256, 40) == (library.isa() != "scalar")
    x, weight, *_ = operands((20, 30, 10))
    assert torch.equal(dense.product(x, weight, backend="native"), x @ weight)
    x, weight, *_ = operands((4096, 100, 40))
    y = torch.empty(4096, 40)
    native.multiply(x, weight, None, False, y)
    assert torch.equal(dense.product(x, weight, backend="native"), y)
    assert torch.equal(dense.product(x.T.contiguous().T, weight.T.contiguous().T, backend="native"), y)


def test_wrong_arguments_are_named():
    x, weight, bias, plus, dy = operands((6, 4, 3))
    for name, call in {
        "x": lambda: dense.product(x.int(), weight),
        "weight": lambda: dense.product(x, weight.T),
        "bias": lambda: dense.product(x, weight, bias[:2]),
        "out": lambda: dense.product(x, weight, None, plus.double()),
        "dy": lambda: dense.weight_gradient(x, dy[1:]),
    }.items():
        with pytest.raises(ValueError, match=f"^{name} must"):
            call()
    with pytest.raises(ValueError, match=r"^weight must"):
        dense.product(x, weight.double())
    with pytest.raises(ValueError, match=r"^plus must"):
        dense_product(x, weight, bias, plus.double())
