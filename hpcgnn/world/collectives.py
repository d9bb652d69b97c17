"""Blocking collectives, made from a few nonblocking ones that each world starts in its own way."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.world.agreement import raise_on_all_ranks
from hpcgnn.world.buffer import Buffer, Values, beside, contiguous, empty, on_host
from hpcgnn.world.of_ranks import OfRanks
from hpcgnn.world.pending import Pending
from hpcgnn.world.segments import Neighbours, Segments
from hpcgnn.world.world import MOST_ROWS


class Collectives(OfRanks, ABC):
    """The blocking half of :class:`hpcgnn.world.world.World`, made from the nonblocking half, which subclasses provide."""

    def __init__(self, rank: int, size: int, timeout_seconds: float) -> None:
        self.rank, self.size, self.timeout_seconds = rank, size, timeout_seconds

    def __copy__(self) -> Collectives:
        return self  # two that count calls by themselves would not fit the other ranks

    @abstractmethod
    def wait(self, pending: Pending) -> None:
        """See :meth:`hpcgnn.world.world.World.wait`; the other methods are documented there as well."""

    @abstractmethod
    def start_allreduce(self, mine: Buffer, result: Buffer, op: str = "sum", what: str = "a reduction") -> Pending:
        """Start a reduction."""

    @abstractmethod
    def start_exscan(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """Start the sum over the ranks below this one; on rank 0 ``result`` is left alone."""

    @abstractmethod
    def start_allgather(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """Start to gather every rank's ``mine`` into ``result``, in rank order."""

    @abstractmethod
    def start_alltoall(self, mine: Buffer, result: Buffer, what: str) -> Pending:
        """Start to send row d of ``mine`` to rank d, for every rank d."""

    @abstractmethod
    def start_broadcast(self, values: Buffer, root: int, what: str) -> Pending:
        """Start to overwrite ``values``, of less than 2 GiB, with the values of rank ``root``."""

    @abstractmethod
    def start_alltoallv(
        self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None = None
    ) -> Pending:
        """Start to move whole rows."""

    # -- collectives made from those above ----------------------------------------------------------------------------

    _MOST_BROADCAST_BYTES = 1 << 30  # counts are C ints

    def allreduce(self, values: Values, op: str = "sum", what: str = "a reduction") -> Values:
        """See :meth:`hpcgnn.world.world.World.allreduce`; the other methods are documented there as well."""
        mine = contiguous(on_host(values))
        result = empty(mine, *mine.shape)
        self.wait(self.start_allreduce(Buffer.of(mine), Buffer.of(result), op, what))
        return beside(values, result)

    def exscan(self, values: Values) -> Values:
        """Sum over the ranks below this one."""
        mine = contiguous(on_host(values))
        result = empty(mine, *mine.shape)
        result[...] = 0
        self.wait(self.start_exscan(Buffer.of(mine), Buffer.of(result), "a prefix sum"))
        return beside(values, result)

    def allgather(self, values: Values) -> Values:
        """Stack every rank's values."""
        mine = contiguous(on_host(values))
        result = empty(mine, self.size, *mine.shape)
        self.wait(self.start_allgather(Buffer.of(mine), Buffer.of(result), "a gather of sizes"))
        return beside(values, result)

    def broadcast_into(self, values: Values, root: int = 0, what: str = "a broadcast") -> Values:
        """Overwrite ``values`` with the values of rank ``root``."""
        mine = on_host(values)
        flat = mine.reshape(-1)
        step = max(self._MOST_BROADCAST_BYTES // mine.itemsize, 1)
        for first in range(0, len(flat), step):
            self.wait(self.start_broadcast(Buffer.of(flat[first : first + step]), root, what))
        if mine is not values:
            values[...] = beside(values, mine)
        return values

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        """The picklable value of rank ``root``."""
        payload = np.frombuffer(pickle.dumps(value), dtype=np.uint8).copy() if self.rank == root else None
        length = np.array([0 if payload is None else payload.size], dtype=np.int64)
        self.broadcast_into(length, root, what)
        if payload is None:
            payload = np.empty(int(length[0]), dtype=np.uint8)
        return pickle.loads(self.broadcast_into(payload, root, what).tobytes())  # noqa: S301 - a rank of this same job pickled it

    def check_counts(self, send_rows: np.ndarray, received_rows: np.ndarray, what: str) -> None:
        """Raise HpcgnnError on every rank where a rank has more rows than MPI can count."""
        with raise_on_all_ranks(self, f"count {what}"):
            most = max(int(send_rows.sum()), int(received_rows.sum()))
            if most > MOST_ROWS:
                raise HpcgnnError(
                    f"{what} of rank {self.rank} would be {most} items in one step, more than MPI's 2**31 - 1: "
                    f"use more than {self.size} ranks"
                )

    def alltoallv(self, rows: Values, counts: np.ndarray) -> tuple[Values, np.ndarray]:
        """Send consecutive rows to each rank."""
        mine, counts = contiguous(on_host(rows)), np.ascontiguousarray(counts, dtype=np.int64)
        received_counts = np.empty_like(counts)
        self.wait(self.start_alltoall(Buffer.of(counts), Buffer.of(received_counts), "a swap of row counts"))
        received = empty(mine, int(received_counts.sum()), *mine.shape[1:])
        what = "redistributed rows"
        self.check_counts(counts, received_counts, what)
        segments = Segments(Buffer.of(mine), counts), Segments(Buffer.of(received), received_counts)
        self.wait(self.start_alltoallv(*segments, what))
        return beside(rows, received), received_counts
