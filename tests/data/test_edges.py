"""The external sort compared with a dictionary, with so small groups and chunks that there are many of both."""

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from requires import require_module

from hpcgnn import HpcgnnError
from hpcgnn.sources.edges import MAX_NODES, EdgeChunk, EdgeForm, EdgeOptions, _pack, _Spill, sort_edges


def chunked(src, dst, weight, size):
    for first in range(0, len(src), size):
        part = slice(first, first + size)
        yield EdgeChunk(src[part], dst[part], None if weight is None else weight[part])


def run_sort(edges, num_nodes, weighted, options, folder, chunk=3, group=4):
    src, dst = (np.array([edge[i] for edge in edges], np.int64) for i in range(2))
    weight = np.array([edge[2] for edge in edges], np.float32) if weighted else None
    chunks = chunked(src, dst, weight, chunk)
    result = sort_edges(chunks, num_nodes, EdgeForm(weighted), options, folder, "test", group_edges=group)
    indptr, indices = result.indptr.read(0, num_nodes + 1), result.indices.read(0, result.num_edges)
    ones = np.ones(result.num_edges, np.float32)
    weights = result.values.read(0, result.num_edges)["weight"] if weighted else ones
    result.close()
    targets = np.repeat(np.arange(num_nodes), np.diff(indptr))
    assert (np.diff(indices)[np.diff(targets) == 0] >= 0).all()
    return list(zip(indices.tolist(), targets.tolist(), weights.tolist(), strict=True)), result.symmetric


def by_hand(edges, num_nodes, options):
    """The same result in plain Python: a sorted list of (src, dst, weight)."""
    if options.undirected:
        edges = edges + [(d, s, w) for s, d, w in edges]
    if options.undirected or options.drop_duplicates:
        sums = defaultdict(float)
        for s, d, w in edges:
            sums[s, d] += w
        edges = [(s, d, w) for (s, d), w in sums.items()]
    if options.self_loops:
        have = {s for s, d, _ in edges if s == d}
        edges = edges + [(v, v, 1.0) for v in range(num_nodes) if v not in have]
    return edges


graphs = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        st.just(n),
        # Weights are integers, whose sums are exact in any order.
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(-4, 9).map(float)), max_size=40),
    )
)
any_options = st.builds(EdgeOptions, st.booleans(), st.booleans(), st.booleans())


# Both directions with different weights, which are rarely drawn, make no undirected graph.
@example(graph=(2, [(0, 1, 1.0), (1, 0, 2.0)]), weighted=True, options=EdgeOptions(), chunk=3, group=4)
@settings(max_examples=300, deadline=None)
@given(graph=graphs, weighted=st.booleans(), options=any_options, chunk=st.integers(1, 50), group=st.integers(1, 50))
def test_equals_a_dictionary(tmp_path_factory, graph, weighted, options, chunk, group):
    num_nodes, edges = graph
    if not weighted:
        edges = [(s, d, 1.0) for s, d, _ in edges]
    folder = tmp_path_factory.getbasetemp()
    stored, symmetric = run_sort(edges, num_nodes, weighted, options, folder, chunk, group)
    expected = by_hand(edges, num_nodes, options)
    if not weighted:
        stored, expected = [edge[:2] for edge in stored], [edge[:2] for edge in expected]
    assert Counter(stored) == Counter(expected)
    reverse = Counter((d, s, *w) for s, d, *w in stored)
    assert symmetric == (Counter(stored) == reverse)


def test_more_nodes_than_ranges(tmp_path):
    random = np.random.default_rng(0)
    edges = [(s, d, 1.0) for s, d in random.integers(0, 20_000, (5_000, 2)).tolist()]
    stored, _ = run_sort(edges, 20_000, False, EdgeOptions(), tmp_path, chunk=701, group=97)
    assert Counter(stored) == Counter(edges)


def test_many_parallel_edges_keep_their_order(tmp_path):
    """There are so many that numpy does not use insertion sort, which would be stable by itself."""
    edges = [(i % 3, 1, float(i)) for i in range(3_000)]
    stored, _ = run_sort(edges, 3, True, EdgeOptions(), tmp_path, chunk=1_000, group=10_000)
    assert stored == sorted(edges)


@given(sizes=st.lists(st.integers(0, 9), min_size=1), limit=st.integers(1, 20))
def test_groups_are_as_large_as_the_limit_allows(sizes, limit):
    groups = list(_pack(np.array(sizes), limit))
    assert [first for first, _ in groups] == [0, *(last for _, last in groups[:-1])]
    assert groups[-1][1] == len(sizes)
    for first, last in groups:
        assert last == first + 1 or sum(sizes[first:last]) <= limit
        assert last == len(sizes) or sum(sizes[first : last + 1]) > limit


def test_groups_are_bounded_in_nodes_too(tmp_path):
    spill = _Spill(10**6, EdgeForm(), False, tmp_path, "test")
    spill.add(EdgeChunk(np.array([5]), np.array([999_999])))
    spans = [(first, last, keys.size) for first, last, keys, _ in spill.groups(1000)]
    spill.close()
    assert max(last - first for first, last, _ in spans) <= 1000
    assert [spans[0][0], spans[-1][1], sum(size for *_, size in spans)] == [0, 10**6, 1]


def test_merged_weights_that_are_too_large(tmp_path):
    edges = [(1, 0, 3e38), (1, 0, 3e38)]
    with pytest.raises(HpcgnnError, match="test: the weights of the edges 1 -> 0 add up to more than float32 holds"):
        run_sort(edges, 2, True, EdgeOptions(drop_duplicates=True), tmp_path)


def test_undirected_is_what_pyg_does(tmp_path):
    utils = require_module("torch_geometric.utils")
    random = np.random.default_rng(1)
    edges = random.integers(0, 8, (60, 3))
    index, weight = utils.to_undirected(torch.tensor(edges[:, :2]).T, torch.tensor(edges[:, 2]).float())
    expected = zip(*index.tolist(), weight.tolist(), strict=True)
    stored, symmetric = run_sort(edges, 8, True, EdgeOptions(undirected=True), tmp_path)
    assert symmetric
    assert sorted(stored) == sorted(expected)


@pytest.mark.parametrize(
    ("src", "dst", "weight", "sentence"),
    [
        (0, 3, 1.0, "edge 1 is 0 -> 3, but node ids run from 0 to 2"),
        (-1, 0, 1.0, "edge 1 is -1 -> 0"),
        (1, 2, np.nan, r"edge 1 \(1 -> 2\) has weight nan"),
        (1, 2, np.inf, "has weight inf"),
    ],
)
def test_bad_edges(tmp_path, src, dst, weight, sentence):
    with pytest.raises(HpcgnnError, match=sentence):
        run_sort([(0, 1, 1.0), (src, dst, weight)], 3, True, EdgeOptions(), tmp_path, chunk=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_nodes", [0, -1, MAX_NODES + 1])
def test_bad_sizes(tmp_path, num_nodes):
    with pytest.raises(HpcgnnError, match="converts graphs of 1 to"):
        run_sort([], num_nodes, False, EdgeOptions(), tmp_path)


def test_the_largest_id_does_not_overflow(tmp_path):
    last = MAX_NODES - 1
    spill = _Spill(MAX_NODES, EdgeForm(), True, tmp_path, "test")
    spill.add(EdgeChunk(np.array([last, 0]), np.array([last, last])))
    found = sorted(key for _, _, keys, _ in spill.groups(1) for key in keys.tolist())
    spill.close()
    assert found == [last, last * MAX_NODES, last * MAX_NODES + last, last * MAX_NODES + last]


# -- types and features of edges -----------------------------------------------------------------------------------------


def run_typed(edges, num_nodes, options, folder, chunk=3, group=4):
    """Sort ``(src, dst, type, two features)``, in pieces, and return the stored edges in that form."""
    src, dst, kind = (np.array([edge[i] for edge in edges], np.int64) for i in range(3))
    attr = np.array([edge[3:] for edge in edges], np.float32).reshape(-1, 2)
    chunks = (
        EdgeChunk(src[part], dst[part], type=kind[part], attr=attr[part])
        for part in (slice(first, first + chunk) for first in range(0, len(edges), chunk))
    )
    result = sort_edges(chunks, num_nodes, EdgeForm(False, 3, 2), options, folder, "test", group_edges=group)
    indptr, sources = result.indptr.read(0, num_nodes + 1), result.indices.read(0, result.num_edges)
    values = result.values.read(0, result.num_edges)
    result.close()
    targets = np.repeat(np.arange(num_nodes), np.diff(indptr))
    return list(
        zip(sources.tolist(), targets.tolist(), values["type"].tolist(), *values["attr"].T.tolist(), strict=True)
    )


@settings(max_examples=150, deadline=None)
@given(
    edges=st.lists(st.tuples(*[st.integers(0, 4)] * 2, st.integers(0, 2), *[st.integers(-9, 9)] * 2), max_size=40),
    options=st.builds(EdgeOptions, st.booleans(), st.just(False), st.booleans()),
    chunk=st.integers(1, 50),
    group=st.integers(1, 50),
)
def test_types_and_features_stay_with_their_edges(tmp_path_factory, edges, options, chunk, group):
    expected = edges + [(d, s, *rest) for s, d, *rest in edges] if options.undirected else edges
    if options.undirected or options.drop_duplicates:
        sums = defaultdict(lambda: np.zeros(2))
        for s, d, kind, *attr in expected:
            sums[s, d, kind] += attr
        expected = [(*ends, *attr.tolist()) for ends, attr in sums.items()]
    stored = run_typed(edges, 5, options, tmp_path_factory.getbasetemp(), chunk, group)
    assert Counter(stored) == Counter(expected)
    ordered = [(d, s, kind) for s, d, kind, *_ in stored]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize(
    ("edge", "options", "sentence"),
    [
        ((1, 2, 3, 0, 0), {}, r"test: edge 1 \(1 -> 2\) has type 3, but types run from 0 to 2"),
        ((1, 2, -1, 0, 0), {}, r"edge 1 \(1 -> 2\) has type -1"),
        ((1, 2, 0, 0, np.nan), {}, r"edge 1 \(1 -> 2\) has feature nan: features must be finite float32 numbers"),
        (
            (0, 1, 0, 3e38, 0),
            {"drop_duplicates": True},
            "the features of the edges 0 -> 1 add up to more than float32 holds",
        ),
        ((1, 2, 0, 0, 0), {"self_loops": True}, "test has types or features of edges, which --self-loops cannot give"),
    ],
)
def test_bad_types_and_features(tmp_path, edge, options, sentence):
    with pytest.raises(HpcgnnError, match=sentence):
        run_typed([(0, 1, 0, 3e38, 0), edge], 3, EdgeOptions(**options), tmp_path, chunk=1)
    assert not list(tmp_path.iterdir())
