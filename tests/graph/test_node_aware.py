"""Ranks that share nodes: the same results as in one process, and the smallest possible number of rows between nodes."""

from __future__ import annotations

import functools
import itertools
import logging
from types import SimpleNamespace

import numpy as np
import pyg_reference
import pytest
import small_graphs
import stale_reference
from command_line import said, told
from matchings import rows_by_matching
from rank_pool import ThreadPool
from ranks import equivalence, node_aware, staleness
from ranks.corrections import differences
from ranks.equivalence import CONFIGS, EPOCHS, LR, gradient_error, loss_error, relative
from requires import EVERYTHING

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import load
from hpcgnn.graph.node_plan import count_between
from hpcgnn.nn import shared_wires
from hpcgnn.nn.halo import make_halo
from hpcgnn.plan import STRATEGIES
from hpcgnn.policy import PolicyConfig
from hpcgnn.world import node_memory
from hpcgnn.world.node_memory import NodeMemory
from hpcgnn.world.placement import Placement

SHAPES = ((4, 2), (5, 2), (6, 3), (4, 3))  # number of ranks, and the largest number of ranks that share a node


def test_short_lists_of_rows_begin_at_different_ranks_of_a_node():
    ones = np.ones(4, np.int64)
    found = Placement.in_blocks(10, 2).carriers(0 * ones, np.arange(1, 5), 0 * ones, ones)
    assert found.sender.tolist() == [1, 0, 1, 0]
    assert found.receiver.tolist() == [3, 4, 7, 8]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"{shape[0]}-by-{shape[1]}")
def shape(request, monkeypatch):
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", str(request.param[1]))
    return request.param


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """``made(ranks, weighted)``: the graph, the part of each of its nodes, and the file."""

    @functools.cache
    def make(ranks, weighted=False):
        graph = small_graphs.random_multigraph(weighted=weighted)
        path = tmp_path_factory.mktemp("nodes") / "parts.h5"
        part = small_graphs.random_parts(graph.num_nodes, ranks, empty=0)
        small_graphs.write_parts(path, graph, part, ranks)
        return graph, part, path

    return make


@pytest.fixture
def two_nodes(made, monkeypatch):
    """The file of 4 ranks on two nodes."""
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "2")
    return made(4)[2]


def losses(path, asked, settings):
    return ThreadPool(4).run(node_aware.losses, path, asked, settings)[0]


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_on_nodes_equal_pyg(made, shape):
    cases = list(itertools.product(("gcn", "sage"), STRATEGIES, (False, True)))
    for model, strategy, weighted in cases if EVERYTHING else [cases[(0, 3, 8, 11)[SHAPES.index(shape)]]]:
        graph, _, path = made(shape[0], weighted)
        found, _, state = ThreadPool(shape[0]).run(equivalence.train, path, model, strategy, "float64")[0]
        wanted = pyg_reference.train(graph, CONFIGS[model], state, EPOCHS, LR, equivalence.PRECISIONS["float64"][0])
        assert loss_error(found.losses, wanted[0]) <= 1e-10, (model, strategy, weighted)
        assert gradient_error(found.gradients, wanted[1]) <= 1e-10, (model, strategy, weighted)
        assert relative(found.scores, wanted[2]) <= 1e-9, (model, strategy, weighted)


@pytest.mark.parametrize("what", ["carry", "near", "far"])
def test_a_missing_step_is_noticed(two_nodes, what):
    assert ThreadPool(4).run(node_aware.sabotaged, two_nodes, what)[0] > 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"model": {"model": "gat", "heads": 2}, "train": {"policy": PolicyConfig(bits="sylvie")}},
    {"train": {"policy": PolicyConfig(bits="uniform")}},
    {"messages": {"overlap": False}},
], ids=["gat and sylvie", "uniform", "no overlap"])  # fmt: skip
def test_messages_of_policies_go_between_nodes(two_nodes, settings):
    """Rounding differs from that between ranks, but results are close; the others are in tests/nn/test_matrix.py."""
    aware, flat, auto = (losses(two_nodes, asked, settings) for asked in ("on", "off", "auto"))
    # Policies choose low bit-widths.
    assert np.abs(np.subtract(aware, flat)).max() < (0.2 if "train" in settings else 0.02)
    assert aware == auto


@pytest.mark.parametrize("bits", [2, 32])
def test_shared_memory_has_room_for_rows_in_full_precision_and_no_more(two_nodes, monkeypatch, bits):
    asked, prepare = [], NodeMemory.prepare
    monkeypatch.setattr(NodeMemory, "prepare", lambda self, size: (asked.append(size), prepare(self, size))[1])

    def connect(world, path):
        messages = Messages(world, MessageConfig(bits=bits, node_aware="on"))
        make_halo(load(path, world), messages=messages, width=16)

    ThreadPool(4).run(connect, two_nodes)
    assert set(asked) == {16 * 4}


@pytest.mark.parametrize("bits", [2, 8])
def test_codes_are_read_in_shared_memory_with_the_same_sums(two_nodes, monkeypatch, bits):
    """The sums are the same as if each rank decoded the messages that it receives."""
    settings = {"messages": {"bits": bits}, "model": {"hidden": 64, "dropout": 0.0}, "backend": "native"}
    wires, used, add = shared_wires.SharedWires, [], shared_wires.SharedWires.add
    monkeypatch.setattr(wires, "add", lambda self, *about: (used.append(about), add(self, *about))[1])
    found = {}
    for reads in (True, False):
        monkeypatch.setattr(shared_wires, "adds_from_codes", lambda *_, reads=reads: reads)
        found[reads] = losses(two_nodes, "on", settings)
        assert bool(used) == reads
        used.clear()
    assert found[True] == found[False]


ALONE = ("pipeline", "uncorrected", "smoothed", "sylvie", "pipeqs", "pipeqs-late", "sancus")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "policy"),
    [*itertools.product(("gcn", "sage"), ALONE)] if EVERYTHING else [*zip(itertools.cycle(("gcn", "sage")), ALONE)],
)
def test_only_rows_of_other_nodes_are_stale(made, two_nodes, model, policy):
    graph, part, _ = made(4)
    found, ages, first, state = ThreadPool(4).run(staleness.train, two_nodes, model, "hybrid", policy)[0]
    settings = staleness.POLICIES[policy]
    decay = settings.smoothing_decay if settings.smoothing != "none" else None
    about = graph, part, staleness.MODELS[model], state, first, ages, staleness.LR, decay
    corrects = settings.stale_correction != "none"
    wanted = stale_reference.train(*about, corrects=corrects, shared=part // 2)
    assert np.abs(np.subtract(found, wanted)).max() <= 1e-10
    others = stale_reference.train(*about, corrects=corrects)
    assert np.abs(np.subtract(found, others)).max() > 1e-4


def test_stale_rows_that_all_move_alike_are_as_good_as_fresh(made, shape):
    cases = [("gcn", "hybrid"), ("sum", "pre"), ("mean", "post"), ("halo", "post")]
    for kind, strategy in cases if EVERYTHING else [cases[SHAPES.index(shape)]]:
        found = ThreadPool(shape[0]).run(differences, made(shape[0])[2], kind, strategy, True)
        assert max(max(of_rank) for of_rank in found) < 1e-10, (kind, strategy)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_between_nodes_are_the_minimum_cover_of_each_pair_of_nodes(made, shape):
    ranks, per_node = shape
    graph, part, path = made(ranks)
    found = ThreadPool(ranks).run(node_aware.rows_that_travel, path, "hybrid")[0]
    assert found["is_node_aware"]
    sent, nodes = found["sent"], np.arange(ranks) // per_node
    assert np.array_equal(found["received"], sent.T)
    assert sent[nodes[:, None] == nodes[None, :]].sum() == 0
    covers = rows_by_matching(*graph.edge_index, nodes[part])
    assert sum(covers.values()) > 0
    for (sender, receiver), rows in covers.items():
        assert sent[np.ix_(nodes == sender, nodes == receiver)].sum() == rows


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_file_tells_how_many_rows_there_will_be(made, shape, strategy):
    ranks, per_node = shape
    path = made(ranks)[2]
    with PartsFile(path) as parts:
        counted = count_between(parts, strategy, Placement.in_blocks(ranks, per_node))
    assert counted == ThreadPool(ranks).run(node_aware.rows_that_travel, path, strategy)[0]["sent"].sum() > 0


def test_plan_shows_rows_between_nodes_and_within_them(made):
    graph, part, path = made(4)
    found = told("plan", path, "--ranks-per-node", 2)["strategies"]["hybrid"]
    of_nodes, of_ranks = (rows_by_matching(*graph.edge_index, owner) for owner in (part // 2, part))
    within = sum(rows for (sender, receiver), rows in of_ranks.items() if sender // 2 == receiver // 2)
    assert found["rows_between_nodes"] == sum(of_nodes.values())
    assert found["rows_within_nodes"] == within
    assert found["rows"] == sum(of_ranks.values())
    assert found["rows_between_nodes_by_pairs_of_ranks"] == found["rows"] - within
    assert "on nodes of 2 ranks" in said("plan", path, "--ranks-per-node", 2)


def test_ranks_placed_otherwise_than_parts_were_made_for_are_told(made, monkeypatch, caplog):
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "3")
    path = made(6)[2]
    with caplog.at_level(logging.WARNING, logger="hpcgnn"):
        sent = ThreadPool(6).run(node_aware.rows_that_travel, path, "hybrid", 2)[0]["sent"].sum()
    with PartsFile(path) as parts:
        least = count_between(parts, "hybrid", Placement.in_blocks(6, 2))
    assert f"nodes of 2 consecutive ranks, but ranks are placed otherwise: {sent:,} rows" in caplog.text
    assert f"in each aggregation, instead of {least:,} (" in caplog.text
    caplog.clear()
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "2")
    ThreadPool(6).run(node_aware.rows_that_travel, path, "hybrid", 2)
    assert "placed otherwise" not in caplog.text


def test_ranks_of_a_node_send_and_receive_equal_shares(made, monkeypatch):
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "3")
    sent = ThreadPool(6).run(node_aware.rows_that_travel, made(6)[2], "hybrid")[0]["sent"]
    for totals in (sent.sum(0), sent.sum(1)):
        for node in (totals[:3], totals[3:]):
            assert node.max() - node.min() <= 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_policies_know_what_a_row_between_nodes_weighs(two_nodes, strategy):
    assert max(ThreadPool(4).run(node_aware.effects, two_nodes, strategy)) < 1e-12
    assert all(ThreadPool(4).run(node_aware.degrees, two_nodes, strategy))


def test_carriers_take_turns_and_places_are_dense():
    placement = Placement(np.array([0, 0, 1, 1, 1, 2]))
    for rows in (1, 2, 7, 30):
        for sender, receiver in ((0, 1), (1, 0), (1, 2), (2, 0)):
            number = np.arange(rows)
            pair = (np.full(rows, node) for node in (sender, receiver))
            carriers = placement.carriers(*pair, number, np.full(rows, rows))
            assert set(placement.node_of[carriers.sender]) == {sender}
            assert set(placement.node_of[carriers.receiver]) == {receiver}
            for both in set(zip(carriers.sender.tolist(), carriers.receiver.tolist(), strict=True)):
                places = carriers.place[(carriers.sender == both[0]) & (carriers.receiver == both[1])]
                assert np.array_equal(places, np.arange(places.size))


# -- conditions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_node", ["1", "4"])
def test_one_rank_a_node_or_one_node_has_the_plan_of_ranks(made, monkeypatch, per_node):
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", per_node)
    assert not ThreadPool(4).run(node_aware.rows_that_travel, made(4)[2], "hybrid")[0]["is_node_aware"]


def test_too_little_shared_memory_is_said_or_done_without(two_nodes, monkeypatch, caplog):
    monkeypatch.setattr(node_memory.os, "statvfs", lambda folder: SimpleNamespace(f_bavail=0, f_frsize=4096))
    with pytest.raises(HpcgnnError, match=r"/dev/shm of .* has 0 MiB free.*--node-aware off"):
        losses(two_nodes, "on", {})
    with caplog.at_level(logging.WARNING, logger="hpcgnn"):
        found = losses(two_nodes, "auto", {})
    assert "ranks exchange messages in pairs" in caplog.text
    assert found == losses(two_nodes, "off", {})


def test_partial_attention_goes_from_rank_to_rank(two_nodes):
    settings = {"model": {"model": "gat", "heads": 2, "attention": "partial"}}
    assert losses(two_nodes, "auto", settings) == losses(two_nodes, "off", settings)
    with pytest.raises(HpcgnnError, match="--attention partial cannot be added up on a node"):
        losses(two_nodes, "on", settings)


@pytest.mark.mpi
def test_mpi_ranks_on_nodes_find_what_threads_find(made, mpi_ranks, monkeypatch):
    """The processes share memory."""
    path, settings = made(4)[2], {"messages": {"bits": 8}}
    found = mpi_ranks(4).run(node_aware.on_nodes_of, 2, path, settings)
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "2")  # not before the ranks have started
    assert found[0] == (pytest.approx(losses(path, "on", settings), rel=1e-6), True)


def test_a_number_of_ranks_that_is_none_is_refused(made, monkeypatch):
    monkeypatch.setenv("HPCGNN_RANKS_PER_NODE", "two")
    with pytest.raises(HpcgnnError, match="HPCGNN_RANKS_PER_NODE must be a whole number from 1 on, not 'two'"):
        ThreadPool(2).run(node_aware.rows_that_travel, made(2)[2], "hybrid")
