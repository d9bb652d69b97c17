"""Conditions under which a stored plan is made, kept, or made again."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_graphs
from command_line import said, told
from rank_pool import ThreadPool
from ranks import equivalence

from hpcgnn.base import whole_file
from hpcgnn.data import plan_pieces, plan_store, whole_check
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_store import StoredPlan
from hpcgnn.plan import STRATEGIES, plan_receiver


@pytest.fixture
def path(tmp_path):
    graph = small_graphs.random_multigraph()
    small_graphs.write_parts(tmp_path / "parts.h5", graph, small_graphs.random_parts(graph.num_nodes, 5, empty=2), 5)
    return tmp_path / "parts.h5"


def test_made_once(path):
    steps = []
    assert plan_store.store_plans(path, ["hybrid", "pre"], steps.append) == ["hybrid", "pre"]
    assert len(steps) == 2 * 5
    before = path.read_bytes()
    assert plan_store.store_plans(path, ["hybrid", "pre"]) == []
    assert path.read_bytes() == before
    assert plan_store.store_plans(path, ["post", "pre"]) == ["post"]
    with PartsFile(path) as parts:
        assert all(plan_store.is_stored(parts, strategy) for strategy in ("pre", "post", "hybrid"))
        steps.clear()
        whole_check.verify(parts, steps.append)
        assert sum(steps) == whole_check.count_steps(parts) == 5 * (1 + 3), "of each part, and each of its plans"


@pytest.mark.parametrize(("attribute", "value"), [("plan_version", 0), ("parts_uuid", "of another partition")])
def test_a_stale_plan_is_made_anew(path, attribute, value):
    plan_store.store_plans(path, ["hybrid"])
    with h5py.File(path, "a") as file:
        file["plan/hybrid"].attrs[attribute] = value
    with PartsFile(path) as parts:
        assert not plan_store.is_stored(parts, "hybrid")
    assert plan_store.store_plans(path, ["hybrid"]) == ["hybrid"]
    with PartsFile(path) as parts:
        assert plan_store.is_stored(parts, "hybrid")


@pytest.mark.parametrize(("entries_at_once", "jobs"), [(1, 1), (40, 2)])
def test_senders_have_the_rows_that_receivers_want(path, monkeypatch, entries_at_once, jobs):
    """Compared with a transposition of each pair of parts."""
    monkeypatch.setattr(plan_store, "_GROUP_ENTRIES", entries_at_once)
    plan_store.store_plans(path, ["hybrid"], jobs=jobs)
    wanted = {}
    with PartsFile(path) as parts:
        stored = [StoredPlan(parts, "hybrid").part(part) for part in range(5)]
        pairs = {(s, r): rows for s, r, *rows in zip(*plan_store.StoredPlan(parts, "hybrid").pairs(), strict=True)}
        for receiver in range(5):
            slab, mean = parts.edges(*parts.part(receiver), receiver), parts.meta.num_edges / 5
            plan = plan_receiver(*slab, parts.node_offsets, receiver, "hybrid", mean_edges=mean)
            rows = rows_of(
                np.concatenate(([0], np.cumsum(plan.wanted.lengths))), plan.wanted.sources, plan.wanted.edges
            )
            firsts = np.concatenate(([0], np.cumsum(plan.receive_from.rows)))
            for sender, first, last in zip(plan.receive_from.peers, firsts, firsts[1:], strict=False):
                wanted[int(sender), receiver] = rows[first:last]
            for mine, theirs in ((stored[receiver].local, plan.local), (stored[receiver].receive, plan.receive)):
                assert all(np.array_equal(getattr(mine, n), getattr(theirs, n)) for n in ("indptr", "indices", "edges"))
    for sender in range(5):
        send, to = stored[sender].send, stored[sender].send_to
        assert all(pairs.pop((sender, peer)) == [*rows] for peer, *rows in zip(to.peers, to.post, to.pre, strict=True))
        found = rows_of(send.indptr, send.indices, send.edges)
        assert found == [row for receiver in range(5) for row in wanted.get((sender, receiver), [])]
    assert len(wanted) > 5
    assert not pairs


def rows_of(indptr, *columns):
    """The entries of each row, as tuples."""
    return [list(zip(*(column[a:b] for column in columns), strict=True)) for a, b in itertools.pairwise(indptr)]


def test_a_failure_leaves_the_file_as_it_was(path, monkeypatch):
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan_store, "assemble", full)
    with pytest.raises(Exception, match="No space left"):
        plan_store.store_plans(path, ["hybrid"])
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["parts.h5"]


def test_what_a_run_that_is_gone_has_left_is_removed_where_nothing_is_to_be_made(path):
    plan_store.store_plans(path, ["hybrid"])
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = path.parent / f".{path.name}-pieces.{whole_file._host()}.{gone.pid}.hpcgnn.tmp"
    left.mkdir()
    assert plan_store.store_plans(path, ["hybrid"]) == []
    assert not left.exists()


class FewBytesAtATime(io.FileIO):
    """A file of which the system gives 5 bytes for each read."""

    def readinto(self, buffer):
        return super().readinto(memoryview(buffer).cast("B")[:5])


def test_a_piece_is_read_where_the_system_gives_a_part_of_it(path, tmp_path, monkeypatch):
    with PartsFile(path) as parts:
        plan_pieces.make(parts, "hybrid", tmp_path, 0)
        piece = plan_pieces.path_of(tmp_path, "hybrid", 0)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", lambda path, mode: io.BufferedReader(FewBytesAtATime(path)))
            assert plan_pieces.is_whole(piece, parts.uuid, "hybrid")
        piece.write_bytes(piece.read_bytes()[:-1] + b"\xff")
        assert not plan_pieces.is_whole(piece, parts.uuid, "hybrid")


def test_a_hub_is_relieved_in_stored_and_built_plans(tmp_path):
    """One node of each part has parallel edges to the hub, which is alone in part 0."""
    ranks, nodes, parallel = 4, 31, 60
    part = np.append(0, 1 + np.arange(nodes - 1) // 10)
    others = np.arange(1, nodes)
    edges = np.stack((
        np.concatenate((np.repeat([1, 11, 21], parallel), np.roll(others, 10))),
        np.concatenate((np.zeros(3 * parallel, int), others)),
    ))  # fmt: skip
    path = tmp_path / "parts.h5"
    small_graphs.write_parts(path, replace(small_graphs.even_graph(nodes, 1), edge_index=edges), part, ranks)
    plan_store.store_plans(path, list(STRATEGIES))
    with PartsFile(path) as parts:
        entries = StoredPlan(parts, "hybrid").entries()
    assert entries["R"][0] < 2 * parallel
    assert ThreadPool(ranks).run(equivalence.unlike_built_plans, path) == [[]] * ranks


def test_the_report_tells_the_work_of_each_rank(path):
    found = told("plan", path, "--strategy", "all")
    with PartsFile(path) as parts:
        for strategy in STRATEGIES:
            plans = [StoredPlan(parts, strategy).part(part) for part in range(parts.num_parts)]
            told_work = found["ranks"][strategy]
            for name, matrix in (("local", "local"), ("send", "send"), ("receive", "receive")):
                assert told_work[f"entries_{name}"] == [getattr(plan, matrix).indices.size for plan in plans]
            assert told_work["rows_sent"] == [plan.send_to.total for plan in plans]
            assert told_work["rows_received"] == [plan.receive_from.total for plan in plans]
            work = sum(np.array(told_work[f"entries_{name}"]) for name in ("local", "send", "receive"))
            assert found["strategies"][strategy]["work_imbalance"] == pytest.approx(work.max() / work.mean())
    assert "max/avg" in said("plan", path)
