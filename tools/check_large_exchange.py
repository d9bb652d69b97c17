"""Moves more than 2 GiB from one rank in one exchange and checks the received rows. This needs too much memory for the tests.

usage: hpcgnn launch -n 3 python tools/check_large_exchange.py [GIB]      prints one JSON object; exit code 1: wrong rows

Rank 0 sends almost all rows to rank 1, and a few rows to rank 2 that lie behind them, past 2 GiB in its buffer. Rank 2 sends a
few rows to rank 1, which lie past 2 GiB in its receive buffer. The exchange runs with float32 rows of 1 KiB, and then with
packed blocks. It takes about three times GIB (default 2.2) of memory in total.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from hpcgnn.exchange import Exchange, MessageConfig, Messages
from hpcgnn.kernels import Csr
from hpcgnn.world import MpiWorld, World

WIDTH, FEW = 256, 1000


def rows_between(world: World, gib: float) -> np.ndarray:
    """(P, P) number of rows from each rank to each rank."""
    rows = np.zeros((world.size, world.size), np.int64)
    rows[0, 1], rows[0, 2], rows[2, 1] = int(gib * 2**30) // (WIDTH * 4), FEW, FEW
    return rows


def fill(out: torch.Tensor, first: int, sender: int) -> None:
    """Fill the rows from ``first`` on of a sender: all columns of a row hold its number in the sender's buffer, modulo the
    integers that a float holds exactly.
    """
    numbers = torch.arange(first, first + out.shape[0])
    out.copy_((numbers % 65_537 + 65_537.0 * sender)[:, None].expand_as(out))


def moved_right(world: World, rows: np.ndarray, packed: bool) -> bool:
    """Return whether the first and last rows of each sender, and some between, came as they were sent. Collective."""
    exchange = Exchange(Messages(world, MessageConfig()), rows[world.rank], rows[:, world.rank].copy())
    if packed:
        exchange.assign_bits(np.full(int(rows[world.rank].sum()), 32, np.uint8))
    send = exchange.rows_to_send(WIDTH, torch.float32)
    fill(send, 0, world.rank)
    message = exchange.start(send)
    exchange.wait(message)
    numbers, senders, places = [], [], []
    start = 0
    for sender, count in enumerate(rows[:, world.rank].tolist()):
        looked_at = torch.arange(0, count, max(count // 1000, 1)).clamp(max=max(count - 1, 0))
        looked_at = torch.cat((looked_at, torch.arange(max(count - FEW, 0), count)))
        places.append(start + looked_at)
        numbers.append(looked_at + int(rows[sender, : world.rank].sum()))
        senders.append(torch.full_like(looked_at, sender))
        start += count
    place, number, sender_of = torch.cat(places), torch.cat(numbers), torch.cat(senders)
    matrix = Csr(torch.arange(place.numel() + 1), place, start)
    found = torch.zeros(place.numel(), WIDTH)
    exchange.add_received(message, matrix, found)
    wanted = (number % 65_537 + 65_537.0 * sender_of)[:, None].expand_as(found)
    return bool(world.allreduce(np.array([torch.equal(found, wanted)], np.int64), "min")[0])


def main() -> None:
    """Run both exchanges, and exit."""
    world = MpiWorld(timeout_seconds=600)
    if world.size != 3:
        sys.exit("needs 3 ranks")
    rows = rows_between(world, float(sys.argv[1]) if len(sys.argv) > 1 else 2.2)
    result: dict[str, object] = {"bytes_from_rank_0": int(rows[0].sum()) * WIDTH * 4}
    for name, packed in (("rows of 1 KiB", False), ("packed blocks", True)):
        result[name] = moved_right(world, rows, packed)
    if world.rank == 0:
        print(json.dumps(result))
    sys.exit(not (result["rows of 1 KiB"] and result["packed blocks"]))


if __name__ == "__main__":
    main()
