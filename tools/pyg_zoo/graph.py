"""The zoo's graph, in files that hpcgnn itself converts and partitions, and one rank's part of its tensors."""

from __future__ import annotations

import functools
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.partition import PartitionOptions, partition
from hpcgnn.world import World
from hpcgnn.world.thread_world import one_rank

NODES, LINKED, EDGES, PARALLEL = 70, 64, 300, 40
RANKS = (1, 3)
# Tensors with a row for each node, and with a row for each edge.
OF_NODES = (
    "x",
    "large",
    "x_0",
    "layers",
    "colour",
    "pos",
    "normal",
    "node_type",
    "batch",
    "y",
    "y_soft",
    "y_true",
    "mask",
    "pull",
)
OF_EDGES = ("edge_weight", "edge_attr", "edge_type")


@functools.cache
def whole(*, parallel: bool = False) -> dict[str, Tensor]:
    """The tensors of the whole graph: directed, with loops, isolated nodes, and edges in no order. parallel: with parallel
    edges, too.
    """
    rng = np.random.default_rng(5)
    edges = np.unique(rng.integers(0, LINKED, (2, EDGES)), axis=1)
    loops = np.tile([3, 11, 40], (2, 1))
    edges = np.unique(np.concatenate((edges, loops), 1), axis=1)
    if parallel:
        ends = edges[:, edges[0] != edges[1]]  # PyG defines no result for two loops with different weights on one node
        edges = np.concatenate((edges, ends[:, rng.integers(0, ends.shape[1], PARALLEL)]), 1)
    renamed = rng.permutation(NODES)  # isolated nodes are anywhere
    edges = renamed[edges[:, rng.permutation(edges.shape[1])]]
    count = edges.shape[1]

    def drawn(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

    y, x = torch.from_numpy(rng.integers(0, 4, NODES)), drawn(NODES, 8)
    return {
        "edge_index": torch.from_numpy(edges),
        "x": x,
        "large": 100 * x,
        "x_0": drawn(NODES, 8),
        "layers": drawn(NODES, 3, 8),
        "colour": torch.from_numpy(rng.integers(0, 3, NODES)),
        "pos": drawn(NODES, 3),
        "normal": drawn(NODES, 3),
        "node_type": torch.from_numpy(rng.integers(0, 2, NODES)),
        "batch": torch.zeros(NODES, dtype=torch.long),
        "y": y,
        "y_soft": drawn(NODES, 4).softmax(1),
        "y_true": y,
        "mask": torch.from_numpy(rng.random(NODES) < 0.4),
        "pull": drawn(NODES),
        "edge_weight": drawn(count).abs() + 0.5,
        "edge_attr": torch.rand(count, 3, generator=torch.Generator().manual_seed(1)),
        "edge_type": torch.from_numpy(rng.integers(0, 3, count)),
    }


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pyg-zoo-")


@functools.cache
def parts_file(ranks: int, *, parallel: bool = False, weighted: bool = False) -> Path:
    """The graph in ``ranks`` random parts. weighted: the file has the edge weights."""
    data = whole(parallel=parallel)
    made = Data(x=data["x"], edge_index=data["edge_index"], y=data["y"])
    if weighted:
        made.edge_weight = data["edge_weight"]
    folder = Path(_folder().name) / f"{ranks}-{parallel}-{weighted}"
    if (folder / "parts.h5").exists():
        return folder / "parts.h5"
    folder.mkdir()
    hpcgnn.from_pyg(made, folder / "graph.h5", split=None)
    options = PartitionOptions(num_parts=ranks, method="random", jobs=1)
    partition(one_rank(), folder / "graph.h5", folder / "parts.h5", options)
    return folder / "parts.h5"


def make_files(*, parallel: bool = False) -> None:
    """Make the files of all graphs now, because threads must not do it at a time."""
    for ranks in RANKS:
        for weighted in (False, True):
            parts_file(ranks, parallel=parallel, weighted=weighted)


def part(world: World, path: Path, *, parallel: bool = False) -> tuple[LocalGraph, dict[str, Tensor]]:
    """One rank's graph in a file of :func:`parts_file`, and its rows of the tensors of :func:`whole`. Collective."""
    graph = hpcgnn.load(path, world)
    data, mine = whole(parallel=parallel), graph.original_ids
    edges = edge_numbers(graph, data["edge_index"])
    found = {name: data[name][mine] for name in OF_NODES} | {name: data[name][edges] for name in OF_EDGES}
    assert graph.x is not None
    assert torch.equal(graph.x, found["x"])
    return graph, found | {"x": graph.x, "edge_index": graph.edge_index}


def edge_numbers(graph: LocalGraph, edge_index: Tensor) -> Tensor:
    """(e,) the number in ``edge_index`` (2, E) of each of this rank's edges, and of parallel ones the k-th for the k-th.
    Collective.
    """
    of_ends = defaultdict(list)
    for number, ends in enumerate(edge_index.T.tolist()):
        of_ends[tuple(ends)].append(number)
    ends_of_mine = graph.original_edge_index.T.tolist()
    return torch.tensor([of_ends[tuple(ends)].pop(0) for ends in ends_of_mine], dtype=torch.long)


def in_forms(data: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the edges of two kinds."""
    edges, even = data["edge_index"], data["edge_type"] == 0
    return data | {"pos_edge_index": edges[:, even], "neg_edge_index": edges[:, ~even]}
