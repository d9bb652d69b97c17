"""Rows of 8-bit integers in a wire buffer: their values are preserved, and the bytes are those of the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from under_test import BACKENDS

from hpcgnn.kernels import keyed
from hpcgnn.kernels.int8 import MOST_CODE, Int8Rows, quantize_rows
from hpcgnn.kernels.int8_messages import decode_codes, encode_codes
from hpcgnn.kernels.messages import decode_rows, encode_rows

KEY = keyed.derive_key(9, 9)
WIDTHS = [1, 3, 16, 33, 64, 100, 256, 602]
UNTOUCHED, PARAMS_BYTES = 0xA5, 4
NONE = torch.zeros(0, dtype=torch.int64)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@dataclass
class Wire:
    """A buffer, and the places of rows in it: in any order and with gaps; the last payload ends with the buffer."""

    buffer: torch.Tensor
    payload_at: torch.Tensor
    params_at: torch.Tensor

    @property
    def places(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.buffer, self.payload_at, self.params_at

    def gaps(self, width: int) -> torch.Tensor:
        """The bytes that belong to no row."""
        free = torch.ones(self.buffer.numel(), dtype=torch.bool)
        free[self.payload_at[:, None] + torch.arange(width)] = False
        free[self.params_at[:, None] + torch.arange(PARAMS_BYTES)] = False
        return self.buffer[free]


def make_wire(count: int, width: int) -> Wire:
    rng = np.random.default_rng(width)
    params = PARAMS_BYTES * rng.permutation(3 * count)[:count]
    ends = 3 * PARAMS_BYTES * count + 3 + np.cumsum(width + rng.integers(0, 9, count))
    buffer = torch.full((int(ends[-1]) if count else 0,), UNTOUCHED, dtype=torch.uint8)
    return Wire(buffer, torch.from_numpy(rng.permutation(ends - width)), torch.from_numpy(params))


def rows_of(count: int, width: int) -> Int8Rows:
    """Rows of every magnitude, one row of zeros, and one with all possible codes."""
    x = torch.randn(count, width) * 10.0 ** torch.linspace(-38, 37, count)[:, None]
    x[count // 2] = 0
    x[0] = torch.arange(width) % (2 * MOST_CODE + 1) - MOST_CODE
    return quantize_rows(x, key=KEY, backend="reference")


def like(rows: Int8Rows) -> Int8Rows:
    """Space for decoded rows."""
    return Int8Rows(torch.full_like(rows.codes, 99), torch.full_like(rows.scale, 9.0))


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_decoded_is_what_the_codes_stand_for(backend, width):
    """Decoded as float32 without rounding, and as codes and scales; neighbouring rows stay unchanged."""
    rows, chosen = rows_of(41, width), torch.tensor([20, 0, 7, 40, 8, 0])  # one row occurs twice
    wire = make_wire(chosen.numel(), width)
    assert encode_codes(rows, chosen, *wire.places, backend=backend) == 0
    assert bool((wire.gaps(width) == UNTOUCHED).all())
    decoded, places = torch.full((9, width), 7.0), torch.tensor([5, 0, 8, 3, 1, 6])
    assert decode_rows(*wire.places, 8, decoded, places, backend=backend) == 0
    assert torch.equal(decoded[places], rows.float()[chosen])
    found = Int8Rows(torch.full((9, width), 99, dtype=torch.int8), torch.full((9,), 9.0))
    assert decode_codes(*wire.places, found, places, backend=backend) == 0
    assert torch.equal(found.codes[places], rows.codes[chosen])
    assert torch.equal(found.scale[places], rows.scale[chosen])
    assert bool((decoded[[2, 4, 7]] == 7).all())
    assert bool((found.codes[[2, 4, 7]] == 99).all())
    assert found.scale[[2, 4, 7]].tolist() == [9.0] * 3


@pytest.mark.parametrize("width", WIDTHS)
def test_bytes_are_those_of_the_reference(backend, width):
    rows, chosen = rows_of(300, width), torch.from_numpy(np.random.default_rng(2).permutation(300)[:257])
    rows.scale[chosen[3]] = torch.nan
    expected, found = make_wire(257, width), make_wire(257, width)
    assert encode_codes(rows, chosen, *expected.places, backend="reference") == 1
    assert encode_codes(rows, chosen, *found.places, backend=backend) == 1
    nan = torch.zeros(found.buffer.numel(), dtype=torch.bool)  # the bits of NaNs may differ
    nan[found.params_at[3] + torch.arange(PARAMS_BYTES)] = True
    assert torch.equal(found.buffer[~nan], expected.buffer[~nan])
    assert bool(found.buffer[nan].view(torch.bfloat16).isnan().all())
    places = torch.arange(257)
    decoded = [like(Int8Rows(rows.codes[:257], rows.scale[:257])) for _ in range(2)]
    for out, name in zip(decoded, ("reference", backend), strict=True):
        assert decode_codes(*found.places, out, places, backend=name) == 0
    assert torch.equal(decoded[0].codes, decoded[1].codes)
    torch.testing.assert_close(decoded[0].scale, decoded[1].scale, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", [1, 40, 256])
def test_a_row_in_trouble_is_counted_and_arrives_as_nan(backend, width):
    x = torch.randn(20, width)
    x[3, 0], x[4, width - 1], x[5] = torch.nan, torch.inf, -torch.inf
    rows, all_rows, wire = quantize_rows(x, key=KEY), torch.arange(20), make_wire(20, width)
    assert encode_codes(rows, all_rows, *wire.places, backend=backend) == 3
    decoded, found = torch.zeros(20, width), like(rows)
    assert decode_rows(*wire.places, 8, decoded, all_rows, backend=backend) == 3
    troubled = (all_rows >= 3) & (all_rows <= 5)
    assert torch.equal(decoded.isnan(), troubled[:, None].expand(20, width))
    assert torch.equal(decoded[~troubled], rows.float()[~troubled])
    assert decode_codes(*wire.places, found, all_rows, backend=backend) == 0, "they are of the form"
    assert torch.equal(found.scale.isnan(), troubled)
    assert torch.equal(found.codes, rows.codes)


def test_rows_that_were_rounded_for_the_wire_are_told_apart(backend):
    """A row with a grid between its smallest and its largest value has another zero-point."""
    x = torch.randn(30, 40)
    rows, wire = quantize_rows(x, key=KEY), make_wire(30, 40)
    given, others = torch.arange(0, 30, 3), torch.tensor([n for n in range(30) if n % 3])
    for chosen in (given, others):
        places = wire.buffer, wire.payload_at[chosen], wire.params_at[chosen]
        if chosen is given:
            encode_codes(rows, chosen, *places, backend=backend)
        else:
            encode_rows(x, chosen, 8, KEY, *places, backend=backend)
    assert decode_codes(*wire.places, like(rows), torch.arange(30), backend=backend) == others.numel()
    of_given = wire.buffer, wire.payload_at[given], wire.params_at[given]
    assert decode_codes(*of_given, like(rows), given, backend=backend) == 0


@pytest.mark.parametrize("shape", [(5, 0), (0, 0), (0, 7)])
def test_no_rows_and_no_columns(backend, shape):
    rows = Int8Rows(torch.zeros(shape, dtype=torch.int8), torch.ones(shape[0]))
    wire = Wire(torch.full((4 * shape[0],), UNTOUCHED, dtype=torch.uint8), NONE, NONE)
    assert encode_codes(rows, NONE, *wire.places, backend=backend) == 0
    assert decode_codes(*wire.places, rows, NONE, backend=backend) == 0
    assert bool((wire.buffer == UNTOUCHED).all())
    if shape[0]:
        at, chosen = PARAMS_BYTES * torch.arange(5), torch.arange(5)
        assert encode_codes(rows, chosen, wire.buffer, at, at, backend=backend) == 0
        found = like(rows)
        assert decode_codes(wire.buffer, at, at, found, chosen, backend=backend) == 0
        assert found.scale.tolist() == [1.0] * 5


def test_threads_do_not_change_a_byte():
    rows, chosen = rows_of(5000, 65), torch.from_numpy(np.random.default_rng(2).permutation(5000))
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            wire, found = make_wire(5000, 65), like(rows)
            encode_codes(rows, chosen, *wire.places, backend="native")
            decode_codes(*wire.places, found, chosen, backend="native")
            results.append([wire.buffer, found.codes, found.scale])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert torch.equal(results[0][1], rows.codes)
