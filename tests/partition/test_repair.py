"""Balancing several quantities after a partitioner, and polishing the cut."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.partition.repair import balance_parts, limits_of, loads_of, polish


def problem(seed, nodes=600, num_parts=6, edges=2400):
    """A random symmetric graph, degree + 1 and a rare 0/1 quantity as weights, and very uneven parts."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (2, edges))
    graph = sp.csr_matrix((np.ones(edges, bool), ends), shape=(nodes, nodes))
    graph = (graph + graph.T).tocsr()
    graph.setdiag(False)
    graph.eliminate_zeros()
    weights = np.stack([np.diff(graph.indptr) + 1, rng.random(nodes) < 0.2], axis=1).astype(np.int64)
    parts = np.minimum(rng.geometric(0.5, nodes) - 1, num_parts - 1).astype(np.int32)
    half = nodes // 2

    def rows():
        yield 0, graph.indptr[: half + 1], graph.indices[: graph.indptr[half]]
        yield half, graph.indptr[half:] - graph.indptr[half], graph.indices[graph.indptr[half] :]

    return graph, rows, parts, weights, limits_of(weights.sum(axis=0), num_parts, 1.05)


def cut(graph, parts):
    rows = np.repeat(np.arange(parts.size), np.diff(graph.indptr))
    return int((parts[rows] != parts[graph.indices]).sum()) // 2


@pytest.mark.parametrize("seed", range(5))
def test_all_quantities_reach_their_limits(seed):
    graph, rows, parts, weights, limits = problem(seed)
    assert (loads_of(parts, weights, 6) > limits).any(axis=0).all()
    loads = balance_parts(rows, parts, weights, limits, 6)
    assert np.array_equal(loads, [weights[parts == part].sum(axis=0) for part in range(6)])
    assert (loads <= limits).all()
    before = cut(graph, parts)
    polish(rows, parts, weights, limits, 6)
    assert cut(graph, parts) < before
    polished = parts.copy()
    balance_parts(rows, parts, weights, limits, 6)
    assert np.array_equal(parts, polished), "balanced parts stay"
    assert (loads_of(parts, weights, 6) <= limits).all()


def test_what_cannot_fit_ends_and_gets_no_worse():
    _, rows, parts, weights, _ = problem(4)
    weights[17, 0] = 10 * weights[:, 0].sum()
    limits = limits_of(weights.sum(axis=0), 6, 1.05)
    before = np.maximum(loads_of(parts, weights, 6) - limits, 0).sum(axis=0)
    loads = balance_parts(rows, parts, weights, limits, 6)
    assert (np.maximum(loads - limits, 0).sum(axis=0) <= before).all()
    assert (loads[:, 1] <= limits[1]).all()


def test_the_cheapest_nodes_leave():
    """Two cliques in one part and two empty parts: nodes of the clique with the lower cost move, and no more than necessary."""
    clique = np.kron(np.eye(2), np.ones((10, 10))) - np.eye(20)
    graph = sp.csr_matrix(clique)
    weights = np.ones((20, 1), dtype=np.int64)
    parts = np.array([0] * 12 + [1] * 8, dtype=np.int32)  # two nodes of the second clique are in the wrong part
    balance_parts(lambda: [(0, graph.indptr, graph.indices)], parts, weights, np.array([10]), 2)
    assert parts.tolist() == [0] * 10 + [1] * 10
