"""Run on every rank by test_ranks.py: partition the cases of a JSON file, print what came of each on rank 0."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np

from hpcgnn.comm import MpiWorld, World
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.errors import HpcgnnError
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.partition.slabs import Slab, symmetric_neighbours


def main(cases_path: str, folder: str) -> None:
    world = MpiWorld(timeout_seconds=120)
    outcomes = []
    for case in json.loads(Path(cases_path).read_text()):
        target = Path(folder) / f"{case['name']}.{world.size}.h5"
        try:
            report = partition(world, case["graph"], target, PartitionOptions(**case["options"]))
            outcomes.append(report.as_dict())
        except HpcgnnError as error:
            outcomes.append({"error": str(error), "agreed": error.agreed})
    everyone = world.allreduce(np.array([sum("error" in outcome for outcome in outcomes)]), "min")[0]
    neighbours = slabs_of_neighbours(world, json.loads(Path(cases_path).read_text())[0]["graph"])
    if world.rank == 0:
        print(json.dumps({"outcomes": outcomes, "errors_on_every_rank": int(everyone), "neighbours": neighbours}))


def slabs_of_neighbours(world: World, path: str) -> list[list[int]]:
    """Degree and sum of neighbours of every node, from all ranks."""
    with GraphFile(path) as reader:
        slab = Slab.of(world, reader)
        indptr, indices = symmetric_neighbours(world, reader, slab, np.dtype(np.int32), lambda count: None)
        table = np.zeros((reader.meta.num_nodes, 2), dtype=np.int64)
        table[slab.first : slab.last, 0] = np.diff(indptr)
        table[slab.first : slab.last, 1] = [indices[a:b].sum() for a, b in itertools.pairwise(indptr)]
    return world.allreduce(table).tolist()


if __name__ == "__main__":
    main(*sys.argv[1:])
