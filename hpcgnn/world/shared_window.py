"""Memory that the ranks of one node share, as a window of MPI."""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from typing import Any, Protocol

import numpy as np

from hpcgnn.world import job
from hpcgnn.world.blocking import SAY_SECONDS, SHARE_OF_TIMEOUT, stalled
from hpcgnn.world.progress import PROGRESS
from hpcgnn.world.roll_call import named
from hpcgnn.world.world import World

_PAUSE_SECONDS = 5e-5
_EAGER_MEETING_SECONDS = 2e-4  # spin only briefly: ranks that share cores should yield to those still computing
_CACHE_LINE_BYTES = 64
_LOG = logging.getLogger("hpcgnn")


class _MpiRanks(World, Protocol):
    """The methods of a world over MPI that a window needs beside those of every world."""

    def poke(self) -> None:
        """Let MPI make progress with what this rank has sent."""

    def watch_on(self) -> None:
        """Give MPI to the progress thread until this rank calls it again."""


class SharedWindow:
    """:class:`hpcgnn.world.world.SharedMemory` of a communicator whose ranks are on one node. Collective when made.

    Ranks meet through counters in the memory itself, one cache line for each rank: a rank that arrives writes how often it has
    arrived, and reads the counters of the others. If ranks share cores, each must be scheduled once for this; a collective of MPI
    needs several turns of each.

    world: the ranks of the node. comm, mpi: their communicator, and mpi4py's module. num_bytes: size of the memory.
    """

    def __init__(self, world: _MpiRanks, comm: Any, mpi: Any, num_bytes: int) -> None:
        self._world = world
        header = world.size * _CACHE_LINE_BYTES
        self._window = mpi.Win.Allocate_shared(header + num_bytes if world.rank == 0 else 0, 1, comm=comm)
        memory, _ = self._window.Shared_query(0)
        self.values = np.frombuffer(memory, np.uint8, count=num_bytes, offset=header)
        numbers = np.frombuffer(memory, np.int64, count=header // 8).reshape(world.size, -1)[:, 0]
        self._arrivals, self._mine, self._meetings = numbers, numbers[world.rank : world.rank + 1], 0
        self._mine[0] = 0
        self._window.Lock_all(mpi.MODE_NOCHECK)
        world.allreduce(np.zeros(1), what="the memory of a node")  # a rank that comes early must not be overwritten

    def meet(self) -> None:
        """See :meth:`hpcgnn.world.world.SharedMemory.meet`. Messages under way make progress meanwhile."""
        self._fence()
        self._meetings += 1
        self._mine[0] = self._meetings
        started, seconds = time.perf_counter(), self._world.timeout_seconds
        say_at = max(SAY_SECONDS, seconds * SHARE_OF_TIMEOUT)
        while (self._arrivals < self._meetings).any():
            waited = time.perf_counter() - started
            if waited < _EAGER_MEETING_SECONDS:
                os.sched_yield()
            else:
                self._world.poke()  # others may wait for what this rank has sent
                time.sleep(_PAUSE_SECONDS)
            if waited > min(say_at, seconds):
                self._tell_of_late_ranks(waited)
                say_at = math.inf
        self._fence()

    def _tell_of_late_ranks(self, waited: float) -> None:
        """Say which ranks of the node have not come, and raise StalledError after the timeout."""
        world, late = self._world, np.flatnonzero(self._arrivals < self._meetings).tolist()
        who = f"rank {world.rank} of node {platform.node()}"
        if late and waited > world.timeout_seconds:
            raise stalled(who, world.timeout_seconds, f"its {named(late)}")
        if late and world.rank == int(np.argmax(self._arrivals >= self._meetings)):  # the lowest that has come
            level = logging.ERROR if job.launcher_rank() else logging.WARNING
            _LOG.log(level, "%s has waited for %.0f s for its %s", who, waited, named(late))

    def free(self) -> None:
        """See :meth:`hpcgnn.world.world.SharedMemory.free`. Call it after a meeting, as others may still read; later calls do
        nothing."""
        if not self._window:
            return
        self.values = self._arrivals = self._mine = np.zeros(0, np.uint8)
        self._window.Unlock_all()
        self._window.Free()

    def _fence(self) -> None:
        """Make this rank's earlier writes visible to others, and theirs to this rank; x86 keeps that order without a fence."""
        if platform.machine() not in ("x86_64", "AMD64"):
            PROGRESS.take_over()
            self._window.Sync()
            self._world.watch_on()
