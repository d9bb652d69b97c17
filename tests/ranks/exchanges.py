"""Programs for ranks: exchanges of rows whose values the receiver knows.

Rank i sends ``i + d + 1`` rows to rank d, and none to itself. Row k of them has the values ``base(i, d, k) + column``.
"""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch

from hpcgnn.comm import Exchange, MessageConfig, Messages, World
from hpcgnn.comm.codecs import packed
from hpcgnn.comm.mailbox import Message
from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels import Csr

WIDTHS = (1, 3, 40, 256)
BACKENDS = ("native", "jit", "reference", "triton")
BITS = (32, 16, 8, 4, 2, 1)


def counts(world: World) -> np.ndarray:
    """(P,) number of rows to each rank, and from each rank, which is the same because i + d is symmetric."""
    rows = world.rank + np.arange(world.size) + 1
    rows[world.rank] = 0
    return rows


def rows_between(sender: int, receiver: int, count: int, width: int) -> torch.Tensor:
    rows = torch.arange(count)[:, None] * 7.0 + 100 * sender + 10 * receiver
    return torch.sin(rows + torch.arange(width))


def outgoing(world: World, width: int) -> torch.Tensor:
    return torch.cat([rows_between(world.rank, d, int(n), width) for d, n in enumerate(counts(world))])


def incoming(world: World, width: int) -> torch.Tensor:
    return torch.cat([rows_between(s, world.rank, int(n), width) for s, n in enumerate(counts(world))])


def make(world: World, backend: str = "auto", seed: int = 0, **settings: object) -> Exchange:
    messages = Messages(world, MessageConfig(**settings), seed=seed)  # type: ignore[arg-type]
    return Exchange(messages, counts(world), counts(world), backend=backend)


def started(exchange: Exchange, rows: torch.Tensor) -> Message:
    send = exchange.rows_to_send(rows.shape[1], rows.dtype)
    send.copy_(rows)
    return exchange.start(send)


def moved(exchange: Exchange, rows: torch.Tensor) -> torch.Tensor:
    """The received rows when ``rows`` are sent."""
    message = started(exchange, rows)
    exchange.wait(message)
    count = int(exchange.receive_counts.sum())
    one_hot = Csr(torch.arange(count + 1), torch.arange(count), count)
    received = torch.zeros(count, rows.shape[1], dtype=rows.dtype)
    exchange.add_received(message, one_hot, received)
    return received


def worst(world: World, values: torch.Tensor) -> float:
    mine = float(values.max()) if values.numel() else 0.0
    return float(world.allreduce(np.array([mine]), "max")[0])


def steps(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """(n, 1) allowed error of a value: a step of its row's grid, a rounding of bfloat16, or 0."""
    spread = rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
    if bits == 32:
        return torch.zeros_like(spread)
    if bits == 16:
        return torch.full_like(spread, 2.0**-8)
    return 1.02 * spread / (2**bits - 1) + 2.0**-7  # the ends of the grid are rounded to bfloat16


def errors(world: World, backend: str) -> dict[str, float]:
    """By bits and width, the largest error relative to the allowed one."""
    found = {}
    for bits in BITS:
        for width in WIDTHS:
            exchange = make(world, backend, bits=bits)
            error = (moved(exchange, outgoing(world, width)) - incoming(world, width)).abs()
            found[f"{bits} {width}"] = worst(world, error - steps(incoming(world, width), bits))
    return found


def mixed(world: World) -> float:
    """The largest error relative to the allowed one, where each row has its own bit-width."""
    exchange = make(world, bits=2)
    total = int(exchange.send_counts.sum())
    exchange.assign_bits(np.array(BITS, np.uint8)[np.arange(total) % len(BITS)])
    error = (moved(exchange, outgoing(world, 40)) - incoming(world, 40)).abs()
    bits = np.concatenate([np.array(BITS)[_sent_as(world, s)] for s in range(world.size)])
    allowed = torch.cat([steps(row[None], int(b)) for row, b in zip(incoming(world, 40), bits, strict=True)])
    return worst(world, error - allowed)


def _sent_as(world: World, sender: int) -> np.ndarray:
    """The index in BITS of the bit-width of each row that this rank receives."""
    rows = sender + np.arange(world.size) + 1
    rows[sender] = 0
    first = int(rows[: world.rank].sum())
    return (first + np.arange(int(rows[world.rank]))) % len(BITS)


def mean_error(world: World, bits: int, epochs: int = 400) -> float:
    """The largest deviation of the mean over many epochs from the exact values, in standard errors of the worst case."""
    exchange, total = make(world, bits=bits), torch.zeros(int(counts(world).sum()), 40)
    for epoch in range(epochs):
        exchange.messages.begin_epoch(epoch)
        total += moved(exchange, outgoing(world, 40))
    truth = incoming(world, 40)
    standard_error = (steps(truth, bits) / 2 + 2.0**-17) / epochs**0.5
    return worst(world, (total / epochs - truth).abs() / standard_error)


def delta(world: World, bits: int) -> list[float]:
    """The largest error of each epoch, when the same rows are sent as differences to earlier messages."""
    exchange, found = make(world, bits=bits, message_coding="delta"), []
    for epoch in range(30):
        exchange.messages.begin_epoch(epoch)
        found.append(worst(world, (moved(exchange, outgoing(world, 40)) - incoming(world, 40)).abs()))
    return found


def kept(world: World) -> bool:
    """Return whether senders and receivers hold the same rows after epochs of changing rows, with evaluations in between."""
    exchange = make(world, bits=2, message_coding="delta")
    for epoch in range(5):
        exchange.messages.begin_epoch(epoch)
        exchange.messages.begin_pass(is_training=True)
        moved(exchange, outgoing(world, 40) * (1 + epoch))
        exchange.messages.begin_pass(is_training=False)
        moved(exchange, outgoing(world, 40))
    (found,) = exchange.messages.kept.differences.values()
    sent, received = found.sent, found.received
    equal = torch.equal(moved(make(world), sent), received) and bool(received.any())
    return bool(world.allreduce(np.array([equal], np.int64), "min")[0])


def repeats(world: World) -> dict[str, bool]:
    """For several changes of a run, whether it still gives the same bits."""

    def run(
        seed: int = 0,
        epoch: int = 0,
        threads: int = 1,
        backend: str = "auto",
        layer: int = 0,
        calls: int = 1,
        **how: bool,
    ) -> torch.Tensor:
        torch.set_num_threads(threads)
        exchange = make(world, backend, seed, bits=2, eval_precision="training").for_layer(layer)
        exchange = exchange.reverse() if how.get("backward") else exchange
        exchange.messages.begin_epoch(epoch)
        exchange.messages.begin_pass(is_training=not how.get("evaluation"))
        for _ in range(calls):
            found = moved(exchange, outgoing(world, 256))
        torch.set_num_threads(1)
        return found

    first = run()
    same = {"again": run(), "threads": run(threads=2), "numba": run(backend="jit")}
    other = {"seed": run(seed=1), "epoch": run(epoch=1), "layer": run(layer=1), "call": run(calls=2)}
    other |= {"direction": run(backward=True), "evaluation": run(evaluation=True)}
    equal = {name: torch.equal(first, value) for name, value in (same | other).items()}
    return {name: bool(world.allreduce(np.array([value], np.int64), "min")[0]) for name, value in equal.items()}


def wire(world: World, seed: int, **settings: object) -> bytes:
    """The bytes that this rank sends in three epochs. With a seed, the ranks start and make progress at random moments."""
    pause = random.Random(seed + world.rank)
    exchange, sent = make(world, **settings), []
    for epoch in range(3):
        exchange.messages.begin_epoch(epoch)
        time.sleep(seed and pause.uniform(0, 0.02))
        message = started(exchange, outgoing(world, 256) * (1 + epoch))
        time.sleep(seed and pause.uniform(0, 0.02))
        sent.append(message.sent.numpy().tobytes())
        exchange.wait(message)
        time.sleep(seed and pause.uniform(0, 0.02))
    return b"".join(sent)


def wires(world: World) -> dict[str, bool]:
    """For several settings, whether the sent bytes are the same for any number of threads and any timing."""
    found = {}
    for settings in ({"bits": 32}, {"bits": 2}, {"bits": 2, "message_coding": "delta"}):
        first = wire(world, 0, **settings)
        torch.set_num_threads(2)
        equal = first == wire(world, 0, **settings)
        torch.set_num_threads(1)
        equal = equal and first == wire(world, 1, **settings) and len(set(first)) > 4
        found[str(settings)] = bool(world.allreduce(np.array([equal], np.int64), "min")[0])
    return found


def errors_of_nonfinite_rows(world: World) -> list[str]:
    """The sentence about a NaN, or an infinity, in one value that the last rank sends in the second exchange of a step."""
    found = []
    for settings in ({"bits": 32}, {"bits": 2}, {"bits": 2, "message_coding": "delta"}):
        for value in (np.nan, np.inf):
            exchange, rows = make(world, **settings), outgoing(world, 40)
            exchange.messages.begin_epoch(7)
            moved(exchange, rows)
            rows[-1, 3] = value if world.rank == world.size - 1 else 0
            moved(exchange.for_layer(1).reverse(), rows)
            moved(exchange, rows)
            nonfinite = world.allreduce(np.array([float(exchange.messages.traffic.nonfinite_count())]))
            try:
                exchange.messages.raise_if_nonfinite(float(nonfinite[0]))
            except HpcgnnError as error:
                found.append(str(error))
    return found


def too_many(world: World, most: int) -> list[str]:
    """The sentence on every rank if the last one would send more than ``most`` items: rows, and blocks of few rows."""
    counts_by_case = {32: most + 1, 2: most + 1, 16: 40}
    found = []
    for bits, count in counts_by_case.items():
        send, receive = np.zeros(world.size, np.int64), np.zeros(world.size, np.int64)
        if world.rank == world.size - 1:
            send[0] = count
        if world.rank == 0:
            receive[-1] = count
        exchange = Exchange(Messages(world, MessageConfig(bits=bits)), send, receive, layer=2)
        width = 1024 if bits == 16 else 4  # rows of 2 KiB, or of any size
        try:
            exchange.start(torch.zeros(0, width))
        except HpcgnnError as error:
            found.append(str(error) if error.agreed else "not agreed")
    everyone = world.allreduce(np.array([len(found)]), "min")
    return found if int(everyone[0]) == len(counts_by_case) else []


def fused(world: World) -> bool:
    """Return whether decoding in registers gives the same bits as decoding to a matrix first."""
    results = []
    for choice in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packed, "fuses", lambda *_, choice=choice: choice)
            results += [moved(make(world, backend, bits=b), outgoing(world, 40)) for b in BITS for backend in BACKENDS]
    half = len(results) // 2
    equal = all(map(torch.equal, results[:half], results[half:]))
    return bool(world.allreduce(np.array([equal], np.int64), "min")[0])


def counted_bytes(world: World) -> dict[str, tuple[int, int]]:
    """The bytes counted where they leave the rank, and as they follow from the format: payload, parameters, padding to 64 for
    each peer.
    """
    found = {}
    for bits in BITS:
        exchange = make(world, bits=bits)
        moved(exchange, outgoing(world, 256))
        a_row = 256 * bits // 8 + (4 if bits <= 8 else 0)
        expected = sum(-(-int(n) * a_row // 64) * 64 for n in counts(world))
        sent = exchange.messages.traffic.bytes_sent.total()
        found[str(bits)] = tuple(int(n) for n in world.allreduce(np.array([sent, expected])))
    return found


def evaluation(world: World) -> dict[str, bool]:
    """For each precision, whether rows arrive exactly in an evaluation."""
    found = {}
    for precision in ("float32", "training"):
        exchange = make(world, bits=2, eval_precision=precision)
        exchange.messages.begin_pass(is_training=False)
        exact = torch.equal(moved(exchange, outgoing(world, 40)), incoming(world, 40))
        found[precision] = bool(world.allreduce(np.array([exact], np.int64), "min")[0])
    return found
