"""Arithmetic on 8-bit integers: all backends have the same codes and scales bit for bit, and the same products.

``tests/native`` compares those of the native one with plain loops, and ``test_quantize.py`` shows that the noise is fair.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
import under_test as drawn
from hypothesis import strategies as st
from requires import require_module
from under_test import TRITON, Case, compared_with, on_every_backend
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


@on_every_backend(
    80,
    {"width": 7, "count": 0, "has_factor": True, "strided": False, "key": KEY, "seed": 6},
    {"width": 0, "count": 5, "has_factor": False, "strided": False, "key": KEY, "seed": 7},
    {"width": 602, "count": 50, "has_factor": True, "strided": True, "key": KEY, "seed": 8},
    width=drawn.widths, count=st.integers(0, 50), has_factor=st.booleans(), strided=st.booleans(), key=drawn.keys,
    seed=drawn.seeds,
)  # fmt: skip
def test_codes_and_scales(backend, width, count, has_factor, strided, key, seed):
    """Also of rows that are multiplied by unusual factors, and of matrices that are not contiguous."""
    step = 2 if strided else 1
    x = drawn.rows_of_all_kinds(step * width, seed)[:count, ::step]
    factor = drawn.random_rows(x.shape[0], seed=seed)
    factor[3:7] = torch.tensor([torch.nan, 0.0, torch.inf, 1e-40])[: factor[3:7].numel()]
    found = quantize_rows(x, factor if has_factor else None, key=key, backend=backend)
    rows = x * factor[:, None] if has_factor else x.contiguous()
    assert_same_rows(found, quantize_rows(rows, key=key, backend=compared_with(backend)))
    assert found.num_bytes == x.numel() + 4 * x.shape[0]
    assert_same(found.float(), found.codes.float() * found.scale[:, None])


LAYOUTS = {
    "contiguous": lambda weight: weight,
    "transposed": lambda weight: weight.T.contiguous().T,
    "strided": lambda weight: weight.repeat_interleave(2, 1)[:, ::2],
}


@on_every_backend(
    50,
    *({"n": n, "depth": depth, "width": width, "has_bias": True, "adds": False, "layout": "strided", "troubled": True, "seed": 1}
      for n, depth, width in ((130, 256, 40), (0, 5, 3), (6, 0, 3), (6, 5, 0))),
    n=st.integers(0, 140), depth=st.integers(0, 140), width=st.integers(0, 140), has_bias=st.booleans(),
    adds=st.booleans(), layout=st.sampled_from([*LAYOUTS]), troubled=st.booleans(), seed=drawn.seeds,
)  # fmt: skip
def test_products(backend, n, depth, width, has_bias, adds, layout, troubled, seed):
    """With and without a bias, added to earlier values or not, and with weights in any memory layout.

    troubled: a NaN and an infinity show in all that they take part in, also in products with zeros, and in nothing else.
    """
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


@on_every_backend(
    50,
    {"n": 2500, "depth": 70, "width": 130, "key": KEY, "troubled": "", "seed": 2},
    {"n": 0, "depth": 16, "width": 40, "key": None, "troubled": "", "seed": 4},
    {"n": 300, "depth": 0, "width": 4, "key": KEY, "troubled": "", "seed": 5},
    {"n": 300, "depth": 4, "width": 0, "key": None, "troubled": "x", "seed": 7},
    n=st.sampled_from([0, 1, 255, 256, 257, 1024, 1025]) | st.integers(0, 600), depth=st.integers(0, 70),
    width=st.integers(0, 70), key=drawn.keys, troubled=st.sampled_from(["", "x", "dy"]), seed=drawn.seeds,
)  # fmt: skip
def test_weight_gradients(backend, n, depth, width, key, troubled, seed):
    """A NaN in ``dy`` shows in its column alone, one of ``x`` in all. Of many rows there are several segments."""
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


@on_every_backend(
    50,
    {"heads": 1, "columns": 300, "entries": 300, "troubled": True, "seed": 1},
    {"heads": 40, "columns": 2, "entries": 300, "troubled": False, "seed": 4},
    {"heads": 2, "columns": 0, "entries": 300, "troubled": False, "seed": 5},
    {"heads": 2, "columns": 4, "entries": 0, "troubled": False, "seed": 6},
    heads=st.none() | st.integers(1, 8), columns=st.integers(0, 40), entries=st.integers(0, 300), troubled=st.booleans(),
    seed=drawn.seeds,
)  # fmt: skip
def test_values_of_entries(backend, heads, columns, entries, troubled, seed):
    """troubled: a NaN and an infinity show at the entries of their rows alone."""
    (csr, *_), width = Case(60, 40, entries).build(), columns * (heads or 1)
    left, right = (
        drawn.random_rows(n, width, seed=seed) * 10 ** drawn.random_rows(n, 1, seed=seed + 1) for n in (60, 40)
    )
    if troubled:
        left[30, :1], right[7, -1:] = torch.nan, torch.inf
    a, b = quantize_rows(left, key=KEY), quantize_rows(right, key=KEY)
    found, expected = (sddmm(csr, a, b, heads, backend=name) for name in (backend, compared_with(backend)))
    assert_close(found, expected)


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
