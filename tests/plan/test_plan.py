"""The plan, of edges with types and without, compared with networkx and with the dense definition, and its numbers of rows with a
dense table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matchings import rows_by_matching

from hpcgnn.plan import STRATEGIES, plan_receiver
from hpcgnn.plan.build import MOST_WORK, ReceiverPlan, csr_matrix, sources_in_cover
from hpcgnn.plan.plan import PairRows, SparseMatrix, describe, max_over_mean
from hpcgnn.plan.relations import RelationRows

NODES, TYPES = 40, 4
# The strategies, and hybrid plans of parts that all have too much work.
MOVED = "moved"
PLANS = (*STRATEGIES, MOVED)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 40), st.integers(0, 10_000))
def test_the_cover_is_a_cover_and_as_small_as_a_matching(lefts, rights, edges, seed):
    rng = np.random.default_rng(seed)
    sources, destinations = rng.integers(0, lefts, edges), rng.integers(0, rights, edges)
    covered = sources_in_cover(sources, destinations, (lefts, rights))
    rest = destinations[~covered[sources]]
    matching = rows_by_matching(sources, lefts + destinations, np.repeat([0, 1], (lefts, rights)))
    assert covered[np.unique(sources)].sum() + np.unique(rest).size == matching.get((0, 1), 0)


@dataclass
class Sums:
    """The plan of a part. relation, node: (p,) of each sum that the part needs, the node's number counted in the whole graph."""

    plan: ReceiverPlan
    own: slice
    relation: np.ndarray
    node: np.ndarray

    @property
    def senders(self) -> np.ndarray:
        """(k,) of each row that the part receives."""
        return np.repeat(self.plan.receive_from.peers, self.plan.receive_from.rows)


class Graph:
    """A directed graph in parts, its edges, (E,) each, sorted by target and source. types: numbers below ``TYPES``; None for a
    graph without types, whose edges then all have the type 0."""

    def __init__(self, sources: np.ndarray, targets: np.ndarray, offsets: np.ndarray, types: np.ndarray | None = None):
        order = np.lexsort((sources, targets))
        self.sources, self.targets, self.offsets = sources[order], targets[order], offsets
        self.is_typed, self.types = types is not None, np.zeros_like(targets) if types is None else types[order]
        self.indptr = np.concatenate(([0], np.cumsum(np.bincount(targets, minlength=offsets[-1]))))
        self.owner = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))

    def plans(self, strategy: str, mean_edges: float = math.inf) -> list[Sums]:
        if strategy == MOVED:
            strategy, mean_edges = "hybrid", 1.0
        return [self._plan(part, strategy, mean_edges) for part in range(self.offsets.size - 1)]

    def _plan(self, part: int, strategy: str, mean_edges: float) -> Sums:
        first, last = self.offsets[part : part + 2]
        slab = self.indptr[first : last + 1]
        mine = slice(slab[0], slab[-1])
        relation, node, rows = np.zeros(last - first, int), np.arange(last - first), None
        if self.is_typed:
            pairs = RelationRows.of(self.types[mine], self.targets[mine] - first, int(last - first), TYPES)
            relation, node, rows = pairs.relation, pairs.node, pairs.rows
            edges = np.zeros((TYPES, NODES), int)
            np.add.at(edges, (self.types[mine], self.targets[mine]), 1)
            assert np.array_equal(pairs.edges, edges[relation, first + node])
            assert np.array_equal(relation * NODES + node, np.unique(relation * NODES + node)), "pairs are in order"
        plan = plan_receiver(slab, self.sources[mine], self.offsets, part, strategy, rows, mean_edges)
        return Sums(plan, slice(first, last), relation, first + node)


def random_graph(seed: int, parts: int, *, is_typed: bool = False, edges: int = 300) -> Graph:
    """A multigraph with self-loops, of which part 1 is empty. Hubs on both sides make both kinds of rows useful. Of four types,
    the last has one edge, and there are parallel edges of three types."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, NODES + 1, parts - 1))
    offsets = np.concatenate(([0], cuts, [NODES]))
    if parts > 2:
        offsets[2] = offsets[1]
    sources = np.concatenate((rng.integers(0, NODES, edges), rng.integers(0, 4, edges), [5, 5, 5]))
    targets = np.concatenate((rng.integers(NODES - 4, NODES, edges), rng.integers(0, NODES, edges), [9, 9, 9]))
    types = np.concatenate((rng.integers(0, 3, 2 * edges), [0, 1, 3])) if is_typed else None
    return Graph(sources, targets, offsets, types)


def dense(matrix: SparseMatrix, columns: int) -> np.ndarray:
    result = np.zeros((matrix.num_rows, columns))
    rows = np.repeat(np.arange(matrix.num_rows), np.diff(matrix.indptr))
    np.add.at(result, (rows, matrix.indices), 1)
    return result


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("strategy", PLANS)
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_local_plus_received_is_the_whole_aggregation_and_each_edge_has_one_owner(seed, parts, strategy, is_typed):
    graph = random_graph(seed, parts, is_typed=is_typed)
    x = np.random.default_rng(seed).standard_normal((NODES, 3))
    wanted = np.zeros((TYPES, NODES, 3))
    np.add.at(wanted, (graph.types, graph.targets), x[graph.sources])
    found, edges = np.zeros_like(wanted), []
    for part in graph.plans(strategy):
        plan, senders = part.plan, part.senders
        rows = np.repeat(np.arange(senders.size), plan.wanted.lengths)  # of each entry
        assert (plan.wanted.sources < np.diff(graph.offsets)[senders[rows]]).all(), "a sender has its rows' sources"
        received = np.zeros((senders.size, 3))
        np.add.at(received, rows, x[graph.offsets[senders[rows]] + plan.wanted.sources])
        total = dense(plan.local, part.own.stop - part.own.start) @ x[part.own]
        found[part.relation, part.node] = total + dense(plan.receive, senders.size) @ received
        edges += [plan.local.edges, plan.receive.edges, plan.wanted.edges]
    np.testing.assert_allclose(found, wanted)
    owned = np.concatenate(edges)
    assert sorted(owned[owned >= 0]) == list(range(graph.sources.size))


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_rows_of_every_pair_are_as_few_as_their_strategy_allows(seed, is_typed):
    """A maximum matching, where a sum of a node is one vertex and a source is one for all types; or all sources, or all sums."""
    graph = random_graph(seed, 5, is_typed=is_typed)
    sums = NODES * graph.types + graph.targets
    matching = rows_by_matching(graph.sources, NODES + sums, np.tile(graph.owner, 1 + TYPES))
    kinds = 0
    for strategy in STRATEGIES:
        met = set()
        for receiver, each in enumerate(graph.plans(strategy)):
            for sender, post, pre in _rows_by_sender(each.plan):
                met.add((sender, receiver))
                cut = (graph.owner[graph.sources] == sender) & (graph.owner[graph.targets] == receiver)
                sources, of_sums = (np.unique(ends[cut]).size for ends in (graph.sources, sums))
                if strategy == "hybrid":
                    assert post + pre == matching[sender, receiver]
                    kinds += np.array((post, pre))
                else:
                    assert (post, pre) == ((sources, 0) if strategy == "post" else (0, of_sums))
        assert met == set(matching)
    assert np.min(kinds) > 0, "the graph must make both kinds of rows pay"


def _rows_by_sender(plan: ReceiverPlan) -> Iterator[tuple[int, int, int]]:
    """The sender, and the numbers of its post rows and of its pre rows."""
    found = plan.receive_from
    yield from zip(found.peers.tolist(), found.post.tolist(), found.pre.tolist(), strict=True)


@pytest.mark.parametrize("name", ["cora", "debian-tags", "amazon-computers"])
def test_hybrid_sends_no_pair_more_than_pre_or_post_on_real_graphs(shared_data, name):
    edges = np.load(shared_data(f"{name}.npz"))["edge_index"].astype(np.int64)
    nodes = int(edges.max()) + 1
    offsets = np.array([0, nodes // 2, nodes // 2, 3 * nodes // 4, nodes])
    graph = Graph(*np.random.default_rng(0).permutation(nodes)[edges], offsets)
    pre, post, hybrid = (
        np.stack([each.plan.receive_from.counts(4) for each in graph.plans(strategy)])
        for strategy in ("pre", "post", "hybrid")
    )
    assert [np.count_nonzero(rows) for rows in (pre, post, hybrid)] == [6] * 3
    assert (hybrid <= np.minimum(pre, post)).all()
    assert (hybrid < np.minimum(pre, post)).any(), "hybrid is more than the better of the two"


@pytest.mark.parametrize("seed", [1, 3, 4, 6])  # with other seeds, no part has an edge that costs no row
def test_a_relieved_part_has_fewer_entries_and_no_pair_sends_more_rows(seed):
    graph, fewer = random_graph(seed, 5), []
    mean = graph.sources.size / 5
    plans = ([each.plan for each in graph.plans(*how)] for how in (("hybrid",), (MOVED,), ("hybrid", mean)))
    for plain, moved, usual in zip(*plans, strict=True):
        assert (moved.receive_from.counts(5) <= plain.receive_from.counts(5)).all()
        fewer.append(plain.receive.indices.size - moved.receive.indices.size)
        if plain.local.indices.size + plain.receive.indices.size <= MOST_WORK * mean:
            assert np.array_equal(usual.receive.edges, plain.receive.edges)
            assert np.array_equal(usual.wanted.edges, plain.wanted.edges)
    assert min(fewer) >= 0
    assert max(fewer) > 0, "nothing was moved"


def test_the_part_of_a_hub_gets_no_more_work_than_others():
    parts, nodes, parallel = 8, 10, 60
    offsets = np.concatenate(([0], 1 + nodes * np.arange(parts)))  # the hub, node 0, is alone in part 0
    others = np.arange(1, offsets[-1])
    # One node of each other part has parallel edges to the hub: its row could travel, or their sum.
    to_hub = np.repeat(offsets[1:-1], parallel)
    sources = np.concatenate((to_hub, *(np.roll(others, -nodes * shift) for shift in range(5))))
    targets = np.concatenate((np.zeros_like(to_hub), np.tile(others, 5)))
    graph, work, rows = Graph(sources, targets, offsets), [], []
    for mean_edges in (math.inf, sources.size / parts):
        plans = [each.plan for each in graph.plans("hybrid", mean_edges)]
        entries = np.array([plan.local.indices.size + plan.receive.indices.size for plan in plans])  # of L and R
        for plan in plans:  # and of S
            first_rows = np.cumsum(plan.receive_from.rows) - plan.receive_from.rows
            np.add.at(entries, plan.receive_from.peers, np.add.reduceat(plan.wanted.lengths, first_rows))
        work.append(max_over_mean(entries))
        rows.append(sum(plan.receive_from.total for plan in plans))
    assert work[0] > 2, "the hub is no burden"
    assert work[1] <= 1.3
    assert rows[0] == rows[1], "the number of rows is another"


def test_entries_of_a_row_ascend_by_column_and_equal_ones_keep_their_order():
    rows, columns, edges = np.array([1, 0, 1, 1, 1]), np.array([2, 1, 0, 2, 0]), np.array([5, 6, 7, 8, 9])
    matrix = csr_matrix(rows, columns, edges, (2, 3))
    assert matrix.indptr.tolist() == [0, 1, 5]
    assert matrix.indices.tolist() == [1, 0, 0, 2, 2]
    assert matrix.edges.tolist() == [6, 7, 9, 5, 8]


def test_totals_and_maxima_are_those_of_a_dense_table():
    post, pre = np.random.default_rng(0).integers(1, 9, (2, 4, 4))
    for kind in (post, pre):
        np.fill_diagonal(kind, 0)
        kind[:, 3] = 0  # part 3 receives nothing
    sender, receiver = np.nonzero(post)
    rows = post + pre
    assert describe(PairRows(sender, receiver, post[sender, receiver], pre[sender, receiver]), 4, bytes_per_row=12) == {
        "pairs": 9,
        "rows": rows.sum(),
        "post_rows": post.sum(),
        "pre_rows": pre.sum(),
        "bytes": 12 * rows.sum(),
        "max_rows_sent": rows.sum(axis=1).max(),
        "max_rows_received": rows.sum(axis=0).max(),
        "max_rows_pair": rows.max(),
    }
    nothing = np.empty(0, np.int64)
    assert set(describe(PairRows(nothing, nothing, nothing, nothing), 1, bytes_per_row=12).values()) == {0}
