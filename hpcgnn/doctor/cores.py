"""Checks of the cores that ranks may run on, and of the threads that they start there."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.doctor.job import (
    Check,
    Fact,
    Finding,
    Job,
    Problem,
    Verdict,
    by_rank,
    counted,
    guarded,
    of_problems,
    some_ranks,
)
from hpcgnn.launch import mpiexec
from hpcgnn.world.buffer import Buffer, Neighbours, Segments
from hpcgnn.world.world import World

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_PER_RANK = (
    "ask for cores per rank (`hpcgnn launch --bind`, Slurm's --cpus-per-task, `mpirun --map-by ppr:N:node:PE=CORES`)"
)


def look(job: Job) -> Fact:
    """The logical CPUs that this rank may use, their physical cores, the CPU limit of a container, and OMP_NUM_THREADS."""
    cpus = sorted(os.sched_getaffinity(0))
    return {
        "host": socket.gethostname(),
        "cpus": cpus,
        "cores": sorted({mpiexec.core_of(cpu) for cpu in cpus}),
        "cpus_of_node": os.cpu_count() or len(cpus),
        "quota": cpu_quota(_QUOTA),
        "asked": os.environ.get("OMP_NUM_THREADS", ""),
    }


def cpu_quota(path: Path) -> float | None:
    """The limit of a container's CPU time, in CPUs (``cpu.max`` of cgroup v2); None without a limit."""
    try:
        limit, period = path.read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def _is_count(asked: str) -> bool:
    return asked.isascii() and asked.isdigit() and int(asked) > 0


def threads_of(facts: list[Fact], ranks: list[int]) -> dict[int, int]:
    """The number of threads of each of the ``ranks`` of a node, as :func:`hpcgnn.world.devices.use_threads` decides it."""
    found = {}
    for rank in ranks:
        asked, cpus = facts[rank]["asked"], facts[rank]["cpus"]
        sharing = sum(facts[other]["cpus"] == cpus for other in ranks)
        found[rank] = int(asked) if _is_count(asked) else max(1, len(cpus) // sharing)
    return found


def judge_binding(facts: list[Fact], job: Job) -> Verdict:
    """Ranks of a node should not be bound to the same cores."""
    nodes = job.ranks_by_node()
    cores = _range(len(fact["cores"]) for fact in facts)
    found = f"{counted(len(facts), 'rank')} on {counted(len(nodes), 'node')}; a rank may use {counted(cores, 'core')}"
    return found, (problem for ranks in nodes for problem in _about_binding(facts, ranks, job))


def _range(numbers: Iterable[int]) -> str:
    """``2``, or ``1 to 2``."""
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _about_binding(facts: list[Fact], ranks: list[int], job: Job) -> Iterator[Problem]:
    host, alike = facts[ranks[0]]["host"], defaultdict[tuple[int, ...], list[int]](list)
    for rank in ranks:
        alike[tuple(facts[rank]["cores"])].append(rank)
    for cores, sharing in alike.items():
        if len(sharing) <= len(cores) or (job.by_doctor and len(cores) == 1):
            continue
        if len(facts[sharing[0]]["cpus"]) < facts[sharing[0]]["cpus_of_node"]:
            yield (
                f"{some_ranks(sharing)} of {host} are bound to the same {counted(len(cores), 'core').removeprefix('1 ')} (number"
                f" {_listed(cores)}) and must share it: {_PER_RANK}, or bind no rank (`mpirun --bind-to none`)"
            )
        else:
            yield f"{host} has {counted(len(cores), 'core')} for {len(sharing)} ranks: start at most {len(cores)} ranks there"
    for (cores, some), (others, more) in combinations(alike.items(), 2):
        if shared := sorted(set(cores) & set(others)):
            yield (
                f"rank {some[0]} and rank {more[0]} of {host} are bound to different sets of cores, and both have"
                f" number {_listed(shared)}: {_PER_RANK}"
            )


def _listed(cores: Sequence[int], most: int = 8) -> str:
    return ", ".join(map(str, cores[:most])) + (", ..." if len(cores) > most else "")


def judge_threads(facts: list[Fact], job: Job) -> Verdict:
    """Each rank and each node should have as many threads as cores."""
    threads: dict[int, int] = {}
    for ranks in job.ranks_by_node():
        threads |= threads_of(facts, ranks)
    asked = facts[0]["asked"]
    said = f"OMP_NUM_THREADS={asked}" if asked else "OMP_NUM_THREADS is not set"
    return f"{counted(_range(threads.values()), 'thread')} per rank ({said})", _about_threads(facts, threads, job)


def _about_threads(facts: list[Fact], threads: dict[int, int], job: Job) -> Iterator[Problem]:
    for rank, fact in enumerate(facts):
        if fact["asked"] and not _is_count(fact["asked"]):
            yield (
                f"OMP_NUM_THREADS is {quoted(fact['asked'])} on rank {rank}, which is not a number of threads: set it to one, or"
                " unset it"
            )
        if threads[rank] > len(fact["cpus"]):
            yield (
                f"rank {rank} starts {threads[rank]} threads (OMP_NUM_THREADS) and may use {counted(len(fact['cpus']), 'CPU')}:"
                f" set OMP_NUM_THREADS={len(fact['cores'])}, or {_PER_RANK}"
            )
    for ranks in job.ranks_by_node():
        yield from _about_threads_of_node(facts, threads, ranks, job)


def _about_threads_of_node(facts: list[Fact], threads: dict[int, int], ranks: list[int], job: Job) -> Iterator[Problem]:
    here, first = sum(threads[rank] for rank in ranks), facts[ranks[0]]
    cpus = len(set().union(*(facts[rank]["cpus"] for rank in ranks)))
    cores = len(set().union(*(facts[rank]["cores"] for rank in ranks)))
    fair = max(cores // len(ranks), 1)
    if here > cpus and not (job.by_doctor and cpus == 1):
        fewer = f", and start at most {counted(cores, 'rank')} there" if len(ranks) > cores else ""
        yield (
            f"{here} threads of {counted(len(ranks), 'rank')} share {counted(cpus, 'CPU')} of {first['host']}:"
            f" set OMP_NUM_THREADS={fair}{fewer}"
        )
    if first["quota"] is not None and here > max(first["quota"], 1):
        yield (
            f"the container on {first['host']} may use the time of {first['quota']:g} CPUs, but its ranks start {here} threads,"
            " which the system will stop again and again: give the container more CPUs, or start fewer threads"
        )
    if first["asked"] and not job.by_doctor and len(facts) > 1 and 2 * here <= cores:
        yield f"the ranks of {first['host']} use only {here} of their {cores} cores: set OMP_NUM_THREADS={fair}"


BINDING = by_rank("binding", look, judge_binding)
THREADS = by_rank("threads", look, judge_threads)


SMALL_BYTES, LARGE_BYTES = 8, 4 << 20
_MOST_ROUNDS = 100
_SECONDS = 0.4  # for each size and pair of ranks; all four measurements take less than 2 s
# Working transports are much faster: shared memory moves gigabytes per second, and so do the networks of clusters.
LEAST_WITHIN, LEAST_BETWEEN = 500e6, 100e6  # bytes per second in each direction
MOST_SECONDS = 1e-3


@dataclass(frozen=True)
class Link:
    """The link between two ranks: seconds of the fastest exchange of :data:`SMALL_BYTES`, and of :data:`LARGE_BYTES`."""

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


def _problems(link: Link, between_nodes: bool) -> Iterator[Problem]:
    if between_nodes and link.bytes_per_second < LEAST_BETWEEN:
        yield (
            f"{_rate(link.bytes_per_second)} between nodes is the rate of TCP over a management network: make MPI use the fast"
            " network (a build with UCX or libfabric; with Open MPI's TCP, `--mca btl_tcp_if_include SUBNET`)"
        )
    if not between_nodes and link.bytes_per_second < LEAST_WITHIN:
        yield (
            f"{_rate(link.bytes_per_second)} within a node is slower than shared memory: make MPI use it (a /dev/shm of several"
            " GiB; Open MPI's `--mca btl vader,self` or `sm,self`, MPICH's ch4 with shm), and give each rank a core"
        )
    if link.small_seconds > MOST_SECONDS:
        yield (
            f"{link.small_seconds * 1e3:.1f} ms for 8 bytes is much longer than a network takes: check that both ranks have"
            " cores of their own, and that no other jobs run there"
        )


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f} GB/s" if bytes_per_second >= 1e9 else f"{bytes_per_second / 1e6:.0f} MB/s"


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
    """Seconds of the fastest exchange of ``size`` bytes with ``peer``, which is None on ranks outside the pair, each on the
    slower rank, because the bytes may reach a late rank before it starts to wait. Collective."""
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


def link_check(name: str, *, between_nodes: bool) -> Check:
    """A check of the link between rank 0 and another rank, of its node or of another one."""

    def run(job: Job) -> Finding | None:
        others = [rank for rank, node in enumerate(job.nodes) if rank and (node != job.nodes[0]) == between_nodes]
        if not others:
            return None
        crowded = not between_nodes and job.by_doctor and mpiexec.usable_cores() == 1
        return judge(name, measure(job.world, 0, others[0]), between_nodes=between_nodes, crowded=crowded)

    return Check(name, run)


WITHIN = link_check("link within a node", between_nodes=False)
BETWEEN = link_check("link between nodes", between_nodes=True)
