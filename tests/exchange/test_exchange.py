"""Exchanges between ranks: received rows, rounding, counters, their order, and the layout of rows in a buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_pool import ThreadPool
from ranks import exchanges

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import MESSAGE_BITS
from hpcgnn.exchange.codecs import fuses
from hpcgnn.exchange.layout import BLOCK_BYTES, make_layout
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.world import World
from hpcgnn.world import world as world_module
from hpcgnn.world.exchange_queue import ExchangeQueue, Piece
from hpcgnn.world.thread_world import on_threads


@pytest.fixture(params=[2, 4])
def ranks(request):
    return ThreadPool(request.param)


class TestExchange:
    @pytest.mark.parametrize("backend", [name for name in exchanges.BACKENDS if name != "triton"])
    def test_rows_arrive_within_a_step_of_their_grid(self, ranks, backend):
        ranks.run(exchanges.arrive_within_a_step, backend)

    @pytest.mark.parametrize("coding", ["plain", "delta"])
    @pytest.mark.parametrize("backend", [name for name in exchanges.BACKENDS if name != "triton"])
    def test_wide_columns_arrive_in_16_bits_and_leave_the_grid_to_the_others(self, ranks, backend, coding):
        ranks.run(exchanges.wide_columns, backend, coding)

    def test_each_row_may_have_bits_of_its_own(self, ranks):
        ranks.run(exchanges.mixed)

    @pytest.mark.slow
    def test_rounding_is_unbiased_over_epochs(self):
        """Of a thousand means, the farthest is expected within 5 standard errors; a bias of half a step would be 14."""
        errors = {bits: ThreadPool(2).run(exchanges.mean_error, bits)[0] for bits in (1, 4)}
        assert max(errors.values()) < 6, errors

    def test_differences_come_to_what_is_sent(self, ranks):
        for bits in (1, 2, 4):
            errors = ranks.run(exchanges.delta, bits)[0]
            assert errors[-1] <= 1e-3 * errors[0], bits

    def test_both_sides_keep_the_same(self, ranks):
        ranks.run(exchanges.kept)

    def test_a_value_that_is_no_number_is_named_with_its_exchange(self, ranks):
        sentences = ranks.run(exchanges.errors_of_nonfinite_rows)[0]
        assert len(sentences) == 6
        for sentence in sentences:
            assert sentence.startswith(f"layer 2's gradients of rank {ranks.size - 1} held NaN or infinite values")
            assert "in epoch 7" in sentence

    def test_more_than_mpi_can_count_is_refused_on_every_rank(self, ranks, monkeypatch):
        assert world_module.MOST_ROWS == 2**31 - 1  # counts and displacements are C ints
        monkeypatch.setattr(world_module, "MOST_ROWS", 999)
        rows, rows_in_few_bits, blocks = ranks.run(exchanges.too_many, 999)[0]
        for sentence in (rows, rows_in_few_bits):
            assert sentence.startswith("layer 3's boundary rows of rank 0 would be 1000 items")
        assert blocks.startswith("layer 3's boundary rows in blocks of 64 bytes of rank 0 would be 1280 items")

    def test_an_evaluation_is_exact_unless_asked_otherwise(self, ranks):
        ranks.run(exchanges.evaluation)


def test_bytes_for_ranks_of_other_nodes_are_counted_apart(monkeypatch):
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "2")

    def program(world: World) -> None:
        exchange = exchanges.make(world)
        exchanges.moved(exchange, exchanges.outgoing(world, 40))
        rows, away = exchange.send_counts, np.arange(4) // 2 != world.rank // 2
        found = exchange.messages.traffic.bytes()
        assert (found["bytes_sent"], found["bytes_between_nodes"]) == (rows.sum() * 160, rows[away].sum() * 160)

    on_threads(4, program)


def test_another_trainer_begins_without_the_differences_of_the_one_before():
    def program(world: World) -> None:
        exchange, rows = exchanges.make(world, bits=2, message_coding="delta"), exchanges.outgoing(world, 40)
        first = exchanges.moved(exchange, rows)
        exchange.messages.kept.begin(None)
        exchange.messages.begin_epoch(0)
        assert first.equal(exchanges.moved(exchange, rows))

    on_threads(2, program)


def test_what_an_exchange_refuses():
    def program(world: World) -> None:
        exchange = exchanges.make(world)
        bits = np.full(int(exchange.send_counts.sum()), 8)
        bits[-1] = 3 if world.rank else 8  # on one rank, but all say so
        with pytest.raises(HpcgnnError, match="bits must be of 1, 2, 4, 8, 16, 32, not 3"):
            exchange.assign_bits(bits)
        exchange, rows = exchanges.make(world), exchanges.outgoing(world, 40)
        message = exchanges.started(exchange, rows)
        with pytest.raises(RuntimeError, match=r"^layer 2's boundary rows cannot be sent while layer 1's"):
            exchanges.started(exchange.for_layer(1), rows)
        exchange.wait(message)

    on_threads(2, program)


def test_an_exchange_waits_for_those_before_it_in_the_queue():
    ready, started = set(), []

    def transfer(name):
        piece = Piece(SimpleNamespace(query=lambda: name in ready), None, None)
        return SimpleNamespace(what=name, neighbours=None, pieces=[piece], land=lambda: False)

    def start(send, received, what, neighbours):
        started.append(what)
        return SimpleNamespace(seconds=0.0, test=lambda: False)

    queue = ExchangeQueue(start)
    for name in ("first", "second", "third"):
        queue.put(transfer(name))
    for name, expected in (("second", []), ("first", ["first", "second"]), ("third", ["first", "second", "third"])):
        ready.add(name)
        queue.advance()
        assert started == expected


# -- codecs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "width", "entries", "device", "expected"),
    [
        (2, 256, 8000, "cpu", True),
        (8, 16, 32_000, "cpu", False),
        (8, 64, 10**6, "cuda", True),
        (16, 64, 10**6, "cuda", True),
        (16, 63, 10**6, "cuda", False),
        (32, 64, 10**6, "cuda", False),
        (32, 64, 1000, "cuda", True),
    ],
)
def test_rows_are_added_from_codes_where_this_is_faster(bits, width, entries, device, expected) -> None:
    """On the host, see tests/kernels/test_fusing.py."""
    matrix = SimpleNamespace(num_entries=entries, num_cols=1000, device=torch.device(device))
    assert fuses(bits, matrix, width) == expected


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


# -- over MPI ----------------------------------------------------------------------------------------------------------


@pytest.mark.mpi
class TestOverMpi:
    """Triton's interpreter, settings of threads, and patches are those of a process, so each rank is one."""

    @pytest.mark.parametrize(("size", "backend"), [(2, "triton"), (4, "auto")])
    def test_rows_arrive_and_their_bytes_are_counted_as_they_leave(self, mpi_ranks, size, backend):
        mpi_ranks(size).run(exchanges.arrive_within_a_step, backend)
        mpi_ranks(size).run(exchanges.counted_bytes)

    def test_what_the_noise_depends_on(self, mpi_ranks):
        mpi_ranks(2).run(exchanges.repeats)

    def test_decoding_in_registers_changes_no_bit(self, mpi_ranks):
        mpi_ranks(2).run(exchanges.fused)


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    width=st.integers(0, 70),
    seed=st.integers(0, 1000),
    wide_from=st.none() | st.integers(0, 75),
)
def test_rows_lie_apart_inside_their_peers_segment(counts, width, seed, wide_from):
    counts = np.array(counts)
    bits = np.random.default_rng(seed).choice(np.array(MESSAGE_BITS, np.uint8), counts.sum())
    layout = make_layout(counts, bits, width, wide_from)
    ends = np.cumsum(layout.blocks) * BLOCK_BYTES
    used = np.zeros(layout.num_bytes, np.int64)
    peer = np.repeat(np.arange(counts.size), counts)
    seen = np.zeros((counts.sum(), width), int)
    assert layout.num_rows == counts.sum()
    for group in layout.groups:
        columns = np.arange(width)[group.columns or slice(None)]
        for row, payload, params in zip(
            *(a.tolist() for a in (group.rows, group.payload_at, group.params_at)), strict=True
        ):
            pieces = [slice(payload, payload + payload_bytes(columns.size, group.bits))]
            if group.bits <= 8:
                assert params % PARAMS_BYTES == 0
                pieces.append(slice(params, params + PARAMS_BYTES))
            for piece in pieces:
                used[piece] += 1
                assert ends[peer[row]] - layout.blocks[peer[row]] * BLOCK_BYTES <= piece.start
                assert piece.stop <= ends[peer[row]]
            seen[row, columns] += group.bits
    wide = np.arange(width) >= (width if wide_from is None else wide_from)
    assert (seen == np.where(wide, np.maximum(bits, 16)[:, None], bits[:, None])).all()
    assert used.max(initial=0) <= 1
    assert np.flatnonzero(used == 0).tolist() == sorted(layout.padding.tolist())
    assert layout.num_bytes - used.sum() < (BLOCK_BYTES + PARAMS_BYTES) * counts.size


def test_two_bits_are_fifteen_times_fewer_bytes_with_parameters():
    """This holds for any sizes of messages from 120 rows for each peer on; for fewer rows, padding to 64 bytes matters."""

    def ratio(*counts: int) -> float:
        total = sum(counts)
        return total * 256 * 4 / make_layout(np.array(counts), np.full(total, 2, np.uint8), 256).num_bytes

    assert ratio(0, 5000, 3000) >= 15
    assert min(ratio(count) for count in range(237, 400)) >= 15
    assert ratio(*range(120, 360)) >= 15
    assert min(ratio(count) for count in range(1, 17)) == ratio(1) == 8


def test_layouts_reach_beyond_2_gib():
    """Displacements in blocks fit MPI's ints where displacements in bytes would not, and rows lie beyond 2 GiB."""
    counts = np.array([40_000, 0, 1000])
    layout = make_layout(counts, np.full(41_000, 16, np.uint8), 32_768)  # rows of 64 KiB
    assert layout.num_bytes == 41_000 << 16 > 2**31
    assert layout.blocks.sum() < 2**31
    (group,) = layout.groups
    assert group.payload_at.tolist() == [row << 16 for row in range(41_000)]


@pytest.mark.mpi
def test_exchanges_over_neighbours_alone_move_the_same_rows(mpi_ranks):
    """There and back on a directed graph of 6 ranks, one of which sends nothing."""
    mpi_ranks(6).run(exchanges.over_neighbours)


@pytest.mark.mpi
def test_training_repeats_bit_for_bit_whenever_messages_arrive(mpi_ranks, tmp_path):
    """Losses, weights and all sent bytes are equal in runs with the same seed, P and number of threads."""
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.even_graph(nodes=1000, edges=5000), 2)
    for coding, threads in (("plain", 1), ("delta", 2)):
        mpi_ranks(2).run(exchanges.repeats_bit_for_bit, path, coding, threads)


def test_a_step_that_one_rank_makes_again_waits_for_no_other():
    """The memory of a rank grows without the others."""

    def program(world: World) -> bool:
        exchange = exchanges.make(world, bits=2)
        messages, route = exchange.messages, exchange.messages.transport.route

        def agreed(*about: Any) -> Any:  # as on GPUs
            world.allreduce(np.zeros(1))
            return route(*about)

        messages.transport.route = agreed
        first = exchange.step(16, torch.float32)
        messages.scratch.allocations += world.rank
        return exchange.step(16, torch.float32) is first

    assert on_threads(2, program, timeout_seconds=10) == [True, False]
