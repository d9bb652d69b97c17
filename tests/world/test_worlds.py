"""Ranks of MPI and ranks that are threads behave alike (the checks are in tests/ranks/worlds.py)."""

from __future__ import annotations

import threading

import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from ranks.node_aware import handed_around, meet_alone
from ranks.worlds import CHECKS, gives_back_what_it_made, loads_share_a_world

from hpcgnn.world import Buffer
from hpcgnn.world.thread_world import on_threads


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", CHECKS)
def test_threads(name, size, tmp_path):
    ThreadPool(size).run(CHECKS[name], tmp_path)


@pytest.mark.mpi
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", CHECKS)
def test_mpi(mpi_ranks, name, size, tmp_path):
    mpi_ranks(size).run(CHECKS[name], tmp_path)


@pytest.mark.mpi
@pytest.mark.parametrize("program", [gives_back_what_it_made, loads_share_a_world])
def test_what_mpi_keeps_is_given_back_or_made_once(mpi_ranks, program, tmp_path):
    mpi_ranks(3).run(program, small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.even_graph(60, 200), 3))


@pytest.mark.mpi
def test_what_a_rank_has_written_into_a_nodes_memory_is_there_after_a_meeting(mpi_ranks):
    mpi_ranks(3).run(handed_around)


@pytest.mark.mpi
def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_the_timeout(mpi_ranks):
    mpi_ranks(2).run(meet_alone)


def test_a_rank_that_stays_away_is_an_error():
    with pytest.raises(TimeoutError, match="the same collectives"):
        on_threads(2, lambda world: world.rank or world.allreduce(torch.zeros(1)), timeout_seconds=0.2)


def test_the_first_error_ends_all_ranks():
    def fail(world):
        if world.rank == 1:
            raise KeyError("mine")
        world.allreduce(torch.zeros(1))

    with pytest.raises(KeyError, match="mine"):
        on_threads(3, fail)
    assert threading.active_count() < 20


def test_a_buffer_is_contiguous_memory():
    values = torch.arange(12.0).view(3, 4)
    buffer = Buffer.of(values)
    assert (buffer.rows, buffer.row_bytes, buffer.num_bytes) == (3, 16, 48)
    assert (buffer.dtype, buffer.device) == ("float32", "cpu")
    buffer.on_host()[1] = 0
    assert values[1].tolist() == [0.0] * 4
    with pytest.raises(ValueError, match="only contiguous memory"):
        Buffer.of(values.T)
    assert Buffer.of(torch.zeros(0, 5)).row_bytes == 20
