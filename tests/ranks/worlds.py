"""Programs for ranks: the requirements of every world, whatever its ranks are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcgnn.base.byte_sink import LocalFile
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.graph.local_graph import load
from hpcgnn.world import Buffer, MpiWorld, Segments, World, raise_on_all_ranks, whole_job
from hpcgnn.world.world import open_for_writing

CHECKS: dict[str, Callable[[World, Path], None]] = {}


def check(function: Callable[[World, Path], None]) -> Callable[[World, Path], None]:
    CHECKS[function.__name__] = function
    return function


@check
def reduces_tensors_and_arrays(world: World, folder: Path) -> None:
    ranks = range(world.size)
    for make in (np.array, torch.tensor):
        mine = make([float(world.rank), -float(world.rank)])
        for op, wanted in (("sum", sum(ranks)), ("max", world.size - 1), ("min", 0)):
            found = world.allreduce(mine, op)
            assert type(found) is type(mine)
            assert float(found[0]) == wanted, (op, found)
    assert world.allreduce(torch.tensor(2.0)).tolist() == [2.0 * world.size]
    columns = torch.arange(6.0).view(2, 3).T  # not contiguous
    assert torch.equal(world.allreduce(columns), columns * world.size)


@check
def sums_below(world: World, folder: Path) -> None:
    assert world.exscan(np.array([1, world.rank])).tolist() == [world.rank, sum(range(world.rank))]


@check
def gathers(world: World, folder: Path) -> None:
    found = world.allgather(torch.tensor([[world.rank, 7]]))
    assert found.tolist() == [[[rank, 7]] for rank in range(world.size)]
    assert world.allgather(np.zeros((0, 3))).shape == (world.size, 0, 3)


@check
def broadcasts(world: World, folder: Path) -> None:
    root = world.size - 1
    for values in (torch.full((3,), world.rank, dtype=torch.bfloat16), np.full((2, 2), world.rank, np.int16)):
        world.broadcast_into(values, root)
        assert (values == root).all(), values
    assert world.broadcast({"of": world.rank}, root) == {"of": root}


@check
def moves_rows(world: World, folder: Path) -> None:
    """Check that rank r can send r + d rows to rank d, with values (r, d)."""
    counts = np.array([world.rank + to for to in range(world.size)])
    rows = [[world.rank, to] for to in range(world.size) for _ in range(world.rank + to)]
    for make in (np.array, torch.tensor):
        received, received_counts = world.alltoallv(make(rows or np.zeros((0, 2), int).tolist()).reshape(-1, 2), counts)
        assert received_counts.tolist() == [sender + world.rank for sender in range(world.size)]
        assert received.tolist() == [[s, world.rank] for s in range(world.size) for _ in range(s + world.rank)]


@check
def moves_rows_among_neighbours(world: World, folder: Path) -> None:
    """Check that each rank can send a row to the next one, twice: over all ranks, and over the graph of linked ranks."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    send_rows, received_rows = np.zeros((2, world.size), np.int64)
    send_rows[after], received_rows[before] = 1, 1
    linked = world.neighbours(received_rows > 0, send_rows > 0)
    for neighbours in (None, linked):
        send, received = torch.full((1, 5), float(world.rank)), torch.full((1, 5), -1.0)
        segments = Segments(Buffer.of(send), send_rows), Segments(Buffer.of(received), received_rows)
        pending = world.start_alltoallv(*segments, "a row", neighbours)
        world.watch(pending)
        world.wait(pending)
        assert world.test(pending)
        assert pending.seconds > 0
        assert received.tolist() == [[float(before)] * 5]
    world.free(linked)


@check
def refuses_more_rows_than_can_be_counted(world: World, folder: Path) -> None:
    counts, none = np.full(world.size, 2**31 if world.rank == world.size - 1 else 0), np.zeros(world.size, np.int64)
    for sent, received in ((counts, none), (none, counts)):
        with pytest.raises(HpcgnnError, match=rf"rows of rank {world.size - 1} would be .* more than MPI's") as caught:
            world.check_counts(sent, received, "rows")
        assert caught.value.agreed


@check
def agrees_on_errors(world: World, folder: Path) -> None:
    """Check that all ranks raise the error of the lowest failing rank, and that an OSError names the operation."""

    def fail() -> None:
        with raise_on_all_ranks(world, "try"):
            if world.rank == world.size - 1:
                raise HpcgnnError(f"rank {world.rank} cannot")

    def open_nothing() -> None:
        with raise_on_all_ranks(world, "open a file"):
            if world.rank == 0:
                (folder / "nowhere").read_bytes()

    with pytest.raises(HpcgnnError, match=f"rank {world.size - 1} cannot") as caught:
        fail()
    assert caught.value.agreed
    assert caught.value.__cause__ is None, "the error that has the same sentence is not repeated"
    with pytest.raises(HpcgnnError, match=r"cannot open a file: No such file or directory \(.*nowhere\)"):
        open_nothing()
    with raise_on_all_ranks(world, "do nothing"):
        pass


@check
def knows_where_ranks_are(world: World, folder: Path) -> None:
    assert world.hosts().tolist() == [0] * world.size
    share_all_cores = world.broadcast(os.sched_getaffinity(0)) == os.sched_getaffinity(0)
    if world.allreduce(np.array([share_all_cores]).astype(float), "min")[0]:
        assert world.ranks_on_my_cores() == world.size
    assert world.library
    handle = world.mpi_handle
    assert handle is None or handle.num_bytes in (4, 8)


@check
def writes_one_file(world: World, folder: Path) -> None:
    path = folder / "shared"
    if world.rank == 0:
        path.write_bytes(bytes(8 * world.size))
    world.allreduce(np.zeros(1))
    with open_for_writing(world, str(path)) as sink:
        sink.write(8 * world.rank, np.array([world.rank + 1]))
    world.allreduce(np.zeros(1))
    assert np.fromfile(path, np.int64).tolist() == list(range(1, world.size + 1))
    assert world.size > 1 or isinstance(world.open_shared(str(path)), LocalFile)


def gives_back_what_it_made(_: World, parts: Path) -> None:
    """Check that a world gives back MPI's objects; a separate one, as other programs may use that of the tests."""
    world = MpiWorld()
    node, everyone = world.on_my_node(), np.ones(world.size, bool)
    memory, graph_of_ranks = node.share(64), world.neighbours(everyone, everyone)
    world.exchange_queue()
    window, ranks_of_node = memory._window, node._communicator
    memory.meet()
    world.close()
    assert not window
    assert not ranks_of_node
    assert not graph_of_ranks.handle
    memory.free()  # does nothing, as it must for a later call
    assert world.on_my_node().allreduce(torch.ones(1)).item() == world.on_my_node().size
    world.close()


def loads_share_a_world(_: World, parts: Path) -> None:
    """Check that several loads share a world; otherwise each would create communicators and datatypes that are never freed."""
    first, second = (load(parts).world for _ in range(2))
    assert first is second
    assert first is whole_job()
