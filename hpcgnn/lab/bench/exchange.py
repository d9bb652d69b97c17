"""The measurement of ``hpcgnn bench exchange``: the share of an exchange's time that local aggregation hides, in each direction.

Four timings take turns: L x alone, the exchange alone, both together as in training, and one after the other. All ranks start
each of them together, once S x is computed, and a round counts the time of its slowest rank. The hidden time is the sum of the
first two timings minus the third. An exchange is timed from the moment when MPI gets its bytes, without encoding and decoding;
*wire* is its time until a test finds it complete. On a GPU, encoding may not be done when the exchange starts, and the clock
stops when the rows have arrived in its memory.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch

from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import spmm
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.names import Advance
from hpcgnn.nn import Aggregator, make_aggregator
from hpcgnn.world.transport import DeviceTransport

CALLS = ("aggregate", "exchange", "both", "in_turn")
WAYS = ("host", "staged", "direct")  # ways of messages from a rank's memory to MPI
_WARM_UP_ROUNDS = 2


def run(
    graph: LocalGraph,
    advance: Advance,
    *,
    width: int,
    bits: int,
    strategy: str,
    collective: str,
    rounds: int,
    gpu_mpi: str,
) -> dict[str, Any]:
    """Measure both directions of a sum over in-edges, on the device that the graph is on. Collective. ``advance`` counts rounds,
    ``2 * rounds`` in all. width: columns of the rows that travel. The others are as in training."""
    world = graph.world
    config = MessageConfig(bits=bits, collective=collective, gpu_mpi=gpu_mpi)
    messages = Messages(world, config, device=graph.device)
    aggregator = make_aggregator(graph, "sum", strategy, messages=messages)
    found: dict[str, Any] = {
        "graph": str(graph.path), "ranks": world.size, "threads": torch.get_num_threads(), "mpi": world.library,
        "width": width, "bits": bits, "strategy": strategy, "rounds": rounds,
        "collective": "alltoallv" if aggregator.exchange.links is None else "neighbour",
        "device": graph.device.name, "versions": results.versions(mpi=world.library), "ranks_by_way": _ranks_by_way(messages),
    }  # fmt: skip
    found["directions"] = {
        name: _measure(way, width, rounds, advance)
        for name, way in (("forward", aggregator), ("backward", aggregator.reverse))
    }
    return found | {"lines": [line for name, each in found["directions"].items() for line in _lines(name, each)]}


def _ranks_by_way(messages: Messages) -> dict[str, int]:
    """The number of ranks whose messages take each of :data:`WAYS`. Collective."""
    transport, mine = messages.transport, "host"
    if messages.device.torch_device.type != "cpu" and isinstance(transport, DeviceTransport):
        mine = "staged" if transport.stages else "direct"
    counts = messages.world.allreduce(np.array([way == mine for way in WAYS], np.int64))
    return dict(zip(WAYS, counts.tolist(), strict=True))


def _measure(aggregator: Aggregator, width: int, count: int, advance: Advance) -> dict[str, Any]:
    messages, local = aggregator.exchange.messages, aggregator.plan.local
    world, device = messages.world, messages.device.torch_device
    x = torch.randn(local.num_cols, width, generator=torch.Generator().manual_seed(world.rank)).to(device)
    z = torch.zeros(local.num_rows, width, device=device)
    rounds: dict[str, list[float]] = {name: [] for name in CALLS}
    wire: list[float] = []
    before = messages.traffic.bytes_sent.total()
    for number in range(_WARM_UP_ROUNDS + count):
        for name, seconds in rounds.items():
            messages.begin_epoch(number)
            slowest = world.allreduce(np.array(_timed(name, aggregator, x, z)), "max").tolist()
            if number >= _WARM_UP_ROUNDS:
                seconds.append(slowest[0])
                wire += slowest[1:] if name == "exchange" else []
        advance(int(number >= _WARM_UP_ROUNDS))
    exchanges = (len(CALLS) - 1) * (_WARM_UP_ROUNDS + count)
    mine = np.array([(messages.traffic.bytes_sent.total() - before) // exchanges])
    return summary(rounds) | {
        "wire_seconds": statistics.median(wire),
        "bytes": int(world.allreduce(mine)[0]),
        "largest_bytes_of_a_rank": int(world.allreduce(mine, "max")[0]),
    }


def _timed(name: str, aggregator: Aggregator, x: torch.Tensor, z: torch.Tensor) -> tuple[float, float]:
    """The seconds of one of :data:`CALLS`, and the wire time of its exchange. Collective."""
    plan, exchange = aggregator.plan, aggregator.exchange
    device, message, wire_seconds = exchange.messages.device, None, 0.0
    if name != "aggregate":
        step = exchange.step(x.shape[1], x.dtype)
        spmm(plan.send, x, out=step.rows_to_send(), accumulate=False)
    device.synchronize()
    exchange.messages.world.allreduce(np.zeros(1), what="every rank to begin a round")
    started_at = time.perf_counter()
    if name != "aggregate":
        message = step.start()
        assert message.pending is not None
        started_at, pending = message.pending.started_at, message.pending
    if name in ("aggregate", "both"):
        spmm(plan.local, x, out=z, accumulate=False)
    if message is not None:
        exchange.wait(message)
        wire_seconds = pending.seconds
    if name == "in_turn":
        spmm(plan.local, x, out=z, accumulate=False)
    device.synchronize()
    return time.perf_counter() - started_at, wire_seconds


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
