"""Partitioning without a library: streaming greedy, blocks of ids, random."""

from __future__ import annotations

import numpy as np

from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition import loops
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.buffered import fennel, fennel_passes
from hpcgnn.partition.slabs import Advance, edge_chunks

__all__ = ["LDG_PASSES", "assign_blocks", "assign_randomly", "fennel", "fennel_passes", "stream"]

LDG_PASSES = 5


def stream(reader: SlabReader, balance: Balance, num_parts: int, tolerance: float, advance: Advance) -> np.ndarray:
    """Parts (N,) int32 by linear deterministic greedy (Stanton and Kliot 2012), with further passes to improve them (Nishimura
    2013).

    Nodes are read in the order of the file with their in-neighbours, so only in-edges of a directed graph count. Every quantity
    of ``balance`` has a capacity of ``tolerance`` times its mean, and the fullest quantity decides. ``advance`` counts each
    node ``LDG_PASSES`` times.
    """
    nodes = reader.meta.num_nodes
    parts = np.full(nodes, -1, dtype=np.int32)
    load = np.zeros((num_parts, len(balance.names)), dtype=np.int64)
    affinity = np.zeros(num_parts, dtype=np.int64)
    capacity = np.maximum(tolerance * balance.totals / num_parts, np.ceil(balance.totals / num_parts))
    for _ in range(LDG_PASSES):
        for chunk in edge_chunks(reader, 0, nodes):
            weights = balance.weights(reader, chunk.first, chunk.indptr)
            loops.stream_greedily(chunk.first, chunk.indptr, chunk.sources, weights, capacity, parts, load, affinity)
            advance(chunk.last - chunk.first)
    return parts


def assign_blocks(first: int, last: int, num_nodes: int, num_parts: int) -> np.ndarray:
    """Parts (last - first,) int32 of the nodes ``[first, last)``, where part p has the ids from ``ceil(p * N / P)`` on."""
    ids = np.arange(first, last, dtype=np.int64)
    whole, rest = divmod(num_parts, max(num_nodes, 1))
    return (ids * whole + ids * rest // max(num_nodes, 1)).astype(np.int32)  # ids * parts could overflow


def assign_randomly(first: int, last: int, num_parts: int, seed: int) -> np.ndarray:
    """Parts (last - first,) int32 of the nodes ``[first, last)``, a function of (seed, id, P) alone."""
    from hpcgnn.kernels.keyed import splitmix64  # imported here, because the kernels import torch

    ids = np.arange(first, last, dtype=np.uint64)
    hashed = splitmix64(splitmix64(ids) ^ splitmix64(np.uint64(seed + 1)))
    return ((hashed >> np.uint64(32)) * np.uint64(num_parts) >> np.uint64(32)).astype(np.int32)
