"""Programs for ranks that partition a graph together."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm import World
from hpcgnn.data.graph_file import GraphFile
from hpcgnn.errors import HpcgnnError
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.partition.slabs import Slab, symmetric_neighbours


def partitioned(world: World, graph: Path, target: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The report, or the sentence of the refusal."""
    try:
        return partition(world, graph, target, PartitionOptions(**options)).as_dict()
    except HpcgnnError as error:
        return {"error": str(error), "agreed": error.agreed}


def neighbours(world: World, path: Path) -> list[list[int]]:
    """The degree and the sum of neighbours of every node, from all ranks."""
    with GraphFile(path) as reader:
        slab = Slab.of(world, reader)
        indptr, indices = symmetric_neighbours(world, reader, slab, np.dtype(np.int32), lambda count: None)
        table = np.zeros((reader.meta.num_nodes, 2), dtype=np.int64)
        table[slab.first : slab.last, 0] = np.diff(indptr)
        table[slab.first : slab.last, 1] = [indices[a:b].sum() for a, b in itertools.pairwise(indptr)]
    return world.allreduce(table).tolist()
