"""Groups of parts that share a node."""

from __future__ import annotations

import itertools

import click.testing
import numpy as np
import pytest
import scipy.sparse as sp
from partition_graphs import Graph, from_npz
from rank_pool import ThreadPool

from hpcgnn.cli.partition import partition as command
from hpcgnn.comm import MpiWorld
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.errors import HpcgnnError
from hpcgnn.partition import PartitionOptions, hierarchy
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.methods import METHODS, Problem
from hpcgnn.partition.slabs import Slab


def problem_of(world, reader, parts, per_node):
    slab = Slab.of(world, reader)
    options = PartitionOptions(parts, "block", ranks_per_node=per_node)
    balance = Balance.of(world, reader, slab, options.balance)
    return Problem(world, reader, slab, balance, options, lambda count: None)


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
    counted = hierarchy.improve_groups(quotient.indptr, quotient.indices, quotient.data, groups, 12)
    assert np.bincount(groups).tolist() == [12, 12]
    assert counted == inside(quotient, groups) > before


def planted(tmp_path):
    """64 blocks of 10 nodes, where block b has edges to the blocks with the same residue modulo 8."""
    rng = np.random.default_rng(0)
    sources = rng.integers(0, 640, 6000)
    others = (sources // 10) % 8 + 8 * rng.integers(0, 8, sources.size)
    noise = rng.random(sources.size) < 0.1
    destinations = np.where(noise, rng.integers(0, 640, sources.size), others * 10 + rng.integers(0, 10, sources.size))
    return Graph(640, sources, destinations).write(tmp_path / "planted.h5")


def numbered(world, path, per_node):
    """The parts of all nodes by ranges of ids, unchanged and grouped, and the quotient graph on rank 0."""
    with GraphFile(path) as reader:
        problem = problem_of(world, reader, 64, per_node)
        parts = METHODS["block"].assign(problem)
        quotient = hierarchy.quotient_graph(world, reader, problem.slab, parts, 64, problem.advance)
        grouped = hierarchy.grouped(parts, problem, "block")
    everywhere = np.zeros((2, 640), dtype=np.int64)
    everywhere[:, problem.slab.first : problem.slab.last] = parts, grouped
    return world.allreduce(everywhere), quotient if world.rank == 0 else None


@pytest.mark.parametrize("ranks", [1, 3])
def test_parts_of_a_node_get_consecutive_numbers(tmp_path, ranks):
    path = planted(tmp_path)
    results = ThreadPool(ranks).run(numbered, path, 8)
    (parts, grouped), quotient = results[0]
    assert np.array_equal(parts, np.arange(640) // 10)
    for part in range(64):  # a renumbering
        assert np.unique(grouped[parts == part]).size == 1
    assert np.unique(grouped).size == 64
    residues = parts % 8
    for node in range(8):
        assert np.unique(residues[grouped // 8 == node]).size == 1
    with GraphFile(path) as reader:
        sources = reader.sources(0, 6000)
        destinations = np.repeat(np.arange(640), np.diff(reader.indptr(0, 640)))
    expected = np.zeros((64, 64))
    np.add.at(expected, (sources // 10, destinations // 10), 1)
    expected += expected.T
    np.fill_diagonal(expected, 0)
    assert np.array_equal(quotient.toarray(), expected)
    unchanged = ThreadPool(ranks).run(numbered, path, 64)[0][0]
    assert np.array_equal(unchanged[0], unchanged[1])


def test_real_parts_cross_nodes_less(shared_data, tmp_path):
    graph = from_npz(shared_data("cora.npz"))
    path, world = graph.write(tmp_path / "cora.h5"), MpiWorld()
    with GraphFile(path) as reader:
        problem = problem_of(world, reader, 16, 4)
        parts = METHODS["ldg"].assign(problem)
        grouped = hierarchy.grouped(parts, problem, "ldg")

    def crossing(numbers):
        return (numbers[graph.sources] // 4 != numbers[graph.destinations] // 4).sum()

    assert crossing(grouped) < 0.9 * crossing(parts)


@pytest.mark.parametrize(("per_node", "jobs"), [(0, 0), (3, 0), (-2, 0), (16, 0), (1, -1)])
def test_wrong_numbers_are_one_sentence(per_node, jobs):
    with pytest.raises(HpcgnnError, match=r"--ranks-per-node must|--jobs must") as error:
        PartitionOptions(8, ranks_per_node=per_node, jobs=jobs)
    assert "\n" not in str(error.value)


def test_command_takes_the_numbers(tmp_path):
    path = planted(tmp_path)
    runner = click.testing.CliRunner()
    arguments = [str(path), str(tmp_path / "parts.h5"), "--parts", "8", "--method", "block", "--plan", "none"]
    given = runner.invoke(command, [*arguments, "--ranks-per-node", "4", "--jobs", "1", "--json"])
    assert given.exit_code == 0, given.output
    wrong = runner.invoke(command, [*arguments, "--ranks-per-node", "3"])
    assert isinstance(wrong.exception, HpcgnnError)
    assert "3 does not divide 8" in str(wrong.exception)
    assert "--ranks-per-node" in runner.invoke(command, ["--help"]).stdout
