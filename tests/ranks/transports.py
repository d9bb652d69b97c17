"""Programs for ranks: the ways of messages from a device (tests/standin), in pieces, with or without memory of the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from ranks.devices import taking_device_memory
from ranks.on_device import raised
from standin import StandIn, standin

from hpcgnn.comm import World, gpu_mpi, transport
from hpcgnn.comm.gpu_mpi import make_transport
from hpcgnn.comm.pending import Pending
from hpcgnn.devices import CPU, Device

WIDTH = 24


def rows_between(sender: int, receiver: int, count: int, salt: int) -> torch.Tensor:
    """(count, WIDTH) uint8 rows that are unique to these two ranks."""
    numbers = torch.arange(count * WIDTH).view(count, WIDTH)
    return ((numbers * 7 + 31 * sender + 57 * receiver + 101 * salt) % 256).to(torch.uint8)


def counts(world: World, scale: int) -> np.ndarray:
    """(P,) number of rows to each rank, and from each rank: unequal, and none to itself."""
    rows = scale * (world.rank + np.arange(world.size) + 1)
    rows[world.rank] = 0
    return rows


class Exchanged:
    """An exchange under way. expected: (rows, WIDTH) rows that must arrive."""

    def __init__(self, world: World, device: Device, way: transport.Transport, scale: int, salt: int = 0) -> None:
        rows = counts(world, scale)
        there = [rows_between(world.rank, d, int(n), salt) for d, n in enumerate(rows)]
        self.expected = torch.cat([rows_between(s, world.rank, int(n), salt) for s, n in enumerate(rows)])
        self.sent = torch.cat(there).to(device.torch_device)
        self.received = torch.zeros(self.expected.shape, dtype=torch.uint8, device=device.torch_device)
        self.way, self.route = way, way.route(rows, rows, WIDTH)
        self.pending: Pending = way.start(self.sent, self.received, self.route, "a test", None)

    def is_right(self, world: World) -> bool:
        """Return whether the right rows have arrived, after a wait."""
        world.wait(self.pending)
        self.way.arrive(self.pending)
        return torch.equal(self.received.cpu(), self.expected)


@contextmanager
def pieces_of(num_bytes: int) -> Iterator[None]:
    before = gpu_mpi.PIECE_BYTES
    gpu_mpi.PIECE_BYTES = num_bytes  # type: ignore[misc]
    try:
        yield
    finally:
        gpu_mpi.PIECE_BYTES = before  # type: ignore[misc]


def staged(world: World, piece_bytes: int, mixed: bool) -> dict[str, object]:
    """Exchanges of several sizes through memory of the host, three at a time, with other collectives in between."""
    device: Device = CPU if mixed and world.rank == 0 else standin()
    with pieces_of(piece_bytes):
        way = make_transport(world, device)
    right, pieces = [], []
    for scale in (0, 1, 40):
        under_way = [Exchanged(world, device, way, scale, salt) for salt in range(3)]
        for each in under_way:
            world.watch(each.pending)
        total = world.allreduce(np.array([1.0]))  # matched with everything that other ranks have started by then
        right += [bool(total[0] == world.size), *(each.is_right(world) for each in reversed(under_way))]
        pieces.append(len(under_way[0].route.sent.counts))
    return {"right": right, "pieces": pieces, "stages": way.stages}  # type: ignore[attr-defined]


def host_memory(world: World) -> list[int]:
    """The bytes of host memory that were allocated after each of several rounds."""
    device, asked, found = standin(), [0], []
    make = StandIn.host_memory

    def counted(self: StandIn, num_bytes: int) -> torch.Tensor:
        asked[0] += num_bytes
        return make(self, num_bytes)

    StandIn.host_memory = counted  # type: ignore[method-assign]
    try:
        with pieces_of(256):
            way = make_transport(world, device)
        for salt in range(5):
            both = [Exchanged(world, device, way, scale, salt) for scale in (40, 3)]
            assert all([each.is_right(world) for each in both])  # noqa: C419 - each is waited for
            found.append(asked[0])
    finally:
        StandIn.host_memory = make  # type: ignore[method-assign]
    return found


def as_they_are(world: World) -> dict[str, object]:
    """Exchanges in which MPI takes the device's memory, as any MPI does with the stand-in's. Staging is not needed, but can be
    asked for.
    """
    device = standin()
    with taking_device_memory(world):
        found = {choice: make_transport(world, device, choice) for choice in ("auto", "on", "off")}
        right = [Exchanged(world, device, way, 40).is_right(world) for way in found.values()]
    return {"right": right, "stages": [way.stages for way in found.values()]}  # type: ignore[attr-defined]


def refused(world: World) -> str:
    """The sentence of ``--gpu-mpi on`` for a library that does not take device memory."""
    return raised(world, lambda: make_transport(world, standin(), "on"))


def comes_wrong(world: World) -> dict[str, object]:
    """The outcome for a library that claims to take device memory, but moves wrong bytes."""
    device, before = standin(), gpu_mpi._pattern
    gpu_mpi._pattern = lambda rank: before(rank) if rank != world.rank else before(rank) + 1  # type: ignore[assignment]
    try:
        with taking_device_memory(world):
            way = make_transport(world, device)
            said = raised(world, lambda: make_transport(world, device, "on"))
    finally:
        gpu_mpi._pattern = before
    right = Exchanged(world, device, way, 40).is_right(world)
    return {"stages": way.stages, "said": said, "right": right}  # type: ignore[attr-defined]
