"""Buffered streaming: better than LDG, within the balance, also if the graph is many times as large as the buffer."""

from __future__ import annotations

import numpy as np
import pytest
from partition_graphs import Graph, with_problem

from hpcgnn.partition import PartitionOptions, problem, streaming
from hpcgnn.partition.streaming import fennel, fennel_passes, stream

PARTS, TOLERANCE = 8, 1.05


def clustered(directed):
    """60 groups of 50 nodes with random ids, most edges inside groups, and training nodes in some groups only."""
    rng = np.random.default_rng(5)
    group = rng.permutation(3000) % 60
    members = [np.flatnonzero(group == each) for each in range(60)]
    sources = np.concatenate([rng.choice(each, 600) for each in members] + [rng.integers(0, 3000, 6000)])
    destinations = np.concatenate([rng.choice(each, 600) for each in members] + [rng.integers(0, 3000, 6000)])
    if not directed:
        sources, destinations = np.concatenate((sources, destinations)), np.concatenate((destinations, sources))
    train = (group < 20) & (rng.random(3000) < 0.5)
    return Graph(3000, sources, destinations, masks=dict.fromkeys(("train_mask", "val_mask", "test_mask"), train))


def cut_and_balance(graph, path, assign):
    counted = []

    def use(problem):
        parts = assign(problem)
        assert sum(counted) == graph.num_nodes * (5 if assign is stream else fennel_passes(problem.reader))
        return parts, problem.weights()

    parts, weights = with_problem(path, PartitionOptions(PARTS, seed=3), use, counted.append)
    assert parts.dtype == np.int32
    loads = np.stack([np.bincount(parts, column, PARTS) for column in weights.T], axis=1)
    return graph.cut(parts), (loads.max(axis=0) / loads.mean(axis=0)).max(), parts


@pytest.fixture(params=["one buffer", "many buffers"])
def buffers(request, monkeypatch):
    if request.param == "many buffers":
        monkeypatch.setattr(streaming, "_BUFFER_EDGES", 6000)
        monkeypatch.setattr(streaming, "_MOST_EDGES", 9000)
        monkeypatch.setattr(problem, "CHUNK_EDGES", 1000)


@pytest.mark.usefixtures("buffers")
@pytest.mark.parametrize("directed", [True, False])
def test_finds_groups_that_ldg_does_not(tmp_path, directed):
    graph = clustered(directed)
    path = graph.write(tmp_path / "graph.h5")
    theirs, _, _ = cut_and_balance(graph, path, stream)
    ours, balance, parts = cut_and_balance(graph, path, fennel)
    by_chance = (6000 if directed else 12000) * (1 - 1 / PARTS)  # the cut of random parts
    assert ours - by_chance < 0.7 * (theirs - by_chance)
    assert balance < TOLERANCE + 0.02
    assert np.array_equal(cut_and_balance(graph, path, fennel)[2], parts)


def test_real_graph(cora):
    ours, balance, _ = cut_and_balance(*cora, fennel)
    assert ours < 0.6 * cut_and_balance(*cora, stream)[0]
    assert balance < TOLERANCE + 0.02
