"""The external sort compared with a dictionary, with so small groups and chunks that there are many of both."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcgnn import HpcgnnError
from hpcgnn.sources.edges import MAX_NODES, EdgeChunk, EdgeForm, EdgeOptions, _Spill, sort_edges

PLAIN, WEIGHTED, TYPED = EdgeForm(), EdgeForm(True), EdgeForm(False, 3, 2)


def chunks_of(edges, form, size):
    """Chunks of edges ``(src, dst, weight, type, two features)``, with the values of the form."""
    for first in range(0, len(edges), size):
        src, dst, weight, kind, *attr = np.array(edges[first : first + size], np.float64).T
        yield EdgeChunk(
            src.astype(np.int64),
            dst.astype(np.int64),
            weight if form.weighted else None,
            kind.astype(np.int64) if form.num_types else None,
            np.stack(attr, axis=1) if form.attr_columns else None,
        )


def run_sort(edges, num_nodes, form, options, folder, chunk=3, group=4):
    """The stored edges, with zeros for values that the form lacks, in their order, and whether each has its reverse."""
    chunks = chunks_of(edges, form, chunk)
    result = sort_edges(chunks, num_nodes, form, options, folder, "test", group_edges=group)
    indptr, sources = result.indptr.read(0, num_nodes + 1), result.indices.read(0, result.num_edges)
    values = None if result.values is None else result.values.read(0, result.num_edges)
    result.close()
    targets, none = np.repeat(np.arange(num_nodes), np.diff(indptr)), np.zeros(sources.size)
    columns = [values["weight"] if form.weighted else none, values["type"] if form.num_types else none]
    columns += [*values["attr"].T] if form.attr_columns else [none, none]
    stored = list(zip(sources.tolist(), targets.tolist(), *(each.tolist() for each in columns), strict=True))
    order = [(target, source, kind) for source, target, _, kind, *_ in stored]
    assert order == sorted(order)
    return stored, result.symmetric


def by_hand(edges, num_nodes, form, options):
    """The same result in plain Python."""
    has = np.array([form.weighted, bool(form.attr_columns), bool(form.attr_columns)])
    edges = [(s, d, kind * bool(form.num_types), *(has * (w, *attr))) for s, d, w, kind, *attr in edges]
    if options.undirected:
        edges += [(d, s, *rest) for s, d, *rest in edges]
    if options.undirected or options.drop_duplicates:
        sums = {}
        for *key, w, a, b in edges:
            sums[tuple(key)] = sums.get(tuple(key), 0) + np.array([w, a, b])
        edges = [(*key, *values) for key, values in sums.items()]
    if options.self_loops:
        have = {s for s, d, *_ in edges if s == d}
        edges += [(v, v, 0, float(form.weighted), 0, 0) for v in range(num_nodes) if v not in have]
    return [(s, d, w, kind, a, b) for s, d, kind, w, a, b in edges]


ids, whole = st.integers(0, 6), st.integers(-4, 9)  # sums of whole numbers are exact in any order


# Both directions with different weights, which are rarely drawn, make no undirected graph.
@example(edges=[(0, 1, 1, 0, 0, 0), (1, 0, 2, 0, 0, 0)], form=WEIGHTED, options=EdgeOptions(), chunk=3, group=4)
@settings(max_examples=300, deadline=None)
@given(
    edges=st.lists(st.tuples(ids, ids, whole, st.integers(0, 2), whole, whole), max_size=40),
    form=st.sampled_from([PLAIN, WEIGHTED, TYPED]),
    options=st.builds(EdgeOptions, st.booleans(), st.booleans(), st.booleans()),
    chunk=st.integers(1, 50),
    group=st.integers(1, 50),
)
def test_equals_a_dictionary(tmp_path_factory, edges, form, options, chunk, group):
    if form is TYPED:
        options = EdgeOptions(options.undirected, False, options.drop_duplicates)
    folder = tmp_path_factory.getbasetemp()
    stored, symmetric = run_sort(edges, 7, form, options, folder, chunk, group)
    assert Counter(stored) == Counter(by_hand(edges, 7, form, options))
    there = Counter(edge[:3] for edge in stored)  # types and features do not count
    assert symmetric == (there == Counter((d, s, w) for s, d, w, *_ in stored))


def test_more_nodes_than_ranges(tmp_path):
    random = np.random.default_rng(0)
    edges = [(s, d, 0, 0, 0, 0) for s, d in random.integers(0, 20_000, (5_000, 2)).tolist()]
    stored, _ = run_sort(edges, 20_000, PLAIN, EdgeOptions(), tmp_path, chunk=701, group=97)
    assert Counter(stored) == Counter(edges)


def test_many_parallel_edges_keep_their_order(tmp_path):
    """There are so many that numpy does not use insertion sort, which would be stable by itself."""
    edges = [(i % 3, 1, float(i), 0, 0, 0) for i in range(3_000)]
    stored, _ = run_sort(edges, 3, WEIGHTED, EdgeOptions(), tmp_path, chunk=1_000, group=10_000)
    assert stored == sorted(edges)


def test_groups_are_bounded_in_nodes_too(tmp_path):
    spill = _Spill(10**6, EdgeForm(), False, tmp_path, "test")
    spill.add(EdgeChunk(np.array([5]), np.array([999_999])))
    spans = [(first, last, keys.size) for first, last, keys, _ in spill.groups(1000)]
    spill.close()
    assert max(last - first for first, last, _ in spans) <= 1000
    assert [spans[0][0], spans[-1][1], sum(size for *_, size in spans)] == [0, 10**6, 1]


def test_the_largest_id_does_not_overflow(tmp_path):
    last = MAX_NODES - 1
    spill = _Spill(MAX_NODES, EdgeForm(), True, tmp_path, "test")
    spill.add(EdgeChunk(np.array([last, 0]), np.array([last, last])))
    found = sorted(key for _, _, keys, _ in spill.groups(1) for key in keys.tolist())
    spill.close()
    assert found == [last, last * MAX_NODES, last * MAX_NODES + last, last * MAX_NODES + last]


@pytest.mark.parametrize("num_nodes", [0, -1, MAX_NODES + 1])
def test_bad_sizes(tmp_path, num_nodes):
    with pytest.raises(HpcgnnError, match="converts graphs of 1 to"):
        run_sort([], num_nodes, PLAIN, EdgeOptions(), tmp_path)


MERGE = {"drop_duplicates": True}


@pytest.mark.parametrize(
    ("form", "edge", "options", "sentence"),
    [
        (WEIGHTED, (0, 3, 1, 0, 0, 0), {}, "test: edge 1 is 0 -> 3, but node ids run from 0 to 2"),
        (WEIGHTED, (-1, 0, 1, 0, 0, 0), {}, "edge 1 is -1 -> 0"),
        (WEIGHTED, (1, 2, np.nan, 0, 0, 0), {}, r"edge 1 \(1 -> 2\) has weight nan"),
        (WEIGHTED, (1, 2, np.inf, 0, 0, 0), {}, "has weight inf"),
        (WEIGHTED, (0, 1, 3e38, 0, 0, 0), MERGE, "the weights of the edges 0 -> 1 add up to more than float32 holds"),
        (TYPED, (1, 2, 0, 3, 0, 0), {}, r"test: edge 1 \(1 -> 2\) has type 3, but types run from 0 to 2"),
        (TYPED, (1, 2, 0, -1, 0, 0), {}, r"edge 1 \(1 -> 2\) has type -1"),
        (TYPED, (1, 2, 0, 0, 0, np.nan), {}, r"edge 1 \(1 -> 2\) has feature nan: features must be finite float32"),
        (TYPED, (0, 1, 0, 0, 3e38, 0), MERGE, "the features of the edges 0 -> 1 add up to more than float32 holds"),
    ],
)
def test_bad_edges(tmp_path, form, edge, options, sentence):
    with pytest.raises(HpcgnnError, match=sentence):
        run_sort([(0, 1, 3e38, 0, 3e38, 0), edge], 3, form, EdgeOptions(**options), tmp_path, chunk=1)
    assert not list(tmp_path.iterdir())
