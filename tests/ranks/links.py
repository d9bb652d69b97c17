"""A program for at least 5 ranks: exchanges between a few of them.

Rank i sends ``i + 1`` rows to the next rank and 2 rows to the one after it; the last rank only receives.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcgnn.comm import Exchange, MessageConfig, Messages, World, choose_links
from hpcgnn.kernels import Csr

WIDTH = 40


def sent_by(rank: int, size: int) -> np.ndarray:
    """(P,) number of rows that a rank sends to each other rank."""
    counts = np.zeros(size, np.int64)
    if rank < size - 1:
        counts[(rank + 1) % size], counts[(rank + 2) % size] = rank + 1, 2
    return counts


def moved(world: World, collective: str, bits: int) -> list[torch.Tensor]:
    """The received rows, and the rows that come back when these are returned."""
    counts = sent_by(world.rank, world.size), np.array([sent_by(s, world.size)[world.rank] for s in range(world.size)])
    links = choose_links(world, *counts, collective)
    exchange = Exchange(Messages(world, MessageConfig(bits=bits)), *counts, links=links)
    rows = torch.sin(torch.arange(int(counts[0].sum()) * WIDTH).view(-1, WIDTH) + 100.0 * world.rank)
    over_neighbours: list[bool] = []  # for each exchange, whether it uses neighbourhood collectives
    start = type(world).start_alltoallv

    def recorded(self: World, *arguments: object) -> object:
        over_neighbours.append(arguments[-1] is not None)
        return start(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world), "start_alltoallv", recorded)
        found = [_move(exchange, rows)]
        found.append(_move(exchange.reverse(), found[0]))
    if collective != "auto":
        assert over_neighbours == [collective == "neighbour"] * 2
    return found


def _move(exchange: Exchange, rows: torch.Tensor) -> torch.Tensor:
    send = exchange.rows_to_send(WIDTH, rows.dtype)
    send.copy_(rows)
    message = exchange.start(send)
    exchange.wait(message)
    count = int(exchange.receive_counts.sum())
    received = torch.zeros(count, WIDTH)
    exchange.add_received(message, Csr(torch.arange(count + 1), torch.arange(count), count), received)
    return received


def everywhere(world: World, value: bool) -> bool:
    return bool(world.allreduce(np.array([value], np.int64), "min")[0])


def compare(world: World) -> dict[str, bool]:
    """The expected rows, and whether they arrive, on all ranks."""
    found = {}
    for bits in (32, 2):
        expected = moved(world, "alltoallv", bits)
        for collective in ("neighbour", "auto"):
            same = all(map(torch.equal, moved(world, collective, bits), expected))
            found[f"{collective} {bits}"] = everywhere(world, same)
    start = torch.sin(
        torch.arange(int(sent_by(world.rank, world.size).sum()) * WIDTH).view(-1, WIDTH) + 100.0 * world.rank
    )
    found["returned"] = everywhere(world, torch.equal(moved(world, "neighbour", 32)[1], start))
    counts = sent_by(world.rank, world.size), np.array([sent_by(s, world.size)[world.rank] for s in range(world.size)])
    chosen = world.allgather(np.array([choose_links(world, *counts, "auto") is None]))
    found["agreed"] = everywhere(world, bool((chosen == chosen[0]).all()))
    full = np.ones(world.size, np.int64)
    found["dense"] = everywhere(world, choose_links(world, full, full, "auto") is None)
    return found
