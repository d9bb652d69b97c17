"""Run on a virtual cluster with one rank on each host: compares the bytes that a model counts with those that the hosts'
interfaces report.

usage: bytes_on_the_wire.py PARTS.h5      rank 0 prints {settings: {"training": [counted, reported], "evaluation": ...}}
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.lab.virtual.network import HEADER_BYTES_PER_PACKET
from hpcgnn.world import MpiWorld, World

SETTINGS = {str(bits): MessageConfig(bits) for bits in (32, 2)} | {"2 delta": MessageConfig(2, "delta")}
INTERFACE = Path("/sys/class/net/eth0/statistics")
# The counters of one host, and the payload of an Ethernet frame.
SEGMENTS, SEGMENT_BYTES = Path("/proc/self/net/snmp"), 1500 - 20 - 32
SOCKETS, ESTABLISHED = Path("/proc/self/net/tcp"), "01"
STEPS = 3
ROUNDS = 3  # of several steps each
LONGEST_SECONDS = 150.0


def sent_payload() -> int:
    """The bytes that left this host's interface, without the headers of their packets, as `hpcgnn cluster bytes` reports them.

    Segments that TCP sent twice, because a busy machine acknowledged late, are left out as well.
    """
    count, packets = (int((INTERFACE / name).read_text()) for name in ("tx_bytes", "tx_packets"))
    names, values = (line.split() for line in SEGMENTS.read_text().splitlines() if line.startswith("Tcp:"))
    sent_twice = int(values[names.index("RetransSegs")])
    return count - packets * HEADER_BYTES_PER_PACKET - sent_twice * SEGMENT_BYTES


def unacknowledged() -> int:
    """The bytes of this host's connections that have not left yet, or of whose arrival TCP does not know yet."""
    sockets = [line.split() for line in SOCKETS.read_text().splitlines()[1:]]
    return sum(int(queues.partition(":")[0], 16) for _, _, _, state, queues, *_ in sockets if state == ESTABLISHED)


def drain(world: World) -> None:
    """Wait until all hosts have sent everything. Collective."""
    world.allreduce(np.zeros(1))
    deadline = time.monotonic() + LONGEST_SECONDS
    while unacknowledged():
        assert time.monotonic() < deadline, "bytes stay in a queue"
        time.sleep(1e-3)


def reported(world: World, step: Callable[[int], object]) -> int:
    """The bytes that all interfaces sent in STEPS calls of ``step``: the fewest of some rounds, as TCP may send bytes twice."""
    step(0)  # opens the connections
    found = []
    for first in range(1, 1 + ROUNDS * STEPS, STEPS):
        drain(world)
        before = sent_payload()
        for number in range(first, first + STEPS):
            step(number)
        drain(world)
        found.append(int(world.allreduce(np.array([sent_payload() - before]))[0]))
    return min(found)


def measure(graph: hpcgnn.LocalGraph, settings: MessageConfig) -> dict[str, tuple[int, int]]:
    world, messages = graph.world, Messages(graph.world, settings)
    # batch normalisation would send sums beside the messages that are counted
    config = hpcgnn.ModelConfig(layers=3, hidden=256, dropout=0, norm="layer")
    model = hpcgnn.build_model(config, graph, messages=messages)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig())

    def counted() -> int:
        return int(world.allreduce(np.array([messages.traffic.bytes_sent.total()]))[0])

    reduction = reported(world, lambda _: trainer.bucket.reduce([0.0, 0.0, 0.0], 1))
    start = counted()
    trained = reported(world, trainer.step)
    middle = counted()
    evaluated = reported(world, lambda _: trainer.evaluate())
    end = counted()
    per_call = STEPS / (1 + ROUNDS * STEPS)
    return {
        "training": (round((middle - start) * per_call), trained - reduction),
        "evaluation": (round((end - middle) * per_call), evaluated),
    }


def main() -> None:
    world = MpiWorld(timeout_seconds=60)
    graph = hpcgnn.load(sys.argv[1], world)
    found = {name: measure(graph, settings) for name, settings in SETTINGS.items()}
    if world.rank == 0:
        print(json.dumps(found))


main()
