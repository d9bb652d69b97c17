"""Checks of the link between two ranks: the seconds of a small message, and the bytes per second of a large one.

Both ranks send and receive at the same time, with the nonblocking call of an exchange, so the figures are those of training,
including the time of Python code.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.doctor.finding import Finding, of_problems
from hpcgnn.doctor.job import Check, Job, guarded
from hpcgnn.launch import mpiexec
from hpcgnn.world.buffer import Buffer, Neighbours, Segments
from hpcgnn.world.world import World

SMALL_BYTES, LARGE_BYTES = 8, 4 << 20
_MOST_ROUNDS = 100
_SECONDS = 0.4  # for each size and pair of ranks; all four measurements take less than 2 s
# Working transports are much faster: shared memory moves gigabytes per second, and so do the networks of clusters.
LEAST_WITHIN, LEAST_BETWEEN = 500e6, 100e6  # bytes per second in each direction
MOST_WITHIN, MOST_BETWEEN = 1e-3, 1e-3  # seconds


@dataclass(frozen=True)
class Link:
    """The link between two ranks.

    small_seconds, large_seconds: time of the fastest exchange of :data:`SMALL_BYTES`, and of :data:`LARGE_BYTES`.
    """

    one: int
    other: int
    small_seconds: float
    large_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """The bandwidth in each direction."""
        return LARGE_BYTES / self.large_seconds


def judge(name: str, link: Link, *, between_nodes: bool, crowded: bool = False) -> Finding:
    """Judge a link. crowded: whether both ranks share one core, which alone explains slow messages."""
    found = (
        f"{_rate(link.bytes_per_second)} each way in messages of 4 MiB, {link.small_seconds * 1e6:.0f} µs for 8 bytes, between"
        f" rank {link.one} and rank {link.other}"
    )
    return of_problems(name, found, [] if crowded else _problems(link, between_nodes))


def _problems(link: Link, between_nodes: bool) -> list[str]:
    if between_nodes and link.bytes_per_second < LEAST_BETWEEN:
        return [
            f"{_rate(link.bytes_per_second)} between nodes is the rate of TCP over a management network: make MPI use the fast"
            " network (a build with UCX or libfabric; with Open MPI's TCP, `--mca btl_tcp_if_include SUBNET`)"
        ]
    if not between_nodes and link.bytes_per_second < LEAST_WITHIN:
        return [
            f"{_rate(link.bytes_per_second)} within a node is slower than shared memory: make MPI use it (a /dev/shm of several"
            " GiB; Open MPI's `--mca btl vader,self` or `sm,self`, MPICH's ch4 with shm), and give each rank a core"
        ]
    if link.small_seconds > (MOST_BETWEEN if between_nodes else MOST_WITHIN):
        return [
            f"{link.small_seconds * 1e3:.1f} ms for 8 bytes is much longer than a network takes: check that both ranks have"
            " cores of their own, and that no other jobs run there"
        ]
    return []


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f} GB/s" if bytes_per_second >= 1e9 else f"{bytes_per_second / 1e6:.0f} MB/s"


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(world: World, one: int, other: int) -> Link:
    """Measure the link between two ranks. Collective, because its MPI calls are; the other ranks send nothing."""
    mine = world.rank in (one, other)
    peer = other if world.rank == one else one
    linked = np.zeros(world.size, bool)
    linked[peer] = mine
    neighbours = world.neighbours(linked, linked)
    small, large = (_fastest(world, neighbours, peer if mine else None, size) for size in (SMALL_BYTES, LARGE_BYTES))
    world.free(neighbours)
    return Link(one, other, small, large)


def _fastest(world: World, neighbours: Neighbours, peer: int | None, size: int) -> float:
    """Seconds of the fastest exchange of ``size`` bytes with ``peer``, which is None on ranks outside the pair. Collective.

    Each exchange counts with the time of the slower rank, because the bytes may reach a late rank before it starts to wait.
    """
    counts = np.zeros(world.size, np.int64)
    if peer is not None:
        counts[peer] = 1
    rows = [np.full((int(counts.sum()), size), world.rank % 251, np.uint8) for _ in range(2)]
    send, received = (Segments(Buffer.of(each), counts) for each in rows)

    def exchange() -> float:
        started = time.perf_counter()
        world.wait(world.start_alltoallv(send, received, "a trial of the link between two ranks", neighbours))
        return time.perf_counter() - started if peer is not None else 0.0

    first = exchange()
    if size == SMALL_BYTES:
        first = exchange()  # the exchange before has connected the ranks
    with guarded(world, "compare bytes"):
        if peer is not None and (rows[1] != peer % 251).any():
            raise HpcgnnError(
                f"rank {world.rank} received {size} bytes of rank {peer} with wrong values: use another build of MPI"
            )
    slowest = float(world.allreduce(np.array([first]), "max", "the first messages between two ranks")[0])
    rounds = int(min(_MOST_ROUNDS, _SECONDS / max(slowest, 1e-6)))  # the same on all ranks
    seconds = np.array([first, *(exchange() for _ in range(rounds))])
    return float(world.allreduce(seconds, "max", "the seconds of both ranks").min())


# -- which ranks ------------------------------------------------------------------------------------------------------


def within_a_node(job: Job) -> Finding | None:
    """Check the link between rank 0 and another rank of its node. Collective."""
    mates = [rank for rank, node in enumerate(job.nodes) if node == job.nodes[0] and rank]
    if not mates:
        return None
    link = measure(job.world, 0, mates[0])
    return judge("link within a node", link, between_nodes=False, crowded=job.by_doctor and mpiexec.usable_cores() == 1)


def between_nodes(job: Job) -> Finding | None:
    """Check the link between rank 0 and the first rank of another node. Collective."""
    others = [rank for rank, node in enumerate(job.nodes) if node != job.nodes[0]]
    if not others:
        return None
    return judge("link between nodes", measure(job.world, 0, others[0]), between_nodes=True)


WITHIN = Check("link within a node", within_a_node)
BETWEEN = Check("link between nodes", between_nodes)
