"""Rows of a wire buffer: each backend writes and reads the same bytes at any places, and no other bytes."""

from __future__ import annotations

import numpy as np
import torch
import under_test as drawn
from hypothesis import strategies as st
from under_test import compared_with, on_every_backend, on_threads, segment_of
from wires import assert_same, assert_same_rows, encoded, make_wire

from hpcgnn.kernels import Csr, keyed, spmm
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import MESSAGES
from hpcgnn.kernels.int8 import MOST_CODE, Int8Rows, quantize_rows
from hpcgnn.kernels.messages import adder, decode_codes, decode_rows, encode_codes, encode_rows, encoder, spmm_rows
from hpcgnn.kernels.packing import payload_bytes

KEY = keyed.derive_key(4, 5, 6)
COMMON = {"width": drawn.widths, "seed": drawn.seeds, "on": st.integers(1, 3)}


@on_every_backend(
    80,
    {"width": 1, "count": 70, "before": 70_000, "bits": 8, "key": 2**64 - 1, "aligned": False, "seed": 9, "on": 3},
    {"width": 7, "count": 0, "before": 0, "bits": 4, "key": None, "aligned": False, "seed": 16, "on": 2},
    {"width": 0, "count": 5, "before": 0, "bits": 2, "key": KEY, "aligned": False, "seed": 15, "on": 2},
    *({"width": 129, "count": 70, "before": 0, "bits": bits, "key": KEY, "aligned": True, "seed": 1, "on": 2}
      for bits in drawn.BITS),
    count=st.integers(0, 70), before=st.sampled_from([0, 300]), bits=st.sampled_from(drawn.BITS), key=drawn.keys,
    aligned=st.booleans(), **COMMON,
)  # fmt: skip
def test_rows_are_written_and_read(backend, width, count, before, bits, key, aligned, seed, on):
    """Encode ``count`` rows in any order, from row number ``before`` on, then write and add them to any rows of a result; another
    backend gives the same bytes and values.

    A row counts once as not finite. A finite number that bfloat16 cannot hold becomes an infinity only for the receiver.
    """
    rng = np.random.default_rng(seed)
    x = drawn.rows_of_all_kinds(width, seed)
    rows = torch.from_numpy(rng.permutation(max(count, x.shape[0]))[:count] % x.shape[0]) + before
    x = torch.cat((torch.zeros(before, width), x))
    payload, params, decoded = encoded(x, rows, bits, key, compared_with(backend))
    wire, targets = make_wire(count, width, bits, seed, aligned), torch.from_numpy(rng.permutation(count + 9)[:count])
    out = torch.from_numpy(rng.standard_normal((count + 9, width), np.float32))
    sent, received = ((~values.isfinite()).any(1).sum() for values in (x[rows], decoded if bits == 16 else x[rows]))
    with on_threads(on):
        assert encode_rows(x, rows, bits, key, wire.buffer, *wire.at(bits), backend=backend) == sent
        assert torch.equal(wire.buffer, wire.holding(payload, params))
        again = make_wire(count, width, bits, seed, aligned).buffer
        kernels = choose(MESSAGES, backend, x=x)
        assert encoder(kernels, rows, bits, *wire.at(bits), width)(x, key, again) == sent
        assert torch.equal(again, wire.buffer)
        for accumulate in (False, True):
            wanted = out.clone()
            wanted[targets] = wanted[targets] + decoded if accumulate else decoded
            assert decode_rows(wire.buffer, *wire.at(bits), bits, out, targets, accumulate, backend=backend) == received
            assert_same(out, wanted)


def test_large_results_go_past_the_caches_and_are_the_same() -> None:
    count, width, generator = 70_000, 64, torch.Generator().manual_seed(0)
    rows = torch.randperm(count, generator=generator)
    for bits in drawn.BITS:
        buffer = torch.randint(0, 256, (4 * count * (width + 1),), dtype=torch.uint8, generator=generator)
        payload_at = torch.arange(count) * payload_bytes(width, bits)
        params_at = buffer.numel() - 4 - 4 * torch.arange(count)
        whole, parts = torch.empty(2, count, width)
        decode_rows(buffer, payload_at, params_at, bits, whole, rows, backend="native")
        for part in (slice(0, count // 2), slice(count // 2, None)):
            decode_rows(buffer, payload_at[part], params_at[part], bits, parts, rows[part], backend="native")
        assert_same(whole, parts)


def test_parameters_alone_are_looked_at(backend: str) -> None:
    buffer, places = torch.zeros(64, dtype=torch.uint8), torch.tensor([0, 8, 16])
    params = torch.tensor([[torch.inf, 1.0], [0.0, torch.nan], [1.0, 2.0]])
    buffer[32:44] = params.bfloat16().view(torch.uint8).flatten()
    out, rows = torch.empty(3, 8), torch.arange(3)
    assert decode_rows(buffer, places, 32 + 4 * rows, 8, out, rows, backend=backend) == 2
    assert out[2].tolist() == [1.0] * 8


@on_every_backend(
    80,
    {"width": 40, "bits": 2, "rows": 3000, "columns": 700, "hubs": 1, "weighted": True, "seed": 12, "on": 3},
    {"width": 3, "bits": 8, "rows": 2, "columns": 0, "hubs": 0, "weighted": False, "seed": 14, "on": 2},
    {"width": 3, "bits": 1, "rows": 0, "columns": 5, "hubs": 0, "weighted": True, "seed": 16, "on": 2},
    {"width": 0, "bits": 4, "rows": 2, "columns": 4, "hubs": 0, "weighted": False, "seed": 18, "on": 2},
    *({"width": 61, "bits": bits, "rows": 10, "columns": 30, "hubs": 3, "weighted": bits in (1, 8, 32), "seed": 1, "on": 2}
      for bits in drawn.BITS),
    bits=st.sampled_from(drawn.BITS), rows=st.integers(0, 40), columns=st.integers(0, 60), hubs=st.integers(0, 3),
    weighted=st.booleans(), **COMMON,
)  # fmt: skip
def test_sums_of_rows_are_those_of_decoded_rows(backend, width, bits, rows, columns, hubs, weighted, seed, on):
    """Compare with spmm of decoded rows, bit for bit: by numba, and natively; other backends sum in another order. Heavy rows are
    cut into segments, which threads share.
    """
    rng, segment = np.random.default_rng(seed), segment_of(backend)
    if backend == "triton":  # few rows, because it is interpreted
        rows, columns = min(rows, 60), min(columns, 60)
    hubs = min(hubs, rows)
    lengths = rng.integers(0, 12, rows)
    lengths[:hubs] = [segment + 1, 2 * segment + 5, segment][:hubs]
    indptr = np.concatenate(([0], np.cumsum(rng.permutation(lengths) * (columns > 0), dtype=np.int64)))
    weight = rng.standard_normal(indptr[-1]).astype(np.float32) if weighted else None
    csr = Csr(indptr, rng.integers(0, max(columns, 1), indptr[-1]), columns, weight)
    x = drawn.random_rows(columns, width, seed=seed) * 10 ** rng.uniform(-2, 2)
    x[: seed % 2] = torch.nan
    payload, params, decoded = encoded(x, torch.arange(columns), bits, KEY)
    wire = make_wire(columns, width, bits, seed, aligned=weighted)
    out = torch.from_numpy(rng.standard_normal((rows, width), np.float32))
    with on_threads(on):
        expected = spmm(csr, decoded, out=out.clone(), backend="jit" if backend == "native" else backend)
        again = out.clone()
        spmm_rows(csr, wire.holding(payload, params), *wire.at(bits), bits, width, out, backend=backend)
        add = adder(choose(MESSAGES, backend, x=x), csr, *wire.at(bits), bits, width)
        add(wire.holding(payload, params), again)
    assert_same(out, expected)
    assert_same(again, expected)


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


@on_every_backend(
    60,
    {"width": 65, "count": 17_000, "num_rows": 300, "aligned": True, "seed": 5, "on": 2},
    {"width": 7, "count": 0, "num_rows": 0, "aligned": False, "seed": 7, "on": 2},
    {"width": 0, "count": 5, "num_rows": 5, "aligned": False, "seed": 6, "on": 2},
    count=st.integers(0, 70), num_rows=st.integers(1, 60), aligned=st.booleans(), **COMMON,
)  # fmt: skip
def test_codes_are_written_and_read(backend, width, count, num_rows, aligned, seed, on):
    """Encode ``count`` rows in any order; decode them to codes and scales, and to float32 without rounding.

    A row in trouble is counted and arrives as NaN; the bytes between rows, and rows that are not named, stay unchanged.
    """
    count = min(count, 200) if backend == "triton" else count  # few rows, because it is interpreted
    rng = np.random.default_rng(seed)
    rows, chosen = rows_of(num_rows, width, seed), torch.from_numpy(rng.integers(0, max(num_rows, 1), count))
    wire, targets = make_wire(count, width, 8, seed, aligned), torch.from_numpy(rng.permutation(count + 9)[:count])
    places = wire.buffer, *wire.at(8)
    codes, scale = rows.codes[chosen], rows.scale[chosen]
    params = torch.stack((-128 * scale, scale), 1).bfloat16()
    params.view(torch.int16)[params.isnan()] = 0x7FC0
    found, numbers, wanted = new_rows(count + 9, width), torch.full((count + 9, width), 7.0), new_rows(count + 9, width)
    wanted.codes[targets], wanted.scale[targets] = codes, scale
    wanted_numbers = numbers.clone()
    wanted_numbers[targets] = codes.float() * scale[:, None]
    with on_threads(on):
        assert encode_codes(rows, chosen, *places, backend=backend) == scale.isnan().sum()
        assert decode_codes(*places, found, targets, backend=backend) == 0
        assert decode_rows(*places, 8, numbers, targets, backend=backend) == scale.isnan().sum()
    expected = wire.holding((codes.int() + 128).to(torch.uint8), params.view(torch.uint8))
    written = wire.params_at[scale.isnan()][:, None] + torch.arange(4)  # the bits of a NaN may differ
    assert bool(wire.buffer[written].view(torch.bfloat16).isnan().all())
    wire.buffer[written] = expected[written]
    assert torch.equal(wire.buffer, expected)
    assert_same_rows(found, wanted)
    assert_same(numbers, wanted_numbers)


def test_rows_that_were_rounded_for_the_wire_are_told_apart(backend: str) -> None:
    """A row with a grid between its smallest and its largest value has another zero-point."""
    x = drawn.random_rows(30, 40, seed=0)
    rows, wire = quantize_rows(x, key=KEY), make_wire(30, 40, 8, seed=0)
    given_at, others = torch.arange(0, 30, 3), torch.tensor([n for n in range(30) if n % 3])
    of_given = wire.buffer, wire.payload_at[given_at], wire.params_at[given_at]
    encode_codes(rows, given_at, *of_given, backend=backend)
    encode_rows(x, others, 8, KEY, wire.buffer, wire.payload_at[others], wire.params_at[others], backend=backend)
    all_places = wire.buffer, *wire.at(8)
    assert decode_codes(*all_places, new_rows(30, 40), torch.arange(30), backend=backend) == others.numel()
    assert decode_codes(*of_given, new_rows(30, 40), given_at, backend=backend) == 0
