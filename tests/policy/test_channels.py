"""The information that policies get about the rows that travel, compared with the whole graph."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks.node_aware import weights_error
from requires import EVERYTHING

import hpcgnn
from hpcgnn.exchange import Messages
from hpcgnn.nn import make_aggregator
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.aggregators import make_relation_aggregator
from hpcgnn.plan import STRATEGIES
from hpcgnn.policy.sylvie import row_classes
from hpcgnn.world import World

GRAPH = small_graphs.random_multigraph()
IN_DEGREE = np.bincount(GRAPH.edge_index[1], minlength=GRAPH.num_nodes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("channels")
    for ranks in (2, 3):
        small_graphs.in_parts(folder / f"{ranks}.h5", GRAPH, ranks)
    return folder


def check_degrees(aggregator: Aggregator, graph: hpcgnn.LocalGraph) -> None:
    """Check that post rows have the degree of their source, and pre rows those of their destinations."""
    forward, backward = aggregator.exchange_facts(graph.in_degrees)
    (sent, received), back = forward.degrees(), backward.degrees()
    plan, ids = aggregator.plan, graph.original_ids.numpy()
    post = plan.send_to.is_post()
    sources = plan.send.indices.numpy()[plan.send.indptr.numpy()[:-1]]
    assert (sent[post] == IN_DEGREE[ids[sources[post]]]).all()
    columns, rows = plan.receive.indices.numpy(), plan.receive.entry_rows().numpy()
    pre = ~plan.receive_from.is_post()[columns]
    assert (received[columns[pre]] == IN_DEGREE[ids[rows[pre]]]).all()
    # Sender and receiver must say the same about a row.
    told, _ = graph.world.alltoallv(sent, aggregator.exchange.send_counts)
    assert (told == received).all()
    assert (back[0] == received).all()
    assert (back[1] == sent).all()


def checked(world: World, path: Path, kind: str, strategy: str, order: str) -> list[set[int]]:
    """Check square weights and degrees; return the bits of each class of rows."""
    graph = hpcgnn.load(path, world).reordered(order)
    aggregator = make_aggregator(graph, kind, strategy, dtype=torch.float64)
    for one in (aggregator, aggregator.reverse):
        assert weights_error(world, one) < 1e-12
    check_degrees(aggregator, graph)
    classes = row_classes(world, aggregator.exchange_facts(graph.in_degrees))
    return [set(by_base[1].sent.tolist()) for by_base in classes]


WAYS = [*itertools.product(["gcn", "mean", "sum"], [2, 3], STRATEGIES, ["none", "degree"])]


@pytest.mark.parametrize(("kind", "ranks", "strategy", "order"), WAYS if EVERYTHING else WAYS[::5])
def test_square_weights_and_degrees_are_those_of_the_rows(folder, kind, ranks, strategy, order):
    classes = ThreadPool(ranks).run(checked, folder / f"{ranks}.h5", kind, strategy, order)[0]
    assert any(len(bits) > 1 for bits in classes), "classes have more than one number of bits"


def attended(world: World, path: Path, kind: str) -> tuple[list[tuple[int, int, float]], bool, list[float]]:
    """Receiver, original id and square weight of each row sent, in a step in which all edges of a node have one weight; whether
    these weights change, and those of the other direction do not; and the weights before the step."""
    graph = hpcgnn.load(path, world)
    model = hpcgnn.build_model(hpcgnn.ModelConfig(kind, layers=2, hidden=8, heads=2), graph)
    facts, back = model.exchange_facts(graph.in_degrees)[:2]
    before = facts.square_weights().tolist()
    for name, value in model.named_parameters():
        if "attend" in name:
            value.data.zero_()
    model.train()
    model.begin_epoch(0)
    model(graph.x)
    told, plan = facts.square_weights(), model.aggregators[0].plan
    sources = plan.send.indices.numpy()[plan.send.indptr.numpy()[:-1]]
    assert (back.square_weights() == 1).all()
    receivers = np.repeat(np.arange(world.size), facts.exchange.send_counts)
    rows = zip(receivers.tolist(), graph.original_ids.numpy()[sources].tolist(), told.tolist(), strict=True)
    return list(rows), facts.weights_change and not back.weights_change, before


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_square_weights_of_attention_are_those_of_the_last_step(folder, kind, ranks):
    """With scores of zero, each of a node's d edges has the weight 1 / d."""
    sources, targets = GRAPH.edge_index[:, GRAPH.edge_index[0] != GRAPH.edge_index[1]]
    degree = np.bincount(targets, minlength=GRAPH.num_nodes) + 1  # attention adds one edge from each node to itself
    parts = small_graphs.random_parts(GRAPH.num_nodes, ranks)
    wanted = np.zeros((ranks, GRAPH.num_nodes))
    np.add.at(wanted, (parts[targets], sources), 1 / degree[targets] ** 2)
    everyones = ThreadPool(ranks).run(attended, folder / f"{ranks}.h5", kind)
    assert all(changes for _, changes, _ in everyones)
    assert {each for *_, before in everyones for each in before} == {1.0}
    rows = [row for told, *_ in everyones for row in told]
    assert rows
    for receiver, node, square in rows:
        assert square == pytest.approx(wanted[receiver, node], rel=1e-5)


def by_relation(world: World, path: Path) -> tuple[np.ndarray, np.ndarray, bool]:
    """Square weights of the rows that R-GCN sends, and those of an aggregator of means; and whether the first change."""
    graph = small_graphs.on_ranks(world, small_graphs.with_typed_edges(GRAPH), path)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("rgcn", layers=2, hidden=8), graph)
    means, _ = make_relation_aggregator(graph, kind="mean", messages=Messages(world))
    facts = model.exchange_facts(graph.in_degrees)[0]
    return facts.square_weights(), means.square_weights(), facts.weights_change


def test_square_weights_of_rgcn_are_those_of_means(tmp_path):
    """Its sums become means after they have been multiplied."""
    for found, wanted, changes in ThreadPool(2).run(by_relation, tmp_path / "parts.h5"):
        assert found == pytest.approx(wanted, rel=1e-6)
        assert len(set(found.tolist())) > 3
        assert not changes
