"""Arithmetic on 8-bit integers: every backend has the codes and scales of the definition bit for bit, and its products.

``test_quantize.py`` shows that the noise is fair; here it is the same (:func:`plainly.noise_of`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from unittest import mock

import drawn
import numpy as np
import plainly
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from under_test import BACKENDS

from hpcgnn.kernels import Csr, int8, keyed
from hpcgnn.kernels.int8 import MOST_CODE, MOST_TERMS, Int8Rows, product, quantize_rows, sddmm, weight_gradient
from hpcgnn.kernels.triton import int8 as in_triton

KEY, OTHER_KEY = keyed.derive_key(3, 3), 2**64 - 1
LARGEST, SMALLEST_SCALE = 2.0**126, 2.0**-110
BLOCK, SEGMENT = 256, 1024  # rows of a gradient that are quantized together, and whose sums are added first


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with drawn.using(request.param) as name:
        yield name


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


# -- codes and scales --------------------------------------------------------------------------------------------------


def rows_of(x: torch.Tensor, key: int | None) -> Int8Rows:
    """``x`` (n, F) by the definition."""
    return plainly.int8_rows(x, plainly.noise_of(key, np.arange(x.shape[0]), x.shape[1]))


def test_codes_and_scales_are_as_defined(backend: str) -> None:
    """Also of rows that are multiplied by unusual factors, and of matrices that are not contiguous."""

    @drawn.budget(backend, 60)
    @given(
        width=drawn.widths, count=st.integers(0, 50), has_factor=st.booleans(), strided=st.booleans(), key=drawn.keys,
        seed=drawn.seeds,
    )  # fmt: skip
    @example(width=1, count=50, has_factor=False, strided=False, key=None, seed=1)
    @example(width=7, count=50, has_factor=True, strided=True, key=KEY, seed=2)
    @example(width=16, count=50, has_factor=False, strided=False, key=OTHER_KEY, seed=3)
    @example(width=33, count=50, has_factor=True, strided=False, key=None, seed=4)
    @example(width=300, count=50, has_factor=False, strided=True, key=0, seed=5)
    @example(width=7, count=0, has_factor=True, strided=False, key=KEY, seed=6)
    @example(width=0, count=5, has_factor=False, strided=False, key=KEY, seed=7)
    def holds(width: int, count: int, has_factor: bool, strided: bool, key: int | None, seed: int) -> None:
        step = 2 if strided else 1
        x = drawn.rows_of_all_kinds(step * width, seed)[:count, ::step]
        factor = drawn.random_rows(x.shape[0], seed=seed)
        factor[3:7] = torch.tensor([torch.nan, 0.0, torch.inf, 1e-40])[: factor[3:7].numel()]
        found = quantize_rows(x, factor if has_factor else None, key=key, backend=backend)
        assert_same(found, rows_of(x * factor[:, None] if has_factor else x, key))
        assert found.num_bytes == x.numel() + 4 * x.shape[0]
        plainly.assert_same(found.float(), found.codes.float() * found.scale[:, None])

    holds()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_becomes_of_unusual_rows(backend):
    def stands_for(*row: float) -> list[float]:
        return quantize_rows(torch.tensor([row]), key=KEY, backend=backend).float()[0].tolist()

    for bad in (torch.nan, torch.inf, -torch.inf):
        rows = quantize_rows(torch.tensor([[1.0, bad, -2.0], [1.0, 1.0, 1.0]]), key=KEY, backend=backend)
        assert rows.codes[0].tolist() == [0, 0, 0]
        assert rows.scale.isnan().tolist() == [True, False]
    assert str(stands_for(0.0, -0.0)) == "[0.0, 0.0]"
    assert stands_for(127.0, -0.0, -127.0, 5.0) == [127, 0, -127, 5]
    assert stands_for(3e38, -3e38) == pytest.approx([LARGEST, -LARGEST], rel=0.02)
    tiny = stands_for(1e-38, -1e-38)
    assert tiny[0] in (0, SMALLEST_SCALE)
    assert tiny[1] in (0, -SMALLEST_SCALE)
    for row in ((0.3, -0.3), (1e30, -1e30), (1e-20, 1e-20)):
        assert stands_for(*row) == pytest.approx(row, rel=1 / 64)


# All backends have the same codes and scales, so one of them stands for all in the rest of this section.


def test_a_scale_is_the_smallest_that_reaches_and_no_value_moves_by_more_than_a_step():
    """Rounding to the nearest changes a value by at most half a step. The scale and its reciprocal are rounded, too, which
    matters over 127 steps.
    """
    for width, (key, most) in itertools.product((1, 7, 16, 33, 256, 300), ((KEY, 1.0), (None, 0.5))):
        x = torch.randn(200, width) * torch.logspace(-25, 25, 200)[:, None]
        rows, largest = quantize_rows(x, key=key), x.abs().amax(1)
        assert torch.equal(rows.scale.bfloat16().float(), rows.scale)
        assert bool((rows.scale.double() * MOST_CODE * (1 + 2.0**-23) >= largest.double()).all())
        assert bool((rows.scale <= largest / MOST_CODE * (1 + 2.0**-7)).all())
        scale = rows.scale.double()[:, None]
        assert bool(((rows.codes.double() * scale - x.double()).abs() <= scale * (most + 2.0**-15)).all())
        assert int(rows.codes.int().abs().max()) <= MOST_CODE


def test_unbiased():
    keys, copies, width = 20, 30, 40
    draws = keys * copies
    x = drawn.random_rows(2, width, seed=1)
    total = torch.zeros(2, width, dtype=torch.float64)
    for key in range(keys):
        rows = quantize_rows(x.repeat(copies, 1), key=key)
        total += rows.float().view(copies, 2, width).double().sum(0)
    scale = rows.scale[:2, None].double()
    fraction = (x.double() / scale) % 1
    deviation = scale * (fraction * (1 - fraction) / draws).sqrt()
    assert bool(((total / draws - x).abs() <= 5 * deviation + scale / 2**16).all())
    # Precise enough: rounding to the nearest would be off by up to half a step.
    assert bool(deviation.max() < scale.max() / 45)
    nearest = quantize_rows(x).float()
    assert bool(((nearest - x).abs() > 5 * deviation + scale / 2**16).any())


# -- products ----------------------------------------------------------------------------------------------------------


def defined(rows: Int8Rows, columns: Int8Rows) -> torch.Tensor:
    """A product by its definition: int64 sums, converted to float32 and multiplied by both scales."""
    sums = (rows.codes.double() @ columns.codes.double().T).long()
    return sums.float() * (rows.scale[:, None] * columns.scale)


def with_layout(weight: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed":
        return weight.T.contiguous().T
    return weight.repeat_interleave(2, 1)[:, ::2] if layout == "strided" else weight


def test_products_are_as_defined(backend: str) -> None:
    """With and without a bias, added to earlier values or not, with weights in any memory layout, and of quantized rows.

    troubled: a NaN and an infinity show in all that they take part in, also in products with zeros, and in nothing else.
    """

    @drawn.budget(backend, 40)
    @given(
        n=st.integers(0, 140), depth=st.integers(0, 140), width=st.integers(0, 140), has_bias=st.booleans(),
        adds=st.booleans(), layout=st.sampled_from(["contiguous", "transposed", "strided"]), troubled=st.booleans(),
        seed=drawn.seeds,
    )  # fmt: skip
    @example(n=70, depth=33, width=17, has_bias=True, adds=True, layout="strided", troubled=False, seed=1)
    @example(n=130, depth=256, width=40, has_bias=False, adds=False, layout="contiguous", troubled=True, seed=2)
    @example(n=300, depth=16, width=130, has_bias=False, adds=True, layout="transposed", troubled=False, seed=4)
    @example(n=1, depth=1, width=1, has_bias=True, adds=False, layout="contiguous", troubled=False, seed=5)
    @example(n=0, depth=5, width=3, has_bias=True, adds=True, layout="contiguous", troubled=False, seed=6)
    @example(n=6, depth=0, width=3, has_bias=True, adds=True, layout="contiguous", troubled=False, seed=7)
    @example(n=6, depth=5, width=0, has_bias=True, adds=False, layout="contiguous", troubled=False, seed=8)
    def holds(
        n: int, depth: int, width: int, has_bias: bool, adds: bool, layout: str, troubled: bool, seed: int
    ) -> None:
        shapes = (n, depth), (depth, width), (n, width), (width,)
        x, weight, plus, bias = (drawn.random_rows(*shape, seed=seed + k) for k, shape in enumerate(shapes))
        x[: n // 4] *= 1e20
        x[n // 4 : n // 2] = 0
        if troubled:
            x[-1:, -1:], weight[:1, width // 2 :][:, :1] = torch.nan, torch.inf
        rows, weight = rows_of(x, KEY), with_layout(weight, layout)
        expected = defined(rows, rows_of(weight.T.contiguous(), OTHER_KEY)) + (bias if has_bias else 0)
        out = plus.clone() if adds else None
        y, found = product(x, weight, bias if has_bias else None, out, key=KEY, weight_key=OTHER_KEY, backend=backend)
        assert_same(found, rows)
        assert_close(y, plus + expected if adds else expected)
        assert out is None or y is out
        out = plus.clone() if adds else None
        again, same = product(
            rows, weight, bias if has_bias else None, out, key=7, weight_key=OTHER_KEY, backend=backend
        )
        assert same is rows
        plainly.assert_same(again, y)

    holds()


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
        monkeypatch.setattr(in_triton, "_DEPTH", 8192)
    depth = MOST_TERMS
    rows = Int8Rows(torch.full((2, depth), MOST_CODE, dtype=torch.int8), torch.ones(2))
    rows.codes[1] = -MOST_CODE
    most = float(np.float32(depth * MOST_CODE**2))
    assert product(rows, torch.full((depth, 1), 127.0), backend=backend)[0].flatten().tolist() == [most, -most]
    csr = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 0]), 2)
    assert sddmm(csr, rows, rows, backend=backend).tolist() == [most, -most]


# -- gradients of weights ----------------------------------------------------------------------------------------------


def defined_gradient(x: Int8Rows, dy: torch.Tensor, key: int | None) -> torch.Tensor:
    noise = plainly.noise_of(key, np.arange(dy.shape[0]), dy.shape[1])
    total = torch.zeros(x.shape[1], dy.shape[1])
    for segment in range(0, dy.shape[0], SEGMENT):
        of_segment = torch.zeros_like(total)
        for first in range(segment, min(segment + SEGMENT, dy.shape[0]), BLOCK):
            block = slice(first, first + BLOCK)
            columns = plainly.int8_rows((dy[block] * x.scale[block, None]).T.contiguous(), noise[block].T)
            of_segment += (x.codes[block].double().T @ columns.codes.double().T).float() * columns.scale
        total += of_segment
    return total


def test_weight_gradients_are_as_defined(backend: str) -> None:
    """Each block of gradients is quantized with scales of its own, and segments are added in order. A NaN in ``dy`` shows in its
    column alone, one of ``x`` in all.
    """

    @drawn.budget(backend, 40)
    @given(
        n=st.one_of(st.sampled_from([0, 1, 255, 256, 257, 1024, 1025]), st.integers(0, 600)),
        depth=st.integers(0, 70), width=st.integers(0, 70), key=drawn.keys, troubled=st.sampled_from(["", "x", "dy"]),
        seed=drawn.seeds,
    )  # fmt: skip
    @example(n=257, depth=33, width=20, key=KEY, troubled="", seed=1)
    @example(n=2500, depth=33, width=20, key=KEY, troubled="dy", seed=3)
    @example(n=2500, depth=70, width=130, key=None, troubled="", seed=4)
    @example(n=255, depth=1, width=1, key=OTHER_KEY, troubled="x", seed=5)
    @example(n=0, depth=16, width=40, key=KEY, troubled="", seed=6)
    @example(n=300, depth=0, width=4, key=None, troubled="", seed=7)
    @example(n=300, depth=4, width=0, key=KEY, troubled="", seed=8)
    def holds(n: int, depth: int, width: int, key: int | None, troubled: str, seed: int) -> None:
        dy = drawn.random_rows(n, width, seed=seed + 1)
        x = drawn.random_rows(n, depth, seed=seed) * drawn.random_rows(n, 1, seed=seed + 2)
        if troubled:
            (x if troubled == "x" else dy)[-1:, :1] = torch.inf
        rows = rows_of(x, KEY)
        with mock.patch.object(in_triton, "_WORKSPACE", 1 if seed % 2 else 1 << 26):  # one segment at a time, or all
            dweight, none = weight_gradient(rows, dy, key=key, backend=backend)
            again, sums = weight_gradient(rows, dy, key=key, sums=True, backend=backend)
        assert none is None
        assert_close(dweight, defined_gradient(rows, dy, key))
        plainly.assert_same(again, dweight)
        torch.testing.assert_close(sums, dy.sum(0), rtol=1e-5, atol=1e-4)

    holds()


# -- entries -----------------------------------------------------------------------------------------------------------


def random_csr(rows: int, columns: int, entries: int) -> Csr:
    """A matrix with parallel entries, empty rows, and a row with half of the entries."""
    rng = np.random.default_rng(rows)
    row = np.concatenate((rng.integers(0, rows, entries - entries // 2), np.full(entries // 2, rows // 2)))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows))))
    return Csr(indptr, rng.integers(0, columns, entries), columns)


def test_values_of_entries_are_as_defined(backend: str) -> None:
    """troubled: a NaN and an infinity show at the entries of their rows alone."""

    @drawn.budget(backend, 40)
    @given(
        heads=st.one_of(st.none(), st.integers(1, 8)), columns=st.integers(0, 40), entries=st.integers(0, 300),
        troubled=st.booleans(), seed=drawn.seeds,
    )  # fmt: skip
    @example(heads=None, columns=1, entries=300, troubled=False, seed=1)
    @example(heads=1, columns=300, entries=300, troubled=False, seed=2)
    @example(heads=8, columns=16, entries=300, troubled=True, seed=5)
    @example(heads=5, columns=33, entries=300, troubled=False, seed=6)
    @example(heads=40, columns=2, entries=300, troubled=False, seed=7)
    @example(heads=2, columns=0, entries=300, troubled=False, seed=8)
    @example(heads=2, columns=4, entries=0, troubled=False, seed=9)
    def holds(heads: int | None, columns: int, entries: int, troubled: bool, seed: int) -> None:
        csr, width = random_csr(60, 40, entries), columns * (heads or 1)
        left, right = (
            drawn.random_rows(n, width, seed=seed) * 10 ** drawn.random_rows(n, 1, seed=seed + 1) for n in (60, 40)
        )
        if troubled:
            left[30, :1], right[7, -1:] = torch.nan, torch.inf
        a, b = rows_of(left, KEY), rows_of(right, KEY)
        row, column = csr.entry_rows(), csr.indices.long()
        sums = (a.codes[row].long() * b.codes[column].long()).view(entries, heads or 1, columns).sum(2)
        expected = sums.float() * (a.scale[row] * b.scale[column])[:, None]
        found = sddmm(csr, a, b, heads=heads, backend=backend)
        assert_close(found, expected[:, 0] if heads is None else expected)
        assert_close(sddmm(csr, a, b, "add", backend=backend), a.float()[row] + b.float()[column])

    holds()


# -- further tests -----------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named():
    x, weight, rows = torch.ones(6, 4), torch.ones(4, 3), quantize_rows(torch.ones(6, 4))
    long, too_long = torch.ones(1, MOST_TERMS + 1), rf"int32 holds the sum of {MOST_TERMS} products of 8-bit integers"
    one, six = Csr(torch.tensor([0, 1]), torch.tensor([0]), 1), Csr(torch.arange(7), torch.arange(6), 6)
    wide = quantize_rows(long)
    heads = r"heads must divide the 4 columns, for dot only; not"
    for sentence, function, *arguments in (
        (r"x must be a float32 matrix, not torch.float64 of shape \(6, 4\)$", quantize_rows, x.double()),
        (r"x must be a float32 matrix, not torch.float32 of shape \(6,\)$", quantize_rows, x[:, 0]),
        (r"key must lie in \[0, 2\*\*64\) or be None, not -1$", functools.partial(quantize_rows, key=-1), x),
        (r"key must lie in \[0, 2\*\*64\)", functools.partial(weight_gradient, key=2**64), rows, x),
        (r"key must lie in \[0, 2\*\*64\)", functools.partial(product, key=2**64), x, weight),
        (r"weight_key must lie in \[0, 2\*\*64\)", functools.partial(product, weight_key=2**64), x, weight),
        (r"factor must be float32 of shape \(6,\), not torch.float32 \(4,\)$", quantize_rows, x, x[0]),
        (r"factor must be float32 of shape \(6,\), not torch.float64", quantize_rows, x, x[:, 0].double()),
        (r"weight must be a float32 matrix", product, x, weight.double()),
        (r"weight must have a row for each of the 4 columns of x, not 3$", product, x, weight.T),
        (r"bias must be float32 of shape \(3,\), not torch.float32 \(4,\)$", product, x, weight, x[0]),
        (r"bias must be float32 of shape \(3,\), not torch.int8", product, x, weight, rows.codes[0, :3]),
        (r"out must be contiguous float32 of shape \(6, 3\)", product, x, weight, None, x),
        (r"out must be contiguous float32 of shape \(6, 3\), ", product, x, weight, None, torch.ones(3, 6).T),
        (rf"{too_long}, not of {MOST_TERMS + 1}: use float32$", product, long, torch.ones(MOST_TERMS + 1, 1)),
        (too_long, sddmm, one, wide, wide),
        (r"x must be a float32 matrix", product, rows.codes, weight),
        (
            r"x.codes must be contiguous int8 of two dimensions, not torch.float32$",
            product,
            Int8Rows(x, rows.scale),
            weight,
        ),
        (r"x.codes must be contiguous", weight_gradient, Int8Rows(rows.codes.T, rows.scale[:4]), x[:4]),
        (r"x.scale must be contiguous float32 of shape \(6,\)$", product, Int8Rows(rows.codes, x[0]), weight),
        (r"dy must be a float32 matrix", weight_gradient, rows, x.double()),
        (r"dy must have as many rows as x, 6, not 5$", weight_gradient, rows, x[:5]),
        (r"op must be one of .*, not 'left'$", sddmm, six, rows, rows, "left"),
        (r"a.codes must be contiguous int8", sddmm, six, Int8Rows(x, rows.scale), rows),
        (r"b.scale must be contiguous float32", sddmm, six, rows, Int8Rows(rows.codes, x[0])),
        (r"a must have 1 rows, and b 1, of as many columns: they are \(6, 4\) and \(6, 4\)$", sddmm, one, rows, rows),
        (rf"{heads} 3 for dot$", sddmm, six, rows, rows, "dot", 3),
        (rf"{heads} 2 for add$", sddmm, six, rows, rows, "add", 2),
        (r"heads must be a whole number of at least 1, and below 2\^63, not 0$", sddmm, six, rows, rows, "dot", 0),
    ):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            function(*arguments)
    assert sddmm(one, wide, wide, heads=5).shape == (1, 5), "what is limited is a head"
    assert sddmm(one, wide, wide, "add").shape == (1, MOST_TERMS + 1)


def test_dot_products_are_known_of_every_backend(backend):
    assert isinstance(int8.dot_products(backend), bool)
    assert not int8.dot_products("jit")
    assert not int8.dot_products("reference")


def test_threads_do_not_change_a_bit():
    csr = random_csr(900, 700, 20_000)
    x, weight, dy = torch.randn(3000, 65), torch.randn(65, 33), torch.randn(3000, 33)
    results = []
    for count in (1, 2):
        with drawn.on_threads(count):
            y, rows = product(x, weight, key=KEY, weight_key=KEY, backend="native")
            quantized = quantize_rows(x, dy[:, 0].contiguous(), key=KEY, backend="native")
            a, b = (Int8Rows(rows.codes[:n], rows.scale[:n]) for n in (900, 700))
            entries = [sddmm(csr, a, b, op, backend="native") for op in ("dot", "add")]
            gradients = weight_gradient(rows, dy, key=KEY, sums=True, backend="native")
            results.append([y, rows.codes, rows.scale, quantized.codes, quantized.scale, *entries, *gradients])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_which_gpus_have_instructions_for_products(monkeypatch):
    names = {"gfx942:sramecc+:xnack-": True, "gfx90a": True, "gfx908": True, "gfx906": False, "gfx1030": False,
             "gfx1100": True, "gfx1201": True, "gfx803": False}  # fmt: skip
    assert {name: in_triton._has_matrix_cores(name) for name in names} == names
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    for capability, has_them in (((9, 0), True), ((8, 0), True), ((7, 5), False), ((7, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        assert in_triton.dot_products() is has_them

    class OnGpu:
        is_cuda = True

    with pytest.raises(ValueError, match=r"need a GPU of NVIDIA from compute capability 8\.0 on"):
        in_triton.product(None, None, OnGpu(), None, None, None, None, False, None)
