"""The choice between adding up codes and decoding rows first, which changes speed and no result; and ranges of rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from ranks import exchanges

from hpcgnn.comm import World
from hpcgnn.comm.codecs.packed import fuses, reads_codes_faster
from hpcgnn.comm.thread_world import on_threads
from hpcgnn.kernels.int8 import Int8Rows

MANY = 10**6  # entries of a matrix that names each row many times


def fused(bits: int, width: int, entries: int, rows: int) -> bool:
    matrix: Any = SimpleNamespace(num_entries=entries, num_cols=rows)
    return fuses(bits, matrix, width)


def test_rows_are_added_from_codes_where_this_is_faster() -> None:
    for bits in (1, 2, 4):  # they are read again for each entry, unless rows are narrow
        assert fused(bits, 64, MANY, 1000)
        assert fused(bits, 63, 4000, 1000)
        assert not fused(bits, 63, 4001, 1000)
    assert not fused(8, 256, MANY, 1000)  # 1 MB of decoded rows fits into a cache
    assert fused(8, 256, MANY, 10_000)
    assert fused(8, 63, MANY, MANY)
    assert not fused(8, 63, MANY + 1, MANY)
    for bits, entries_per_row in ((16, 4), (32, 1)):
        assert fused(bits, 256, entries_per_row * MANY, MANY)
        assert not fused(bits, 256, entries_per_row * MANY + 1, MANY)
        assert not reads_codes_faster(bits, MANY, 256)


def test_sums_of_double_precision_have_the_same_rows() -> None:
    """The kernel that adds rows from codes is of single precision, so other sums take decoded rows."""

    def program(world: World) -> bool:
        rows = exchanges.outgoing(world, 40)
        single, double = (exchanges.moved(exchanges.make(world, bits=2), values) for values in (rows, rows.double()))
        return torch.equal(double, single.double())

    assert on_threads(2, program) == [True, True]


def test_rows_that_were_floats_are_not_received_as_integers() -> None:
    """Rows that were integers are, see test_rows_of_the_halo_arrive_as_the_integers_that_they_are in tests/nn."""

    def program(world: World) -> list[bool]:
        found = []
        for coding, bits in (("plain", 8), ("delta", 8), ("plain", 4), ("plain", 32)):
            exchange = exchanges.make(world, bits=bits, message_coding=coding)
            message = exchanges.started(exchange, exchanges.outgoing(world, 40))
            exchange.wait(message)
            count = int(exchange.receive_counts.sum())
            out = Int8Rows(torch.empty(count, 40, dtype=torch.int8), torch.empty(count))
            found.append(message.codec.received_codes(message.received, out))
        return found

    assert on_threads(2, program) == [[False] * 4] * 2


def test_ranges_of_rows_are_mean_squares_since_they_were_last_taken() -> None:
    def program(world: World) -> None:
        exchange, rows = exchanges.make(world, bits=8), exchanges.outgoing(world, 40)
        ranges, wanted = exchange.trace_ranges(), (rows.amax(1) - rows.amin(1)).double() ** 2
        for factor in (1, 3):
            for _ in range(2):
                exchanges.moved(exchange, factor * rows)
            torch.testing.assert_close(torch.from_numpy(ranges.take()), factor**2 * wanted, rtol=0.02, atol=0)

    on_threads(3, program)
