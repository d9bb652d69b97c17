"""Small graphs for tests, as arrays and as ``parts.h5``, made without the code under test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpcgnn.base.byte_sink import LocalFile
from hpcgnn.data import h5, plan_store
from hpcgnn.data.graph_file import GRAPH_KIND, GRAPH_VERSION, PARTS_KIND, PARTS_VERSION
from hpcgnn.data.schema import (
    MASKS,
    MULTI_LABEL,
    NO_TASK,
    REGRESSION,
    SINGLE_LABEL,
    EdgeType,
    GraphMeta,
    NodeType,
    graph_rules,
    layout,
    parts_rules,
)
from hpcgnn.data.sealing import seal
from hpcgnn.graph.local_graph import LocalGraph, load
from hpcgnn.world import World


@dataclass
class Arrays:
    """A whole graph with original ids. edge_index: (2, E), sources first. x: (N, F), without columns if there are no features.
    weight, edge_type, edge_split: (E,) or None. edge_attr: (E, D) or None. node_types, edge_types, x_by_type: see ``GraphMeta``.
    """

    edge_index: np.ndarray
    x: np.ndarray | sp.csr_matrix
    y: np.ndarray | None = None
    masks: dict[str, np.ndarray] = field(default_factory=dict)
    weight: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    edge_attr: np.ndarray | None = None
    node_types: tuple[NodeType, ...] = ()
    edge_types: tuple[EdgeType, ...] = ()
    edge_split: np.ndarray | None = None
    x_by_type: bool = False
    asked: dict[str, np.ndarray] = field(default_factory=dict)  # the arrays of links that come with candidates

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]

    @property
    def num_classes(self) -> int:
        if self.y is None:
            return 0
        if self.y.dtype.kind == "f":
            return self.y.size // len(self.y)
        return self.y.shape[1] if self.y.ndim == 2 else int(self.y.max(initial=0)) + 1

    @property
    def task(self) -> str:
        if self.y is None:
            return NO_TASK
        return REGRESSION if self.y.dtype.kind == "f" else MULTI_LABEL if self.y.ndim == 2 else SINGLE_LABEL

    def meta(self) -> GraphMeta:
        return GraphMeta(
            num_nodes=self.num_nodes,
            num_edges=self.edge_index.shape[1],
            num_features=self.x.shape[1],
            num_classes=self.num_classes,
            task=self.task,
            weighted=self.weight is not None,
            x_nnz=self.x.nnz if sp.issparse(self.x) else None,
            has_masks=bool(self.masks),
            num_edge_types=0 if self.edge_type is None else len(self.edge_types) or int(self.edge_type.max()) + 1,
            num_edge_features=0 if self.edge_attr is None else self.edge_attr.shape[1],
            node_types=self.node_types,
            edge_types=self.edge_types,
            has_link_split=self.edge_split is not None,
            x_by_type=self.x_by_type,
            num_asked_links=len(self.asked.get("links/set", ())),
            **{f"num_{end}_candidates": self.asked[f"links/{end}_candidates"].shape[1]
               for end in ("source", "target") if f"links/{end}_candidates" in self.asked},
        )  # fmt: skip

    def datasets(self) -> dict[str, np.ndarray]:
        """The datasets of ``graph.h5``, from its definition."""
        indptr, order = by_target(self.num_nodes, *self.edge_index)
        arrays = self.asked | {"edges/indptr": indptr, "edges/indices": self.edge_index[0, order]}
        for name in ("weight", "type", "attr", "split"):
            values = self.weight if name == "weight" else getattr(self, f"edge_{name}")
            if values is not None:
                arrays[f"edges/{name}"] = values[order]
        if sp.issparse(self.x):
            parts = ("indptr", "data") if self.x_by_type else ("indptr", "indices", "data")
            arrays |= {f"nodes/x_{part}": getattr(self.x, part) for part in parts}
        elif self.x.shape[1]:
            arrays["nodes/x"] = self.x
        if self.y is not None:
            arrays["nodes/y"] = self.y
        return arrays | {f"nodes/{name}": mask for name, mask in self.masks.items()}


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


def with_typed_edges(graph: Arrays, types: int = 4, columns: int = 3, seed: int = 7) -> Arrays:
    """The graph with random types, and with random features of edges. Parallel edges may have different types."""
    rng, edges = np.random.default_rng(seed), graph.edge_index.shape[1]
    kinds = rng.integers(0, types, edges).astype(np.int32)
    kinds[0] = types - 1
    return replace(graph, edge_type=kinds, edge_attr=rng.standard_normal((edges, columns)).astype(np.float32))


NODE_TYPES = (NodeType("paper", 30, 5, 4), NodeType("author", 20, 7), NodeType("venue", 1), NodeType("term", 9))
EDGE_TYPES = (
    EdgeType(0, "cites", 0, 3), EdgeType(1, "writes", 0, 2), EdgeType(0, "by", 1), EdgeType(2, "has", 0),
    EdgeType(0, "in", 2), EdgeType(0, "about", 3, 1),
)  # fmt: skip


def with_types(seed: int = 0, *, x_by_type: bool = True) -> Arrays:
    """A graph with types of nodes, of which one has one node and two have no features, and with several edges of different types
    between the same two nodes. Only papers have labels, and no edge ends at the last three papers. x_by_type: store features by
    type, and not as one sparse matrix."""
    rng, counts = np.random.default_rng(seed), [each.count for each in NODE_TYPES]
    first, edges, kinds, attr = np.cumsum([0, *counts]), [], [], []
    for number, kind in enumerate(EDGE_TYPES):
        ends = [counts[kind.source], counts[kind.destination] - 3 * (kind.destination == 0)]
        index = np.stack([rng.integers(0, end, 60) for end in ends])
        index = np.concatenate((index, index[:, :5]), axis=1)
        edges.append(index + first[[kind.source, kind.destination], np.newaxis])
        kinds.append(np.full(65, number, np.int32))
        attr.append(np.where(np.arange(3) < kind.columns, rng.standard_normal((65, 3)), 0).astype(np.float32))
    blocks = [sp.csr_matrix(rng.standard_normal((each.count, each.columns)).astype(np.float32)) for each in NODE_TYPES]
    y = np.full(first[-1], -1)
    y[: counts[0]] = rng.integers(0, 4, counts[0])
    y[:4] = np.arange(4)
    masks = {name: mask & (y >= 0) for name, mask in _random_masks(rng, first[-1]).items()}
    return Arrays(
        np.concatenate(edges, axis=1), sp.block_diag(blocks, format="csr"), y, masks, None, np.concatenate(kinds),
        np.concatenate(attr), NODE_TYPES, EDGE_TYPES, x_by_type=x_by_type,
    )  # fmt: skip


def within_types(graph: Arrays) -> Arrays:
    """The graph with edges, and self-loops, of which none leads to another type of nodes. Two types of edges are among papers."""
    first = np.cumsum([0, *(each.count for each in graph.node_types)])
    ends = (0, 1, 2, 3, 0, 3)  # where an edge of each type begins; its source follows from its destination
    counts = np.array([graph.node_types[end].count for end in ends])[graph.edge_type]
    index = first[np.array(ends)][graph.edge_type] + graph.edge_index % counts
    types = tuple(EdgeType(end, f"like{number}", end) for number, end in enumerate(ends))
    return replace(graph, edge_index=index, edge_types=types, edge_attr=None)


def hetero_data(graph: Arrays) -> Any:
    """PyG's ``HeteroData`` of a graph with types."""
    from torch_geometric.data import HeteroData

    data, x = HeteroData(), torch.from_numpy(graph.x.toarray())
    node, column = (
        np.cumsum([0, *(getattr(each, name) for each in graph.node_types)]) for name in ("count", "columns")
    )
    for number, kind in enumerate(graph.node_types):
        rows, columns = slice(*node[number : number + 2]), slice(*column[number : number + 2])
        data[kind.name].num_nodes = kind.count
        if kind.columns:
            data[kind.name].x = x[rows, columns]
        if kind.classes:
            data[kind.name].y = torch.from_numpy(graph.y[rows])
            for name, mask in graph.masks.items():
                data[kind.name][name] = torch.from_numpy(mask[rows])
    for number, kind in enumerate(graph.edge_types):
        there = graph.edge_type == number
        key = graph.node_types[kind.source].name, kind.name, graph.node_types[kind.destination].name
        ends = node[[kind.source, kind.destination]]
        data[key].edge_index = torch.from_numpy(graph.edge_index[:, there] - ends[:, np.newaxis])
        if kind.columns:
            data[key].edge_attr = torch.from_numpy(graph.edge_attr[there, : kind.columns])
    return data


def with_candidates(graph: Arrays, links: int = 300, ends: Sequence[str] = ("source", "target")) -> Arrays:
    """The graph with sets of its links, some of which come with 20 candidates of sources and 17 of targets, of their types."""
    rng, meta, count = np.random.default_rng(7), graph.meta(), graph.edge_index.shape[1]
    its_set, chosen = rng.choice(4, count, p=(0.6, 0.15, 0.15, 0.1)).astype(np.uint8), rng.integers(0, count, links)
    types = np.zeros(links, np.int32) if graph.edge_type is None else graph.edge_type[chosen]
    asked = {"links/source": graph.edge_index[0, chosen], "links/target": graph.edge_index[1, chosen]}
    asked |= {"links/set": rng.integers(1, 3, links, np.uint8)}
    asked |= {} if graph.edge_type is None else {"links/type": types}
    for end, kinds, number in zip(("source", "target"), meta.edge_type_ends, (20, 17), strict=True):
        low, high = (meta.node_type_offsets[kinds[types] + k][:, np.newaxis] for k in (0, 1))
        asked |= {f"links/{end}_candidates": rng.integers(low, high, (links, number))} if end in ends else {}
    loops = graph.edge_index[0] == graph.edge_index[1]
    return replace(graph, edge_split=np.where(loops, np.uint8(0), its_set), asked=asked)


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


def by_label(path: Path, nodes: int = 1500) -> Arrays:
    """A part of a real graph with types: the nodes of the shared graph with the most edges. Their types are three groups of its
    classes. Edges have a type for each pair of groups, and for whether the source has more edges. Labels are below 5."""
    whole = from_npz(path)
    degree = np.bincount(whole.edge_index[1], minlength=whole.num_nodes)
    busiest, group = np.argsort(-degree, kind="stable")[:nodes], whole.y % 3
    ids = busiest[np.argsort(group[busiest], kind="stable")]
    place = np.full(whole.num_nodes, -1)
    place[ids] = np.arange(nodes)
    edges = whole.edge_index[:, (place[whole.edge_index] >= 0).all(axis=0)]
    kinds = 2 * (3 * group[edges[0]] + group[edges[1]]) + (degree[edges[0]] > degree[edges[1]])
    counts = np.bincount(group[ids])
    blocks = np.split(sp.csr_matrix(whole.x)[ids][:, :8].toarray(), np.cumsum(counts)[:-1])
    node_types = tuple(NodeType(f"group{k}", int(count), 8, 5) for k, count in enumerate(counts))
    ends = [divmod(number, 3) for number in range(9)]
    edge_types = tuple(EdgeType(source, name, end) for source, end in ends for name in ("rises", "falls"))
    masks = {name: mask[ids] for name, mask in whole.masks.items()}
    x, y = sp.block_diag(blocks, format="csr"), whole.y[ids].astype(np.int64) % 5
    return Arrays(
        place[edges], x, y, masks, edge_type=kinds.astype(np.int32), node_types=node_types, edge_types=edge_types
    )


def swapped(graph: Arrays) -> Arrays:
    """The graph with the first two types of edges, which lead between the same types of nodes, in each other's place."""
    return replace(graph, edge_type=np.where(graph.edge_type < 2, 1 - graph.edge_type, graph.edge_type))


def with_edges(graph: Arrays, chosen: np.ndarray) -> Arrays:
    """The graph with only the edges where ``chosen`` (E,) is true."""
    of_edges = {name: getattr(graph, name) for name in ("weight", "edge_type", "edge_attr", "edge_split")}
    kept = {name: None if values is None else values[chosen] for name, values in of_edges.items()}
    return replace(graph, edge_index=graph.edge_index[:, chosen], **kept)


def dropped(graph: Arrays) -> Arrays:
    """The graph without the edges of its first type."""
    return with_edges(graph, graph.edge_type > 0)


def random_parts(num_nodes: int, num_parts: int, *, seed: int = 1, empty: int | None = None) -> np.ndarray:
    """(N,) random part of each node; the part ``empty`` gets no node."""
    choices = [part for part in range(num_parts) if part != empty or num_parts == 1]
    return np.random.default_rng(seed).choice(choices, num_nodes)


def with_an_empty_part(graph: Arrays, num_parts: int) -> np.ndarray:
    """(N,) random part of each node; the last of three or more parts gets none."""
    return random_parts(graph.num_nodes, num_parts, empty=num_parts - 1 if num_parts >= 3 else None)


def by_target(num_nodes: int, sources: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(indptr, order)``: the order of edges by target and then by source, and where each target's edges begin in it."""
    counts = np.bincount(targets, minlength=num_nodes)
    return np.concatenate(([0], np.cumsum(counts))), np.lexsort((sources, targets))


def write_parts(path: Path, graph: Arrays, part: np.ndarray, num_parts: int) -> None:
    """Write ``parts.h5`` directly from its definition: positions are sorted by (part, original id)."""
    order = np.argsort(part, kind="stable")
    position = np.empty(graph.num_nodes, dtype=np.int64)
    position[order] = np.arange(graph.num_nodes)
    masks = {name: mask[order] for name, mask in graph.masks.items()}
    of_edges = graph.weight, graph.edge_type, graph.edge_attr, graph.node_types, graph.edge_types, graph.edge_split
    there = Arrays(
        position[graph.edge_index], graph.x[order], graph.y[order], masks, *of_edges, x_by_type=graph.x_by_type,
        asked=graph.asked,
    )  # fmt: skip
    offsets = np.concatenate(([0], np.cumsum(np.bincount(part, minlength=num_parts))))
    arrays = there.datasets() | {"nodes/original_ids": order, "parts/node_offsets": offsets}
    attributes = h5.new_header(PARTS_KIND, PARTS_VERSION) | there.meta().attributes() | {"num_parts": num_parts}
    write(path, layout(parts_rules(there.meta(), num_parts)), attributes, arrays)


def write_graph(path: Path, graph: Arrays) -> None:
    """Write ``graph.h5`` directly from its definition."""
    meta = graph.meta()
    write(
        path, layout(graph_rules(meta)), h5.new_header(GRAPH_KIND, GRAPH_VERSION) | meta.attributes(), graph.datasets()
    )


def write(path: Path, schema: h5.Schema, attributes: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a file with checksums."""
    offsets = h5.create(path, schema, attributes)
    with LocalFile(path) as sink:
        writer = h5.SlabWriter(sink, offsets, schema)
        for name, array in arrays.items():
            writer.write(name, 0, array)
    seal(path)


def in_parts(path: Path, graph: Arrays, ranks: int, plans: Sequence[str] = ()) -> Path:
    """Write the graph in random parts, and add the plans of these strategies; return the path."""
    write_parts(path, graph, random_parts(graph.num_nodes, ranks), ranks)
    if plans:
        plan_store.store_plans(path, list(plans))
    return path


def flip(path: Path, place: int, bit: int = 1) -> None:
    """Change bits of the byte at ``place``."""
    content = bytearray(path.read_bytes())
    content[place] ^= bit
    path.write_bytes(content)


def _random_masks(rng: np.random.Generator, nodes: int) -> dict[str, np.ndarray]:
    group = rng.integers(0, 3, nodes)
    return {name: group == k for k, name in enumerate(MASKS)}


def on_ranks(world: World, graph: Arrays, path: Path) -> LocalGraph:
    """The graph in random parts, of which the last of three or more has no node; rank 0 writes the file. Collective."""
    if world.rank == 0:
        write_parts(path, graph, with_an_empty_part(graph, world.size), world.size)
    world.allreduce(np.zeros(1))  # the file now exists
    return load(path, world)
