"""Programs for ranks: benches on the stand-in device, in separate processes (see ``device_ranks`` in tests/conftest.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from standin import standin

import hpcgnn
from hpcgnn.devices import CPU
from hpcgnn.lab.bench import exchange
from hpcgnn.lab.bench.problem import calls_together, seconds_of
from hpcgnn.world import World


def timed_together(world: World) -> list[int]:
    """The numbers of calls that are timed together, on the host and on the device, and of those made for five seconds."""
    del world
    device, made = standin(), []
    assert seconds_of(device, lambda: made.append(0), 5) > 0
    together = [calls_together(*each) for each in ((CPU, 1e-3), (device, 1e-3), (device, 0.0), (device, 1.0))]
    return [*together, len(made)]


def exchanged(world: World, path: Path, kinds: str) -> dict[str, Any]:
    """The results of ``bench exchange`` with ranks on the host (h) and on the device (d)."""
    graph = hpcgnn.load(path, world).to(standin() if kinds[world.rank] == "d" else CPU)
    settings = {"strategy": "hybrid", "collective": "alltoallv", "gpu_mpi": "auto"}
    return exchange.run(graph, lambda count: None, width=8, bits=2, rounds=2, **settings)
