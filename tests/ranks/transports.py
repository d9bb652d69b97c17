"""Programs for ranks: the ways of messages from a device (tests/standin), in pieces, with or without memory of the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from ranks import exchanges
from ranks.devices import taking_device_memory
from ranks.on_device import raised
from standin import StandIn, standin

from hpcgnn.devices import CPU, Device
from hpcgnn.world import World, transport
from hpcgnn.world.buffer import Pending
from hpcgnn.world.transport import make_transport

WIDTH, LARGE = 24, 1 << 20


def rows_between(sender: int, receiver: int, count: int, salt: int) -> torch.Tensor:
    """(count, WIDTH) uint8 rows that are unique to these two ranks."""
    numbers = torch.arange(count * WIDTH).view(count, WIDTH)
    return ((numbers * 7 + 31 * sender + 57 * receiver + 101 * salt) % 256).to(torch.uint8)


class Exchanged:
    """An exchange under way. expected: (rows, WIDTH) rows that must arrive."""

    def __init__(self, world: World, device: Device, way: transport.Transport, scale: int, salt: int = 0) -> None:
        rows = scale * exchanges.counts(world)
        there = [rows_between(world.rank, d, int(n), salt) for d, n in enumerate(rows)]
        self.expected = torch.cat([rows_between(s, world.rank, int(n), salt) for s, n in enumerate(rows)])
        self.sent = torch.cat(there).to(device.torch_device)
        self.received = torch.zeros(self.expected.shape, dtype=torch.uint8, device=device.torch_device)
        self.way, self.route = way, way.route(rows, rows, WIDTH)
        self.pending: Pending = way.bind(self.sent, self.received, self.route, "a test", None)()

    def arrive(self, world: World) -> None:
        """Wait, and check that the right rows have arrived."""
        world.wait(self.pending)
        if self.pending.arrive is not None:
            self.pending.arrive()
        assert torch.equal(self.received.cpu(), self.expected)


@contextmanager
def pieces_of(num_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "PIECE_BYTES", num_bytes)
        yield


def staged(world: World, piece_bytes: int, mixed: bool) -> None:
    """Exchanges of several sizes through memory of the host, three at a time, with other collectives in between."""
    device: Device = CPU if mixed and world.rank == 0 else standin()
    with pieces_of(piece_bytes):
        way = make_transport(world, device)
    assert way.stages == (device is not CPU)  # type: ignore[attr-defined]
    pieces = []
    for scale in (0, 1, 40):
        under_way = [Exchanged(world, device, way, scale, salt) for salt in range(3)]
        for each in under_way:
            world.watch(each.pending)
        total = world.allreduce(np.array([1.0]))  # matched with everything that other ranks have started by then
        assert total[0] == world.size
        for each in reversed(under_way):
            each.arrive(world)
        pieces.append(len(under_way[0].route.sent.counts))
    none, few, many = pieces
    assert none == 1
    assert (few, many) == (1, 1) if piece_bytes == LARGE else 1 <= few < many


def host_memory(world: World) -> None:
    """Check that memory of the host is made in the first of several rounds."""
    device, asked, found = standin(), [0], []
    make = StandIn.host_memory

    def counted(self: StandIn, num_bytes: int) -> torch.Tensor:
        asked[0] += num_bytes
        return make(self, num_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandIn, "host_memory", counted)
        with pieces_of(256):
            way = make_transport(world, device)
        for salt in range(5):
            for each in [Exchanged(world, device, way, scale, salt) for scale in (40, 3)]:
                each.arrive(world)
            found.append(asked[0])
    assert found == found[:1] * 5


def as_they_are(world: World) -> None:
    """Exchanges in which MPI takes the device's memory, as any MPI takes the stand-in's, unless staging is asked for."""
    device = standin()
    with taking_device_memory(world):
        for choice, stages in (("auto", False), ("on", False), ("off", True)):
            way = make_transport(world, device, choice)
            assert way.stages == stages  # type: ignore[attr-defined]
            Exchanged(world, device, way, 40).arrive(world)


def refused(world: World) -> None:
    """Check the sentence of ``--gpu-mpi on`` for a library that does not take device memory."""
    said = raised(world, lambda: make_transport(world, standin(), "on"))
    assert said.startswith("--gpu-mpi on needs an MPI library that takes memory of standin:0, but ")


def comes_wrong(world: World) -> None:
    """Check that a library that claims to take device memory, but moves wrong bytes, is not given any."""
    device, before = standin(), transport._pattern
    with pytest.MonkeyPatch.context() as patch, taking_device_memory(world):
        patch.setattr(transport, "_pattern", lambda rank: before(rank) + (rank == world.rank))
        way = make_transport(world, device)
        said = raised(world, lambda: make_transport(world, device, "on"))
    assert "does not move memory of standin:0 correctly" in said
    assert way.stages  # type: ignore[attr-defined]
    Exchanged(world, device, way, 40).arrive(world)
