"""Run under mpirun: fits the costs of links; rank 0 prints them, and whether all ranks have the same, as JSON.

Costs are null where nothing fits, which a busy machine may bring about.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple

import numpy as np

from hpcgnn.comm import MpiWorld
from hpcgnn.policy.link_costs import measure_links


def main() -> None:
    world = MpiWorld(timeout_seconds=60)
    costs = measure_links(world)
    values = [-1.0, -1.0] if costs is None else [value for one in astuple(costs) for value in one.values()]
    everyones = world.allgather(np.array(values))
    nodes = world.nodes().tolist()
    if world.rank == 0:
        same = bool((everyones == everyones[0]).all())
        print(json.dumps({"costs": costs and asdict(costs), "nodes": nodes, "same": same}))


main()
