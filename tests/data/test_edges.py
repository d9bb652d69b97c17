"""The external sort of edges, beyond what the matrix of sources sorts and merges: large ids, many edges, and refusals."""

from collections import Counter

import numpy as np
import pytest

from hpcgnn import HpcgnnError
from hpcgnn.sources.edges import MAX_NODES, EdgeChunk, EdgeForm, EdgeOptions, _Spill, sort_edges

PLAIN, WEIGHTED, TYPED = EdgeForm(), EdgeForm(True), EdgeForm(False, 3, 2)


def run_sort(edges, num_nodes, form, folder, chunk=1, group=4, **options):
    """The stored edges (source, target, weight or 0) of edges ``(source, target, weight, type, two features)``, in their order,
    and whether each has its reverse."""

    def chunks():
        for first in range(0, len(edges), chunk):
            src, dst, weight, kind, *attr = np.array(edges[first : first + chunk], np.float64).T
            of_form = weight if form.weighted else None, kind.astype(int) if form.num_types else None
            attr = np.stack(attr, axis=1) if form.attr_columns else None
            yield EdgeChunk(src.astype(int), dst.astype(int), *of_form, attr)

    result = sort_edges(chunks(), num_nodes, form, EdgeOptions(**options), folder, "test", group_edges=group)
    indptr, sources = result.indptr.read(0, num_nodes + 1), result.indices.read(0, result.num_edges)
    weight = result.values.read(0, result.num_edges)["weight"] if form.weighted else np.zeros(result.num_edges)
    result.close()
    targets = np.repeat(np.arange(num_nodes), np.diff(indptr))
    return list(zip(sources.tolist(), targets.tolist(), weight.tolist(), strict=True)), result.symmetric


def test_both_directions_with_different_weights_are_no_undirected_graph(tmp_path):
    for weight in (1, 2):
        edges = [(0, 1, 1, 0, 0, 0), (1, 0, weight, 0, 0, 0)]
        assert run_sort(edges, 2, WEIGHTED, tmp_path) == ([(1, 0, weight), (0, 1, 1)], weight == 1)


def test_more_nodes_than_ranges(tmp_path):
    random = np.random.default_rng(0)
    edges = [(s, d, 0, 0, 0, 0) for s, d in random.integers(0, 20_000, (5_000, 2)).tolist()]
    stored, _ = run_sort(edges, 20_000, PLAIN, tmp_path, chunk=701, group=97)
    assert Counter(stored) == Counter(edge[:3] for edge in edges)


def test_many_parallel_edges_keep_their_order(tmp_path):
    """There are so many that numpy does not use insertion sort, which would be stable by itself."""
    edges = [(i % 3, 1, float(i), 0, 0, 0) for i in range(3_000)]
    stored, _ = run_sort(edges, 3, WEIGHTED, tmp_path, chunk=1_000, group=10_000)
    assert stored == sorted(edge[:3] for edge in edges)


def test_groups_are_bounded_in_nodes_and_the_largest_id_does_not_overflow(tmp_path):
    spill = _Spill(10**6, EdgeForm(), False, tmp_path, "test")
    spill.add(EdgeChunk(np.array([5]), np.array([999_999])))
    spans = [(first, last, keys.size) for first, last, keys, _ in spill.groups(1000)]
    spill.close()
    assert max(last - first for first, last, _ in spans) <= 1000
    assert [spans[0][0], spans[-1][1], sum(size for *_, size in spans)] == [0, 10**6, 1]
    last = MAX_NODES - 1
    spill = _Spill(MAX_NODES, EdgeForm(), True, tmp_path, "test")
    spill.add(EdgeChunk(np.array([last, 0]), np.array([last, last])))
    found = sorted(key for _, _, keys, _ in spill.groups(1) for key in keys.tolist())
    spill.close()
    assert found == [last, last * MAX_NODES, last * MAX_NODES + last, last * MAX_NODES + last]


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
        run_sort([(0, 1, 3e38, 0, 3e38, 0), edge], 3, form, tmp_path, **options)
    assert not list(tmp_path.iterdir())
    for num_nodes in (0, -1, MAX_NODES + 1):
        with pytest.raises(HpcgnnError, match="converts graphs of 1 to"):
            run_sort([], num_nodes, PLAIN, tmp_path)
