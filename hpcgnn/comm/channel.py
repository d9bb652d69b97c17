"""Exchanges whose bytes are not ready when they are asked for: each starts in its turn, as soon as it can.

A nonblocking collective is matched with those of other ranks by the order in which each rank starts them. Bytes of a device are
ready at some time later, which no rank knows of another. So such exchanges stand in a queue, the same on all ranks, and travel
over a communicator of their own: whichever thread looks at one of them starts what is first and ready.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hpcgnn.comm.pending import Pending
from hpcgnn.comm.segments import Neighbours, Segments

if TYPE_CHECKING:
    from hpcgnn.devices import Event

_MOST_UNDER_WAY = 8  # pieces of a transfer: more would only be looked at in vain


class Starts(Protocol):
    """Starts to move whole rows, at once: :meth:`hpcgnn.comm.world.World.start_alltoallv` over other communicators. Not for two
    threads at a time."""

    def __call__(self, send: Segments, received: Segments, what: str, neighbours: Neighbours | None) -> Pending:
        """See there."""
        ...


@dataclass(eq=False)
class Piece:
    """One collective of a transfer. ready: when the bytes of ``send`` are there. pending: once it has started."""

    ready: Event
    send: Segments
    received: Segments
    pending: Pending | None = None

    def is_over(self) -> bool:
        """Whether its bytes have come."""
        return self.pending is not None and self.pending.test()


class Transfer(Protocol):
    """What stands in the queue. pieces: to be started one after the other."""

    what: str
    neighbours: Neighbours | None
    pieces: list[Piece]

    def land(self) -> bool:
        """Take what has come; true once all has, and has been taken."""
        ...


class Channel:
    """The queue of one world."""

    def __init__(self, start: Starts) -> None:
        self._start = start
        self._queue: deque[Transfer] = deque()

    def put(self, transfer: Transfer) -> Transfer:
        """``transfer`` starts when all before it have: collective, in the order of calls."""
        self._queue.append(transfer)
        return transfer

    def advance(self) -> None:
        """Start what is first and ready, and take what has come."""
        may_start = True
        for transfer in tuple(self._queue):
            may_start = may_start and self._all_started(transfer)
            if transfer.land():
                self._queue.remove(transfer)

    def _all_started(self, transfer: Transfer) -> bool:
        """At most some pieces are under way at a time, of which each rank decides alone: their order is the same."""
        under_way = sum(piece.pending is not None and not piece.pending.seconds for piece in transfer.pieces)
        for piece in transfer.pieces:
            if piece.pending is None:
                if under_way >= _MOST_UNDER_WAY or not piece.ready.is_over():
                    return False
                under_way += 1
                piece.pending = self._start(piece.send, piece.received, transfer.what, transfer.neighbours)
        return True
