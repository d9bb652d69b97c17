"""Node orders: their definitions, unchanged sums in every order, and the choice of an order."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import small_graphs
import torch
from requires import require, require_module

import hpcgnn
from hpcgnn.graph import METHODS, ORDERS
from hpcgnn.graph import node_order as choice
from hpcgnn.graph.node_order import NodeOrder, find_order, node_order
from hpcgnn.kernels import Csr, library, spmm

NO_NODES = sp.csr_matrix((0, 0))
ISOLATED = sp.csr_matrix((7, 7))
LOOPS = sp.csr_matrix(np.eye(4))
PATH = sp.csr_matrix(np.eye(50, k=1) + np.eye(50, k=-1))


def csr(matrix) -> Csr:
    return Csr(matrix.indptr, matrix.indices, matrix.shape[1])


def random_csr(seed: int = 0, rows: int = 90, columns: int = 90, *, weighted: bool = False) -> Csr:
    """A matrix with parallel entries, loops, empty rows and unsorted entries; some rows have many entries."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 12, rows) * rng.integers(0, 2, rows)
    lengths[:2] = 200
    indices = rng.integers(0, columns, lengths.sum())
    weight = rng.standard_normal(indices.size).astype(np.float32) if weighted else None
    return Csr(np.concatenate(([0], np.cumsum(lengths))), indices, columns, weight)


def permutation(size: int, seed: int = 3) -> torch.Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize("matrix", [NO_NODES, ISOLATED, LOOPS, PATH], ids=["empty", "isolated", "loops", "path"])
def test_an_order_is_a_permutation(matrix, method):
    found = node_order(csr(matrix), method, 8)
    assert found.method == method
    assert sorted(found.nodes.tolist()) == list(range(matrix.shape[0]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("matrix", [NO_NODES, ISOLATED], ids=["empty", "isolated"])
def test_nodes_without_edges_stay_where_they_are(matrix, method):
    as_they_are = torch.arange(matrix.shape[0])
    found = node_order(csr(matrix), method, 8).nodes
    nodes = as_they_are if found is None else found
    assert torch.equal(nodes, as_they_are.flip(0) if method == "rcm" else as_they_are)


def test_degree_counts_what_is_gathered_and_keeps_ties():
    matrix = sp.csr_matrix(np.array([[0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 0]]))
    assert find_order(csr(matrix), "degree").tolist() == [2, 1, 3, 0]


def test_rcm_finds_the_band():
    """A scrambled path and a scrambled grid become as narrow again as with SciPy's implementation."""
    nx = require_module("networkx")
    for graph, least in ((PATH, 1), (nx.to_scipy_sparse_array(nx.grid_2d_graph(20, 5), format="csr"), 8)):
        scrambled = sp.csr_matrix(graph[p := permutation(graph.shape[0]).numpy()][:, p])
        nodes = find_order(csr(scrambled), "rcm").numpy()
        ordered = scrambled[nodes][:, nodes].tocoo()
        assert np.abs(ordered.row - ordered.col).max() <= least


def test_hubs_are_followed_by_their_neighbours_most_linked_first():
    nx = require_module("networkx")
    tree = nx.Graph([(0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (1, 6), (2, 7), (8, 9)])
    names = permutation(10).numpy()
    nodes = find_order(csr(nx.to_scipy_sparse_array(tree, nodelist=names.tolist(), format="csr")), "hubs").numpy()
    groups = [{0}, {1}, {2}, {3, 4}, {5, 6}, {7}, {8, 9}]
    met = iter(names[nodes].tolist())
    assert [{next(met) for _ in group} for group in groups] == groups


@pytest.mark.parametrize(
    ("weighted", "backend"), [(True, "native"), (False, "native"), (True, "jit"), (False, "reference")]
)
def test_rows_are_summed_as_before_also_in_the_transpose(weighted, backend):
    if backend == "native":
        require(library.load(), "the native library")
    matrix = random_csr(rows=70, weighted=weighted)
    rows, columns = permutation(70), permutation(90, seed=4)
    x, y = torch.randn(90, 5), torch.randn(70, 5)
    first = permutation(70, seed=5)
    twice = matrix.in_order(first, None).in_order(torch.argsort(first)[rows], columns)
    cast = matrix if matrix.weight is None else matrix.with_weight(matrix.weight.clone())
    for ordered in (matrix.in_order(rows, columns), twice, cast.in_order(rows, columns)):
        again = ordered if ordered.weight is None else ordered.with_weight(ordered.weight)
        for one in (ordered, again):
            assert torch.equal(spmm(one, x[columns], backend=backend), spmm(matrix, x, backend=backend)[rows])
            expected = spmm(matrix.transpose(), y, backend=backend)[columns]
            assert torch.equal(spmm(one.transpose(), y[rows], backend=backend), expected)
    for part in (matrix.in_order(rows, None), matrix.in_order(None, columns)):
        assert part.transpose().transpose() is part


def test_some_rows_will_do():
    matrix, rows = random_csr(), torch.tensor([5, 0, 88])
    x = torch.randn(90, 4)
    assert torch.equal(spmm(matrix.in_order(rows, None), x), spmm(matrix, x)[rows])
    assert matrix.in_order(rows[:0], None).num_rows == 0


def test_the_fastest_wins_if_it_gains_enough():
    assert choice.fastest({"none": 1.0, "degree": 0.94, "rcm": 0.8, "hubs": 1.2}) == "rcm"
    assert choice.fastest({"none": 1.0, "degree": 0.97, "rcm": 0.96, "hubs": 1.2}) == "none"


@pytest.mark.parametrize("winner", ["none", *ORDERS])
def test_auto_takes_what_it_measured_and_says_so(monkeypatch, winner):
    local = random_csr()
    calls = iter([])

    def measured(matrix: Csr, x: torch.Tensor, out: torch.Tensor) -> float:
        assert x.shape == (90, 16)
        return next(calls)

    # Rounds of all candidates, with two products each; a single slow round must not decide.
    slow, usual = ([1.0 if name == winner else 0.1 for name in ("none", *ORDERS) for _ in range(2)] for _ in range(2))
    usual = [0.5 if value == 1.0 else 0.9 for value in usual]
    calls = iter(slow + slow + usual * (choice._ROUNDS - 1))
    monkeypatch.setattr(choice, "_seconds_an_entry", measured)
    found = node_order(local, "auto", 16)
    assert next(calls, None) is None
    assert found.method == winner
    assert found.seconds == pytest.approx(
        {name: local.num_entries * (1.0 if name == winner else 1.8) for name in ("none", *ORDERS)}
    )
    assert (found.nodes is None) == (winner == "none")
    assert winner == "none" or torch.equal(found.nodes, find_order(local, winner))


def test_auto_really_measures():
    found = node_order(random_csr(), "auto", 8)
    assert set(found.seconds) == {"none", *ORDERS}
    assert all(seconds > 0 for seconds in found.seconds.values())


@pytest.mark.parametrize("most", [1, 40, 400])
def test_a_sample_is_bounded_and_from_everywhere(most):
    matrix, nodes = random_csr(rows=4000, columns=4000), permutation(4000)
    longest = int(matrix.row_lengths().max())
    sample = choice._sample(matrix, nodes, most)
    assert 0 < sample.num_entries <= most + choice._WINDOWS * longest
    assert sample.num_cols == 4000
    taken = torch.argsort(nodes)[sample._rows_before]
    assert (taken.diff() > 0).all()
    assert taken[0] < 500
    assert taken[-1] > 3400


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="method must be one of none, degree"):
        node_order(random_csr(), "alphabetical", 8)


@pytest.fixture
def loaded(tmp_path):
    path = tmp_path / "parts.h5"
    graph = small_graphs.random_multigraph()
    small_graphs.write_parts(path, graph, np.zeros(graph.num_nodes, int), 1)
    return hpcgnn.load(path)


def test_a_graph_and_its_model_belong_together(loaded):
    ordered = loaded.reordered("degree")
    assert torch.equal(ordered.in_loaded_order(ordered.x), loaded.x)
    assert torch.equal(loaded.y[ordered.order.nodes], ordered.y)
    assert all(torch.equal(loaded.masks[name][ordered.order.nodes], mask) for name, mask in ordered.masks.items())
    model = hpcgnn.build_model(hpcgnn.ModelConfig(layers=2, hidden=8), loaded)
    with pytest.raises(hpcgnn.HpcgnnError, match="another node order"):
        hpcgnn.Trainer(model, ordered)
    with pytest.raises(ValueError, match="in another order already"):
        ordered.in_order(NodeOrder("mine", torch.arange(ordered.num_nodes)))
    assert loaded.reordered("none").order == NodeOrder()
