"""Arithmetic on 8-bit integers: every backend has the reference's codes and scales bit for bit, and its products.

Statistical tests draw with fixed keys, so that they give the same verdict every time; their limits are five standard
deviations.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from under_test import BACKENDS, TRITON

from hpcgnn.kernels import Csr, keyed
from hpcgnn.kernels.int8 import (
    MOST_CODE,
    MOST_TERMS,
    Int8Rows,
    dot_products,
    product,
    quantize_rows,
    sddmm,
    weight_gradient,
)

KEY, OTHER_KEY = keyed.derive_key(3, 3), 2**64 - 1
WIDTHS = [1, 7, 16, 33, 256, 300]
INFINITY = float("inf")
LARGEST, SMALLEST_SCALE = 2.0**126, 2.0**-110
SHAPES = [(70, 33, 17), (130, 256, 40), (5, 7, 70), (300, 16, 130), (1, 1, 1), (0, 5, 3), (6, 0, 3), (6, 5, 0)]
ROWS = [0, 1, 255, 256, 257, 1024, 1025, 2500]  # for weight gradients: around blocks of 256 and segments of 1,024


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def unusual_rows(width: int) -> torch.Tensor:
    """(n, width) rows of every magnitude, and of all kinds for which :mod:`hpcgnn.kernels.int8` defines a result."""
    rng = np.random.default_rng(width)
    spread = rng.standard_normal(width)
    rows = [spread * 10.0**exponent for exponent in (-45, -38, -33, -30, -10, 0, 5, 20, 37)]
    rows += [np.full(width, value) for value in (0.0, -0.0, 1e-38, -1e-45, 0.1, 3e38, -3e38)]
    rows += [np.where(spread > 0, 0.0, -0.0), np.where(spread > 0, 3e38, -1e-38), np.arange(width) % 255 - 127]
    for bad in (np.nan, np.inf, -np.inf):
        for column in {0, width // 2, width - 1}:
            row = spread.copy()
            row[column] = bad
            rows.append(row)
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.array(rows).astype(np.float32))


def assert_same(found: Int8Rows, expected: Int8Rows) -> None:
    """Check equality bit for bit, except for the bits of NaNs."""
    assert (found.codes.dtype, found.scale.dtype) == (torch.int8, torch.float32)
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(found.scale.isnan(), expected.scale.isnan())
    assert torch.equal(found.scale.nan_to_num(0).view(torch.int32), expected.scale.nan_to_num(0).view(torch.int32))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check equality up to the rounding of a few float32 factors and of sums of a row's size, with NaNs in the same places."""
    assert (found.dtype, found.shape) == (torch.float32, expected.shape)
    assert torch.equal(found.isnan(), expected.isnan())
    found, expected = found.nan_to_num(0).double(), expected.nan_to_num(0).double()
    if found.numel():
        size = expected.abs() if expected.dim() == 1 else expected.abs().amax(1, keepdim=True)
        assert bool(((found - expected).abs() <= 1e-6 * size).all())


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


# -- codes and scales --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_codes_and_scales_are_those_of_the_reference(backend, width):
    x = torch.cat((torch.randn(20, width), unusual_rows(width)))
    factor = torch.randn(x.shape[0])
    factor[3], factor[4], factor[5], factor[6] = torch.nan, 0.0, torch.inf, 1e-40
    for key in (None, KEY, OTHER_KEY, 0):
        for by in (None, factor):
            with np.errstate(all="ignore"):
                expected = quantize_rows(x, by, key=key, backend="reference")
                assert_same(quantize_rows(x, by, key=key, backend=backend), expected)


@settings(deadline=None, max_examples=40)
@given(npst.arrays(np.float32, npst.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=70)), st.booleans())
def test_everyone_agrees_on_any_rows(x, with_noise):
    key = KEY if with_noise else None
    with np.errstate(all="ignore"):
        expected = quantize_rows(torch.from_numpy(x), key=key, backend="reference")
        for backend in BACKENDS:
            assert_same(quantize_rows(torch.from_numpy(x), key=key, backend=backend), expected)


@pytest.mark.parametrize("shape", [(0, 7), (5, 0), (0, 0)])
def test_empty_shapes(backend, shape):
    rows = quantize_rows(torch.ones(shape), key=KEY, backend=backend)
    assert rows.shape == shape
    assert rows.scale.tolist() == [0.0] * shape[0]


def test_rows_that_are_not_contiguous_and_what_they_stand_for(backend):
    x = torch.randn(40, 24).T[:, ::2]
    rows = quantize_rows(x, key=KEY, backend=backend)
    assert_same(rows, quantize_rows(x.contiguous(), key=KEY, backend="reference"))
    assert rows.num_bytes == 24 * 20 + 4 * 24
    assert torch.equal(rows.float(), rows.codes.float() * rows.scale[:, None])


def test_what_becomes_of_unusual_rows(backend):
    def stands_for(*row: float) -> list[float]:
        return quantize_rows(torch.tensor([row]), key=KEY, backend=backend).float()[0].tolist()

    for bad in (torch.nan, INFINITY, -INFINITY):
        rows = quantize_rows(torch.tensor([[1.0, bad, -2.0], [1.0, 1.0, 1.0]]), key=KEY, backend=backend)
        assert rows.codes[0].tolist() == [0, 0, 0]
        assert rows.scale.isnan().tolist() == [True, False]
    assert str(stands_for(0.0, -0.0)) == "[0.0, 0.0]"
    assert stands_for(127.0, -0.0, -127.0, 5.0) == [127, 0, -127, 5]
    assert stands_for(3e38, -3e38) == pytest.approx([LARGEST, -LARGEST], rel=0.02)
    assert stands_for(1e-38, -1e-38) in (
        [0, 0],
        [SMALLEST_SCALE, 0],
        [0, -SMALLEST_SCALE],
        [SMALLEST_SCALE, -SMALLEST_SCALE],
    )
    for row in ((0.3, -0.3), (1e30, -1e30), (1e-20, 1e-20)):
        assert stands_for(*row) == pytest.approx(row, rel=1 / 64)


def test_a_scale_is_the_smallest_that_reaches_and_that_bfloat16_holds(backend):
    x = torch.randn(200, 20) * torch.logspace(-25, 25, 200)[:, None]
    scale, largest = quantize_rows(x, key=KEY, backend=backend).scale, x.abs().amax(1)
    assert torch.equal(scale.bfloat16().float(), scale)
    assert bool((scale.double() * MOST_CODE * (1 + 2.0**-23) >= largest.double()).all())
    assert bool((scale <= largest / MOST_CODE * (1 + 2.0**-7)).all())


@pytest.mark.parametrize("width", WIDTHS)
def test_no_value_moves_by_more_than_a_step(backend, width):
    """Rounding to the nearest changes a value by at most half a step. The scale and its reciprocal are rounded, too, which
    matters over 127 steps.
    """
    x = torch.randn(60, width) * torch.logspace(-20, 20, 60)[:, None]
    for key, most in ((KEY, 1.0), (None, 0.5)):
        rows = quantize_rows(x, key=key, backend=backend)
        scale = rows.scale.double()[:, None]
        assert bool(((rows.codes.double() * scale - x.double()).abs() <= scale * (most + 2.0**-15)).all())
        assert int(rows.codes.int().abs().max()) <= MOST_CODE


def test_unbiased(backend):
    keys, copies, width = 20, 30, 40
    draws = keys * copies
    x = torch.randn(2, width, generator=torch.Generator().manual_seed(1))
    total = torch.zeros(2, width, dtype=torch.float64)
    for key in range(keys):
        rows = quantize_rows(x.repeat(copies, 1), key=key, backend=backend)
        total += rows.float().view(copies, 2, width).double().sum(0)
    scale = rows.scale[:2, None].double()
    fraction = (x.double() / scale) % 1
    deviation = scale * (fraction * (1 - fraction) / draws).sqrt()
    assert bool(((total / draws - x).abs() <= 5 * deviation + scale / 2**16).all())
    # Precise enough: rounding to the nearest would be off by up to half a step.
    assert bool(deviation.max() < scale.max() / 45)
    nearest = quantize_rows(x, backend=backend).float()
    assert bool(((nearest - x).abs() > 5 * deviation + scale / 2**16).any())


def test_noise_follows_key_row_and_column_alone(backend):
    x = torch.rand(50, 100) * 100
    x[:, 0] = MOST_CODE  # scale 1
    rows = quantize_rows(x, key=KEY, backend=backend)
    assert torch.equal(quantize_rows(x[:20], key=KEY, backend=backend).codes, rows.codes[:20])
    assert torch.equal(quantize_rows(x[:, :33], key=KEY, backend=backend).codes, rows.codes[:, :33])
    assert bool((quantize_rows(x.roll(1, 0), key=KEY, backend=backend).codes != rows.codes.roll(1, 0)).any(1).all())
    half = torch.full((60, 200), 0.5)
    half[:, 0] = MOST_CODE
    up = [quantize_rows(half, key=key, backend=backend).codes[:, 1:].double() * 2 - 1 for key in (KEY, KEY + 1)]
    assert abs(up[0].mean()) < 5 / up[0].numel() ** 0.5  # fair coins, which no two elements or keys share
    assert abs((up[0] * up[1]).mean()) < 5 / up[0].numel() ** 0.5
    assert bool((up[0] @ up[0].T / 199).fill_diagonal_(0).abs().max() < 5 / 199**0.5)
    assert bool((up[0].T @ up[0] / 60).fill_diagonal_(0).abs().max() < 6.5 / 60**0.5)  # 20,000 pairs of columns


# -- products ----------------------------------------------------------------------------------------------------------


def columns_of(weight: torch.Tensor, key: int | None) -> Int8Rows:
    return quantize_rows(weight.T.contiguous(), key=key, backend="reference")


def defined(rows: Int8Rows, columns: Int8Rows) -> torch.Tensor:
    """A product by its definition: int64 sums, converted to float32 and multiplied by both scales."""
    sums = (rows.codes.double() @ columns.codes.double().T).long()
    return sums.float() * (rows.scale[:, None] * columns.scale)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(backend, shape):
    """With and without a bias, added to earlier values or not, and with weights in any memory layout."""
    n, depth, width = shape
    x, bias, plus = torch.randn(n, depth), torch.randn(width), torch.randn(n, width)
    wide = torch.randn(depth, 2 * width)
    x[: n // 4] *= 1e20
    for weight in (wide[:, :width].contiguous(), torch.randn(width, depth).T, wide[:, ::2]):
        columns = columns_of(weight, OTHER_KEY)
        for one_bias, out in ((None, None), (bias, None), (None, plus), (bias, plus)):
            given = None if out is None else out.clone()
            y, rows = product(x, weight, one_bias, given, key=KEY, weight_key=OTHER_KEY, backend=backend)
            assert_same(rows, quantize_rows(x, key=KEY, backend="reference"))
            expected = defined(rows, columns)
            if one_bias is not None:
                expected = expected + one_bias
            assert_close(y, expected if out is None else out + expected)
            assert given is None or y is given


def test_products_of_rows_that_are_quantized_already(backend):
    x, weight = torch.randn(40, 33), torch.randn(33, 20)
    rows = quantize_rows(x, key=KEY, backend="reference")
    given = Int8Rows(rows.codes.clone(), rows.scale.clone())
    y, same = product(given, weight, key=7, weight_key=OTHER_KEY, backend=backend)
    assert same is given
    assert_same(given, rows)
    assert_close(y, defined(rows, columns_of(weight, OTHER_KEY)))
    assert torch.equal(y, product(x, weight, key=KEY, weight_key=OTHER_KEY, backend=backend)[0])


@pytest.mark.parametrize("key", [None, KEY])
def test_products_are_near_those_of_float32(backend, key):
    x, weight, dy = torch.randn(300, 256), torch.randn(256, 40), torch.randn(300, 40)
    y, rows = product(x, weight, key=key, weight_key=key, backend=backend)
    assert relative_error(y, x.double() @ weight.double()) < 0.02
    dweight, _ = weight_gradient(rows, dy, key=key, backend=backend)
    assert relative_error(dweight, x.double().T @ dy.double()) < 0.02


def test_sums_are_integers_where_float32_is_not_exact(backend):
    codes = torch.randint(-MOST_CODE, MOST_CODE + 1, (9, 3001), dtype=torch.int8)
    codes[:3] = MOST_CODE
    rows = Int8Rows(codes, torch.ones(9))
    weight = torch.full((3001, 2), float(MOST_CODE))
    weight[5:9, 1] = -3.0
    y, _ = product(rows, weight, backend=backend)
    assert torch.equal(y, (codes.long() @ weight.long()).float())
    assert float(y.abs().max()) > 2**24


def test_as_many_terms_as_int32_holds(backend, monkeypatch):
    if backend == "triton":  # interpreted, so each step takes long
        monkeypatch.setattr("hpcgnn.kernels.triton.int8._DEPTH", 8192)
        monkeypatch.setattr("hpcgnn.kernels.triton.int8_sddmm._INTERPRETED", 1)
    depth = MOST_TERMS
    rows = Int8Rows(torch.full((2, depth), MOST_CODE, dtype=torch.int8), torch.ones(2))
    rows.codes[1] = -MOST_CODE
    most = float(np.float32(depth * MOST_CODE**2))
    assert product(rows, torch.full((depth, 1), 127.0), backend=backend)[0].flatten().tolist() == [most, -most]
    csr = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 0]), 2)
    assert sddmm(csr, rows, rows, backend=backend).tolist() == [most, -most]


# -- gradients of weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", ROWS)
@pytest.mark.parametrize("shape", [(33, 20), (16, 40)], ids=str)
def test_weight_gradients(backend, n, shape):
    depth, width = shape
    x, dy = torch.randn(n, depth) * torch.rand(n, 1), torch.randn(n, width)
    rows = quantize_rows(x, key=KEY, backend="reference")
    for key in (None, KEY):
        expected, _ = weight_gradient(rows, dy, key=key, backend="reference")
        dweight, none = weight_gradient(rows, dy, key=key, backend=backend)
        again, sums = weight_gradient(rows, dy, key=key, sums=True, backend=backend)
        assert none is None
        assert_close(dweight, expected)
        assert torch.equal(again, dweight)
        torch.testing.assert_close(sums, dy.sum(0), rtol=1e-5, atol=1e-4)
        if n == 0:
            assert not dweight.any()
        else:
            assert relative_error(dweight, rows.float().double().T @ dy.double()) < 0.03


@pytest.mark.parametrize("shape", [(300, 0, 4), (300, 4, 0), (0, 0, 0)], ids=str)
def test_weight_gradients_without_columns(backend, shape):
    n, depth, width = shape
    dweight, sums = weight_gradient(
        quantize_rows(torch.ones(n, depth)), torch.ones(n, width), sums=True, backend=backend
    )
    assert dweight.shape == (depth, width)
    assert sums.tolist() == [n] * width


def test_a_block_of_gradients_is_quantized_with_its_own_scales(backend):
    """Large gradients of one block must not make the small ones of another block coarser."""
    rows = Int8Rows(torch.zeros(600, 3, dtype=torch.int8), torch.ones(600))
    dy = torch.full((600, 2), 1e-6)
    dy[10] = 1e6
    rows.codes[300:, 1] = 1  # only rows of other blocks
    dweight, _ = weight_gradient(rows, dy, backend=backend)
    assert dweight[1].tolist() == pytest.approx([300e-6] * 2, rel=0.01)
    assert not dweight[[0, 2]].any()


# -- entries -----------------------------------------------------------------------------------------------------------


def random_csr(rows: int, columns: int, entries: int) -> Csr:
    """A matrix with parallel entries, empty rows, and a row with half of the entries."""
    rng = np.random.default_rng(rows)
    row = np.concatenate((rng.integers(0, rows, entries - entries // 2), np.full(entries // 2, rows // 2)))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows))))
    return Csr(indptr, rng.integers(0, columns, entries), columns)


@pytest.mark.parametrize(
    ("heads", "columns"), [(None, 1), (None, 40), (1, 300), (2, 8), (3, 7), (8, 16), (5, 33), (40, 2), (2, 0)]
)
def test_sddmm(backend, heads, columns):
    csr, width = random_csr(60, 40, 300), columns * (heads or 1)
    a, b = (quantize_rows(torch.randn(n, width) * 10 ** torch.randn(n, 1), key=KEY) for n in (60, 40))
    row, column = csr.entry_rows(), csr.indices.long()
    sums = (a.codes[row].long() * b.codes[column].long()).view(300, heads or 1, columns).sum(2)
    expected = sums.float() * (a.scale[row] * b.scale[column])[:, None]
    found = sddmm(csr, a, b, heads=heads, backend=backend)
    assert found.shape == ((300,) if heads is None else (300, heads))
    assert_close(found, expected[:, 0] if heads is None else expected)
    added = sddmm(csr, a, b, "add", backend=backend)
    assert_close(added, a.float()[row] + b.float()[column])


def test_sddmm_without_entries(backend):
    csr, rows = (
        Csr(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 3),
        quantize_rows(torch.ones(3, 8)),
    )
    assert sddmm(csr, rows, rows, heads=2, backend=backend).shape == (0, 2)
    assert sddmm(csr, rows, rows, "add", backend=backend).shape == (0, 8)


# -- NaNs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_nan_shows_in_all_that_it_takes_part_in_and_in_nothing_else(backend, bad):
    x, weight, dy = torch.randn(600, 33), torch.randn(33, 20), torch.randn(600, 20)
    x[7, 32], x[8], weight[32, 19] = bad, 0.0, bad
    y, rows = product(x, weight, key=KEY, weight_key=KEY, backend=backend)
    wanted = torch.zeros(600, 20, dtype=torch.bool)
    wanted[7], wanted[:, 19] = True, True  # this includes row 8, of zeros, in that column
    assert torch.equal(y.isnan(), wanted)
    assert bool(y[~wanted].isfinite().all())
    dweight, sums = weight_gradient(rows, dy, key=KEY, sums=True, backend=backend)
    assert bool(dweight.isnan().all())
    assert bool(sums.isfinite().all())
    dy[599, 3] = bad
    dweight, sums = weight_gradient(quantize_rows(x[9:], key=KEY), dy[9:], key=KEY, sums=True, backend=backend)
    column = torch.arange(20) == 3
    assert torch.equal(dweight.isnan(), column.expand(33, 20))
    assert bool(dweight[:, ~column].isfinite().all())
    assert torch.equal(sums.isfinite(), ~column)


def test_a_nan_shows_at_the_entries_of_its_row(backend):
    csr = random_csr(60, 40, 300)
    a, b = torch.randn(60, 32), torch.randn(40, 32)
    a[30, 0], b[7, 31] = torch.nan, torch.inf
    wanted = (csr.entry_rows() == 30) | (csr.indices.long() == 7)
    a_rows, b_rows = quantize_rows(a, key=KEY), quantize_rows(b, key=KEY)
    assert torch.equal(sddmm(csr, a_rows, b_rows, heads=4, backend=backend).isnan(), wanted[:, None].expand(300, 4))
    assert torch.equal(sddmm(csr, a_rows, b_rows, "add", backend=backend).isnan(), wanted[:, None].expand(300, 32))


# -- further tests -----------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named():
    x, weight, rows = torch.ones(6, 4), torch.ones(4, 3), quantize_rows(torch.ones(6, 4))
    long = torch.ones(1, MOST_TERMS + 1)
    one = Csr(torch.tensor([0, 1]), torch.tensor([0]), 1)
    six = Csr(torch.arange(7), torch.arange(6), 6)
    calls = {
        r"x must be a float32 matrix, not torch.float64 of shape \(6, 4\)$": lambda: quantize_rows(x.double()),
        r"x must be a float32 matrix, not torch.float32 of shape \(6,\)$": lambda: quantize_rows(x[:, 0]),
        r"key must lie in \[0, 2\*\*64\) or be None, not -1$": lambda: quantize_rows(x, key=-1),
        r"key must lie in \[0, 2\*\*64\)": lambda: weight_gradient(rows, x, key=2**64),
        r"weight_key must lie in \[0, 2\*\*64\)": lambda: product(x, weight, weight_key=2**64),
        r"factor must be float32 of shape \(6,\), not torch.float32 \(4,\)$": lambda: quantize_rows(x, x[0]),
        r"factor must be float32 of shape \(6,\), not torch.float64": lambda: quantize_rows(x, x[:, 0].double()),
        r"weight must be a float32 matrix": lambda: product(x, weight.double()),
        r"weight must have a row for each of the 4 columns of x, not 3$": lambda: product(x, weight.T),
        r"bias must be float32 of shape \(3,\), not torch.float32 \(4,\)$": lambda: product(x, weight, x[0]),
        r"bias must be float32 of shape \(3,\), not torch.int8": lambda: product(x, weight, rows.codes[0, :3]),
        r"out must be contiguous float32 of shape \(6, 3\)": lambda: product(x, weight, None, x),
        r"out must be contiguous float32 of shape \(6, 3\), ": lambda: product(x, weight, None, torch.ones(3, 6).T),
        rf"int32 holds the sum of {MOST_TERMS} products of 8-bit integers, not of {MOST_TERMS + 1}: use float32$": (
            lambda: product(long, torch.ones(MOST_TERMS + 1, 1))
        ),
        rf"int32 holds the sum of {MOST_TERMS} products": lambda: sddmm(one, quantize_rows(long), quantize_rows(long)),
        r"x must be a float32 matrix": lambda: product(rows.codes, weight),
        r"x.codes must be contiguous int8 of two dimensions, not torch.float32$": (
            lambda: product(Int8Rows(x, rows.scale), weight)
        ),
        r"x.codes must be contiguous": lambda: weight_gradient(Int8Rows(rows.codes.T, rows.scale[:4]), x[:4]),
        r"x.scale must be contiguous float32 of shape \(6,\)$": lambda: product(Int8Rows(rows.codes, x[0]), weight),
        r"dy must be a float32 matrix": lambda: weight_gradient(rows, x.double()),
        r"dy must have as many rows as x, 6, not 5$": lambda: weight_gradient(rows, x[:5]),
        r"op must be one of .*, not 'left'$": lambda: sddmm(six, rows, rows, "left"),
        r"a.codes must be contiguous int8": lambda: sddmm(six, Int8Rows(x, rows.scale), rows),
        r"b.scale must be contiguous float32": lambda: sddmm(six, rows, Int8Rows(rows.codes, x[0])),
        r"a must have 1 rows, and b 1, of as many columns: they are \(6, 4\) and \(6, 4\)$": lambda: sddmm(
            one, rows, rows
        ),
        r"heads must divide the 4 columns, for dot only; not 3 for dot$": lambda: sddmm(six, rows, rows, heads=3),
        r"heads must divide the 4 columns, for dot only; not 2 for add$": lambda: sddmm(six, rows, rows, "add", 2),
        r"heads must be a whole number of at least 1, and below 2\^63, not 0$": lambda: sddmm(six, rows, rows, heads=0),
    }
    for sentence, call in calls.items():
        with pytest.raises(ValueError, match=f"^{sentence}"):
            call()
    wide = quantize_rows(long)
    assert sddmm(one, wide, wide, heads=5).shape == (1, 5), "what is limited is a head"
    assert sddmm(one, wide, wide, "add").shape == (1, MOST_TERMS + 1)


def test_dot_products_are_known_of_every_backend(backend):
    assert isinstance(dot_products(backend), bool)
    assert not dot_products("jit")
    assert not dot_products("reference")


def test_threads_do_not_change_a_bit():
    csr = random_csr(900, 700, 20_000)
    x, weight, dy = torch.randn(3000, 65), torch.randn(65, 33), torch.randn(3000, 33)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            y, rows = product(x, weight, key=KEY, weight_key=KEY, backend="native")
            quantized = quantize_rows(x, dy[:, 0].contiguous(), key=KEY, backend="native")
            a, b = (Int8Rows(rows.codes[:n], rows.scale[:n]) for n in (900, 700))
            entries = [sddmm(csr, a, b, op, backend="native") for op in ("dot", "add")]
            gradients = weight_gradient(rows, dy, key=KEY, sums=True, backend="native")
            results.append([y, rows.codes, rows.scale, quantized.codes, quantized.scale, *entries, *gradients])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


# -- tests of Triton's kernels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [TRITON])
def test_several_programs_give_the_same_bits(backend, monkeypatch):
    """As on a GPU: by default, one of the interpreter's tiles would hold all rows."""
    from hpcgnn.kernels.triton import int8, int8_sddmm, tiles

    x, csr = torch.cat((torch.randn(20, 33), unusual_rows(33))), random_csr(30, 20, 700)
    a, b = (quantize_rows(torch.randn(n, 99), key=KEY) for n in (30, 20))
    rows, dy = quantize_rows(torch.randn(2500, 70), key=KEY), torch.randn(2500, 130)
    monkeypatch.setattr(tiles, "_INTERPRETED", 512)
    monkeypatch.setattr(int8_sddmm, "_INTERPRETED", 1)
    monkeypatch.setattr(int8, "_WORKSPACE", 1)  # segments one by one
    assert_same(quantize_rows(x, key=KEY, backend=backend), quantize_rows(x, key=KEY, backend="reference"))
    for op, heads in (("dot", None), ("dot", 3), ("dot", 99), ("add", None)):
        found, expected = (sddmm(csr, a, b, op, heads, name) for name in (backend, "reference"))
        assert torch.equal(found, expected)
    found, expected = (weight_gradient(rows, dy, key=KEY, backend=name)[0] for name in (backend, "reference"))
    assert torch.equal(found, expected)


def test_which_gpus_have_instructions_for_products(monkeypatch):
    from hpcgnn.kernels.triton import int8

    names = {"gfx942:sramecc+:xnack-": True, "gfx90a": True, "gfx908": True, "gfx906": False, "gfx1030": False,
             "gfx1100": True, "gfx1201": True, "gfx803": False}  # fmt: skip
    assert {name: int8._has_matrix_cores(name) for name in names} == names
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    for capability, has_them in (((9, 0), True), ((8, 0), True), ((7, 5), False), ((7, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        assert int8.dot_products() is has_them

    class OnGpu:
        is_cuda = True

    with pytest.raises(ValueError, match=r"need a GPU of NVIDIA from compute capability 8\.0 on"):
        int8.product(None, None, OnGpu(), None, None, None, None, False, None)
