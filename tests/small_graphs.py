"""Small graphs for tests, as arrays and as ``parts.h5``, made without the code under test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from hpcgnn.byte_sink import LocalFile
from hpcgnn.comm import World
from hpcgnn.data import h5
from hpcgnn.data.graph_file import MASKS, MULTI_LABEL, SINGLE_LABEL, GraphMeta
from hpcgnn.data.parts_file import PARTS_KIND, PARTS_VERSION, parts_schema
from hpcgnn.data.sealing import seal
from hpcgnn.graph import LocalGraph, load


@dataclass
class Arrays:
    """A whole graph with original ids. edge_index: (2, E), sources first. weight: (E,) or None."""

    edge_index: np.ndarray
    x: np.ndarray | sp.csr_matrix
    y: np.ndarray
    masks: dict[str, np.ndarray]
    weight: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]

    @property
    def num_classes(self) -> int:
        return self.y.shape[1] if self.y.ndim == 2 else int(self.y.max()) + 1


def random_multigraph(seed: int = 0, nodes: int = 60, edges: int = 400, *, weighted: bool = False) -> Arrays:
    """A directed multigraph with parallel edges, self-loops and isolated nodes (the last five).

    Half of the edges leave a few hubs and the others enter a few hubs, so that both pre rows and post rows save communication.
    """
    rng = np.random.default_rng(seed)
    linked = nodes - 5
    half = edges // 2
    source = np.concatenate((rng.integers(0, 6, half), rng.integers(0, linked, half)))
    target = np.concatenate((rng.integers(0, linked, half), rng.integers(6, 12, half)))
    edge_index = np.stack((source, target))
    edge_index = np.concatenate((edge_index, edge_index[:, :20], [[3, 7, 7], [3, 7, 7]]), axis=1)
    if weighted:  # PyG defines no result for two loops with different weights on one node
        loops = edge_index[0] == edge_index[1]
        _, first = np.unique(edge_index[:, loops], axis=1, return_index=True)
        edge_index = np.concatenate((edge_index[:, ~loops], edge_index[:, loops][:, first]), axis=1)
    weight = rng.uniform(0.5, 2, edge_index.shape[1]).astype(np.float32) if weighted else None
    x = rng.standard_normal((nodes, 9)).astype(np.float32)
    y = rng.integers(0, 4, nodes)
    return Arrays(edge_index, x, y, _random_masks(rng, nodes), weight)


def even_graph(nodes: int, edges: int) -> Arrays:
    """A graph without hubs. With random parts, a plan sends a row for almost each node."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((nodes, 9)).astype(np.float32)
    return Arrays(rng.integers(0, nodes, (2, edges)), x, rng.integers(0, 4, nodes), _random_masks(rng, nodes))


def from_npz(path: Path) -> Arrays:
    """A graph of the shared data folder."""
    z = np.load(path, allow_pickle=False)
    if "x" in z.files:
        x = z["x"]
    else:
        x = sp.csr_matrix((z["x_data"], z["x_indices"], z["x_indptr"]), shape=tuple(z["x_shape"]), dtype=np.float32)
    return Arrays(z["edge_index"].astype(np.int64), x, z["y"], {name: z[name] for name in MASKS})


def random_parts(num_nodes: int, num_parts: int, *, seed: int = 1, empty: int | None = None) -> np.ndarray:
    """(N,) random part of each node; the part ``empty`` gets no node."""
    choices = [part for part in range(num_parts) if part != empty or num_parts == 1]
    return np.random.default_rng(seed).choice(choices, num_nodes)


def without_local_edges(graph: Arrays, part: np.ndarray) -> Arrays:
    """The graph's edges between parts (N,) only, so that no part has local edges."""
    between = part[graph.edge_index[0]] != part[graph.edge_index[1]]
    return Arrays(graph.edge_index[:, between], graph.x, graph.y, graph.masks)


def write_parts(path: Path, graph: Arrays, part: np.ndarray, num_parts: int) -> None:
    """Write ``parts.h5`` directly from its definition: positions are sorted by (part, original id)."""
    order = np.argsort(part, kind="stable")
    position = np.empty(graph.num_nodes, dtype=np.int64)
    position[order] = np.arange(graph.num_nodes)
    source, target = position[graph.edge_index]
    edge_order = np.lexsort((source, target))
    is_sparse = sp.issparse(graph.x)
    x = graph.x[order]
    arrays = {
        "edges/indptr": np.concatenate(([0], np.cumsum(np.bincount(target, minlength=graph.num_nodes)))),
        "edges/indices": source[edge_order],
        "nodes/y": graph.y[order],
        "nodes/original_ids": order,
        "parts/node_offsets": np.concatenate(([0], np.cumsum(np.bincount(part, minlength=num_parts)))),
    }
    arrays |= {f"nodes/{name}": mask[order] for name, mask in graph.masks.items()}
    if is_sparse:
        arrays |= {"nodes/x_indptr": x.indptr, "nodes/x_indices": x.indices, "nodes/x_data": x.data}
    else:
        arrays["nodes/x"] = x
    if graph.weight is not None:
        arrays["edges/weight"] = graph.weight[edge_order]
    meta = GraphMeta(
        num_nodes=graph.num_nodes,
        num_edges=source.size,
        num_features=graph.x.shape[1],
        num_classes=graph.num_classes,
        task=MULTI_LABEL if graph.y.ndim == 2 else SINGLE_LABEL,
        weighted=graph.weight is not None,
        x_nnz=x.nnz if is_sparse else None,
        has_masks=True,
    )
    schema = parts_schema(meta, num_parts)
    attributes = h5.new_header(PARTS_KIND, PARTS_VERSION) | meta.attributes() | {"num_parts": num_parts}
    offsets = h5.create(path, schema, attributes)
    with LocalFile(path) as sink:
        writer = h5.SlabWriter(sink, offsets, schema)
        for name, array in arrays.items():
            writer.write(name, 0, array)
    seal(path)


def _random_masks(rng: np.random.Generator, nodes: int) -> dict[str, np.ndarray]:
    group = rng.integers(0, 3, nodes)
    return {name: group == k for k, name in enumerate(MASKS)}


def on_ranks(world: World, graph: Arrays, path: Path) -> LocalGraph:
    """The graph in random parts, of which the last of three or more has no node. Rank 0 writes the file, and all ranks load it.
    Collective.
    """
    if world.rank == 0:
        empty = world.size - 1 if world.size >= 3 else None
        write_parts(path, graph, random_parts(graph.num_nodes, world.size, empty=empty), world.size)
    world.allreduce(np.zeros(1))  # the file now exists
    return load(path, world)
