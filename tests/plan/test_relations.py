"""Plans of typed graphs, compared with the dense definition, with networkx, and with the plans of the relations one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matchings import rows_by_matching

from hpcgnn.plan import STRATEGIES, plan_receiver
from hpcgnn.plan.build import ReceiverPlan
from hpcgnn.plan.plan import SparseMatrix
from hpcgnn.plan.relations import RelationRows

NODES, TYPES = 40, 4


class Typed:
    """A directed multigraph in parts, of which part 1 is empty. Its edges, (E,) each, are sorted by target and source. Type 3 has
    one edge, and hubs make both kinds of rows pay in each direction."""

    def __init__(self, seed: int, parts: int) -> None:
        rng, edges = np.random.default_rng(seed), 250
        cuts = np.sort(rng.integers(0, NODES + 1, parts - 1))
        self.offsets = np.concatenate(([0], cuts, [NODES]))
        if parts > 2:
            self.offsets[2] = self.offsets[1]
        source = np.concatenate((rng.integers(0, NODES, edges), rng.integers(0, 4, edges), [5, 5, 5]))
        target = np.concatenate((rng.integers(NODES - 4, NODES, edges), rng.integers(0, NODES, edges), [9, 9, 9]))
        types = np.concatenate((rng.integers(0, 3, 2 * edges), [0, 1, 3]))  # parallel edges of three types
        order = np.lexsort((source, target))
        self.sources, self.targets, self.types = source[order], target[order], types[order]
        self.indptr = np.concatenate(([0], np.cumsum(np.bincount(target, minlength=NODES))))
        self.owner = np.repeat(np.arange(parts), np.diff(self.offsets))

    def of_relation(self, relation: int) -> Typed:
        """The graph with the edges of one relation."""
        other, kept = object.__new__(Typed), self.types == relation
        other.offsets, other.owner = self.offsets, self.owner
        other.sources, other.targets, other.types = self.sources[kept], self.targets[kept], self.types[kept]
        other.indptr = np.concatenate(([0], np.cumsum(np.bincount(other.targets, minlength=NODES))))
        return other

    def plans(self, strategy: str) -> list[tuple[RelationRows, ReceiverPlan]]:
        return [self._plan(part, strategy) for part in range(self.offsets.size - 1)]

    def _plan(self, part: int, strategy: str) -> tuple[RelationRows, ReceiverPlan]:
        first, last = self.offsets[part : part + 2]
        slab = self.indptr[first : last + 1]
        mine = slice(slab[0], slab[-1])
        pairs = RelationRows.of(self.types[mine], self.targets[mine] - first, int(last - first), TYPES)
        return pairs, plan_receiver(slab, self.sources[mine], self.offsets, part, strategy, pairs.rows)


def dense(matrix: SparseMatrix, columns: int) -> np.ndarray:
    result = np.zeros((matrix.num_rows, columns))
    np.add.at(result, (np.repeat(np.arange(matrix.num_rows), np.diff(matrix.indptr)), matrix.indices), 1)
    return result


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_each_pair_gets_the_sum_over_the_edges_of_its_relation(seed: int, parts: int, strategy: str) -> None:
    graph = Typed(seed, parts)
    x = np.random.default_rng(seed).standard_normal((NODES, 3))
    wanted = np.zeros((TYPES, NODES, 3))
    np.add.at(wanted, (graph.types, graph.targets), x[graph.sources])
    found = np.zeros_like(wanted)
    for part, (pairs, plan) in enumerate(graph.plans(strategy)):
        first, last = graph.offsets[part : part + 2]
        senders = np.repeat(plan.receive_from.peers, plan.receive_from.rows)
        rows = np.repeat(np.arange(senders.size), plan.wanted.lengths)
        received = np.zeros((senders.size, 3))
        np.add.at(received, rows, x[graph.offsets[senders[rows]] + plan.wanted.sources])
        total = dense(plan.local, last - first) @ x[first:last] + dense(plan.receive, senders.size) @ received
        relation = np.repeat(np.arange(TYPES), np.diff(pairs.offsets))
        assert ((np.diff(relation) > 0) | (np.diff(pairs.node) > 0)).all(), "pairs are ordered by relation and node"
        found[relation, first + pairs.node] = total
        mine = (graph.targets >= first) & (graph.targets < last)
        counts = np.zeros((TYPES, NODES), int)
        np.add.at(counts, (graph.types[mine], graph.targets[mine]), 1)
        assert np.array_equal(pairs.edges, counts[relation, first + pairs.node])
        assert pairs.edges.sum() == mine.sum()
    np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("seed", range(5))
def test_planned_rows_are_the_minimum_cover_of_all_relations_together(seed: int) -> None:
    """Each (target, relation) is one vertex of networkx' graph, and a source is one for all relations."""
    graph = Typed(seed, 5)
    pair = NODES + graph.types * NODES + graph.targets
    wanted = rows_by_matching(graph.sources, pair, np.concatenate((graph.owner, np.tile(graph.owner, TYPES))))
    found = {
        (int(peer), part): int(rows)
        for part, (_, plan) in enumerate(graph.plans("hybrid"))
        for peer, rows in zip(plan.receive_from.peers, plan.receive_from.rows, strict=True)
    }
    assert found == wanted
    one_by_one = sum(
        plan.receive_from.total for relation in range(TYPES) for _, plan in graph.of_relation(relation).plans("hybrid")
    )
    assert sum(found.values()) < one_by_one


def test_one_relation_is_the_plan_without_types() -> None:
    graph = Typed(0, 3)
    graph.types[:] = 0
    for part, (pairs, plan) in enumerate(graph.plans("hybrid")):
        first, last = graph.offsets[part : part + 2]
        slab = graph.indptr[first : last + 1]
        plain = plan_receiver(slab, graph.sources[slab[0] : slab[-1]], graph.offsets, part, "hybrid")
        assert np.array_equal(plan.wanted.sources, plain.wanted.sources)
        assert np.array_equal(plan.wanted.edges, plain.wanted.edges)
        for mine, theirs in ((plan.local, plain.local), (plan.receive, plain.receive)):
            assert np.array_equal(mine.indices, theirs.indices)
            assert np.array_equal(np.diff(mine.indptr), np.diff(theirs.indptr)[pairs.node])


@pytest.mark.parametrize("strategy", ["pre", "post"])
def test_rows_of_the_other_strategies(strategy: str) -> None:
    graph = Typed(1, 4)
    for part, (_, plan) in enumerate(graph.plans(strategy)):
        cut = (graph.owner[graph.targets] == part) & (graph.owner[graph.sources] != part)
        rows = graph.types * NODES + graph.targets if strategy == "pre" else graph.sources
        wanted = {(int(graph.owner[s]), int(row)) for s, row in zip(graph.sources[cut], rows[cut], strict=True)}
        assert plan.receive_from.total == len(wanted)


def test_a_part_without_edges_has_no_pairs() -> None:
    none = np.zeros(0, np.int64)
    pairs = RelationRows.of(none, none, 0, TYPES)
    assert (pairs.rows.count, pairs.offsets.tolist()) == (0, [0] * (TYPES + 1))
    for one, other in itertools.pairwise(pairs.offsets):
        assert one == other
