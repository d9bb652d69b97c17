"""Quantized rows: the same bytes from every backend and instruction set, unbiased, within the proven variance.

The draws are functions of fixed keys, so that a statistical test gives the same verdict every time. Its limits are five
standard deviations: about one in two million samples of a fair coin exceeds them, and no test looks at more than 2000.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from quantized_rows import dequantize, quantize
from under_test import TRITON

from hpcgnn.kernels import keyed, pack_bf16, unpack_bf16
from hpcgnn.kernels.native import library

BITS = [1, 2, 4, 8]
WIDTHS = [1, 3, 16, 40, 100, 256, 602]
# Without a library the first one fails, because the tests' environment has a compiler.
IMPLEMENTATIONS = [*(f"native {isa}" for isa in library.isas() or ["scalar"]), "jit", TRITON, "reference"]
KEY = keyed.derive_key(1, 2, 3)
INFINITY = float("inf")
LARGEST = 2.0**126


@contextlib.contextmanager
def using(implementation: str) -> Iterator[str]:
    """The backend to ask for. Inside the context, the native one uses the instruction set named beside it."""
    backend, _, isa = implementation.partition(" ")
    caches = [library.isa, library.function]
    with mock.patch.dict(os.environ, {"HPCGNN_ISA": isa}):
        for cache in caches:
            cache.cache_clear()
        try:
            yield backend
        finally:
            for cache in caches:
                cache.cache_clear()
    if isa:
        assert library.last_isa() == isa


@pytest.fixture(params=IMPLEMENTATIONS)
def backend(request):
    with using(request.param) as name:
        yield name


def unusual_rows(width: int) -> torch.Tensor:
    """(n, width) rows of every kind for which :mod:`hpcgnn.kernels.messages` defines a result."""
    rng = np.random.default_rng(width)
    spread = rng.standard_normal(width)
    rows = [spread * 10.0**exponent for exponent in (-45, -42, -38, -33, -30, -10, 0, 5, 20, 37, 38)]
    rows += [np.full(width, value) for value in (0.0, -0.0, 0.1, -0.1, 3.0, 1e-45, 1e38, 3.4e38, -3.4e38)]
    rows += [1000 + spread, 1 + spread * 1e-7, np.where(spread > 0, 0.0, -0.0), np.where(spread > 0, 3.4e38, -3.4e38)]
    for bad in (np.nan, np.inf, -np.inf):
        for column in {0, width // 2, width - 1}:
            row = spread.copy()
            row[column] = bad
            rows.append(row)
    return torch.from_numpy(np.array(rows).astype(np.float32))


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check equality bit for bit, except for the bits of NaNs."""
    patterns = {torch.float32: torch.int32, torch.bfloat16: torch.int16}.get(expected.dtype, expected.dtype)
    assert found.dtype == expected.dtype
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0).view(patterns), expected.nan_to_num(0).view(patterns))


def assert_all_agree(x: torch.Tensor, bits: int) -> None:
    payload, params = quantize(x, bits, KEY, backend="reference")
    decoded = dequantize(payload, params, bits, x.shape[1], backend="reference")
    for implementation in IMPLEMENTATIONS[:-1]:
        with using(implementation) as backend:
            found = quantize(x, bits, KEY, backend=backend)
            assert torch.equal(found[0], payload), implementation
            assert_same(found[1], params)
            assert_same(dequantize(payload, params, bits, x.shape[1], backend=backend), decoded)
            assert_same(pack_bf16(x, backend=backend), pack_bf16(x, backend="reference"))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_everyone_agrees_bit_for_bit(width, bits):
    with np.errstate(over="ignore"):
        assert_all_agree(torch.cat([torch.randn(20, width), unusual_rows(width)]), bits)


@settings(deadline=None, max_examples=60)
@given(
    npst.arrays(np.float32, npst.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=140)),
    st.sampled_from(BITS),
)
def test_everyone_agrees_bit_for_bit_on_any_rows(x, bits):
    assert_all_agree(torch.from_numpy(x), bits)


def grid(params: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, 1) float64 zero-points and scales."""
    return params.double()[:, :1], params.double()[:, 1:]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_each_value_becomes_one_of_its_two_neighbours(backend, width, bits):
    x = torch.randn(50, width) * torch.logspace(-20, 20, 50)[:, None]
    payload, params = quantize(x, bits, KEY, backend=backend)
    assert payload.shape == (50, -(-width * bits // 8))
    zero, scale = grid(params)
    decoded = dequantize(payload, params, bits, width, backend=backend).double()
    code = (decoded - zero) / scale
    rounding = x.abs().double() * 1e-6 + 1e-40
    assert ((code - code.round()).nan_to_num().abs() * scale <= rounding).all()
    assert ((decoded - x).abs() <= scale + rounding).all()


@pytest.mark.parametrize("bits", BITS)
def test_the_grid_covers_the_row_and_is_tight(backend, bits):
    x, top = torch.randn(300, 40), 2**bits - 1
    zero, scale = grid(quantize(x, bits, KEY, backend=backend)[1])
    low, high = x.double().amin(1, keepdim=True), x.double().amax(1, keepdim=True)
    assert (zero <= low).all()
    assert (low - zero <= low.abs() / 128).all()
    assert (zero + top * scale >= high - 1e-6).all()
    assert (scale <= (high - zero) / top * (1 + 1 / 64)).all()


@pytest.mark.parametrize("bits", BITS)
def test_what_becomes_of_unusual_rows(backend, bits):
    def decoded(*row: float) -> list[float]:
        x = torch.tensor([row])
        return dequantize(*quantize(x, bits, KEY, backend=backend), bits, len(row), backend=backend)[0].tolist()

    for bad in (float("nan"), INFINITY, -INFINITY):
        assert np.isnan(decoded(1.0, bad, 2.0, 3.0)).all()
    for value in (0.0, 3.0, -0.5, 2.0**-120):
        assert decoded(value, value, value) == [value] * 3
    assert str(decoded(-0.0, -0.0)) == "[0.0, 0.0]"
    assert decoded(3.4e38, 3.4e38) == [LARGEST, LARGEST]
    assert decoded(-3.4e38, 3.4e38) == pytest.approx([-LARGEST, LARGEST], rel=0.02)
    assert decoded(0.0, 1e-40) in ([0.0, 0.0], [0.0, 2.0**-110])
    assert decoded(0.1, 0.1) == pytest.approx([0.1, 0.1], rel=1 / 100)


@pytest.mark.parametrize("shape", [(0, 7), (5, 0), (0, 0)])
def test_empty_shapes(backend, shape):
    payload, params = quantize(torch.ones(shape), 2, KEY, backend=backend)
    assert params.tolist() == [[0.0, 0.0]] * shape[0]
    assert dequantize(payload, params, 2, shape[1], backend=backend).shape == shape
    assert pack_bf16(torch.ones(shape), backend=backend).shape == shape


def test_the_same_bits_for_any_number_of_threads(backend):
    x, threads, results = torch.randn(1001, 100), torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        payload, params = quantize(x, 2, KEY, backend=backend)
        results.append((payload, params, dequantize(payload, params, 2, 100, backend=backend)))
    torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_large_results_go_past_the_caches_and_are_the_same(backend):
    payload, params = torch.randint(0, 256, (70_000, 16), dtype=torch.uint8), torch.randn(70_000, 2).bfloat16()
    whole = dequantize(payload, params, 2, 64, backend=backend)
    for part in (slice(0, 35_000), slice(35_000, None)):
        assert torch.equal(whole[part], dequantize(payload[part], params[part], 2, 64, backend=backend))


def rounded_up(key: int, rows: int, width: int, bits: int, backend: str = "auto") -> torch.Tensor:
    """(rows, width) fair coins: whether a value half-way between two steps was rounded up."""
    x = torch.full((rows, width + 2), 0.5)
    x[:, width], x[:, width + 1] = 0, 2**bits - 1  # zero-point 0, scale 1
    return dequantize(*quantize(x, bits, key, backend=backend), bits, width + 2, backend=backend)[:, :width] > 0.5


@pytest.mark.parametrize("bits", BITS)
def test_noise_is_fair_and_shared_by_no_two_elements(backend, bits):
    # (400, 300) values of -1 and 1, with standard deviation 1
    up = rounded_up(KEY, 400, 300, bits, backend).double() * 2 - 1
    assert up.mean(1).abs().max() < 5 / 300**0.5
    assert up.mean(0).abs().max() < 5 / 400**0.5
    between_rows = up @ up.T / 300
    between_columns = up.T @ up / 400
    assert between_rows.fill_diagonal_(0).abs().max() < 6 / 300**0.5  # 80,000 pairs: 6 standard deviations
    assert between_columns.fill_diagonal_(0).abs().max() < 6 / 400**0.5
    for key in (KEY + 1, KEY ^ 1 << 63, keyed.derive_key(1, 2, 4)):
        other = rounded_up(key, 400, 300, bits, backend).double() * 2 - 1
        assert abs((up * other).mean()) < 5 / (400 * 300) ** 0.5


def test_noise_follows_key_row_and_column_alone(backend):
    x = torch.randn(60, 100)
    payload, params = quantize(x, 4, KEY, backend=backend)
    assert torch.equal(quantize(x, 4, KEY, backend=backend)[0], payload)
    assert torch.equal(quantize(x[:20], 4, KEY, backend=backend)[0], payload[:20])
    moved_payload, moved_params = quantize(x.roll(1, 0), 4, KEY, backend=backend)
    assert torch.equal(moved_params, params.roll(1, 0))
    assert (moved_payload != payload.roll(1, 0)).any(1).all()
    narrow, wide = (rounded_up(KEY, 20, width, bits, backend) for width, bits in ((33, 2), (200, 8)))
    assert torch.equal(narrow, wide[:, :33])


@pytest.mark.parametrize("bits", BITS)
def test_unbiased(backend, bits):
    keys, copies = 24, 25
    draws = keys * copies
    x = torch.randn(2, 50, generator=torch.Generator().manual_seed(bits))
    total = torch.zeros(2, 50, dtype=torch.float64)
    for key in range(keys):
        payload, params = quantize(x.repeat(copies, 1), bits, key, backend=backend)
        total += dequantize(payload, params, bits, 50, backend=backend).view(copies, 2, 50).double().sum(0)
    zero, scale = grid(params[:2])
    fraction = ((x - zero) / scale) % 1
    deviation = scale * (fraction * (1 - fraction) / draws).sqrt()
    assert ((total / draws - x).abs() <= 5 * deviation + scale / 2**16).all()
    assert deviation.max() < scale.max() / 45  # precise enough: rounding to the nearest would be off by up to scale / 2


@pytest.mark.parametrize("bits", BITS)
def test_variance_of_a_row_is_a_sixth_of_its_squared_scale_an_element(backend, bits):
    top, rows, width = 2**bits - 1, 400, 256
    x = torch.rand(rows, width, generator=torch.Generator().manual_seed(bits)) * top
    x[:, 0], x[:, 1] = 0, top  # zero-point 0, scale 1
    payload, params = quantize(x, bits, KEY, backend=backend)
    assert params.unique(dim=0).tolist() == [[0.0, 1.0]]
    squares = ((dequantize(payload, params, bits, width, backend=backend) - x).double() ** 2)[:, 2:]
    # A squared error has mean 1/6 and variance 1/15 - 1/36.
    assert abs(squares.mean() - 1 / 6) < 5 * ((1 / 15 - 1 / 36) / squares.numel()) ** 0.5


@pytest.mark.parametrize("bits", BITS)
def test_variance_of_an_element_is_at_most_a_quarter_of_the_squared_scale(backend, bits):
    keys, copies = 16, 25
    draws = keys * copies
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(bits)) ** 3
    x[0] = 0.5
    x[0, :2] = torch.tensor([0, 2**bits - 1])  # half-way between two steps, the worst case
    squares = torch.zeros(5, 40, dtype=torch.float64)
    for key in range(keys):
        payload, params = quantize(x.repeat(copies, 1), bits, key, backend=backend)
        decoded = dequantize(payload, params, bits, 40, backend=backend).view(copies, 5, 40)
        squares += ((decoded.double() - x) ** 2).sum(0) / draws
    zero, scale = grid(params[:5])
    fraction = ((x - zero) / scale) % 1
    # (error / scale)**2 is (1 - f)**2 or f**2: its standard deviation is |1 - 2f| * sqrt(f * (1 - f)), at most 1/4
    spread = 5 * (1 - 2 * fraction).abs() * (fraction * (1 - fraction) / draws).sqrt()
    assert (squares <= scale**2 * (fraction * (1 - fraction) + spread + 1e-4)).all()
    assert (squares <= scale**2 * (1 / 4 + spread + 1e-4)).all()
    assert squares[0, 2:].numpy() == pytest.approx(0.25, abs=1e-3)


def test_non_contiguous_rows_are_copied(backend):
    x = torch.randn(21, 9).T
    assert torch.equal(pack_bf16(x, backend=backend), x.bfloat16())


def random_patterns(rows: int, width: int) -> torch.Tensor:
    patterns = np.random.default_rng(0).integers(0, 2**32, (rows, width), dtype=np.uint32)
    return torch.from_numpy(patterns.view(np.float32))


def test_bf16_equals_torch(backend):
    x = random_patterns(300, 101)
    assert x.isnan().any()
    packed = pack_bf16(x, backend=backend)
    assert_same(packed, x.to(torch.bfloat16))
    assert packed.view(torch.int16)[x.isnan()].unique().tolist() == [0x7FC0]
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).view(256, 256)
    unpacked = unpack_bf16(every, backend=backend)
    assert torch.equal(unpacked.view(torch.int32), every.view(torch.int16).int() << 16)


def test_the_best_instruction_set_is_used():
    quantize(torch.ones(1, 1), 2, KEY, backend="native")
    assert library.last_isa() == library.isa()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: pack_bf16(torch.ones(2, 2).double()), "x must"),
        (lambda: pack_bf16(torch.ones(2, 2), out=torch.ones(2, 2)), "out"),
        (lambda: unpack_bf16(torch.ones(2, 2)), "x must"),
        (lambda: unpack_bf16(torch.ones(2, 2).bfloat16(), out=torch.ones(2, 3)), "out"),
    ],
)
def test_wrong_arguments_of_the_narrow_formats_are_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
