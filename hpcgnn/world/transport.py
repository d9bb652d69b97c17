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

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device, Event
from hpcgnn.world.buffer import Buffer, Neighbours, Pending, Segments
from hpcgnn.world.exchange_queue import ExchangeQueue, Piece, Transfer
from hpcgnn.world.world import World, raise_on_all_ranks

PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class Pieces:
    """The division of rows in P segments into K pieces. counts: (K, P) int64 number of rows of each segment in each piece. order:
    (rows,) int64 on the device, the numbers of the rows of the first piece, then of the second, ...; None for one piece."""

    counts: np.ndarray
    order: torch.Tensor | None

    @classmethod
    def cut(cls, counts: np.ndarray, pieces: int, device: Device) -> Pieces:
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


class PieceLayout(NamedTuple):
    """The division of an exchange's rows into pieces, kept while its counts stay. sent, received: rows to and from each rank."""

    sent: Pieces
    received: Pieces


class Transport:
    """Moves rows between ranks, here in a job in which the messages of all ranks are in memory of the host."""

    def __init__(self, world: World) -> None:
        self._world = world

    def route(self, send_counts: np.ndarray, receive_counts: np.ndarray, item_bytes: int) -> PieceLayout:
        """The route of exchanges with (P,) int64 rows of ``item_bytes`` bytes to and from each rank. Collective."""
        return PieceLayout(Pieces(send_counts[None], None), Pieces(receive_counts[None], None))

    def bind(
        self, sent: torch.Tensor, received: torch.Tensor, route: PieceLayout, what: str, neighbours: Neighbours | None
    ) -> Callable[[], Pending]:
        """A function that starts to move the rows of ``sent`` to other ranks, and theirs to ``received``; (items, item_bytes)
        uint8. Only the function is collective. It may be called again after its result was waited for. Both tensors must live,
        and ``sent`` must not change, until then. The device sees the received rows after :attr:`Pending.arrive`, if any."""
        there = Segments(Buffer.of(sent), route.sent.counts[0])
        back = Segments(Buffer.of(received), route.received.counts[0])
        return partial(self._world.start_alltoallv, there, back, what, neighbours)


class DeviceTransport(Transport):
    """The transport of jobs in which some rank's messages are in memory of a device. Exchanges start from a queue, because the
    bytes of different ranks become ready at different times. stages: whether this rank's messages go through memory of the host.
    piece_bytes: bytes of a piece; None if no rank's messages do."""

    def __init__(
        self, world: World, device: Device, queue: ExchangeQueue, *, stages: bool, piece_bytes: int | None
    ) -> None:
        super().__init__(world)
        self.device, self.queue, self.stages, self._piece_bytes = device, queue, stages, piece_bytes
        self.memory = HostMemory(device)

    def route(self, send_counts: np.ndarray, receive_counts: np.ndarray, item_bytes: int) -> PieceLayout:
        """A route with as many pieces as the rank with the most bytes needs. Collective."""
        pieces = 1
        if self._piece_bytes is not None:
            most = np.array([max(int(send_counts.sum()), int(receive_counts.sum())) * item_bytes])
            pieces = max(1, -(-int(self._world.allreduce(most, "max")[0]) // self._piece_bytes))
        return PieceLayout(
            Pieces.cut(send_counts, pieces, self.device), Pieces.cut(receive_counts, pieces, self.device)
        )

    def bind(
        self, sent: torch.Tensor, received: torch.Tensor, route: PieceLayout, what: str, neighbours: Neighbours | None
    ) -> Callable[[], Pending]:
        """The function queues the exchange, which reads the rows once the device has made them."""
        return partial(self._put, (sent, received), route, what, neighbours)

    def _put(
        self, wires: tuple[torch.Tensor, torch.Tensor], route: PieceLayout, what: str, neighbours: Neighbours | None
    ) -> Pending:
        if self._world.size == 1:
            return Pending.done(what)
        if self.stages:
            moved = self._staged(wires, route)
        else:  # MPI reads and writes in place, and a piece is a share of every segment
            # MPI reads the sent bytes after this event. It writes the received ones after it, too: earlier work of the device may
            # still read their memory.
            made = self.device.record()
            there, back = (_shared_segments(wire, shares) for wire, shares in zip(wires, route, strict=True))
            moved = [Piece(made, *both) for both in zip(there, back, strict=True)], None, wires
        transfer = Transfer(self.queue, self.device, *moved, what, neighbours)
        pending = Pending.started(self.queue.put(transfer), what, transfer)
        pending.arrive = transfer.arrive
        return pending

    def _staged(
        self, wires: tuple[torch.Tensor, torch.Tensor], route: PieceLayout
    ) -> tuple[list[Piece], Callable[[], None] | None, Any]:
        """Pieces that go through memory of the host: copied down from the device, moved by MPI, and copied up again."""
        (sent, received), order = wires, route.received.order
        ordered = sent if route.sent.order is None else _words(sent).index_select(0, route.sent.order).view(torch.uint8)
        landing = received if order is None else torch.empty_like(received)
        made = self.device.record()
        taken = [self.memory.take(wire.numel()) for wire in wires]
        host_sent, host_received = (
            host[: wire.numel()].view(wire.shape) for host, wire in zip(taken, wires, strict=True)
        )

        def copied(target: torch.Tensor, source: torch.Tensor) -> Event:
            return self.device.copy(target, source, made) if len(source) else CPU.record()

        pieces = []
        for (first, last), (begin, end), there, back in zip(
            route.sent.spans(), route.received.spans(), route.sent.counts, route.received.counts, strict=True
        ):
            down = copied(host_sent[first:last], ordered[first:last])
            copy_up = partial(copied, landing[begin:end], host_received[begin:end])
            send = Segments(Buffer.of(host_sent[first:last]), there)
            pieces.append(Piece(down, send, Segments(Buffer.of(host_received[begin:end]), back), copy_up))

        def finish() -> None:
            """Put the rows in their place after the copies up. The host's memory is free when the copies are over."""
            ups = [piece.up for piece in pieces if piece.up is not None]
            for piece, up in zip(pieces, ups, strict=True):
                if piece.received.buffer.rows:
                    self.device.follow(up)
            if order is not None:
                _words(received).index_copy_(0, order, _words(landing))
            self.memory.give_back(taken[0], [piece.ready for piece in pieces])
            self.memory.give_back(taken[1], ups)

        return pieces, finish, ordered


class HostMemory:
    """Memory of the host that a device copies to and from: allocated once, and used by one transfer after the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pieces: list[tuple[torch.Tensor, list[Event]]] = []

    def take(self, num_bytes: int) -> torch.Tensor:
        """(at least num_bytes,) uint8: the smallest free piece that is large enough. If there is none, a new piece takes the
        place of all free ones."""
        free = [all(event.query() for event in events) for _, events in self._pieces]
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


def _shared_segments(wire: torch.Tensor, shares: Pieces) -> list[Segments]:
    """The segments of each piece of a wire, in place, where the wire holds rank after rank."""
    buffer, totals = Buffer.of(wire), shares.counts.sum(0)
    starts = np.cumsum(totals) - totals
    before = np.cumsum(shares.counts, axis=0) - shares.counts
    return [Segments(buffer, counts, starts + first) for counts, first in zip(shares.counts, before, strict=True)]


# MPICH's numbers for MPIX_GPU_query_support.
_MPICH_CUDA, _MPICH_HIP = 0, 2
_PROOF_ROWS, _PROOF_BYTES, _PROOF_SECONDS = 1 << 14, 64, 0.01  # a MiB: more than libraries send at once


def says_yes(mpi: Any, kind: str) -> bool:
    """Return whether the MPI library says that it takes memory of devices of this type; False if it has no answer. mpi: mpi4py's
    module."""
    if kind != "cuda":
        return False
    is_amd = torch.version.hip is not None
    library = ctypes.CDLL(mpi.__file__)  # whose symbols are found through the module that is linked to it
    for name in ("MPIX_Query_rocm_support", "MPIX_Query_hip_support") if is_amd else ("MPIX_Query_cuda_support",):
        query = getattr(library, name, None)  # Open MPI, MPICH, MVAPICH
        if query is not None:
            return query() == 1
    query = getattr(library, "MPIX_GPU_query_support", None)  # MPICH and those made of it, Cray's among them
    answer = ctypes.c_int(0)
    return (
        query is not None
        and query(_MPICH_HIP if is_amd else _MPICH_CUDA, ctypes.byref(answer)) == 0
        and answer.value != 0
    )


def make_transport(world: World, device: Device, choice: str = "auto") -> Transport:
    """The transport of this rank's messages from memory of ``device``. Collective; ranks may have different devices.

    choice: ``on``: MPI is given the device's memory, and it is an error if it cannot take it. ``off``: messages go through
    memory of the host. ``auto``: MPI is given the device's memory if the library says that it takes it and a trial exchange of
    1 MiB a rank arrives unchanged; else messages go through memory of the host.

    Raises:
        HpcgnnError: on every rank, where ``choice`` is ``on`` and MPI cannot take the memory of a rank's device.
    """
    kind = device.torch_device.type
    takes = choice != "off" and world.takes_memory_of(kind)
    with raise_on_all_ranks(world, "choose how messages leave the device"):
        if choice == "on" and kind != "cpu" and not takes:
            raise HpcgnnError(
                f"--gpu-mpi on needs an MPI library that takes memory of {device.torch_device}, but {world.library} says that it "
                "does not: load one that does, or use --gpu-mpi auto, which copies messages through memory of the host"
            )
    said = np.array([kind != "cpu", kind != "cpu" and not takes])
    some_device, some_stage = world.allreduce(said.astype(np.int64), "max").tolist()
    if not some_device:
        return Transport(world)
    queue = world.exchange_queue()
    direct = DeviceTransport(world, device, queue, stages=False, piece_bytes=None)
    if world.size == 1 or (not some_stage and _comes_right(world, device, direct)):
        return direct
    if choice == "on" and not some_stage:
        raise HpcgnnError(
            f"--gpu-mpi on was asked for, but {world.library} does not move memory of {device.torch_device} correctly: load "
            "another MPI, or use --gpu-mpi off",
            agreed=True,
        )
    return DeviceTransport(world, device, queue, stages=kind != "cpu", piece_bytes=PIECE_BYTES)


def _comes_right(world: World, device: Device, transport: DeviceTransport) -> bool:
    """Return whether a trial message arrives unchanged at the next rank, from every rank. Collective."""
    there, back = (np.zeros(world.size, np.int64) for _ in range(2))
    there[(world.rank + 1) % world.size] = back[(world.rank - 1) % world.size] = _PROOF_ROWS
    sent = _pattern(world.rank).to(device.torch_device)
    received = torch.zeros_like(sent)
    pending = transport.bind(sent, received, transport.route(there, back, _PROOF_BYTES), "a trial of --gpu-mpi", None)()
    world.watch(pending)
    time.sleep(_PROOF_SECONDS)  # meanwhile the progress thread calls MPI, as in training
    world.wait(pending)
    if pending.arrive is not None:
        pending.arrive()
    is_right = torch.equal(received.cpu(), _pattern((world.rank - 1) % world.size))
    return bool(world.allreduce(np.array([is_right], np.int64), "min")[0])


def _pattern(rank: int) -> torch.Tensor:
    """(rows, bytes) uint8 that differs among any 251 consecutive ranks."""
    numbers = torch.arange(_PROOF_ROWS * _PROOF_BYTES, dtype=torch.int64)
    return (numbers * 31 + rank).remainder(251).to(torch.uint8).view(_PROOF_ROWS, _PROOF_BYTES)
