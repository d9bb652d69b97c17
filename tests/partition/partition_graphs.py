"""Small graph files for these tests, and second implementations to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse as sp
import small_graphs
from requires import require

from hpcgnn.data.graph_file import GraphFile
from hpcgnn.data.schema import MASKS
from hpcgnn.partition import PartitionOptions, PartitionReport, metis, partition, separate_process
from hpcgnn.partition.problem import Advance, Balance, Problem, Slab, ignore
from hpcgnn.world import whole_job

METHODS = ("kaminpar", "metis", "mtkahypar", "parmetis", "ptscotch", "fennel", "ldg", "block", "random")


def require_method(method: str) -> None:
    """Skip the test, or fail it, where a method cannot be used."""
    load = {"metis": metis.load_metis, "parmetis": metis.load_parmetis, "ptscotch": metis.load_ptscotch}.get(method)
    if method in ("kaminpar", "mtkahypar"):
        require(separate_process.installed(method), method)
    try:
        require(load is None or load(1), method)
    except metis.Unusable as reason:
        require(False, f"{method}, which {reason}")


def by(method: str) -> dict[str, str]:
    """The options that ask for a method."""
    return {"method": method, "objective": "volume" if method == "mtkahypar" else "cut"}


class Graph(small_graphs.Arrays):
    """A graph of which sources, destinations, and perhaps other arrays are given."""

    def __init__(
        self, num_nodes: int, sources: np.ndarray, destinations: np.ndarray, x: Any = None, **others: Any
    ) -> None:
        self.sources, self.destinations = sources, destinations
        super().__init__(np.stack((sources, destinations)), np.zeros((num_nodes, 0)) if x is None else x, **others)

    def write(self, path: Path) -> Path:
        small_graphs.write_graph(path, self)
        return path

    def in_edges(self) -> tuple[np.ndarray, np.ndarray]:
        """``(indptr, sources)`` by destination."""
        return in_edges(self.num_nodes, self.sources, self.destinations)

    def cut(self, parts: np.ndarray) -> int:
        """The number of edges between parts (N,)."""
        return np.count_nonzero(parts[self.sources] != parts[self.destinations])

    def simple_symmetric(self) -> np.ndarray:
        """(N, N) bool: the nodes that have an edge in any direction."""
        dense = np.zeros((self.num_nodes, self.num_nodes), dtype=bool)
        dense[self.sources, self.destinations] = dense[self.destinations, self.sources] = True
        np.fill_diagonal(dense, False)
        return dense


def in_edges(num_nodes: int, sources: np.ndarray, destinations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(indptr, sources)`` by destination, sources in ascending order."""
    indptr, order = small_graphs.by_target(num_nodes, sources, destinations)
    return indptr, np.asarray(sources)[order]


def random_graph(nodes: int = 203, edges: int = 1500, *, rich: bool, seed: int = 1) -> Graph:
    """A directed multigraph with self-loops, parallel edges and isolated nodes. rich: with weights, types and features of
    edges, sparse x and multi-label y.
    """
    rng = np.random.default_rng(seed)
    connected = max(nodes - nodes // 10, 1)
    ends = rng.permutation(nodes)[rng.integers(0, connected, (2, edges))] if nodes else np.zeros((2, 0), int)
    few = edges // 10
    ends[0, :few], ends[1, :few] = ends[0, few : 2 * few], 5 % max(nodes, 1)
    masks = {name: rng.random(nodes) < 0.3 for name in MASKS}
    if not rich:
        return Graph(nodes, *ends, rng.random((nodes, 7), dtype=np.float32), y=rng.integers(-1, 4, nodes), masks=masks)
    x = sp.random(nodes, 31, 0.1, format="csr", dtype=np.float32, random_state=seed)
    labels = (rng.random((nodes, 3)) < 0.4).astype(np.uint8)
    values = {"weight": rng.random(edges, dtype=np.float32), "edge_attr": rng.random((edges, 2), dtype=np.float32)}
    kinds = np.append(rng.integers(0, 3, max(edges - 1, 0)), 2)[:edges].astype(np.int32)
    return Graph(nodes, *ends, x, y=labels, masks=masks, edge_type=kinds if edges else None, **values)


def from_npz(path: Path) -> Graph:
    """The structure and the training nodes of a real graph."""
    with np.load(path, allow_pickle=False) as file:
        masks = {name: file[name] for name in MASKS if name in file.files}
        sources, destinations = file["edge_index"].astype(np.int64)
        return Graph(int(file["num_nodes"]), sources, destinations, masks=masks)


def made(graph: Path, folder: Path, parts: int, **options: Any) -> PartitionReport:
    """Make ``folder/parts.h5`` in this process, and return the report."""
    return partition(whole_job(), graph, folder / "parts.h5", PartitionOptions(parts, force=True, **options))


def with_problem(
    graph: Path, options: PartitionOptions, use: Callable[[Problem], Any], advance: Advance = ignore, world: Any = None
) -> Any:
    """The result of ``use(problem)``, in this process if ``world`` is None."""
    world = whole_job() if world is None else world
    with GraphFile(graph) as reader:
        slab = Slab.of(world, reader)
        balance = Balance.of(world, reader, slab, options)
        return use(Problem(world, reader, slab, balance, options, advance))


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
    stored = datasets(path)
    ids, offsets = stored["nodes/original_ids"], stored["parts/node_offsets"]
    assert np.array_equal(np.sort(ids), np.arange(graph.num_nodes))
    for first, last in itertools.pairwise(offsets):
        assert np.all(np.diff(ids[first:last]) > 0)
    for name, rows in graph.datasets().items():
        if name.startswith("nodes/") and "x_" not in name:
            assert np.array_equal(stored[name], rows[ids]), name
    if sp.issparse(graph.x):
        arrays = [stored[f"nodes/x_{name}"] for name in ("data", "indices", "indptr")]
        assert (sp.csr_matrix(tuple(arrays), graph.x.shape) != graph.x[ids]).nnz == 0
    indptr, indices = stored["edges/indptr"], stored["edges/indices"]
    for begin, end in itertools.pairwise(indptr):
        assert np.all(np.diff(indices[begin:end]) >= 0)
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(indptr))
    given = {"weight": graph.weight, "type": graph.edge_type, "attr": graph.edge_attr}
    names = [name for name, values in given.items() if values is not None]
    assert names == [name for name in given if f"edges/{name}" in stored]
    found = _edge_table(ids[indices], ids[rows], *(stored[f"edges/{name}"] for name in names))
    assert found == _edge_table(graph.sources, graph.destinations, *(given[name] for name in names))


def _edge_table(*columns: np.ndarray) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def brute_force_quality(graph: Graph, parts: np.ndarray, num_parts: int) -> dict[str, float]:
    """Cut, halo and balance, computed from their definitions."""
    ends = zip(graph.sources.tolist(), parts[graph.destinations].tolist(), strict=True)
    halo = {(source, part) for source, part in ends if parts[source] != part}
    owners = ([part for _, part in halo], parts, parts[graph.destinations], parts[graph.masks["train_mask"]])
    rows, nodes, edges, train = (np.bincount(each, minlength=num_parts) for each in owners)
    return {
        "cut_edges": graph.cut(parts),
        "halo_total": rows.sum(),
        "halo_max": rows.max(),
        "replication": (graph.num_nodes + rows.sum()) / graph.num_nodes,
        "node_balance": nodes.max() / nodes.mean(),
        "edge_balance": edges.max() / edges.mean(),
        "train_balance": train.max() / train.mean(),
        "empty_parts": int((nodes == 0).sum()),
    }
