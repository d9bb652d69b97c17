"""KaMinPar: the file that it maps, its result, and the behaviour without it."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_graphs import Graph, check_same_graph, from_npz, random_graph
from requires import require

from hpcgnn.comm import MpiWorld
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.errors import HpcgnnError
from hpcgnn.partition import (
    PartitionOptions,
    hierarchy_file,
    kaminpar,
    kaminpar_file,
    kaminpar_process,
    kaminpar_sample,
    methods,
    native_metis,
    partition,
)
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.slabs import Slab


@pytest.fixture(scope="module")
def world():
    return MpiWorld()


@pytest.fixture(scope="module")
def cora(shared_data, tmp_path_factory):
    return from_npz(shared_data("cora.npz")).write(tmp_path_factory.mktemp("cora") / "cora.h5")


def symmetric_file(world, path, wanted=("edges", "train")):
    with GraphFile(path) as reader:
        balance = Balance.of(world, reader, Slab.of(world, reader), wanted)
        return kaminpar_file.write_symmetric(reader, balance, None, lambda count: None)


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


@given(st.integers(1, 30), st.integers(0, 120), st.integers(0, 99), st.integers(1, 40))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_file_holds_the_simple_symmetric_graph(world, tmp_path, nodes, edges, seed, entries):
    rng = np.random.default_rng(seed)
    graph = Graph(nodes, rng.integers(0, nodes, edges), rng.integers(0, nodes, edges))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kaminpar_file, "RANGE_ENTRIES", entries)
        patch.setattr(kaminpar_file, "_ROWS_AT_A_TIME", 7)
        file = symmetric_file(world, graph.write(tmp_path / "graph.h5"))
        slabs = [(first, indptr.copy(), indices) for first, indptr, indices in file.rows()]
    begins, neighbours, weights = parsed(file, nodes)
    expected = np.zeros((nodes, nodes), dtype=bool)
    expected[graph.sources, graph.destinations] = expected[graph.destinations, graph.sources] = True
    np.fill_diagonal(expected, False)
    wanted = sp.csr_matrix(expected)
    assert np.array_equal(begins, wanted.indptr)
    assert np.array_equal(neighbours, wanted.indices)
    assert np.array_equal(weights, np.bincount(graph.destinations, minlength=nodes) + 1)
    assert np.array_equal(np.concatenate([indices for _, _, indices in slabs]), neighbours)
    assert np.array_equal(np.concatenate([np.diff(indptr) for _, indptr, _ in slabs]), np.diff(begins))
    assert [first for first, _, _ in slabs] == np.cumsum([0, *(len(s[1]) - 1 for s in slabs[:-1])]).tolist()


def test_training_weights_are_at_least_one(world, tmp_path):
    file = symmetric_file(world, random_graph(rich=False).write(tmp_path / "graph.h5"), ("train",))
    assert parsed(file, 203)[2].min() == 1
    assert parsed(file, 203)[2].max() > 1000


def test_as_good_as_metis_in_both_quantities(world, cora, tmp_path):
    require(kaminpar.installed(), "kaminpar")
    require(native_metis.load_metis(1), "metis")
    cut = {"kaminpar": 0, "metis": 0}
    for method, seed in itertools.product(cut, range(3)):
        options = PartitionOptions(16, method, seed=seed, force=True, plan="none")
        report = partition(world, cora, tmp_path / "parts.h5", options)
        assert report.balance == ("edges", "train")
        cut[method] += report.quality.cut_edges
        if method == "kaminpar":
            assert report.quality.edge_balance < 1.15  # the limit counts each node as one more in-edge
            assert report.quality.train_balance < 1.05
    assert cut["kaminpar"] < 1.05 * cut["metis"]


def test_a_seed_gives_the_same_parts(world, cora, tmp_path):
    require(kaminpar.installed(), "kaminpar")
    file = symmetric_file(world, cora)
    first, again, other = (kaminpar.run(file, 8, tolerance=1.03, seed=s, threads=1) for s in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_groups_are_divided_from_their_own_edges(world, cora):
    file = symmetric_file(world, cora)
    rng = np.random.default_rng(0)
    groups, nodes = rng.integers(0, 3, file.num_nodes).astype(np.int32), file.num_nodes
    begins, neighbours, weights = parsed(file, nodes)
    whole = sp.csr_matrix((np.ones(neighbours.size), neighbours, begins), (nodes, nodes))
    seen = []

    def divide(graph, count):
        if graph is file:
            assert count == 3
            return groups
        members = np.flatnonzero(groups == len(seen))
        indptr, indices, heavy = parsed(graph, members.size)
        expected = whole[members][:, members].tocsr()
        assert np.array_equal(indptr, expected.indptr)
        assert np.array_equal(indices, expected.indices)
        assert np.array_equal(heavy, weights[members])
        assert count == 4
        seen.append(rng.integers(0, 4, members.size).astype(np.int32))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kaminpar_file, "RANGE_ENTRIES", 1000)
        parts = hierarchy_file.divide_twice(file, weights, 12, 4, divide)
    assert len(seen) == 3
    for group, inner in enumerate(seen):
        assert np.array_equal(parts[groups == group], 4 * group + inner)


def test_a_sample_keeps_the_edges_of_nodes_with_few(world, tmp_path):
    rng = np.random.default_rng(0)
    dense = rng.integers(0, 300, (2, 30000))  # about 170 neighbours for each node
    sparse = np.stack([np.arange(300, 400), rng.integers(0, 400, 100)])
    graph = Graph(400, *np.concatenate([dense, sparse], axis=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kaminpar_file, "RANGE_ENTRIES", 5000)
        file = symmetric_file(world, graph.write(tmp_path / "graph.h5"))
        begins, neighbours, weights = parsed(file, 400)
        fewer = kaminpar_sample.sampled(file, weights, 7)
    whole = sp.csr_matrix((np.ones(neighbours.size), neighbours, begins), (400, 400))
    begins, neighbours, same = parsed(fewer, 400)
    kept = sp.csr_matrix((np.ones(neighbours.size), neighbours, begins), (400, 400))
    assert np.array_equal(same, weights)
    assert (kept != kept.T).nnz == 0
    assert (kept > whole).nnz == 0
    assert (kept[300:] != whole[300:]).nnz == 0
    degrees = np.diff(kept.indptr)[:300]
    assert 26 < degrees.mean() < 40
    assert degrees.min() > 10


def test_large_graphs_are_sampled(world, tmp_path, monkeypatch):
    require(kaminpar.installed(), "kaminpar")
    graph = Graph(300, *np.random.default_rng(0).integers(0, 300, (2, 30000)))
    path = graph.write(tmp_path / "graph.h5")
    entries, run = [], kaminpar.run
    monkeypatch.setattr(kaminpar, "run", lambda file, *a, **k: entries.append(file.num_entries) or run(file, *a, **k))
    for most in (1 << 24, 1000):
        monkeypatch.setattr(kaminpar, "SAMPLED_ENTRIES", most)
        with GraphFile(path) as reader:
            balance = Balance.of(world, reader, Slab.of(world, reader), ("edges",))
            options = PartitionOptions(4, "kaminpar")
            parts = kaminpar.assign(reader, balance, options, 1.05, None, lambda count: None)
        weights = np.bincount(graph.destinations, minlength=300) + 1
        assert np.bincount(parts, weights).max() <= 1.05 * weights.sum() / 4
    assert entries[1] < 0.3 * entries[0]


def test_nodes_first_crosses_nodes_less(world, cora, tmp_path):
    require(kaminpar.installed(), "kaminpar")
    with GraphFile(cora) as reader:
        balance = Balance.of(world, reader, Slab.of(world, reader), ("edges", "train"))
        crossing = {}
        for per_node in (1, 4):
            options = PartitionOptions(16, "kaminpar", ranks_per_node=per_node)
            parts = kaminpar.assign(reader, balance, options, 1.05, None, lambda count: None)
            sources = reader.sources(0, reader.meta.num_edges)
            destinations = np.repeat(np.arange(parts.size), np.diff(reader.indptr(0, parts.size)))
            crossing[per_node] = (parts[sources] // 4 != parts[destinations] // 4).sum()
            assert np.bincount(parts, minlength=16).min() > 0
    assert crossing[4] < crossing[1]


def test_graphs_without_edges_and_with_isolated_nodes(world, tmp_path):
    require(kaminpar.installed(), "kaminpar")
    nothing = np.zeros(0, dtype=np.int64)
    for graph in (Graph(64, nothing, nothing), random_graph(200, 9, rich=False)):
        path = graph.write(tmp_path / "graph.h5")
        for per_node in (1, 2, 4):
            options = PartitionOptions(8, "kaminpar", force=True, ranks_per_node=per_node)
            report = partition(world, path, tmp_path / "parts.h5", options)
            check_same_graph(graph, tmp_path / "parts.h5")
            assert report.method == "kaminpar"
            assert report.quality.empty_parts == 0


def test_auto_takes_it_unless_it_is_not_there_or_cannot(world, cora, tmp_path, monkeypatch):
    require(kaminpar.installed(), "kaminpar")
    require(native_metis.load_metis(1), "metis")

    def taken(**options):
        return partition(world, cora, tmp_path / "p.h5", PartitionOptions(4, force=True, plan="none", **options))

    assert taken().method == "kaminpar"
    assert taken(objective="volume").method == "metis"
    assert "kaminpar" in methods.available_methods()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "kaminpar" else find_spec(name, *rest)
    )
    report = taken()
    assert (report.method, report.reason.split(";")[0]) == (
        "metis",
        "kaminpar is not installed (pip install kaminpar)",
    )
    assert "kaminpar" not in methods.available_methods()
    with pytest.raises(HpcgnnError, match=r"--method kaminpar is not installed .pip install kaminpar.: take another"):
        taken(method="kaminpar")


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
                kaminpar_process.run_on_file("KaMinPar", script, graph, tmp_path, 5)
            assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fails.py", "graph"]
