"""A queue of exchanges whose bytes are not ready yet when the exchange is requested: each starts in its turn, once it can.

MPI matches nonblocking collectives of different ranks by the order in which each rank starts them. The bytes of a device become
ready later, at a time that other ranks do not know. So such exchanges wait in a queue, which has the same order on all ranks, and
travel over a communicator of their own. Any thread that tests one of them starts the first ones in the queue that are ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcgnn.world.buffer import Neighbours, Pending, Segments

if TYPE_CHECKING:
    from hpcgnn.devices import Device, Event

_MOST_UNDER_WAY = 8  # pieces of a transfer: testing more of them would cost time, and gain nothing
# Starts to move whole rows as World.start_alltoallv does, over a communicator of its own. Two threads must not call it at once.
Start = Callable[[Segments, Segments, str, Neighbours | None], Pending]


@dataclass(eq=False)
class Piece:
    """One collective of a transfer. ready: event that is over when the bytes of ``send`` are complete. pending: the started
    collective; None before. copy_up: starts to copy the received bytes to the device, if they are in memory of the host. up: the
    event that is over after that copy; None before it was started."""

    ready: Event
    send: Segments
    received: Segments
    copy_up: Callable[[], Event] | None = None
    pending: Pending | None = None
    up: Event | None = None

    def land(self) -> bool:
        """Return whether the bytes have arrived, and start their copy up if there is one."""
        if self.pending is None or not self.pending.test():
            return False
        if self.up is None and self.copy_up is not None:
            self.up = self.copy_up()
        return True


@dataclass(eq=False)
class Transfer:
    """An entry of the queue. pieces: its collectives, which start one after the other. finish: lets the device put the rows in
    their place, once all pieces have arrived; None where they are there by then. kept: tensors that must live until then."""

    queue: ExchangeQueue
    device: Device
    pieces: list[Piece]
    finish: Callable[[], None] | None
    kept: Any
    what: str
    neighbours: Neighbours | None

    def Test(self) -> bool:
        """Return whether all pieces have arrived. Any thread may call this, and must use the device of the memory when it calls
        MPI, or starts a copy."""
        self.device.use()
        self.queue.advance()
        return self.land()

    def land(self) -> bool:
        """Return whether all pieces have arrived, and their copies up, if there are some, were started."""
        return all([piece.land() for piece in self.pieces])  # noqa: C419 - a list, so that each is tested

    def arrive(self) -> float:
        """Let the device, but not the host, wait for the copies that put the rows in their place; a second call does not. Returns
        the seconds from the start of the first piece until the arrival of the last."""
        if self.finish is not None:
            self.finish()
            self.finish = None
        known = [piece.pending for piece in self.pieces if piece.pending is not None]
        return max(each.started_at + each.seconds for each in known) - min(each.started_at for each in known)


class ExchangeQueue:
    """The queue of one world."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._queue: deque[Transfer] = deque()

    def put(self, transfer: Transfer) -> Transfer:
        """Append ``transfer``, which starts when all before it have started. Collective: all ranks call in the same order."""
        self._queue.append(transfer)
        return transfer

    def advance(self) -> None:
        """Start the first transfers that are ready, and take the pieces that have arrived."""
        may_start = True
        for transfer in tuple(self._queue):
            may_start = may_start and self._all_started(transfer)
            if transfer.land():
                self._queue.remove(transfer)

    def _all_started(self, transfer: Transfer) -> bool:
        """Start the pieces of ``transfer`` that are ready; true if all have started. Each rank may limit the number of pieces
        under way by itself, because the order stays the same."""
        under_way = sum(piece.pending is not None and not piece.pending.seconds for piece in transfer.pieces)
        for piece in transfer.pieces:
            if piece.pending is None:
                if under_way >= _MOST_UNDER_WAY or not piece.ready.query():
                    return False
                under_way += 1
                piece.pending = self._start(piece.send, piece.received, transfer.what, transfer.neighbours)
        return True
