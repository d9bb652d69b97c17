"""Moves of nodes that shrink the minimum covers: exact counts, balance, never more rows, and fewer rows than the best cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from command_line import told
from hypothesis import given, settings
from hypothesis import strategies as st
from matchings import rows_by_matching
from partition_graphs import from_npz, in_edges, made, parts_of_nodes, random_graph

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition import rows
from hpcgnn.partition.rows import Schedule, limits_of, minimise_rows, minimum_cover, roles_of


def rows_of(indptr, indices, parts):
    """The rows of hybrid plans from their definition."""
    targets = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    return sum(rows_by_matching(indices, targets, parts).values())


def example(num_parts=4):
    """A graph and random parts of it, as the first arguments of :func:`refine`."""
    graph = random_graph(rich=False)
    return *graph.in_edges(), np.random.default_rng(3).integers(0, num_parts, graph.num_nodes), num_parts


def load_of(parts, num_parts, weights):
    return np.stack([np.bincount(parts, weights=column, minlength=num_parts) for column in weights.T], axis=1)


def refine(indptr, indices, parts, num_parts, tolerance=1.1, **options):
    """Refine parts with balanced nodes and in-edges plus one; every batch is compared with the definition."""
    weights = np.column_stack((np.ones(indptr.size - 1, dtype=np.int64), np.diff(indptr) + 1))
    limits = limits_of(parts, num_parts, weights, tolerance)
    seen, count = [], rows.Search._count

    def checked(search):
        batches = len(search.batches)
        count(search)
        if len(search.batches) > batches:
            now = search._part[: parts.size]
            assert search.batches[-1] == rows_of(indptr, indices, now)
            assert (load_of(now, num_parts, weights) <= limits).all()
            seen.append(search.batches[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_load_loops", lambda: None)
        patch.setattr(rows.Search, "_count", checked)
        result = minimise_rows(indptr, indices, parts, num_parts, weights, limits, **options)
    assert result.rows_before == rows_of(indptr, indices, parts)
    assert result.rows_after == rows_of(indptr, indices, result.parts)
    assert result.rows_after == min([result.rows_before, *seen])
    assert result.batches == seen
    assert result.parts.dtype == np.int32
    assert (load_of(result.parts, num_parts, weights) <= limits).all()
    return result


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("num_parts", [1, 2, 5, 40])
def test_every_batch_is_counted_by_matching_and_balanced(num_parts, symmetric):
    indptr, indices, parts, _ = example(num_parts)
    if symmetric:
        targets = np.repeat(np.arange(parts.size), np.diff(indptr))
        both = np.concatenate((indices, targets)), np.concatenate((targets, indices))
        indptr, indices = in_edges(parts.size, *both)
    assert roles_of(indptr, indices).roles == (1 if symmetric else 2)
    parts[parts == 3] = 2  # an empty part
    result = refine(indptr, indices, parts, num_parts)
    assert result.rows_after < result.rows_before or num_parts == 1
    assert result.complete


@given(st.integers(0, 25), st.integers(0, 80), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_never_more_rows_than_before(num_nodes, num_edges, num_parts, seed):
    random = np.random.default_rng(seed)
    edges = random.integers(0, max(num_nodes, 1), (2, num_edges if num_nodes else 0))
    parts = random.integers(0, num_parts, num_nodes)
    refine(*in_edges(num_nodes, *edges), parts, num_parts, seed=seed)


@pytest.mark.parametrize("name", ["cora.npz", "dblpv7.npz"])
def test_rows_of_real_graphs_are_fewer(shared_data, name):
    graph = from_npz(shared_data(name))
    indptr, indices = graph.in_edges()
    parts = np.arange(graph.num_nodes) * 8 // graph.num_nodes
    result = refine(indptr, indices, parts, 8)
    assert result.rows_after < 0.8 * result.rows_before
    assert f"{result.rows_after:,} rows" in result.note


def test_what_costs_edges_and_saves_rows_is_done():
    """Nodes 0, 1 and 2 of part 0 have rows for part 1, because nodes 3 to 7 are connected to all of them. Node 8 is connected
    to 0 and 1, and to 10 of part 1. In part 1, it cuts one more edge but needs no row, because 0 and 1 have theirs.
    """
    sources = [0, 1, 2] * 5 + [8, 8, 8]
    destinations = [*np.repeat([3, 4, 5, 6, 7], 3).tolist(), 10, 0, 1]
    both = np.array([sources + destinations, destinations + sources])
    indptr, indices = in_edges(11, *both)
    parts = np.array([0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1])
    weights = np.ones((11, 1), dtype=np.int64)
    weights[:8] = 100  # only the light nodes can move
    limits = np.array([[301], [503]])
    result = minimise_rows(indptr, indices, parts, 2, weights, limits, schedule=Schedule(1, 1, 0.0))
    assert (result.rows_before, result.rows_after) == (8, 6)
    assert [np.count_nonzero(one[both[0]] != one[both[1]]) for one in (parts, result.parts)] == [32, 34]
    assert result.parts[8] == 1


def test_the_same_seed_gives_the_same_parts():
    first, again, other = (refine(*example(), seed=seed) for seed in (7, 7, 8))
    assert np.array_equal(first.parts, again.parts)
    assert not np.array_equal(first.parts, other.parts)


def test_an_allowance_that_has_run_out_changes_nothing():
    result = refine(*example(), seconds=0.0)
    assert not result.complete
    assert result.rows_after == result.rows_before
    assert np.array_equal(result.parts, example()[2])
    assert "ended the refinement early" in result.note


def test_passes_are_as_many_as_there_is_time_for(monkeypatch):
    """With a clock that advances by a second at each call, some passes are made and counted, and the time limit is kept."""
    seconds = itertools.count()
    monkeypatch.setattr(rows.time, "thread_time", lambda: float(next(seconds)))
    result = refine(*example(), seconds=15.0)
    assert not result.complete
    assert next(seconds) <= 16
    assert result.rows_after < result.rows_before


def test_the_best_parts_are_kept_when_annealing_ends_worse(monkeypatch):
    """At a temperature that never falls, the number of rows only grows from good parts: these are returned, improved by
    downhill passes.
    """
    indptr, indices, *random_parts = example()
    parts = refine(indptr, indices, *random_parts, tolerance=1.2).parts
    monkeypatch.setattr(rows.Search, "_pass", hot(rows.Search._pass))
    result = refine(indptr, indices, parts, 4, tolerance=1.2)
    assert max(result.batches) > result.rows_before
    assert result.rows_after <= result.rows_before
    assert len(result.batches) == 3 + 2  # annealing, and then downhill passes from the start


def hot(one_pass):
    return lambda search, temperature: one_pass(search, 50.0 if temperature or search._passes < 9 else 0.0)


def test_rows_are_a_cover_and_needed_after_any_moves():
    """The data of the inner loops must agree with their definitions."""
    indptr, indices, parts, _ = example(5)
    roles, nodes = roles_of(indptr, indices), parts.size
    part = np.tile(parts.astype(np.int32), roles.roles)
    state, work = rows.room_for_rows(roles, 5), rows.work_space(roles, 5)
    cover, _ = minimum_cover(roles, part, 5)
    rows.take_cover(roles, part, cover, state)
    weights, limits = np.ones((nodes, 1), dtype=np.int64), np.full((5, 1), 60)
    load, resting = load_of(part[:nodes], 5, weights).astype(np.int64), np.zeros(nodes, dtype=bool)
    order = rows.boundary(roles, part)
    moved = rows.move_nodes(roles, part, state, order, weights, load, limits, 2.0, 1, resting, work)
    assert moved > 20
    assert np.array_equal(load, load_of(part[:nodes], 5, weights))
    assert not any(array.any() for array in (work.number, work.agreeing, work.free, work.edges))
    held = [set(state.part[b : b + c].tolist()) for b, c in zip(state.begin[:-1], state.held, strict=True)]
    for i, rows_of_role in enumerate(held):
        others = roles.other[roles.begin[i] : roles.begin[i + 1]]
        for j in others:
            assert part[i] == part[j] or part[j] in rows_of_role or part[i] in held[j]
        for k in range(state.begin[i], state.begin[i] + state.held[i]):
            needed_by = [j for j in others if part[j] == state.part[k] and part[i] not in held[j]]
            assert state.need[k] == len(needed_by) > 0


def test_a_graph_too_large_is_refused():
    indptr = np.zeros(2, dtype=np.int64)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, dtype=np.int32), shape=(1 << 30,), strides=(0,))
    with pytest.raises(HpcgnnError, match="--objective volume"):
        roles_of(indptr, huge)


@pytest.mark.parametrize("method", ["metis", "random"])
def test_the_command_says_what_it_saved(cora, tmp_path, method):
    graph, path = cora
    words = ["partition", path, tmp_path / "parts.h5", "--parts", 4, "--method", method, "--objective", "rows"]
    reason = told(*words)["reason"]
    assert "before the refinement" in reason
    after = rows_of(*graph.in_edges(), parts_of_nodes(tmp_path / "parts.h5"))
    assert f"sends {after:,} rows" in reason


def test_balance_is_no_worse_than_the_partitioner_left_it(cora, tmp_path):
    volume, rows = (made(cora[1], tmp_path, 8, method="metis", objective=name).quality for name in ("volume", "rows"))
    assert rows.edge_balance <= max(1.05, volume.edge_balance) + 1e-9
    assert rows.train_balance <= max(1.05, volume.train_balance) + 1e-9


def test_repeated_edges_and_loops_are_no_roles():
    roles = roles_of(*in_edges(3, [0, 0, 1, 1, 2], [1, 1, 0, 1, 2]))
    assert (roles.roles, roles.other.tolist(), roles.begin.tolist()) == (1, [1, 0], [0, 1, 2, 2])
    assert roles.twin.tolist() == [1, 0]
