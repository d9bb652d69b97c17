"""The ways of a message's bytes from a device's memory to MPI, and back.

- Memory of the host is given to MPI as it is, in one collective.
- Memory of a device is given to MPI as it is, if MPI takes it, in one collective once the device has made the bytes.
- Else the bytes of a device go through memory of the host, in pieces of some MiB: while one piece travels, the next is copied
  down from the device, and the one before is copied up. A piece has the same share of each rank's segment, so that sender
  and receiver divide rows at the same places. The device puts its rows in the order of pieces, which costs next to nothing
  there, so that each piece is one copy.

Ranks may take different ways, but agree on the number of collectives. The bytes that travel are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from hpcgnn.devices import CPU, Device, Event
from hpcgnn.world.buffer import Buffer
from hpcgnn.world.exchange_queue import ExchangeQueue, Piece
from hpcgnn.world.pending import Pending
from hpcgnn.world.segments import Neighbours, Segments
from hpcgnn.world.world import World

PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class Shares:
    """The division of rows in P segments into K pieces. counts: (K, P) int64 number of rows of each segment in each piece. order:
    (rows,) int64 on the device, the numbers of the rows of the first piece, then of the second, ...; None for one piece."""

    counts: np.ndarray
    order: torch.Tensor | None

    @classmethod
    def cut(cls, counts: np.ndarray, pieces: int, device: Device) -> Shares:
        """Cut segments with ``counts`` (P,) int64 rows into ``pieces`` pieces."""
        ends = np.arange(pieces + 1)[:, None] * counts // pieces
        shares = np.diff(ends, axis=0)
        if pieces == 1:
            return cls(shares, None)
        starts = np.cumsum(counts) - counts + ends[:-1]
        lengths = shares.reshape(-1)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        order = np.repeat(starts.reshape(-1), lengths) + within
        return cls(shares, torch.from_numpy(order).to(device.torch_device))

    def spans(self) -> list[tuple[int, int]]:
        """The first row of each piece and the row after its last one, counted in the order of pieces."""
        ends = np.concatenate(([0], np.cumsum(self.counts.sum(1))))
        return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))


@dataclass(frozen=True)
class Route:
    """The division of an exchange's rows into pieces, kept while its counts stay. sent, received: rows to and from each rank."""

    sent: Shares
    received: Shares


class Transport(Protocol):
    """Moves rows from this rank's device to the devices of other ranks. is_in_place: whether rows are in their place when they
    were waited for, so that :meth:`arrive` does nothing.
    """

    is_in_place: bool

    def route(self, send_counts: np.ndarray, receive_counts: np.ndarray, item_bytes: int) -> Route:
        """The route of exchanges with (P,) int64 rows of ``item_bytes`` bytes to and from each rank. Collective."""
        ...

    def bind(
        self, sent: torch.Tensor, received: torch.Tensor, route: Route, what: str, neighbours: Neighbours | None
    ) -> Callable[[], Pending]:
        """A function that starts to move the rows of ``sent`` to other ranks, and theirs to ``received``; (items, item_bytes)
        uint8. Only the function is collective. It may be called again after its result was waited for.

        Both tensors must live, and ``sent`` must not change, until then.
        """
        ...

    def arrive(self, pending: Pending) -> None:
        """Make sure that work which is started from now on sees the received rows of ``pending``, which was waited for. A second
        call does nothing."""
        ...


class HostTransport:
    """The transport of jobs in which the messages of all ranks are in memory of the host."""

    is_in_place = True

    def __init__(self, world: World) -> None:
        self._world = world

    def route(self, send_counts: np.ndarray, receive_counts: np.ndarray, item_bytes: int) -> Route:
        """A route of one piece."""
        return Route(Shares(send_counts[None], None), Shares(receive_counts[None], None))

    def bind(
        self, sent: torch.Tensor, received: torch.Tensor, route: Route, what: str, neighbours: Neighbours | None
    ) -> Callable[[], Pending]:
        """The function starts the collective at once, on the memory of both tensors."""
        there = Segments(Buffer.of(sent), route.sent.counts[0])
        back = Segments(Buffer.of(received), route.received.counts[0])
        return partial(self._world.start_alltoallv, there, back, what, neighbours)

    def arrive(self, pending: Pending) -> None:
        """Do nothing: MPI has written the rows to their place."""


class DeviceTransport:
    """The transport of jobs in which some rank's messages are in memory of a device. Exchanges start from a queue, because the
    bytes of different ranks become ready at different times.

    stages: whether this rank's messages go through memory of the host. piece_bytes: bytes of a piece; None if no rank's messages
    go through memory of the host.
    """

    is_in_place = False

    def __init__(
        self, world: World, device: Device, queue: ExchangeQueue, *, stages: bool, piece_bytes: int | None
    ) -> None:
        self._world, self._device, self._queue = world, device, queue
        self.stages, self._piece_bytes = stages, piece_bytes
        self._memory = HostMemory(device)

    def route(self, send_counts: np.ndarray, receive_counts: np.ndarray, item_bytes: int) -> Route:
        """A route with as many pieces as the rank with the most bytes needs. Collective."""
        pieces = 1
        if self._piece_bytes is not None:
            most = np.array([max(int(send_counts.sum()), int(receive_counts.sum())) * item_bytes])
            pieces = max(1, -(-int(self._world.allreduce(most, "max")[0]) // self._piece_bytes))
        return Route(Shares.cut(send_counts, pieces, self._device), Shares.cut(receive_counts, pieces, self._device))

    def bind(
        self, sent: torch.Tensor, received: torch.Tensor, route: Route, what: str, neighbours: Neighbours | None
    ) -> Callable[[], Pending]:
        """The function queues the exchange, which reads the rows once the device has made them."""
        return partial(self._put, (sent, received), route, what, neighbours)

    def _put(
        self, wires: tuple[torch.Tensor, torch.Tensor], route: Route, what: str, neighbours: Neighbours | None
    ) -> Pending:
        if self._world.size == 1:
            return Pending.done(what)
        transfer: Staged | Direct
        about = wires, route, what, neighbours
        if self.stages:
            transfer = Staged(self._device, self._queue, self._memory, *about)
        else:
            transfer = Direct(self._device, self._queue, *about)
        return Pending.started(self._queue.put(transfer), what, transfer)

    def arrive(self, pending: Pending) -> None:
        """Let the device, but not the host, wait for the copies; set the seconds on the wire, from the first piece's start."""
        if pending.request is not None:
            pending.request.arrive()
            pending.seconds = _wire_seconds(pending.request.pieces)


class Direct:
    """A transfer whose bytes MPI reads and writes in place. A piece is a share of every segment, in place as well."""

    def __init__(
        self,
        device: Device,
        queue: ExchangeQueue,
        wires: tuple[torch.Tensor, torch.Tensor],
        route: Route,
        what: str,
        neighbours: Neighbours | None,
    ) -> None:
        self._device, self._queue, self.what, self.neighbours = device, queue, what, neighbours
        # MPI reads the sent bytes after this event. It writes the received ones after it, too: earlier work of the device may
        # still read their memory.
        made = device.record()
        there, back = (_shared_segments(wire, s) for wire, s in zip(wires, (route.sent, route.received), strict=True))
        self.pieces = [Piece(made, *both) for both in zip(there, back, strict=True)]

    def Test(self) -> bool:
        """Return whether all pieces have arrived. Any thread may call this, and must use the device of the memory when it calls
        MPI.
        """
        self._device.use()
        self._queue.advance()
        return self.land()

    def land(self) -> bool:
        """Return whether all pieces have arrived; there is nothing to copy."""
        return all([piece.is_over() for piece in self.pieces])  # noqa: C419 - a list, so that each is tested

    def arrive(self) -> None:
        """Do nothing: the bytes are in their place."""


class Staged:
    """A transfer through memory of the host: copied down from the device, moved by MPI, and copied up again."""

    def __init__(
        self,
        device: Device,
        queue: ExchangeQueue,
        memory: HostMemory,
        wires: tuple[torch.Tensor, torch.Tensor],
        route: Route,
        what: str,
        neighbours: Neighbours | None,
    ) -> None:
        self._device, self._queue, self._memory = device, queue, memory
        self.what, self.neighbours, self._order = what, neighbours, route.received.order
        sent, self._received = wires
        ordered = sent if route.sent.order is None else _words(sent).index_select(0, route.sent.order).view(torch.uint8)
        self._landing = self._received if self._order is None else torch.empty_like(self._received)
        taken = memory.take(sent.numel()), memory.take(self._received.numel())
        self._host: tuple[torch.Tensor, torch.Tensor] | None = taken  # None once all has arrived
        host_sent, self._host_received = (
            host[: wire.numel()].view(wire.shape) for host, wire in zip(taken, wires, strict=True)
        )
        self._kept = ordered  # keeps the memory until it has been copied
        self._spans = route.received.spans()
        self._ups: list[Event | None] = [None] * len(self._spans)
        made = device.record()
        self.pieces = []
        for (first, last), (begin, end), there, back in zip(
            route.sent.spans(), self._spans, route.sent.counts, route.received.counts, strict=True
        ):
            down = device.copy(host_sent[first:last], ordered[first:last], made) if last > first else CPU.record()
            send = Segments(Buffer.of(host_sent[first:last]), there)
            self.pieces.append(Piece(down, send, Segments(Buffer.of(self._host_received[begin:end]), back)))
        self._made = made

    def Test(self) -> bool:
        """Return whether all pieces have arrived, and the last copy up was started. The calling thread starts the copies."""
        self._device.use()
        self._queue.advance()
        return self.land()

    def land(self) -> bool:
        """Start the copies up of the pieces that have arrived; true once all were started."""
        for number, (piece, (first, last)) in enumerate(zip(self.pieces, self._spans, strict=True)):
            if self._ups[number] is None and piece.is_over():
                landed = self._landing[first:last], self._host_received[first:last]
                self._ups[number] = self._device.copy(*landed, self._made) if last > first else CPU.record()
        return None not in self._ups

    def arrive(self) -> None:
        """Let the device put the rows in their place after the copies up; the host's memory is free when the copies are over."""
        if self._host is None:
            return
        for up, (first, last) in zip(self._ups, self._spans, strict=True):
            assert up is not None, "it was waited for"
            if last > first:
                self._device.follow(up)
        if self._order is not None:
            _words(self._received).index_copy_(0, self._order, _words(self._landing))
        (sent, received), self._host = self._host, None
        self._memory.give_back(sent, [piece.ready for piece in self.pieces])
        self._memory.give_back(received, [up for up in self._ups if up is not None])


class HostMemory:
    """Memory of the host that a device copies to and from: allocated once, and used by one transfer after the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pieces: list[tuple[torch.Tensor, list[Event]]] = []

    def take(self, num_bytes: int) -> torch.Tensor:
        """(at least num_bytes,) uint8: the smallest free piece that is large enough. If there is none, a new piece takes the
        place of all free ones."""
        free = [all(event.is_over() for event in events) for _, events in self._pieces]
        fitting = [
            place for place, (memory, _) in enumerate(self._pieces) if memory.numel() >= num_bytes and free[place]
        ]
        if not fitting:
            self._pieces = [piece for piece, is_free in zip(self._pieces, free, strict=True) if not is_free]
            return self._device.host_memory(num_bytes)
        return self._pieces.pop(min(fitting, key=lambda place: self._pieces[place][0].numel()))[0]

    def give_back(self, memory: torch.Tensor, events: list[Event]) -> None:
        """Keep ``memory`` for later transfers; it is free when ``events`` are over."""
        self._pieces.append((memory, events))


def _words(wire: torch.Tensor) -> torch.Tensor:
    """(items, item_bytes) uint8 as a tensor of the widest words that divide an item: wider words move rows faster."""
    size = next(size for size in (8, 4, 2, 1) if wire.shape[1] % size == 0)
    return wire.view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[size])


def _wire_seconds(pieces: list[Piece]) -> float:
    """Seconds from the start of the first piece until the arrival of the last."""
    known = [piece.pending for piece in pieces if piece.pending is not None]
    return max(each.started_at + each.seconds for each in known) - min(each.started_at for each in known)


def _shared_segments(wire: torch.Tensor, shares: Shares) -> list[Segments]:
    """The segments of each piece of a wire, in place, where the wire holds rank after rank."""
    buffer, totals = Buffer.of(wire), shares.counts.sum(0)
    starts = np.cumsum(totals) - totals
    before = np.cumsum(shares.counts, axis=0) - shares.counts
    return [Segments(buffer, counts, starts + first) for counts, first in zip(shares.counts, before, strict=True)]
