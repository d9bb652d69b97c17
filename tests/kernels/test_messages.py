"""Rows of a wire buffer: each backend writes and reads the same bytes at any places, and no other bytes."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import drawn
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from under_test import compared_with, not_refused, segment_of
from wires import assert_same, assert_same_rows, encoded, make_wire

from hpcgnn.kernels import Csr, keyed, spmm
from hpcgnn.kernels.backend import choose
from hpcgnn.kernels.contract import MESSAGES
from hpcgnn.kernels.int8 import MOST_CODE, Int8Rows, quantize_rows
from hpcgnn.kernels.messages import adder, decode_codes, decode_rows, encode_codes, encode_rows, encoder, spmm_rows
from hpcgnn.kernels.packing import payload_bytes

KEY = keyed.derive_key(4, 5, 6)


def check_message(
    backend: str, width: int, count: int, before: int, bits: int, key: int | None, aligned: bool, seed: int, on: int
) -> None:
    """Encode ``count`` rows in any order, from row number ``before`` on, then write and add them to any rows of a result; another
    backend gives the same bytes and values.
    """
    rng = np.random.default_rng(seed)
    x = drawn.rows_of_all_kinds(width, seed)
    rows = torch.from_numpy(rng.permutation(max(count, x.shape[0]))[:count] % x.shape[0]) + before
    x = torch.cat((torch.zeros(before, width), x))
    payload, params, decoded = encoded(x, rows, bits, key, compared_with(backend))
    wire, targets = make_wire(count, width, bits, seed, aligned), torch.from_numpy(rng.permutation(count + 9)[:count])
    out = torch.from_numpy(rng.standard_normal((count + 9, width), np.float32))
    sent, received = ((~values.isfinite()).any(1).sum() for values in (x[rows], decoded if bits == 16 else x[rows]))
    with drawn.on_threads(on):
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


def test_rows_are_written_and_read(backend: str) -> None:
    """A row counts once as not finite. A finite number that bfloat16 cannot hold becomes an infinity only for the receiver."""
    check = functools.partial(check_message, backend)
    for turn, (bits, key) in enumerate(itertools.product(drawn.BITS, (KEY, None))):
        for width in drawn.widths_of(turn):
            check(width, 70, 0, bits, key, aligned=turn % 3 == 0, seed=turn, on=1 + turn % 3)
    check(1, 70, 70_000, 8, 2**64 - 1, aligned=False, seed=9, on=3)
    check(7, 0, 0, 4, None, aligned=False, seed=16, on=2)
    check(0, 5, 0, 2, KEY, aligned=False, seed=15, on=2)
    drawn.hold(
        check_message, backend, 60, width=drawn.widths, count=st.integers(0, 70), before=st.sampled_from([0, 300]),
        bits=st.sampled_from(drawn.BITS), key=drawn.keys, aligned=st.booleans(), seed=drawn.seeds, on=drawn.threads,
    )  # fmt: skip


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


def check_sums(
    backend: str, width: int, bits: int, rows: int, columns: int, hubs: int, weighted: bool, seed: int, on: int
) -> None:
    """Compare with spmm of decoded rows, bit for bit: by numba, and natively; other backends sum in another order."""
    rng, segment = np.random.default_rng(seed), segment_of(backend)
    rows, hubs = min(rows, 60) if backend == "triton" else rows, min(hubs, rows)  # few rows, because it is interpreted
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
    with drawn.on_threads(on):
        expected, again = (
            spmm(csr, decoded, out=out.clone(), backend="jit" if backend == "native" else backend),
            out.clone(),
        )
        spmm_rows(csr, wire.holding(payload, params), *wire.at(bits), bits, width, out, backend=backend)
        add = adder(choose(MESSAGES, backend, x=x), csr, *wire.at(bits), bits, width)
        add(wire.holding(payload, params), again)
    assert_same(out, expected)
    assert_same(again, expected)


def test_sums_of_rows_are_those_of_decoded_rows(backend: str) -> None:
    """Heavy rows are cut into segments, which threads share."""
    check = functools.partial(check_sums, backend)
    for turn, (bits, weighted) in enumerate(itertools.product(drawn.BITS, (False, True))):
        for width in drawn.widths_of(turn):
            check(width, bits, 10, 30 if turn % 2 else 500, turn % 4, weighted, seed=turn, on=1 + turn % 3)
    check(40, 2, 3000, 700, 1, weighted=True, seed=12, on=3)
    check(3, 8, 2, 0, 0, weighted=False, seed=14, on=2)
    check(3, 1, 0, 5, 0, weighted=True, seed=16, on=2)
    check(0, 4, 2, 4, 0, weighted=False, seed=18, on=2)

    drawn.hold(
        check_sums, backend, 60,
        width=st.sampled_from([*drawn.WIDTHS, 61, 200, 512]), bits=st.sampled_from(drawn.BITS), rows=st.integers(0, 40),
        columns=st.integers(0, 60), hubs=st.integers(0, 3), weighted=st.booleans(), seed=drawn.seeds, on=drawn.threads,
    )  # fmt: skip


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
    places = wire.buffer, *wire.at(8)
    codes, scale = rows.codes[chosen], rows.scale[chosen]
    params = torch.stack((-128 * scale, scale), 1).bfloat16()
    params.view(torch.int16)[params.isnan()] = 0x7FC0
    found, numbers, wanted = new_rows(count + 9, width), torch.full((count + 9, width), 7.0), new_rows(count + 9, width)
    wanted.codes[targets], wanted.scale[targets] = codes, scale
    wanted_numbers = numbers.clone()
    wanted_numbers[targets] = codes.float() * scale[:, None]
    with drawn.on_threads(on):
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


def test_codes_are_written_and_read(backend: str) -> None:
    """A row in trouble is counted and arrives as NaN; the bytes between rows, and rows that are not named, stay unchanged."""
    check = functools.partial(check_codes, backend)
    for turn in range(6):
        for width in drawn.widths_of(turn):
            check(width, 60, 41, aligned=turn % 2 == 0, seed=turn, on=1 + turn % 3)
    check(65, 17_000, 300, aligned=True, seed=5, on=2)
    check(7, 0, 0, aligned=False, seed=7, on=2)
    check(0, 5, 5, aligned=False, seed=6, on=2)

    drawn.hold(
        check_codes, backend, 60,
        width=drawn.widths, count=st.integers(0, 70), num_rows=st.integers(1, 60), aligned=st.booleans(), seed=drawn.seeds,
        on=drawn.threads,
    )  # fmt: skip


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


def arguments() -> dict[str, Any]:
    """Correct arguments for all functions: 4 rows of 3 columns in 2 bits."""
    places = torch.arange(4) * 8
    return {"bits": 2, "buffer": torch.zeros(32, dtype=torch.uint8), "payload_at": places, "params_at": places + 4}


OF_PLACES = [
    ({"bits": 3}, "bits"),
    ({"buffer": torch.zeros(32)}, "buffer"),
    ({"buffer": torch.zeros(4, 8, dtype=torch.uint8)}, "buffer"),
    ({"buffer": torch.zeros(64, dtype=torch.uint8)[::2]}, "buffer"),
    ({"payload_at": torch.arange(3)}, "payload_at"),
    ({"payload_at": torch.arange(4, dtype=torch.int32)}, "payload_at"),
    ({"payload_at": torch.arange(8)[::2]}, "payload_at"),
    ({"payload_at": torch.tensor([0, 1, 2, 32])}, r"payload_at must lie in \[0, 31\]"),
    ({"payload_at": torch.tensor([0, 1, 2, -1])}, "payload_at"),
    ({"params_at": torch.tensor([0, 1, 2, 29])}, r"params_at must lie in \[0, 28\]"),
    ({"params_at": torch.tensor([-4, 1, 2, 3])}, "params_at"),
    ({"params_at": torch.arange(5)}, "params_at"),
    ({"params_at": None}, "params_at"),
]
OF_ROWS = [
    ({"rows": torch.tensor([0, 1, 2, 4])}, "rows must lie"),
    ({"rows": torch.tensor([0, -1, 2, 3])}, "rows must lie"),
    ({"rows": torch.arange(4.0)}, "rows"),
]


def sharing(name: str) -> tuple[dict[str, torch.Tensor], str]:
    memory = torch.zeros(48, dtype=torch.uint8)
    return {name: memory.view(torch.float32).view(4, 3), "buffer": memory}, f"{name} must not share memory with buffer"


def test_wrong_arguments_are_refused_by_name() -> None:
    csr, ones = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 3]), 4), torch.ones(4, 3)
    wrong_of_encode = [
        *OF_ROWS,
        sharing("x"),
        ({"x": ones.double()}, "x must"),
        ({"x": torch.ones(3, 4).T}, "x must"),
        ({"x": torch.ones(12)}, "x must"),
        ({"key": -1}, "key"),
        ({"key": 2**64}, "key"),
    ]
    wrong_of_decode = [
        *OF_ROWS,
        sharing("out"),
        ({"out": ones.double()}, "out must"),
        ({"out": torch.ones(3, 4).T}, "out must"),
        ({"rows": torch.tensor([0, 1, 2, 1])}, "rows must name each row at most once"),
    ]
    wrong_of_sums = [
        ({"out": torch.ones(2, 3).double()}, "out must"),
        ({"out": torch.ones(3, 2).T}, "out must"),
        ({"out": torch.ones(3, 3)}, "out must"),
        ({"num_columns": 2}, "out must"),
        ({"csr": Csr(csr.indptr, csr.indices, 4, torch.ones(2).double())}, "csr.weight"),
        ({"csr": Csr(csr.indptr, csr.indices, 5)}, "payload_at must hold 5"),
    ]
    for function, right, wrong in (
        (encode_rows, {"x": ones, "rows": torch.arange(4), "key": KEY}, wrong_of_encode),
        (decode_rows, {"out": ones, "rows": torch.arange(4)}, wrong_of_decode),
        (spmm_rows, {"csr": csr, "out": torch.ones(2, 3), "num_columns": 3}, wrong_of_sums),
    ):
        right |= arguments()
        calls = [(named, functools.partial(function, **(right | override))) for override, named in OF_PLACES + wrong]
        assert not_refused(calls) == []


def test_without_checks_only_shapes_are_looked_at() -> None:
    x, wire, rows = torch.randn(4, 3), arguments(), torch.arange(4)
    assert encode_rows(x, rows, key=KEY, check=False, **wire) == 0
    out = torch.empty(4, 3)
    assert decode_rows(out=out, rows=rows, check=False, **wire) == 0
    assert_same(out, encoded(x, rows, 2, KEY)[2])
    with pytest.raises(ValueError, match="payload_at"):
        encode_rows(x, rows, key=KEY, check=False, **wire | {"payload_at": torch.arange(3)})
