"""Rows of 8-bit integers in a wire buffer: their values are preserved, and the bytes are those of the definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import drawn
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from plainly import Wire, assert_same, make_wire
from under_test import BACKENDS

from hpcgnn.kernels import keyed
from hpcgnn.kernels.int8 import MOST_CODE, Int8Rows, quantize_rows
from hpcgnn.kernels.int8_messages import decode_codes, encode_codes
from hpcgnn.kernels.messages import decode_rows, encode_rows

KEY = keyed.derive_key(9, 9)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with drawn.using(request.param) as name:
        yield name


def places(wire: Wire) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return wire.buffer, wire.payload_at, wire.params_at


def rows_of(count: int, width: int, seed: int) -> Int8Rows:
    """Rows of every magnitude, one row of zeros, one with all possible codes, and some with a NaN or an infinity."""
    x = drawn.random_rows(count, width, seed=seed) * 10.0 ** torch.linspace(-38, 37, count)[:, None]
    x[count // 2 : count // 2 + 1] = 0
    x[:1] = torch.arange(width) % (2 * MOST_CODE + 1) - MOST_CODE
    for row, column, bad in ((3, 0, torch.nan), (4, -1, torch.inf), (5, width // 2, -torch.inf)):
        x[row : row + 1, column:][:, :1] = bad
    return quantize_rows(x, key=KEY, backend="reference")


def new_rows(count: int, width: int) -> Int8Rows:
    return Int8Rows(torch.full((count, width), 99, dtype=torch.int8), torch.full((count,), 9.0))


def check_codes(backend: str, width: int, count: int, num_rows: int, aligned: bool, seed: int, on: int) -> None:
    """Encode ``count`` rows in any order; decode them to codes and scales, and to float32 without rounding."""
    count = min(count, 200) if backend == "triton" else count  # few rows, because it is interpreted
    rng = np.random.default_rng(seed)
    rows, chosen = rows_of(num_rows, width, seed), torch.from_numpy(rng.integers(0, max(num_rows, 1), count))
    wire, targets = make_wire(count, width, 8, seed, aligned), torch.from_numpy(rng.permutation(count + 9)[:count])
    codes, scale = rows.codes[chosen], rows.scale[chosen]
    params = torch.stack((-128 * scale, scale), 1).bfloat16()
    params.view(torch.int16)[params.isnan()] = 0x7FC0
    found, numbers, wanted = new_rows(count + 9, width), torch.full((count + 9, width), 7.0), new_rows(count + 9, width)
    wanted.codes[targets], wanted.scale[targets] = codes, scale
    wanted_numbers = numbers.clone()
    wanted_numbers[targets] = codes.float() * scale[:, None]
    with drawn.on_threads(on):
        assert encode_codes(rows, chosen, *places(wire), backend=backend) == scale.isnan().sum()
        assert decode_codes(*places(wire), found, targets, backend=backend) == 0
        assert decode_rows(*places(wire), 8, numbers, targets, backend=backend) == scale.isnan().sum()
    expected, bits_of_nan = wire.holding((codes.int() + 128).to(torch.uint8), params.view(torch.uint8)), scale.isnan()
    written = wire.params_at[bits_of_nan][:, None] + torch.arange(4)  # these bits may differ
    assert bool(wire.buffer[written].view(torch.bfloat16).isnan().all())
    wire.buffer[written] = expected[written]
    assert torch.equal(wire.buffer, expected)
    assert torch.equal(found.codes, wanted.codes)
    assert_same(found.scale, wanted.scale)
    assert_same(numbers, wanted_numbers)


def test_codes_are_written_and_read_as_defined(backend: str) -> None:
    """A row in trouble is counted and arrives as NaN; the bytes between rows, and rows that are not named, stay unchanged."""

    @drawn.budget(backend, 60)
    @given(
        width=drawn.widths, count=st.integers(0, 70), num_rows=st.integers(1, 60), aligned=st.booleans(), seed=drawn.seeds,
        on=drawn.threads,
    )  # fmt: skip
    @example(width=1, count=60, num_rows=20, aligned=False, seed=1, on=2)
    @example(width=16, count=60, num_rows=41, aligned=True, seed=2, on=3)
    @example(width=33, count=60, num_rows=41, aligned=False, seed=3, on=1)
    @example(width=602, count=60, num_rows=41, aligned=False, seed=4, on=2)
    @example(width=65, count=17_000, num_rows=300, aligned=True, seed=5, on=2)
    @example(width=0, count=5, num_rows=5, aligned=False, seed=6, on=2)
    @example(width=7, count=0, num_rows=0, aligned=False, seed=7, on=2)
    def holds(**case: Any) -> None:
        check_codes(backend, **case)

    holds()


def test_rows_that_were_rounded_for_the_wire_are_told_apart(backend: str) -> None:
    """A row with a grid between its smallest and its largest value has another zero-point."""
    x = drawn.random_rows(30, 40, seed=0)
    rows, wire = quantize_rows(x, key=KEY), make_wire(30, 40, 8, seed=0)
    given_at, others = torch.arange(0, 30, 3), torch.tensor([n for n in range(30) if n % 3])
    of_given = wire.buffer, wire.payload_at[given_at], wire.params_at[given_at]
    encode_codes(rows, given_at, *of_given, backend=backend)
    encode_rows(x, others, 8, KEY, wire.buffer, wire.payload_at[others], wire.params_at[others], backend=backend)
    assert decode_codes(*places(wire), new_rows(30, 40), torch.arange(30), backend=backend) == others.numel()
    assert decode_codes(*of_given, new_rows(30, 40), given_at, backend=backend) == 0
