"""Run under mpirun: fits the costs of links; every rank checks that it has the same, and rank 0 prints them as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np

from hpcgnn.comm import World
from hpcgnn.policy.link_costs import measure_links


def main() -> None:
    world = World(timeout_seconds=60)
    costs = measure_links(world)
    assert costs is not None
    everyones = world.allgather(np.array([*costs.seconds_per_byte.values(), *costs.seconds_per_message.values()]))
    if world.rank == 0:
        same = bool((everyones == everyones[0]).all())
        print(json.dumps(asdict(costs) | {"nodes": world.nodes().tolist(), "same": same}))
    else:
        world.nodes()


main()
