"""Small graph files for these tests, and second implementations to compare with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse as sp

from hpcgnn.byte_sink import LocalFile
from hpcgnn.data import h5
from hpcgnn.data.graph_file import GRAPH_KIND, GRAPH_VERSION, MASKS, MULTI_LABEL, NO_TASK, SINGLE_LABEL, GraphMeta
from hpcgnn.data.sealing import seal


@dataclass
class Graph:
    """A graph in memory, with edges in any order."""

    num_nodes: int
    sources: np.ndarray
    destinations: np.ndarray
    x: Any = None
    y: np.ndarray | None = None
    weight: np.ndarray | None = None
    masks: dict[str, np.ndarray] = field(default_factory=dict)

    def meta(self) -> GraphMeta:
        features = 0 if self.x is None else self.x.shape[1]
        task = NO_TASK if self.y is None else SINGLE_LABEL if self.y.ndim == 1 else MULTI_LABEL
        return GraphMeta(
            num_nodes=self.num_nodes,
            num_edges=self.sources.size,
            num_features=features,
            num_classes=0
            if self.y is None
            else self.y.shape[1]
            if self.y.ndim == 2
            else int(self.y.max(initial=0)) + 1,
            task=task,
            weighted=self.weight is not None,
            x_nnz=self.x.nnz if sp.issparse(self.x) else None,
            has_masks=bool(self.masks),
            provenance={"source": "test"},
        )

    def arrays(self) -> dict[str, np.ndarray]:
        order = np.lexsort((self.sources, self.destinations))
        counts = np.bincount(self.destinations, minlength=self.num_nodes)
        arrays = {"edges/indptr": np.concatenate(([0], np.cumsum(counts))), "edges/indices": self.sources[order]}
        if self.weight is not None:
            arrays["edges/weight"] = self.weight[order]
        if sp.issparse(self.x):
            arrays |= {f"nodes/x_{part}": getattr(self.x, part) for part in ("indptr", "indices", "data")}
        elif self.x is not None:
            arrays["nodes/x"] = self.x
        if self.y is not None:
            arrays["nodes/y"] = self.y
        return arrays | {f"nodes/{name}": mask for name, mask in self.masks.items()}

    def write(self, path: Path) -> Path:
        meta = self.meta()
        attributes = h5.new_header(GRAPH_KIND, GRAPH_VERSION) | meta.attributes()
        offsets = h5.create(path, meta.schema(), attributes)
        with LocalFile(path) as sink:
            writer = h5.SlabWriter(sink, offsets, meta.schema())
            for name, rows in self.arrays().items():
                writer.write(name, 0, rows)
        seal(path)
        return path


def random_graph(nodes: int = 203, edges: int = 1500, *, rich: bool, seed: int = 1) -> Graph:
    """A directed multigraph with self-loops, parallel edges and isolated nodes. rich: with weights, sparse x and
    multi-label y.
    """
    rng = np.random.default_rng(seed)
    connected = max(nodes - nodes // 10, 1)
    sources, destinations = (
        (rng.permutation(nodes)[rng.integers(0, connected, (2, edges))]) if nodes else np.zeros((2, 0), int)
    )
    sources[: edges // 10], destinations[: edges // 10] = (
        sources[edges // 10 : edges // 5][: edges // 10],
        5 % max(nodes, 1),
    )
    masks = {name: rng.random(nodes) < 0.3 for name in MASKS}
    if not rich:
        return Graph(
            nodes,
            sources,
            destinations,
            rng.random((nodes, 7), dtype=np.float32),
            rng.integers(-1, 4, nodes),
            masks=masks,
        )
    x = sp.random(nodes, 31, 0.1, format="csr", dtype=np.float32, random_state=seed)
    labels = (rng.random((nodes, 3)) < 0.4).astype(np.uint8)
    return Graph(nodes, sources, destinations, x, labels, rng.random(edges, dtype=np.float32), masks)


def from_npz(path: Path) -> Graph:
    """The structure and the training nodes of a real graph."""
    with np.load(path, allow_pickle=False) as file:
        masks = {name: file[name] for name in MASKS if name in file.files}
        sources, destinations = file["edge_index"].astype(np.int64)
        return Graph(int(file["num_nodes"]), sources, destinations, masks=masks)


def datasets(path: Path) -> dict[str, np.ndarray]:
    """Every dataset of a file."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def parts_of_nodes(path: Path) -> np.ndarray:
    """The part of each original node, (N,)."""
    stored = datasets(path)
    parts = np.empty(stored["nodes/original_ids"].size, dtype=np.int64)
    offsets = stored["parts/node_offsets"]
    parts[stored["nodes/original_ids"]] = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    return parts


def check_same_graph(graph: Graph, path: Path) -> None:
    """Check that every array of a parts file, mapped back to original ids, is that of the graph."""
    stored, meta = datasets(path), graph.meta()
    ids, offsets = stored["nodes/original_ids"], stored["parts/node_offsets"]
    assert np.array_equal(np.sort(ids), np.arange(graph.num_nodes))
    for first, last in itertools.pairwise(offsets):
        assert np.all(np.diff(ids[first:last]) > 0)
    for name, rows in graph.arrays().items():
        if name.startswith("nodes/") and "x_" not in name:
            assert np.array_equal(stored[name], rows[ids]), name
    if sp.issparse(graph.x):
        found = sp.csr_matrix(
            (stored["nodes/x_data"], stored["nodes/x_indices"], stored["nodes/x_indptr"]), graph.x.shape
        )
        assert (found != graph.x[ids]).nnz == 0
    indptr, indices = stored["edges/indptr"], stored["edges/indices"]
    for begin, end in itertools.pairwise(indptr):
        assert np.all(np.diff(indices[begin:end]) >= 0)
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(indptr))
    weights = stored.get("edges/weight", np.zeros(meta.num_edges))
    expected = np.zeros(meta.num_edges) if graph.weight is None else graph.weight
    assert _edge_table(ids[indices], ids[rows], weights) == _edge_table(graph.sources, graph.destinations, expected)


def _edge_table(sources: np.ndarray, destinations: np.ndarray, weights: np.ndarray) -> list[tuple[float, ...]]:
    return sorted(zip(sources.tolist(), destinations.tolist(), weights.tolist(), strict=True))


def brute_force_quality(graph: Graph, parts: np.ndarray, num_parts: int) -> dict[str, float]:
    """Cut, halo and balance, computed from their definitions."""
    cut = 0
    halo: list[set[int]] = [set() for _ in range(num_parts)]
    in_edges = np.zeros(num_parts)
    for source, destination in zip(graph.sources.tolist(), graph.destinations.tolist(), strict=True):
        in_edges[parts[destination]] += 1
        if parts[source] != parts[destination]:
            cut += 1
            halo[parts[destination]].add(source)
    nodes = np.bincount(parts, minlength=num_parts)
    train = np.bincount(parts[graph.masks["train_mask"]], minlength=num_parts)
    rows = sum(map(len, halo))
    return {
        "cut_edges": cut,
        "halo_total": rows,
        "halo_max": max(map(len, halo)),
        "replication": (graph.num_nodes + rows) / graph.num_nodes,
        "node_balance": nodes.max() / nodes.mean(),
        "edge_balance": in_edges.max() / in_edges.mean(),
        "train_balance": train.max() / train.mean(),
        "empty_parts": int((nodes == 0).sum()),
    }
