"""Programs for ranks: exchanges of known rows. Rank i sends ``i + d + 1`` rows to rank d, and none to itself."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import Exchange, MessageConfig, Messages, choose_links, codecs
from hpcgnn.exchange.codecs import QuantizedRows
from hpcgnn.exchange.exchange import Step
from hpcgnn.exchange.mailbox import Message
from hpcgnn.kernels import Csr
from hpcgnn.world import World

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
    step = exchange.step(rows.shape[1], rows.dtype)
    step.rows_to_send().copy_(rows)
    return step.start()


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


def arrive_within_a_step(world: World, backend: str) -> None:
    """Check the errors of rows for all bit-widths and several widths of rows."""
    for bits in BITS:
        for width in WIDTHS if backend != "triton" else WIDTHS[1:3]:
            error = (moved(make(world, backend, bits=bits), outgoing(world, width)) - incoming(world, width)).abs()
            assert worst(world, error - steps(incoming(world, width), bits)) <= 0, (bits, width)


def wide_columns(world: World, backend: str, coding: str) -> None:
    """Check the errors of rows whose last 3 columns are a hundred times as large as the others, forward and backward."""
    for bits in (8, 2, 1):
        forward = make(world, backend, bits=bits, message_coding=coding).for_layer(1, wide_from=40)
        for exchange in (forward, forward.reverse()):
            factors = torch.cat((torch.ones(40), torch.full((3,), 100.0)))
            sent, wanted = outgoing(world, 43) * factors, incoming(world, 43) * factors
            error = (moved(exchange, sent) - wanted).abs()
            assert worst(world, error[:, :40] - steps(wanted[:, :40], bits)) <= 0, bits
            assert worst(world, error[:, 40:] - 2.0**-8 * wanted[:, 40:].abs()) <= 0, bits
            narrower = moved(exchange, outgoing(world, 40)) - incoming(world, 40)
            assert worst(world, narrower.abs() - steps(incoming(world, 40), bits)) <= 0, bits


def mixed(world: World) -> None:
    """Check the errors of rows where each row has its own bit-width."""
    exchange = make(world, bits=2)
    total = int(exchange.send_counts.sum())
    exchange.assign_bits(np.array(BITS, np.uint8)[np.arange(total) % len(BITS)])
    error = (moved(exchange, outgoing(world, 40)) - incoming(world, 40)).abs()
    bits = np.concatenate([np.array(BITS)[_sent_as(world, s)] for s in range(world.size)])
    allowed = torch.cat([steps(row[None], int(b)) for row, b in zip(incoming(world, 40), bits, strict=True)])
    assert worst(world, error - allowed) <= 0


def _sent_as(world: World, sender: int) -> np.ndarray:
    """The index in BITS of the bit-width of each row that this rank receives."""
    rows = sender + np.arange(world.size) + 1
    rows[sender] = 0
    first = int(rows[: world.rank].sum())
    return (first + np.arange(int(rows[world.rank]))) % len(BITS)


def mean_error(world: World, bits: int, epochs: int = 200) -> float:
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


def kept(world: World) -> None:
    """Check that senders and receivers hold the same rows after epochs of changing rows, with evaluations in between."""
    exchange = make(world, bits=2, message_coding="delta")
    for epoch in range(5):
        exchange.messages.begin_epoch(epoch)
        exchange.messages.begin_pass(is_training=True)
        moved(exchange, outgoing(world, 40) * (1 + epoch))
        exchange.messages.begin_pass(is_training=False)
        moved(exchange, outgoing(world, 40))
    (found,) = exchange.messages.kept.differences.values()
    assert torch.equal(moved(make(world), found.sent), found.received)
    assert found.received.any()


def repeats(world: World) -> None:
    """Check which changes of a run change its bits."""

    def run(
        seed: int = 0, epoch: int = 0, threads: int = 1, backend: str = "auto", layer: int = 0, calls: int = 1, **how: bool
    ) -> torch.Tensor:  # fmt: skip
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
    for how in ({}, {"threads": 2}, {"backend": "jit"}):
        assert torch.equal(first, run(**how)), how
    for how in ({"seed": 1}, {"epoch": 1}, {"layer": 1}, {"calls": 2}, {"backward": True}, {"evaluation": True}):
        assert not torch.equal(first, run(**how)), how


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
            exchange.step(width, torch.float32)
        except HpcgnnError as error:
            found.append(str(error) if error.agreed else "not agreed")
    everyone = world.allreduce(np.array([len(found)]), "min")
    return found if int(everyone[0]) == len(counts_by_case) else []


def fused(world: World) -> None:
    """Check that decoding in registers gives the same bits as decoding to a matrix first."""
    results = []
    for choice in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codecs, "fuses", lambda *_, choice=choice: choice)
            results += [moved(make(world, backend, bits=b), outgoing(world, 40)) for b in BITS for backend in BACKENDS]
    half = len(results) // 2
    assert all(map(torch.equal, results[:half], results[half:]))


def counted_bytes(world: World) -> None:
    """Check that as many bytes leave the rank as follow from the format: payload, parameters, padding to 64 for each peer."""
    for bits in BITS:
        exchange = make(world, bits=bits)
        moved(exchange, outgoing(world, 256))
        a_row = 256 * bits // 8 + (4 if bits <= 8 else 0)
        expected = sum(-(-int(n) * a_row // 64) * 64 for n in counts(world))
        assert exchange.messages.traffic.bytes_sent.total() == expected, bits


def evaluation(world: World) -> None:
    """Check that rows arrive exactly in an evaluation unless it has the precision of training."""
    for precision in ("float32", "training"):
        exchange = make(world, bits=2, eval_precision=precision)
        exchange.messages.begin_pass(is_training=False)
        exact = torch.equal(moved(exchange, outgoing(world, 40)), incoming(world, 40))
        assert exact == (precision == "float32")


# -- between a few of at least 5 ranks ---------------------------------------------------------------------------------


def counts_of_ring(world: World) -> tuple[np.ndarray, np.ndarray]:
    """(P,) rows to and from each rank: rank i sends ``i + 1`` rows to the next and 2 to the one after; the last sends none."""
    table = np.zeros((world.size, world.size), np.int64)
    for rank in range(world.size - 1):
        table[rank, (rank + 1) % world.size], table[rank, (rank + 2) % world.size] = rank + 1, 2
    return table[world.rank], table[:, world.rank]


def there_and_back(world: World, rows: torch.Tensor, collective: str, bits: int) -> list[torch.Tensor]:
    """The received rows, and the rows that come back when these are returned."""
    counts = counts_of_ring(world)
    links = choose_links(world, *counts, collective)
    exchange = Exchange(Messages(world, MessageConfig(bits=bits)), *counts, links=links)
    over_neighbours: list[bool] = []  # for each exchange, whether it uses neighbourhood collectives
    start = type(world).start_alltoallv

    def recorded(self: World, *arguments: object) -> object:
        over_neighbours.append(arguments[-1] is not None)
        return start(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world), "start_alltoallv", recorded)
        received = moved(exchange, rows)
        returned = moved(exchange.reverse(), received)
    if collective != "auto":
        assert over_neighbours == [collective == "neighbour"] * 2
    return [received, returned]


def over_neighbours(world: World) -> None:
    """Check that the same rows arrive over neighbours alone, and that all ranks choose the same collective."""
    counts = counts_of_ring(world)
    rows = torch.sin(torch.arange(int(counts[0].sum()) * 40).view(-1, 40) + 100.0 * world.rank)
    for bits in (32, 2):
        expected = there_and_back(world, rows, "alltoallv", bits)
        for collective in ("neighbour", "auto"):
            assert all(map(torch.equal, there_and_back(world, rows, collective, bits), expected)), (collective, bits)
    assert torch.equal(there_and_back(world, rows, "neighbour", 32)[1], rows)
    chosen = world.allgather(np.array([choose_links(world, *counts, "auto") is None]))
    assert (chosen == chosen[0]).all()
    full = np.ones(world.size, np.int64)
    assert choose_links(world, full, full, "auto") is None


# -- in a training -----------------------------------------------------------------------------------------------------

_start, _wait = Step.start, Exchange.wait
EPOCHS = 4


def trained(
    graph: hpcgnn.LocalGraph, coding: str, threads: int, pauses: random.Random | None
) -> tuple[str, list[float], bytes]:
    """A hash of all bytes that this rank sent, the losses and the weights, with pauses before each start and wait."""
    sent = hashlib.sha256()

    def pause() -> None:
        if pauses:
            time.sleep(pauses.uniform(0, 0.01))

    def start(self: Step, given: QuantizedRows | None = None, again: int | None = None) -> Message:
        pause()
        message = _start(self, given, again)
        sent.update(message.sent.numpy())
        return message

    def wait(self: Exchange, message: Message) -> None:
        pause()
        _wait(self, message)

    torch.set_num_threads(threads)
    config = hpcgnn.ModelConfig(layers=2, hidden=64, dropout=0.5 if coding == "plain" else 0.0)
    model = hpcgnn.build_model(config, graph, messages=Messages(graph.world, MessageConfig(2, coding)), seed=3)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=EPOCHS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "start", start)
        patch.setattr(Exchange, "wait", wait)
        losses = [trainer.step(epoch)[0] for epoch in range(EPOCHS)]
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return sent.hexdigest(), losses, weights


def repeats_bit_for_bit(world: World, path: Path, coding: str, threads: int) -> None:
    """Check that a training repeats with pauses."""
    graph = hpcgnn.load(path, world)
    first = trained(graph, coding, threads, None)
    assert trained(graph, coding, threads, random.Random(world.rank)) == first
