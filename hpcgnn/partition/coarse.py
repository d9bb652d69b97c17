"""A coarse model of a graph that is larger than memory: clusters found by streaming, and a sample of the edges between them.

Semi-external partitioning does the same (Akhremtsev, Sanders, Schulz 2014). If a graph has structure, its clusters tell more
about the right part of a node than the share of the graph that fits into a buffer.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition import cluster_loops as loops
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.multilevel import CLUSTERS_A_PART, Model
from hpcgnn.partition.multilevel_loops import number_clusters
from hpcgnn.partition.slabs import Advance, edge_chunks

CLUSTER_PASSES = 2
COARSE_PASSES = CLUSTER_PASSES + 1
_MOST_EDGES = 1 << 23
_SMALLER = 4  # clusters are smaller than those in a buffer by this factor, because a stream finds worse ones


def coarse_model(
    reader: SlabReader, balance: Balance, num_parts: int, seed: int, advance: Advance
) -> tuple[Model, np.ndarray]:
    """``(model of the clusters, labels (N,) int32 of the nodes)``; ``advance`` counts all nodes ``COARSE_PASSES`` times.

    Memory is 12 bytes a node, and at most ``_MOST_EDGES`` edges of the model.
    """
    nodes = reader.meta.num_nodes
    labels, between = _clusters(reader, balance, num_parts, advance)
    count = number_clusters(labels)
    rate = min(_MOST_EDGES / max(between, 1) / 1.02, 1.0)
    rows, columns = (np.empty(min(between, _MOST_EDGES), dtype=np.int32) for _ in range(2))
    sums, taken = np.zeros((count, len(balance.names)), dtype=np.int64), 0
    threshold = np.uint64(min(int(rate * 2**63), 2**63 - 1))
    for chunk in edge_chunks(reader, 0, nodes):
        taken = loops.sample(
            chunk.first, chunk.indptr, chunk.sources, labels, threshold, np.uint64(seed), rows, columns, taken
        )
        loops.add_amounts(chunk.first, labels, balance.weights(reader, chunk.first, chunk.indptr), sums)
        advance(chunk.last - chunk.first)
    return _model(rows[:taken], columns[:taken], sums, node_shares(sums, balance, nodes)), labels


def _clusters(reader: SlabReader, balance: Balance, num_parts: int, advance: Advance) -> tuple[np.ndarray, int]:
    """Each node's cluster, (N,) int32, and an upper bound of the number of edges between clusters."""
    nodes = reader.meta.num_nodes
    labels, sizes = np.arange(nodes, dtype=np.int32), np.ones(nodes, dtype=np.float32)
    affinity = np.zeros(nodes, dtype=np.int32)
    limit = nodes / num_parts / CLUSTERS_A_PART / _SMALLER
    between = 0
    for again in range(CLUSTER_PASSES):
        between = 0
        for chunk in edge_chunks(reader, 0, nodes):
            shares = node_shares(balance.weights(reader, chunk.first, chunk.indptr), balance, nodes)
            if not again:
                sizes[chunk.first : chunk.last] += shares - 1
            between += loops.join(chunk.first, chunk.indptr, chunk.sources, shares, limit, labels, sizes, affinity)
            advance(chunk.last - chunk.first)
    return labels, between


def node_shares(amounts: np.ndarray, balance: Balance, num_nodes: int) -> np.ndarray:
    """(n,) float32: the mean share of nodes with ``amounts`` (n, C) in all quantities of ``balance``, 1 for an average node."""
    return (amounts * (num_nodes / balance.totals)).mean(axis=1).astype(np.float32)


def _model(rows: np.ndarray, columns: np.ndarray, sums: np.ndarray, shares: np.ndarray) -> Model:
    count = sums.shape[0]
    degrees = np.bincount(rows, minlength=count) + np.bincount(columns, minlength=count)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    indices = np.empty(indptr[-1], dtype=np.int32)
    loops.both_ways(rows, columns, indptr[:-1].copy(), indices)
    return Model(indptr, indices, np.ones(indices.size, np.int32), sums, shares)
