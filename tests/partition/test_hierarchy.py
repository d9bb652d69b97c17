"""Groups of parts that share a node."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from partition_graphs import Graph, by, made, parts_of_nodes, require_method, with_problem
from rank_pool import ThreadPool

from hpcgnn.partition import PartitionOptions, hierarchy
from hpcgnn.partition.methods import METHODS
from hpcgnn.partition.problem import ignore


def grouped(world, path, method, parts, per_node):
    """The parts (N,) of all nodes by a method, unchanged and grouped, and on rank 0 the quotient graph."""

    def use(problem):
        found = METHODS[method].assign(problem)
        quotient = hierarchy.quotient_graph(problem, found)
        everywhere = np.zeros((2, problem.reader.meta.num_nodes), dtype=np.int64)
        everywhere[:, problem.slab.first : problem.slab.last] = found, hierarchy.grouped(found, problem, method)
        return world.allreduce(everywhere), quotient if world.rank == 0 else None

    return with_problem(path, PartitionOptions(parts, method, ranks_per_node=per_node), use, ignore, world)


def random_quotient(seed, parts):
    rng = np.random.default_rng(seed)
    dense = np.triu(rng.integers(0, 30, (parts, parts)) * (rng.random((parts, parts)) < 0.6), 1)
    return sp.csr_matrix((dense + dense.T).astype(np.float64))


def inside(quotient, groups):
    return sum(quotient[a, b] for a, b in itertools.combinations(range(groups.size), 2) if groups[a] == groups[b])


def best_inside(quotient, size):
    """The largest weight inside groups of ``size``, found by trying all."""

    def tried(left):
        if not left:
            return 0.0
        rest = left[1:]
        return max(
            sum(quotient[a, b] for a, b in itertools.combinations((left[0], *others), 2))
            + tried(tuple(part for part in rest if part not in others))
            for others in itertools.combinations(rest, size - 1)
        )

    return tried(tuple(range(quotient.shape[0])))


@pytest.mark.parametrize(("parts", "size"), [(8, 2), (8, 4), (9, 3), (6, 1), (4, 4)])
def test_groups_have_exact_sizes_and_nearly_the_best_weight(parts, size):
    found = best = 0.0
    for seed in range(8):
        quotient = random_quotient(seed, parts)
        groups = hierarchy.group_parts(quotient, size, seed)
        assert np.array_equal(np.bincount(groups), np.full(parts // size, size))
        found, best = found + inside(quotient, groups), best + best_inside(quotient, size)
    assert found >= 0.95 * best


def test_improving_counts_right():
    quotient = random_quotient(1, 24)
    groups = np.arange(24) % 2
    before = inside(quotient, groups)
    counted = hierarchy.improve_groups(quotient.indptr, quotient.indices, quotient.data, groups)
    assert np.bincount(groups).tolist() == [12, 12]
    assert counted == inside(quotient, groups) > before


@pytest.mark.parametrize("ranks", [1, 3])
def test_parts_of_a_node_get_consecutive_numbers(tmp_path, ranks):
    """64 blocks of 10 nodes, where block b has edges to the blocks with the same residue modulo 8."""
    rng = np.random.default_rng(0)
    sources = rng.integers(0, 640, 6000)
    others = (sources // 10) % 8 + 8 * rng.integers(0, 8, sources.size)
    noise = rng.random(sources.size) < 0.1
    destinations = np.where(noise, rng.integers(0, 640, sources.size), others * 10 + rng.integers(0, 10, sources.size))
    path = Graph(640, sources, destinations).write(tmp_path / "planted.h5")
    (parts, numbers), quotient = ThreadPool(ranks).run(grouped, path, "block", 64, 8)[0]
    assert np.array_equal(parts, np.arange(640) // 10)
    for part in range(64):  # a renumbering
        assert np.unique(numbers[parts == part]).size == 1
    assert np.unique(numbers).size == 64
    residues = parts % 8
    for node in range(8):
        assert np.unique(residues[numbers // 8 == node]).size == 1
    expected = np.zeros((64, 64))
    np.add.at(expected, (sources // 10, destinations // 10), 1)
    expected += expected.T
    np.fill_diagonal(expected, 0)
    assert np.array_equal(quotient.toarray(), expected)
    unchanged = ThreadPool(ranks).run(grouped, path, "block", 64, 64)[0][0]
    assert np.array_equal(unchanged[0], unchanged[1])


@pytest.mark.parametrize(
    ("method", "parts", "per_node", "most"), [("ldg", 16, 4, 0.9), ("kaminpar", 16, 4, 1), ("mtkahypar", 8, 2, 1)]
)
def test_real_parts_cross_nodes_less(cora, tmp_path, method, parts, per_node, most):
    """Also those of methods that map parts to nodes by themselves."""
    require_method(method)
    graph, path = cora

    def crossing(ranks_per_node):
        made(path, tmp_path, parts, ranks_per_node=ranks_per_node, plan="none", jobs=1, **by(method))
        found = parts_of_nodes(tmp_path / "parts.h5")
        assert np.bincount(found, minlength=parts).min() > 0
        return graph.cut(found // per_node)

    assert crossing(per_node) < most * crossing(1)
