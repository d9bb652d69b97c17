"""Dense products and their gradients: every backend compared with float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from under_test import TRITON, Case, cases, numbers, on_every_backend, on_threads

from hpcgnn.kernels import dense, dense_product
from hpcgnn.kernels.int8 import quantize_rows, weight_gradient


def operands(shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """x, weight, bias, plus, dy."""
    (rows, depth, width), draw = shape, numbers(sum(shape))
    sizes = ((rows, depth), (depth, width), (width,), (rows, width), (rows, width))
    return tuple(draw(*size).to(dtype) for size in sizes)


def needs(compute: str, backend: str = "native") -> None:
    if compute == "bf16" and not dense.has_bf16(backend):
        pytest.skip("this CPU has no AVX512_BF16")


def test_bfloat16_weights_may_lie_in_any_way_and_infinities_stay_where_they_are():
    needs("bf16")
    x, wide, *_ = operands((50, 33, 80))
    weight = wide[:, ::2]
    x[7, 32], x[9, 0] = torch.inf, torch.nan
    y = dense_product(x, weight, compute="bf16")
    contiguous = dense_product(x, weight.contiguous(), compute="bf16")
    torch.testing.assert_close(y, contiguous, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y.isfinite().all(1), torch.tensor([row not in (7, 9) for row in range(50)]))
    dweight, sums = dense.weight_gradient(x, y[:, :33].nan_to_num(0, 0, 0), sums=True, compute="bf16")
    assert dweight.shape == (33, 33)
    assert torch.equal(dweight.isfinite().all(1), torch.tensor([column not in (0, 32) for column in range(33)]))
    assert bool(sums.isfinite().all())


@on_every_backend(
    30,
    {"case": Case(1000, 64, columns=100, is_turned=True), "has_bias": True, "has_plus": False},
    {"case": Case(0, 4, columns=4), "has_bias": True, "has_plus": True},
    {"case": Case(20, 5, columns=3, alone=2), "has_bias": True, "has_plus": True},
    {"case": Case(20, 5, columns=3, alone=3), "has_bias": True, "has_plus": True},
    case=cases(rows=st.integers(0, 40), cols=st.integers(1, 40)), has_bias=st.booleans(), has_plus=st.booleans(),
)  # fmt: skip
def test_values_and_gradients_of_every_backend(backend, case, has_bias, has_plus):
    x, weight, bias, plus, _ = operands((case.rows, case.cols, case.columns), torch.float64)

    def product(x, weight, *others):
        bias, plus = others[0] if has_bias else None, others[-1] if has_plus else None
        return dense_product(x, weight, bias, plus, backend)

    leaves = x, weight, *([bias] if has_bias else []), *([plus] if has_plus else [])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("pays", "_pays_for_gradient"):  # else torch computes small products
            patch.setattr(dense, name, lambda *_: backend == "native")
        case.check(product, lambda x, weight, *others: x @ weight + sum(others), *leaves)


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


@pytest.mark.parametrize("backend", ["native", TRITON])
def test_products_in_bfloat16_add_in_float32_what_is_beside_them(backend):
    needs("bf16", backend)
    *operand, dy = operands((700 if backend == "native" else 50, 65, 33))
    operand = [each.requires_grad_() for each in operand]
    y = dense_product(*operand, backend, "bf16")
    found = (y.detach(), *torch.autograd.grad(y, operand, dy))
    x, weight, dy_rounded = (each.detach().bfloat16().double() for each in (*operand[:2], dy))
    bias, plus, dy = operand[2].detach().double(), operand[3].detach().double(), dy.double()
    wanted = (x @ weight + bias + plus, dy_rounded @ weight.T, x.T @ dy_rounded, dy.sum(0), dy)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("compute", ["float32", "bf16", "int8"])
@pytest.mark.parametrize(("segments", "depth", "width"), [(120, 16, 24), (12, 1024, 704)])  # many sums are left, or two
def test_threads_that_wait_for_a_core_change_no_bit(compute, segments, depth, width):
    """With more threads than cores, sums of segments are left for the thread whose turn it is."""
    needs(compute)
    x, dy = torch.randn(segments << 10, depth), torch.randn(segments << 10, width)
    rows, found = quantize_rows(x, key=1), []
    for threads in (1, 16, 16, 16):
        dweight, sums = torch.empty(depth, width), torch.empty(width)
        with on_threads(threads):
            if compute == "int8":
                dweight, sums = weight_gradient(rows, dy, key=2, sums=True)
            else:
                dense.contract(x, dy, dweight, sums, compute)
        found.append(torch.cat((dweight, sums[None])))
    assert all(torch.equal(found[0], each) for each in found[1:])
