"""KaMinPar: the file that it maps, its result, and the behaviour without it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_graphs import Graph, check_same_graph, made, random_graph, require_method, with_problem
from rank_pool import ThreadPool

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition import PartitionOptions, separate_process, symmetric_file


@pytest.fixture
def installed():
    require_method("kaminpar")


def written(path, wanted=("edges", "train")):
    return with_problem(path, PartitionOptions(2, balance=wanted), symmetric_file.write_symmetric)


def assigned(path, parts, wanted, **options):
    return with_problem(path, PartitionOptions(parts, balance=wanted, **options), separate_process.kaminpar)


def parsed(file, num_nodes):
    """``(begin of each row, neighbours, weights)`` read from the bytes as the ParHIP format defines them."""
    file.file.seek(0)
    data = file.file.read()
    version, nodes, entries = np.frombuffer(data, np.uint64, 3)
    assert (version, nodes, entries) == (1 | 8, num_nodes, file.num_entries)  # no edge weights, 32-bit nodes
    begins = np.frombuffer(data, np.uint64, num_nodes + 1, 24).astype(np.int64)
    first = 24 + 8 * (num_nodes + 1)
    neighbours = np.frombuffer(data, np.int32, file.num_entries, first)
    weights = np.frombuffer(data, np.int64, num_nodes, first + 4 * file.num_entries)
    assert len(data) == first + 4 * file.num_entries + 8 * num_nodes
    return (begins - first) // 4, neighbours, weights


def matrix_and_weights(file, num_nodes):
    """The adjacency matrix and the weights of the nodes."""
    begins, neighbours, weights = parsed(file, num_nodes)
    return sp.csr_matrix((np.ones(neighbours.size), neighbours, begins), (num_nodes, num_nodes)), weights


@given(st.integers(1, 30), st.integers(0, 120), st.integers(0, 99), st.integers(1, 40), st.integers(1, 3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_partitioners_get_the_simple_symmetric_graph(tmp_path, nodes, edges, seed, entries, ranks):
    """KaMinPar in a file, and libraries in memory, on any number of ranks."""
    graph = Graph(nodes, *np.random.default_rng(seed).integers(0, nodes, (2, edges)))
    path, wanted = graph.write(tmp_path / "graph.h5"), sp.csr_matrix(graph.simple_symmetric())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetric_file, "RANGE_ENTRIES", entries)
        patch.setattr(symmetric_file, "_ROWS_AT_A_TIME", 7)
        file = written(path)
        slabs = [(first, indptr.copy(), indices) for first, indptr, indices in file.rows()]
    begins, neighbours, weights = parsed(file, nodes)
    assert np.array_equal(begins, wanted.indptr)
    assert np.array_equal(neighbours, wanted.indices)
    assert np.array_equal(weights, np.bincount(graph.destinations, minlength=nodes) + 1)
    assert np.array_equal(np.concatenate([indices for _, _, indices in slabs]), neighbours)
    assert np.array_equal(np.concatenate([np.diff(indptr) for _, indptr, _ in slabs]), np.diff(begins))
    assert [first for first, _, _ in slabs] == np.cumsum([0, *(len(s[1]) - 1 for s in slabs[:-1])]).tolist()

    def of_rank(world):
        own = np.dtype(np.int32)
        return with_problem(path, PartitionOptions(1), lambda problem: problem.neighbours(own), world=world)

    of_ranks = ThreadPool(ranks).run(of_rank)
    assert np.array_equal(np.concatenate([np.diff(indptr) for indptr, _ in of_ranks]), np.diff(wanted.indptr))
    indices = np.concatenate([indices for _, indices in of_ranks])
    rows = np.repeat(np.arange(nodes), np.diff(wanted.indptr))
    assert (sp.csr_matrix((np.ones(indices.size), (rows, indices)), (nodes, nodes)) != wanted).nnz == 0


def test_training_weights_are_at_least_one(tmp_path):
    file = written(random_graph(rich=False).write(tmp_path / "graph.h5"), ("train",))
    assert parsed(file, 203)[2].min() == 1
    assert parsed(file, 203)[2].max() > 1000


@pytest.mark.usefixtures("installed")
def test_as_good_as_metis_in_both_quantities(cora, tmp_path):
    require_method("metis")
    cut = {"kaminpar": 0, "metis": 0}
    for method, seed in itertools.product(cut, range(3)):
        report = made(cora[1], tmp_path, 16, method=method, seed=seed, plan="none")
        assert report.balance == ("edges", "train")
        cut[method] += report.quality.cut_edges
        if method == "kaminpar":
            assert report.quality.edge_balance < 1.15  # the limit counts each node as one more in-edge
            assert report.quality.train_balance < 1.05
    assert cut["kaminpar"] < 1.05 * cut["metis"]


@pytest.mark.usefixtures("installed")
def test_a_seed_gives_the_same_parts(cora):
    file = written(cora[1])
    first, again, other = (separate_process.run(file, 8, tolerance=1.03, seed=s, threads=1) for s in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_groups_are_divided_from_their_own_edges(cora, monkeypatch):
    file = written(cora[1])
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 3, file.num_nodes).astype(np.int32)
    whole, weights = matrix_and_weights(file, file.num_nodes)
    seen = []

    def divide(graph, count):
        if graph is file:
            assert count == 3
            return groups
        members = np.flatnonzero(groups == len(seen))
        part, heavy = matrix_and_weights(graph, members.size)
        assert (part != whole[members][:, members]).nnz == 0
        assert np.array_equal(heavy, weights[members])
        assert count == 4
        seen.append(rng.integers(0, 4, members.size).astype(np.int32))
        return seen[-1]

    monkeypatch.setattr(symmetric_file, "RANGE_ENTRIES", 1000)
    parts = symmetric_file.divide_twice(file, weights, 12, 4, divide)
    assert len(seen) == 3
    for group, inner in enumerate(seen):
        assert np.array_equal(parts[groups == group], 4 * group + inner)


def test_a_sample_keeps_the_edges_of_nodes_with_few(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    dense = rng.integers(0, 300, (2, 30000))  # about 170 neighbours for each node
    sparse = np.stack([np.arange(300, 400), rng.integers(0, 400, 100)])
    graph = Graph(400, *np.concatenate([dense, sparse], axis=1))
    monkeypatch.setattr(symmetric_file, "RANGE_ENTRIES", 5000)
    file = written(graph.write(tmp_path / "graph.h5"))
    whole, weights = matrix_and_weights(file, 400)
    kept, same = matrix_and_weights(symmetric_file.sampled(file, weights, 7), 400)
    assert np.array_equal(same, weights)
    assert (kept != kept.T).nnz == 0
    assert (kept > whole).nnz == 0
    assert (kept[300:] != whole[300:]).nnz == 0
    degrees = np.diff(kept.indptr)[:300]
    assert 26 < degrees.mean() < 40
    assert degrees.min() > 10


@pytest.mark.usefixtures("installed")
def test_large_graphs_are_sampled(tmp_path, monkeypatch):
    graph = Graph(300, *np.random.default_rng(0).integers(0, 300, (2, 30000)))
    path = graph.write(tmp_path / "graph.h5")
    entries, run = [], separate_process.run
    monkeypatch.setattr(
        separate_process, "run", lambda file, *a, **k: entries.append(file.num_entries) or run(file, *a, **k)
    )
    weights = np.bincount(graph.destinations, minlength=300) + 1
    for most in (1 << 24, 1000):
        monkeypatch.setattr(separate_process, "SAMPLED_ENTRIES", most)
        parts = assigned(path, 4, ("edges",))
        assert np.bincount(parts, weights).max() <= 1.05 * weights.sum() / 4
    assert entries[1] < 0.3 * entries[0]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("edges", [0, 9])
def test_graphs_with_isolated_nodes_on_machine_nodes(tmp_path, edges):
    graph = random_graph(200, edges, rich=False)
    path = graph.write(tmp_path / "graph.h5")
    for per_node in (1, 2, 4):
        report = made(path, tmp_path, 8, method="kaminpar", ranks_per_node=per_node)
        check_same_graph(graph, tmp_path / "parts.h5")
        assert report.method == "kaminpar"
        assert report.quality.empty_parts == 0


def test_a_failing_process_is_one_sentence(tmp_path):
    script = tmp_path / "fails.py"
    with (tmp_path / "graph").open("wb") as graph:
        for body, words in (
            ("raise ValueError('no such context')", "KaMinPar failed .ValueError: no such context.: try --method"),
            ("import os; os.kill(os.getpid(), 9)", "signal 9 ended it: is there too little memory?"),
            ("", "KaMinPar gave parts for 0 of 5 nodes"),
        ):
            script.write_text(body)
            with pytest.raises(HpcgnnError, match=words) as error:
                separate_process.run_on_file("KaMinPar", [script], graph, tmp_path, 5)
            assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fails.py", "graph"]


def random_ends(first, nodes, edges, seed, of=lambda x: x):
    return first + (nodes * of(np.random.default_rng(seed).random((2, edges)))).astype(np.int64)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("ends", "is_even"),
    [
        (random_ends(0, 4000, 40_000, 1, lambda x: x**3), True),  # no part is better than others
        # One node has nearly as many in-edges as a part.
        (
            np.hstack((random_ends(0, 4000, 40_000, 4), np.stack((np.arange(4000).repeat(9), np.zeros(36_000, int))))),
            False,
        ),
        (np.hstack((random_ends(0, 1000, 20_000, 2), random_ends(1000, 3000, 20_000, 3))), False),  # two communities
    ],
)
def test_by_default_nodes_are_even_where_that_costs_few_cut_edges(tmp_path, ends, is_even):
    path = Graph(4000, *ends).write(tmp_path / "graph.h5")
    parts = {wanted: assigned(path, 2, (wanted,)) for wanted in ("auto", "edges")}
    nodes = {wanted: np.bincount(found).max() / 2000 for wanted, found in parts.items()}
    cut = {wanted: np.count_nonzero(found[ends[0]] != found[ends[1]]) for wanted, found in parts.items()}
    assert nodes["edges"] > 1.1
    assert (nodes["auto"] <= 1.051) == is_even
    assert cut["auto"] <= 1.02 * cut["edges"]
    edges = np.bincount(ends[1], minlength=4000) + 1
    assert np.bincount(parts["auto"], edges).max() <= 1.061 * edges.sum() / 2


@pytest.mark.usefixtures("installed")
def test_many_parts_may_each_be_slightly_above_their_limit_where_nodes_are_even(tmp_path):
    ends = random_ends(0, 10_000, 200_000, 1, lambda x: x**2.5)
    path = Graph(10_000, *ends).write(tmp_path / "graph.h5")
    edges = np.bincount(ends[1], minlength=10_000) + 1
    found = {wanted: assigned(path, 128, (wanted,)) for wanted in ("auto", "edges")}
    before, after = (np.sort(np.bincount(found[wanted], edges)) * 128 / edges.sum() for wanted in ("edges", "auto"))
    assert before[-1] > 1.5  # a hub's part
    assert np.bincount(found["edges"]).max() > 1.2 * 10_000 / 128
    assert np.bincount(found["auto"]).max() <= 1.051 * 10_000 / 128
    assert (after <= np.maximum(before, 1.05) + 0.022).all()
