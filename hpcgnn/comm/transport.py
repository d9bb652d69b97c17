"""How the bytes of a message get from a device's memory to MPI, and back.

- On the host, as they are: one collective.
- From a device, as they are, where MPI takes its memory: one collective, when the device has made the bytes.
- From a device through memory of the host, in pieces of some MiB: while one piece travels, the next is copied down and the one
  before is copied up. A piece has a share of every segment, so that both sides cut alike; rows are put in the order of pieces
  on the device, where that costs next to nothing, and each piece is one copy.

Ranks may differ in this, but not in the number of collectives: that is agreed upon. What travels is the same, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from hpcgnn.comm.buffer import Buffer
from hpcgnn.comm.channel import Channel, Piece
from hpcgnn.comm.pending import Pending
from hpcgnn.comm.segments import Neighbours, Segments
from hpcgnn.comm.world import World
from hpcgnn.devices import CPU, Device, Event

PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class Shares:
    """How rows in P segments are cut into K pieces. counts: (K, P) int64 rows of each segment in each piece. order: (rows,) int64
    of the device, the rows of the first piece, then those of the second, ...; None for one piece."""

    counts: np.ndarray
    order: torch.Tensor | None

    @classmethod
    def cut(cls, counts: np.ndarray, pieces: int, device: Device) -> Shares:
        """Of segments with (P,) int64 rows."""
        ends = np.arange(pieces + 1)[:, None] * counts // pieces
        shares = np.diff(ends, axis=0)
        if pieces == 1:
            return cls(shares, None)
        starts = np.cumsum(counts) - counts + ends[:-1]
        lengths = shares.reshape(-1)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        order = np.repeat(starts.reshape(-1), lengths) + within
        return cls(shares, torch.from_numpy(order).to(device.where))

    def spans(self) -> list[tuple[int, int]]:
        """Of each piece, the first row and that behind the last, in the order of pieces."""
        ends = np.concatenate(([0], np.cumsum(self.counts.sum(1))))
        return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))


@dataclass(frozen=True)
class Route:
    """Of an exchange whose counts stay. sent, received: how the rows to and from each rank are cut."""

    sent: Shares
    received: Shares


class Transport(Protocol):
    """From a device's memory to that of other ranks' devices."""

    def route(self, send_counts: np.ndarray, receive_counts: np.ndarray, item_bytes: int) -> Route:
        """That of exchanges with (P,) int64 rows to and from each rank. Collective."""
        ...

    def start(
        self, sent: torch.Tensor, received: torch.Tensor, route: Route, what: str, neighbours: Neighbours | None
    ) -> Pending:
        """Start moving the rows of ``sent`` to other ranks, and of theirs to ``received``; (items, item_bytes) uint8. Collective.

        Both stay where they are until the result was waited for.
        """
        ...

    def arrive(self, pending: Pending) -> None:
        """What is done with the rows of ``pending``, which was waited for, from now on finds them there. Twice is once."""
        ...


class HostTransport:
    """Where every rank's messages are in memory of the host."""

    def __init__(self, world: World) -> None:
        self._world = world

    def route(self, send_counts: np.ndarray, receive_counts: np.ndarray, item_bytes: int) -> Route:
        """Of one piece."""
        return Route(Shares(send_counts[None], None), Shares(receive_counts[None], None))

    def start(
        self, sent: torch.Tensor, received: torch.Tensor, route: Route, what: str, neighbours: Neighbours | None
    ) -> Pending:
        """Both are read and written from now on."""
        there = Segments(Buffer.of(sent), route.sent.counts[0])
        back = Segments(Buffer.of(received), route.received.counts[0])
        return self._world.start_alltoallv(there, back, what, neighbours)

    def arrive(self, pending: Pending) -> None:
        """They are there."""


class DeviceTransport:
    """Where some rank's messages are in a device's memory, and by turns, as ranks' are ready at different times.

    stages: whether this rank's go through memory of the host. pieces_of: bytes of a piece; None where no rank's do.
    """

    def __init__(self, world: World, device: Device, channel: Channel, *, stages: bool, pieces_of: int | None) -> None:
        self._world, self._device, self._channel = world, device, channel
        self.stages, self._piece_bytes = stages, pieces_of
        self._memory = HostMemory(device)

    def route(self, send_counts: np.ndarray, receive_counts: np.ndarray, item_bytes: int) -> Route:
        """As many pieces as the rank with the most bytes needs. Collective."""
        pieces = 1
        if self._piece_bytes is not None:
            most = np.array([max(int(send_counts.sum()), int(receive_counts.sum())) * item_bytes])
            pieces = max(1, -(-int(self._world.allreduce(most, "max")[0]) // self._piece_bytes))
        return Route(Shares.cut(send_counts, pieces, self._device), Shares.cut(receive_counts, pieces, self._device))

    def start(
        self, sent: torch.Tensor, received: torch.Tensor, route: Route, what: str, neighbours: Neighbours | None
    ) -> Pending:
        """The rows are read when the device has made them."""
        if self._world.size == 1:
            return Pending.done(what)
        transfer: Staged | Direct
        about = (sent, received), route, what, neighbours
        if self.stages:
            transfer = Staged(self._device, self._channel, self._memory, *about)
        else:
            transfer = Direct(self._device, self._channel, *about)
        return Pending.started(self._channel.put(transfer), what, transfer)

    def arrive(self, pending: Pending) -> None:
        """The device waits for copies, and the host goes on. The time on the wire was that from the first piece's start."""
        if pending.request is not None:
            pending.request.arrive()
            pending.seconds = _wire_seconds(pending.request.pieces)


class Direct:
    """A transfer of bytes that MPI reads and writes where they are. Pieces are shares of the segments, where these lie."""

    def __init__(
        self,
        device: Device,
        channel: Channel,
        wires: tuple[torch.Tensor, torch.Tensor],
        route: Route,
        what: str,
        neighbours: Neighbours | None,
    ) -> None:
        self._device, self._channel, self.what, self.neighbours = device, channel, what, neighbours
        made = device.record()  # also before what MPI writes to: it may still be read
        there, back = (_shared_segments(wire, s) for wire, s in zip(wires, (route.sent, route.received), strict=True))
        self.pieces = [Piece(made, *both) for both in zip(there, back, strict=True)]

    def Test(self) -> bool:
        """Whether all has come. MPI is called from whichever thread looks, on whose device the memory must be."""
        self._device.use()
        self._channel.advance()
        return self.land()

    def land(self) -> bool:
        """There is nothing to take."""
        return all([piece.is_over() for piece in self.pieces])  # noqa: C419 - a list, so that each is tested

    def arrive(self) -> None:
        """The bytes are where they belong."""


class Staged:
    """A transfer through memory of the host: down, over the wire, and up again."""

    def __init__(
        self,
        device: Device,
        channel: Channel,
        memory: HostMemory,
        wires: tuple[torch.Tensor, torch.Tensor],
        route: Route,
        what: str,
        neighbours: Neighbours | None,
    ) -> None:
        self._device, self._channel, self._memory = device, channel, memory
        self.what, self.neighbours, self._order = what, neighbours, route.received.order
        sent, self._received = wires
        ordered = sent if route.sent.order is None else _words(sent).index_select(0, route.sent.order).view(torch.uint8)
        self._landing = self._received if self._order is None else torch.empty_like(self._received)
        taken = memory.take(sent.numel()), memory.take(self._received.numel())
        self._host: tuple[torch.Tensor, torch.Tensor] | None = taken  # until all has arrived
        host_sent, self._host_received = (
            host[: wire.numel()].view(wire.shape) for host, wire in zip(taken, wires, strict=True)
        )
        self._kept = ordered  # until it has been copied
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
        """Whether all has come, and the last copy up was asked for; copies are made from whichever thread looks."""
        self._device.use()
        self._channel.advance()
        return self.land()

    def land(self) -> bool:
        """Ask for the copies up of what has come."""
        for number, (piece, (first, last)) in enumerate(zip(self.pieces, self._spans, strict=True)):
            if self._ups[number] is None and piece.is_over():
                landed = self._landing[first:last], self._host_received[first:last]
                self._ups[number] = self._device.copy(*landed, self._made) if last > first else CPU.record()
        return None not in self._ups

    def arrive(self) -> None:
        """Behind the copies up, the rows are put where they belong; the host's memory is free when the copies are over."""
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
    """Memory of the host that a device copies to and from: made once, and used by one transfer after the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pieces: list[tuple[torch.Tensor, list[Event]]] = []

    def take(self, num_bytes: int) -> torch.Tensor:
        """(at least num_bytes,) uint8: the smallest that is free and large enough, or new, in place of all smaller ones that are
        free."""
        free = [all(event.is_over() for event in events) for _, events in self._pieces]
        fitting = [
            place for place, (memory, _) in enumerate(self._pieces) if memory.numel() >= num_bytes and free[place]
        ]
        if not fitting:
            self._pieces = [piece for piece, is_free in zip(self._pieces, free, strict=True) if not is_free]
            return self._device.host_memory(num_bytes)
        return self._pieces.pop(min(fitting, key=lambda place: self._pieces[place][0].numel()))[0]

    def give_back(self, memory: torch.Tensor, events: list[Event]) -> None:
        """It is free when ``events`` are over."""
        self._pieces.append((memory, events))


def _words(wire: torch.Tensor) -> torch.Tensor:
    """(items, item_bytes) uint8 as the widest words that fill an item: rows are moved as fast as words are wide."""
    size = next(size for size in (8, 4, 2, 1) if wire.shape[1] % size == 0)
    return wire.view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[size])


def _wire_seconds(pieces: list[Piece]) -> float:
    """From the first one's start until the last one has come."""
    known = [piece.pending for piece in pieces if piece.pending is not None]
    return max(each.started_at + each.seconds for each in known) - min(each.started_at for each in known)


def _shared_segments(wire: torch.Tensor, shares: Shares) -> list[Segments]:
    """The pieces of a wire whose segments stay where they are, rank after rank."""
    buffer, totals = Buffer.of(wire), shares.counts.sum(0)
    starts = np.cumsum(totals) - totals
    before = np.cumsum(shares.counts, axis=0) - shares.counts
    return [Segments(buffer, counts, starts + first) for counts, first in zip(shares.counts, before, strict=True)]
