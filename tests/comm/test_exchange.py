"""Exchanges between ranks: received rows, rounding, counters, and the layout of rows in a buffer."""

from __future__ import annotations

import numpy as np
import pytest
import small_graphs
from hypothesis import given
from hypothesis import strategies as st
from rank_pool import ThreadPool
from ranks import exchanges, links, repeats

from hpcgnn.bit_widths import MESSAGE_BITS
from hpcgnn.comm import World, collectives
from hpcgnn.comm.layout import BLOCK_BYTES, make_layout
from hpcgnn.comm.mailbox import Keeping
from hpcgnn.comm.thread_world import on_threads
from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes


@pytest.fixture(params=[2, 4])
def ranks(request):
    return ThreadPool(request.param)


class TestExchange:
    @pytest.mark.parametrize("backend", [name for name in exchanges.BACKENDS if name != "triton"])
    def test_rows_arrive_within_a_step_of_their_grid(self, ranks, backend):
        assert_within_a_step(ranks.run(exchanges.errors, backend)[0])

    def test_each_row_may_have_bits_of_its_own(self, ranks):
        assert ranks.run(exchanges.mixed)[0] <= 0

    def test_rounding_is_unbiased_over_epochs(self, ranks):
        """Of some thousand means, the farthest is expected within 5 standard errors; a bias of half a step would be 10."""
        errors = {bits: ranks.run(exchanges.mean_error, bits)[0] for bits in (1, 2, 4, 8)}
        assert max(errors.values()) < 6, errors

    def test_differences_come_to_what_is_sent(self, ranks):
        for bits in (1, 2, 4):
            errors = ranks.run(exchanges.delta, bits)[0]
            assert errors[-1] <= 1e-3 * errors[0], bits

    def test_both_sides_keep_the_same(self, ranks):
        assert ranks.run(exchanges.kept)[0]

    def test_a_value_that_is_no_number_is_named_with_its_exchange(self, ranks):
        sentences = ranks.run(exchanges.errors_of_nonfinite_rows)[0]
        assert len(sentences) == 6
        for sentence in sentences:
            assert sentence.startswith(f"layer 2's gradients of rank {ranks.size - 1} held NaN or infinite values")
            assert "in epoch 7" in sentence

    def test_more_than_mpi_can_count_is_refused_on_every_rank(self, ranks, monkeypatch):
        assert collectives.MOST_ROWS == 2**31 - 1  # counts and displacements are C ints
        monkeypatch.setattr(collectives, "MOST_ROWS", 999)
        rows, rows_in_few_bits, blocks = ranks.run(exchanges.too_many, 999)[0]
        for sentence in (rows, rows_in_few_bits):
            assert sentence.startswith("layer 3's boundary rows of rank 0 would be 1000 items")
        assert blocks.startswith("layer 3's boundary rows in blocks of 64 bytes of rank 0 would be 1280 items")

    def test_an_evaluation_is_exact_unless_asked_otherwise(self, ranks):
        assert ranks.run(exchanges.evaluation)[0] == {"float32": True, "training": False}


def test_bytes_for_ranks_of_other_nodes_are_counted_apart(monkeypatch):
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "2")

    def program(world: World) -> None:
        exchange = exchanges.make(world)
        exchanges.moved(exchange, exchanges.outgoing(world, 40))
        rows, away = exchange.send_counts, np.arange(4) // 2 != world.rank // 2
        found = exchange.messages.traffic.bytes()
        assert (found["bytes_sent"], found["bytes_between_nodes"]) == (rows.sum() * 160, rows[away].sum() * 160)

    on_threads(4, program)


def test_the_drift_of_kept_rows_is_that_of_the_epochs_between_their_messages():
    def program(world: World) -> list[int]:
        exchange, found = exchanges.make(world), []
        exchange.messages.kept.begin(Keeping(compares=True))
        for epoch in (2, 3, 6):
            exchange.messages.begin_epoch(epoch)
            exchanges.moved(exchange, exchanges.outgoing(world, 40))
            found.append(exchange.epochs_between_messages())
        return found

    assert on_threads(2, program) == [[1, 1, 3]] * 2


def test_another_trainer_begins_without_the_differences_of_the_one_before():
    def program(world: World) -> None:
        exchange, rows = exchanges.make(world, bits=2, message_coding="delta"), exchanges.outgoing(world, 40)
        first = exchanges.moved(exchange, rows)
        exchange.messages.kept.begin(None)
        exchange.messages.begin_epoch(0)
        assert first.equal(exchanges.moved(exchange, rows))

    on_threads(2, program)


def test_unknown_bit_widths_are_refused_on_every_rank():
    def program(world: World) -> None:
        exchange = exchanges.make(world)
        bits = np.full(int(exchange.send_counts.sum()), 8)
        bits[-1] = 3 if world.rank else 8
        with pytest.raises(HpcgnnError, match="bits must be of 1, 2, 4, 8, 16, 32, not 3"):
            exchange.assign_bits(bits)

    on_threads(2, program)


def test_an_exchange_waits_for_the_one_under_way():
    def program(world: World) -> None:
        exchange, rows = exchanges.make(world), exchanges.outgoing(world, 40)
        message = exchanges.started(exchange, rows)
        with pytest.raises(RuntimeError, match=r"^layer 2's boundary rows cannot be sent while layer 1's"):
            exchanges.started(exchange.for_layer(1), rows)
        exchange.wait(message)

    on_threads(2, program)


def assert_within_a_step(found):
    assert len(found) == 6 * 4
    assert {name: excess for name, excess in found.items() if excess > 0} == {}


@pytest.mark.mpi
class TestOverMpi:
    """Triton's interpreter, settings of threads, and patches are those of a process, so each rank is one."""

    @pytest.mark.parametrize(("size", "backend"), [(2, "triton"), (4, "auto")])
    def test_rows_arrive_and_their_bytes_are_counted_as_they_leave(self, mpi_ranks, size, backend):
        ranks = mpi_ranks(size)
        assert_within_a_step(ranks.run(exchanges.errors, backend)[0])
        assert {
            bits: sent - wanted
            for bits, (sent, wanted) in ranks.run(exchanges.counted_bytes)[0].items()
            if sent != wanted
        } == {}

    def test_what_the_noise_depends_on(self, mpi_ranks):
        same = dict.fromkeys(("again", "threads", "numba"), True)
        other = dict.fromkeys(("seed", "epoch", "layer", "call", "direction", "evaluation"), False)
        assert mpi_ranks(2).run(exchanges.repeats)[0] == same | other

    def test_decoding_in_registers_changes_no_bit(self, mpi_ranks):
        assert mpi_ranks(2).run(exchanges.fused)[0]

    def test_wire_bytes_depend_on_neither_threads_nor_timing(self, mpi_ranks):
        found = mpi_ranks(4).run(exchanges.wires)[0]
        assert len(found) == 3
        assert all(found.values()), found


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    width=st.integers(0, 70),
    seed=st.integers(0, 1000),
)
def test_rows_lie_apart_inside_their_peers_segment(counts, width, seed):
    counts = np.array(counts)
    bits = np.random.default_rng(seed).choice(np.array(MESSAGE_BITS, np.uint8), counts.sum())
    layout = make_layout(counts, bits, width)
    ends = np.cumsum(layout.blocks) * BLOCK_BYTES
    used = np.zeros(layout.num_bytes, np.int64)
    peer = np.repeat(np.arange(counts.size), counts)
    seen = []
    for group in layout.groups:
        for row, payload, params in zip(
            *(a.tolist() for a in (group.rows, group.payload_at, group.params_at)), strict=True
        ):
            pieces = [slice(payload, payload + payload_bytes(width, group.bits))]
            if group.bits <= 8:
                assert params % PARAMS_BYTES == 0
                pieces.append(slice(params, params + PARAMS_BYTES))
            for piece in pieces:
                used[piece] += 1
                assert ends[peer[row]] - layout.blocks[peer[row]] * BLOCK_BYTES <= piece.start
                assert piece.stop <= ends[peer[row]]
            assert bits[row] == group.bits
            seen.append(row)
    assert sorted(seen) == list(range(counts.sum()))
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
    """There and back on a directed graph of 6 ranks, one of which sends nothing. All ranks choose the same collective."""
    found = mpi_ranks(6).run(links.compare)[0]
    assert all(found.values()), found


@pytest.mark.mpi
def test_training_repeats_bit_for_bit_whenever_messages_arrive(mpi_ranks, tmp_path):
    """Losses, weights and all sent bytes are equal in runs with the same seed, P and number of threads."""
    graph = small_graphs.even_graph(nodes=3000, edges=15_000)
    small_graphs.write_parts(tmp_path / "parts.h5", graph, small_graphs.random_parts(3000, 2), 2)
    for threads in (1, 2):
        assert mpi_ranks(2).run(repeats.differing, tmp_path / "parts.h5", threads) == [[], []]
