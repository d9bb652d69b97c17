"""Arithmetic on 8-bit integers: all backends have the same codes and scales bit for bit, and the same products.

``tests/native`` compares those of the native one with plain loops, and ``test_quantize.py`` shows that the noise is fair.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from functools import partial
from unittest import mock

import drawn
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from requires import require_module
from under_test import TRITON, Case, compared_with, not_refused
from wires import assert_same, assert_same_rows

from hpcgnn.kernels import Csr, int8, keyed
from hpcgnn.kernels.int8 import MOST_CODE, MOST_TERMS, Int8Rows, product, quantize_rows, sddmm, weight_gradient

KEY, OTHER_KEY = keyed.derive_key(3, 3), 2**64 - 1


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check equality up to the rounding of a few float32 factors and of sums of a row's size, with NaNs in the same places."""
    assert (found.dtype, found.shape) == (torch.float32, expected.shape)
    assert torch.equal(found.isnan(), expected.isnan())
    found, expected = found.nan_to_num(0).double(), expected.nan_to_num(0).double()
    if found.numel():
        size = expected.abs() if expected.dim() == 1 else expected.abs().amax(1, keepdim=True)
        assert bool(((found - expected).abs() <= 1e-6 * size).all())


def check_codes(
    backend: str, width: int, count: int, has_factor: bool, strided: bool, key: int | None, seed: int
) -> None:
    step = 2 if strided else 1
    x = drawn.rows_of_all_kinds(step * width, seed)[:count, ::step]
    factor = drawn.random_rows(x.shape[0], seed=seed)
    factor[3:7] = torch.tensor([torch.nan, 0.0, torch.inf, 1e-40])[: factor[3:7].numel()]
    found = quantize_rows(x, factor if has_factor else None, key=key, backend=backend)
    rows = x * factor[:, None] if has_factor else x.contiguous()
    assert_same_rows(found, quantize_rows(rows, key=key, backend=compared_with(backend)))
    assert found.num_bytes == x.numel() + 4 * x.shape[0]
    assert_same(found.float(), found.codes.float() * found.scale[:, None])


def test_codes_and_scales(backend: str) -> None:
    """Also of rows that are multiplied by unusual factors, and of matrices that are not contiguous."""
    for turn, case in enumerate(itertools.product((False, True), (False, True), (KEY, None))):
        for width in drawn.widths_of(turn):
            check_codes(backend, width, 50, *case, seed=turn)
    check_codes(backend, 7, 0, True, False, KEY, seed=6)
    check_codes(backend, 0, 5, False, False, KEY, seed=7)
    drawn.hold(
        check_codes, backend, 60, width=drawn.widths, count=st.integers(0, 50), has_factor=st.booleans(),
        strided=st.booleans(), key=drawn.keys, seed=drawn.seeds,
    )  # fmt: skip


LAYOUTS = {
    "contiguous": lambda weight: weight,
    "transposed": lambda weight: weight.T.contiguous().T,
    "strided": lambda weight: weight.repeat_interleave(2, 1)[:, ::2],
}


def check_product(
    backend: str, n: int, depth: int, width: int, has_bias: bool, adds: bool, layout: str, troubled: bool, seed: int
) -> None:
    shapes = (n, depth), (depth, width), (n, width), (width,)
    x, weight, plus, bias = (drawn.random_rows(*shape, seed=seed + k) for k, shape in enumerate(shapes))
    x[: n // 4] *= 1e20
    x[n // 4 : n // 2] = 0
    if troubled:
        x[-1:, -1:], weight[:1, width // 2 :][:, :1] = torch.nan, torch.inf
    call = partial(product, bias=bias if has_bias else None, weight_key=OTHER_KEY)
    rows = quantize_rows(x, key=KEY, backend=backend)
    expected = call(rows, weight, backend=compared_with(backend))
    out = plus.clone() if adds else None
    y = call(rows, LAYOUTS[layout](weight), out=out, backend=backend)
    assert_close(y, plus + expected if adds else expected)
    assert out is None or y is out


def test_products(backend: str) -> None:
    """With and without a bias, added to earlier values or not, and with weights in any memory layout.

    troubled: a NaN and an infinity show in all that they take part in, also in products with zeros, and in nothing else.
    """
    shapes = [(70, 33, 17), (130, 256, 40), (300, 16, 130), (1, 1, 1), (0, 5, 3), (6, 0, 3), (6, 5, 0)]
    options = itertools.cycle(itertools.product((True, False), (True, False), LAYOUTS))
    for turn, (shape, how) in enumerate(zip(shapes, options, strict=False)):
        check_product(backend, *shape, *how, troubled=turn == 1, seed=turn)
    drawn.hold(
        check_product, backend, 40, n=st.integers(0, 140), depth=st.integers(0, 140), width=st.integers(0, 140),
        has_bias=st.booleans(), adds=st.booleans(), layout=st.sampled_from([*LAYOUTS]), troubled=st.booleans(),
        seed=drawn.seeds,
    )  # fmt: skip


def test_as_many_terms_as_int32_holds(backend, monkeypatch):
    if backend == "triton":  # interpreted, so each step takes long
        monkeypatch.setattr("hpcgnn.kernels.triton.int8._DEPTH", 8192)
    depth = MOST_TERMS
    rows = Int8Rows(torch.full((2, depth), MOST_CODE, dtype=torch.int8), torch.ones(2))
    rows.codes[1] = -MOST_CODE
    most = float(np.float32(depth * MOST_CODE**2))
    assert product(rows, torch.full((depth, 1), 127.0), backend=backend).flatten().tolist() == [most, -most]
    csr = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 0]), 2)
    assert sddmm(csr, rows, rows, backend=backend).tolist() == [most, -most]


def check_gradient(backend: str, n: int, depth: int, width: int, key: int | None, troubled: str, seed: int) -> None:
    dy = drawn.random_rows(n, width, seed=seed + 1)
    x = drawn.random_rows(n, depth, seed=seed) * drawn.random_rows(n, 1, seed=seed + 2)
    if troubled:
        (x if troubled == "x" else dy)[-1:, :1] = torch.inf
    rows = quantize_rows(x, key=KEY)
    workspace = 1 if seed % 2 else 1 << 26  # one segment at a time, or all
    of_triton = mock.patch("hpcgnn.kernels.triton.int8._WORKSPACE", workspace) if backend == TRITON else nullcontext()
    with of_triton:
        dweight, none = weight_gradient(rows, dy, key=key, backend=backend)
        again, sums = weight_gradient(rows, dy, key=key, sums=True, backend=backend)
    assert none is None
    assert_close(dweight, weight_gradient(rows, dy, key=key, backend=compared_with(backend))[0])
    assert_same(again, dweight)
    torch.testing.assert_close(sums, dy.sum(0), rtol=1e-5, atol=1e-4)


def test_weight_gradients(backend: str) -> None:
    """A NaN in ``dy`` shows in its column alone, one of ``x`` in all. Of many rows there are several segments."""
    shapes = [(257, 33, 20), (2500, 33, 20), (2500, 70, 130), (255, 1, 1), (0, 16, 40), (300, 0, 4), (300, 4, 0)]
    for turn, shape in enumerate(shapes):
        key, troubled = (KEY, None, OTHER_KEY)[turn % 3], ("", "dy", "", "x")[turn % 4]
        check_gradient(backend, *shape, key, troubled, seed=turn)
    drawn.hold(
        check_gradient, backend, 40, n=st.sampled_from([0, 1, 255, 256, 257, 1024, 1025]) | st.integers(0, 600),
        depth=st.integers(0, 70), width=st.integers(0, 70), key=drawn.keys, troubled=st.sampled_from(["", "x", "dy"]),
        seed=drawn.seeds,
    )  # fmt: skip


def test_gradients_of_integers_are_those_of_their_floats(backend: str) -> None:
    x = quantize_rows(drawn.random_rows(600, 40, seed=1), key=KEY)
    dy = quantize_rows(drawn.random_rows(600, 70, seed=2), key=KEY)
    for key in (None, OTHER_KEY):
        found, sums = weight_gradient(x, dy, key=key, sums=True, backend=backend)
        wanted, wanted_sums = weight_gradient(x, dy.float(), key=key, sums=True, backend=backend)
        assert_same(found, wanted)
        torch.testing.assert_close(sums, wanted_sums, rtol=1e-5, atol=1e-4)


def test_the_error_of_a_gradient_that_is_rounded_twice() -> None:
    """It has mean 0, and its variance is the sum of those of both roundings: here less than twice that of one."""
    x = quantize_rows(drawn.random_rows(500, 32, seed=3), key=KEY)
    dy = drawn.random_rows(500, 32, seed=4) * 10 ** drawn.random_rows(500, 1, seed=5)
    exact, draws = x.float().T @ dy, range(1, 201)
    once = torch.stack([weight_gradient(x, dy, key=key)[0] - exact for key in draws])
    twice = torch.stack([weight_gradient(x, quantize_rows(dy, key=key), key=key + 1000)[0] - exact for key in draws])
    assert 1 < twice.square().mean() / once.square().mean() < 2
    assert twice.mean(0).norm() < 1.5 * twice.square().sum((1, 2)).mean().sqrt() / len(draws) ** 0.5


def check_entries(backend: str, heads: int | None, columns: int, entries: int, troubled: bool, seed: int) -> None:
    (csr, *_), width = Case(60, 40, entries).build(), columns * (heads or 1)
    left, right = (
        drawn.random_rows(n, width, seed=seed) * 10 ** drawn.random_rows(n, 1, seed=seed + 1) for n in (60, 40)
    )
    if troubled:
        left[30, :1], right[7, -1:] = torch.nan, torch.inf
    a, b = quantize_rows(left, key=KEY), quantize_rows(right, key=KEY)
    found, expected = (sddmm(csr, a, b, heads, backend=name) for name in (backend, compared_with(backend)))
    assert_close(found, expected)


def test_values_of_entries(backend: str) -> None:
    """troubled: a NaN and an infinity show at the entries of their rows alone."""
    sizes = [(None, 1, 300), (1, 300, 300), (8, 16, 300), (5, 33, 300), (40, 2, 300), (2, 0, 300), (2, 4, 0)]
    for turn, size in enumerate(sizes):
        check_entries(backend, *size, troubled=turn == 2, seed=turn)
    drawn.hold(
        check_entries, backend, 40, heads=st.none() | st.integers(1, 8), columns=st.integers(0, 40),
        entries=st.integers(0, 300), troubled=st.booleans(), seed=drawn.seeds,
    )  # fmt: skip


def test_wrong_arguments_are_named():
    x, weight, rows = torch.ones(6, 4), torch.ones(4, 3), quantize_rows(torch.ones(6, 4))
    long, too_long = torch.ones(1, MOST_TERMS + 1), rf"int32 holds the sum of {MOST_TERMS} products of 8-bit integers"
    one, six = Csr(torch.tensor([0, 1]), torch.tensor([0]), 1), Csr(torch.arange(7), torch.arange(6), 6)
    wide = quantize_rows(long)
    heads = r"heads must divide the 4 columns, for dot only; not"
    refusals = [
        (r"x must be a float32 matrix, not torch.float64 of shape \(6, 4\)$", quantize_rows, x.double()),
        (r"x must be a float32 matrix, not torch.float32 of shape \(6,\)$", quantize_rows, x[:, 0]),
        (r"key must lie in \[0, 2\*\*64\) or be None, not -1$", partial(quantize_rows, key=-1), x),
        (r"key must lie in \[0, 2\*\*64\)", partial(weight_gradient, key=2**64), rows, x),
        (r"weight_key must lie in \[0, 2\*\*64\)", partial(product, weight_key=2**64), rows, weight),
        (r"factor must be float32 of shape \(6,\), not torch.float32 of shape \(4,\)$", quantize_rows, x, x[0]),
        (r"factor must be float32 of shape \(6,\), not torch.float64", quantize_rows, x, x[:, 0].double()),
        (r"weight must be a float32 matrix", product, rows, weight.double()),
        (r"weight must have a row for each of the 4 columns of x, not 3$", product, rows, weight.T),
        (r"bias must be float32 of shape \(3,\), not torch.float32 of shape \(4,\)$", product, rows, weight, x[0]),
        (r"bias must be float32 of shape \(3,\), not torch.int8", product, rows, weight, rows.codes[0, :3]),
        (r"out must be contiguous float32 of shape \(6, 3\)", product, rows, weight, None, x),
        (r"out must be contiguous float32 of shape \(6, 3\), ", product, rows, weight, None, torch.ones(3, 6).T),
        (rf"{too_long}, not of {MOST_TERMS + 1}: use float32$", product, wide, torch.ones(MOST_TERMS + 1, 1)),
        (too_long, sddmm, one, wide, wide),
        (r"x.codes must be contiguous int8 of two dimensions, not torch", product, Int8Rows(x, rows.scale), weight),
        (r"x.codes must be contiguous", weight_gradient, Int8Rows(rows.codes.T, rows.scale[:4]), x[:4]),
        (r"x.scale must be contiguous float32 of shape \(6,\)$", product, Int8Rows(rows.codes, x[0]), weight),
        (r"dy must be a float32 matrix", weight_gradient, rows, x.double()),
        (r"dy must have as many rows as x, 6, not 5$", weight_gradient, rows, x[:5]),
        (r"a.codes must be contiguous int8", sddmm, six, Int8Rows(x, rows.scale), rows),
        (r"b.scale must be contiguous float32", sddmm, six, rows, Int8Rows(rows.codes, x[0])),
        (r"a must have 1 rows, and b 1, of as many columns: they are \(6, 4\) and \(6, 4\)$", sddmm, one, rows, rows),
        (rf"{heads} 3 for dot$", sddmm, six, rows, rows, 3),
        (r"heads must be a whole number of at least 1, and below 2\^63, not 0$", sddmm, six, rows, rows, 0),
    ]
    assert not_refused([(f"^{sentence}", partial(*call)) for sentence, *call in refusals]) == []
    assert sddmm(one, wide, wide, heads=5).shape == (1, 5), "what is limited is a head"


def test_dot_products_are_known_of_every_backend(backend):
    assert isinstance(int8.dot_products(backend), bool)
    assert not int8.dot_products("jit")
    assert not int8.dot_products("reference")


def test_which_gpus_have_instructions_for_products(monkeypatch):
    in_triton = require_module("hpcgnn.kernels.triton.int8")
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
        in_triton.product(OnGpu(), None, None, None, None, False, None)
