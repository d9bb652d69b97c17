"""The measurement of ``hpcgnn bench exchange``: the share of an exchange's time that local aggregation hides, in each direction.

Four timings take turns: L x alone, the exchange alone, both together as in training, and one after the other. All ranks start
each of them together, once S x is computed, and a round counts the time of its slowest rank. The hidden time is the sum of the
first two timings minus the third. The fourth may be longer than that sum, because caches are cold after an exchange, and shorter
if different ranks are the slowest ones in both parts. An exchange is timed from the moment when MPI gets its bytes; encoding
comes before it, and decoding after it. *wire* is the time of the exchange alone, from its start until a test finds it complete.

On a GPU, encoding has been started, but may not be done, when the exchange starts, and the clock stops when the GPU has done all
its work: the rows have arrived in its memory.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.exchange.mailbox import Message
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import spmm
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.names import Advance
from hpcgnn.nn import Aggregator, make_aggregator
from hpcgnn.world.transport import DeviceTransport

CALLS = ("aggregate", "exchange", "both", "in_turn")
WAYS = ("host", "staged", "direct")  # ways of messages from a rank's memory to MPI
_WARM_UP_ROUNDS = 2


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement. width: columns of the rows that travel. bits, collective, gpu_mpi: as in training. rounds:
    number of rounds, whose median counts."""

    width: int = 256
    bits: int = 32
    strategy: str = "hybrid"
    collective: str = "auto"
    rounds: int = 15
    gpu_mpi: str = "auto"


def run(graph: LocalGraph, settings: Settings, advance: Advance) -> dict[str, Any]:
    """Measure both directions of a sum over in-edges, on the device that the graph is on. Collective.

    ``advance`` counts rounds, ``2 * rounds`` in all.
    """
    world = graph.world
    config = MessageConfig(bits=settings.bits, collective=settings.collective, gpu_mpi=settings.gpu_mpi)
    messages = Messages(world, config, device=graph.device)
    aggregator = make_aggregator(graph, "sum", settings.strategy, messages=messages)
    found: dict[str, Any] = {
        "graph": str(graph.path), "ranks": world.size, "threads": torch.get_num_threads(), "mpi": world.library,
        "width": settings.width, "bits": settings.bits, "strategy": settings.strategy, "rounds": settings.rounds,
        "collective": "alltoallv" if aggregator.exchange.links is None else "neighbour",
        "device": graph.device.name, "versions": results.versions(mpi=world.library), "ranks_by_way": _ranks_by_way(messages),
    }  # fmt: skip
    found["directions"] = {
        name: _measure(way, settings, advance)
        for name, way in (("forward", aggregator), ("backward", aggregator.reverse))
    }
    return found | {"lines": [line for name, each in found["directions"].items() for line in _lines(name, each)]}


def _ranks_by_way(messages: Messages) -> dict[str, int]:
    """The number of ranks whose messages take each of :data:`WAYS`. Collective."""
    mine = np.array([way == _way_of(messages) for way in WAYS], np.int64)
    return dict(zip(WAYS, messages.world.allreduce(mine).tolist(), strict=True))


def _way_of(messages: Messages) -> str:
    transport = messages.transport
    if messages.device.torch_device.type == "cpu" or not isinstance(transport, DeviceTransport):
        return "host"
    return "staged" if transport.stages else "direct"


def _measure(aggregator: Aggregator, settings: Settings, advance: Advance) -> dict[str, Any]:
    messages, calls = aggregator.exchange.messages, _Calls(aggregator, settings.width)
    rounds: dict[str, list[float]] = {name: [] for name in CALLS}
    wire: list[float] = []
    before = messages.traffic.bytes_sent.total()
    for number in range(_WARM_UP_ROUNDS + settings.rounds):
        for name, seconds in rounds.items():
            messages.begin_epoch(number)
            slowest = messages.world.allreduce(np.array([getattr(calls, name)(), calls.wire_seconds]), "max").tolist()
            if number >= _WARM_UP_ROUNDS:
                seconds.append(slowest[0])
                wire += slowest[1:] if name == "exchange" else []
        advance(int(number >= _WARM_UP_ROUNDS))
    exchanges = (len(CALLS) - 1) * (_WARM_UP_ROUNDS + settings.rounds)
    mine = np.array([(messages.traffic.bytes_sent.total() - before) // exchanges])
    return summary(rounds) | {
        "wire_seconds": statistics.median(wire),
        "bytes": int(messages.world.allreduce(mine)[0]),
        "largest_bytes_of_a_rank": int(messages.world.allreduce(mine, "max")[0]),
    }


class _Calls:
    """The four timed calls, each of which returns its seconds. Collective. wire_seconds: wire time of the last exchange."""

    def __init__(self, aggregator: Aggregator, width: int) -> None:
        self._exchange, self._plan = aggregator.exchange, aggregator.plan
        self._world, self._device = self._exchange.messages.world, self._exchange.messages.device
        generator = torch.Generator().manual_seed(self._world.rank)
        self._x = torch.randn(self._plan.local.num_cols, width, generator=generator).to(self._device.torch_device)
        self._z = torch.zeros(self._plan.local.num_rows, width, device=self._device.torch_device)
        self.wire_seconds = 0.0

    def aggregate(self) -> float:
        """Time L x alone."""
        self._together()
        self._started_at = time.perf_counter()
        self._add_local()
        return self._since_start()

    def exchange(self) -> float:
        """Time the exchange alone."""
        message = self._start()
        self._wait(message)
        return self._since_start()

    def both(self) -> float:
        """Time L x while the exchange is under way, and the wait for its end."""
        message = self._start()
        self._add_local()
        self._wait(message)
        return self._since_start()

    def in_turn(self) -> float:
        """Time the exchange, and L x after it."""
        message = self._start()
        self._wait(message)
        self._add_local()
        return self._since_start()

    def _start(self) -> Message:
        step = self._exchange.step(self._x.shape[1], self._x.dtype)
        spmm(self._plan.send, self._x, out=step.rows_to_send(), accumulate=False)
        self._together()
        message = step.start()
        assert message.pending is not None
        self._started_at = message.pending.started_at
        return message

    def _wait(self, message: Message) -> None:
        pending = message.pending
        assert pending is not None
        self._exchange.wait(message)
        self.wire_seconds = pending.seconds

    def _together(self) -> None:
        self._device.synchronize()
        self._world.allreduce(np.zeros(1), what="every rank to begin a round")

    def _add_local(self) -> None:
        spmm(self._plan.local, self._x, out=self._z, accumulate=False)

    def _since_start(self) -> float:
        self._device.synchronize()
        return time.perf_counter() - self._started_at


def summary(rounds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the share of the shorter one of aggregation and exchange that overlaps with the other."""
    seconds = {name: statistics.median(values) for name, values in rounds.items()}
    shorter = min(seconds["aggregate"], seconds["exchange"])
    hidden = seconds["aggregate"] + seconds["exchange"] - seconds["both"]
    return {f"{name}_seconds": value for name, value in seconds.items()} | {
        "hidden_of_shorter": hidden / shorter if shorter else None,
        "rounds": rounds,
    }


def _lines(direction: str, found: dict[str, Any]) -> list[results.Line]:
    """The lines of one direction; the exchange's line has the bytes, and the line of both has the hidden share."""
    beside = {"exchange": {"bytes": found["bytes"]}, "both": {"hidden_share": found["hidden_of_shorter"]}}
    return [
        results.line({"direction": direction, "step": step}, seconds=found[f"{step}_seconds"], **beside.get(step, {}))
        for step in (*CALLS, "wire")
    ]
