"""Partitioning without a library: linear greedy, buffered streaming, blocks of ids, random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcgnn.base.compiled import njit
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition import multilevel
from hpcgnn.partition.multilevel import CLUSTERS_A_PART, Model, Parts, partition_model
from hpcgnn.partition.problem import TOLERANCE, Balance, Problem, add_up, edge_chunks, place
from hpcgnn.plan.plan import offsets_of

LDG_PASSES = 5
# The price of fullness in each pass over the buffers, in units of an average node's edges (1.5 is Fennel's own): of passes that
# start without parts, and of passes after a coarse model of the whole graph has been partitioned.
_PRICES, _PRICES_AFTER_COARSE = (1.5, 0.5), (0.5, 0.25)
_BUFFER_EDGES = 1 << 23
_BUFFER_NODES = 1 << 21
_CLUSTER_PASSES = 2
_MOST_EDGES = 1 << 23  # of the coarse model
_SMALLER = 4  # clusters are smaller than those in a buffer by this factor, because a stream finds worse ones


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


def stream(problem: Problem) -> np.ndarray:
    """Parts (N,) int32 by linear deterministic greedy (Stanton and Kliot 2012), with further passes (Nishimura 2013).

    Nodes are read in the order of the file with their in-neighbours, so only in-edges of a directed graph count. Every quantity
    to balance has a capacity of ``TOLERANCE`` times its mean, and the fullest quantity decides. ``problem.advance`` counts each
    node ``LDG_PASSES`` times. One int32 a node is in memory, and never all edges.
    """
    reader, balance, num_parts = problem.reader, problem.balance, problem.options.num_parts
    parts = np.full(reader.meta.num_nodes, -1, dtype=np.int32)
    load = np.zeros((num_parts, len(balance.names)), dtype=np.int64)
    affinity = np.zeros(num_parts, dtype=np.int64)
    capacity = np.maximum(TOLERANCE * balance.totals / num_parts, np.ceil(balance.totals / num_parts))
    for _ in range(LDG_PASSES):
        for chunk in edge_chunks(reader, 0, reader.meta.num_nodes):
            weights = balance.weights(reader, chunk.first, chunk.indptr)
            _stream_greedily(chunk.first, chunk.indptr, chunk.sources, weights, capacity, parts, load, affinity)
            problem.advance(chunk.last - chunk.first)
    return parts


@njit(cache=True)
def _fullness(load: np.ndarray, part: int, extra: np.ndarray, capacity: np.ndarray) -> float:
    fullest = 0.0
    for c in range(extra.size):
        fullest = max(fullest, (load[part, c] + extra[c]) / capacity[c])
    return fullest


@njit(cache=True)
def _stream_greedily(
    first: int, indptr: np.ndarray, sources: np.ndarray, weights: np.ndarray, capacity: np.ndarray,
    parts: np.ndarray, load: np.ndarray, affinity: np.ndarray,
) -> None:  # fmt: skip
    """Assign the nodes of a chunk, from ``first`` on, by linear deterministic greedy. Modifies ``parts`` (N,) int32,
    ``load`` (P, C), ``affinity`` (P,), which is zeros, work space. A node goes to the part with the largest ``(neighbours
    there) * (1 - fullness)`` above 0, else to the emptiest part. indptr: (n+1,), may start with any number. weights: (n, C)
    and capacity: (C,) of the quantities to balance."""
    num_parts = load.shape[0]
    for row in range(indptr.size - 1):
        node = first + row
        mine = weights[row]
        if parts[node] >= 0:
            load[parts[node]] -= mine
        neighbours = sources[indptr[row] - indptr[0] : indptr[row + 1] - indptr[0]]
        for source in neighbours:
            if parts[source] >= 0 and source != node:
                affinity[parts[source]] += 1
        best, best_score = -1, 0.0
        for source in neighbours:
            part = parts[source]
            if part < 0 or affinity[part] == 0:
                continue
            full = _fullness(load, part, mine, capacity)
            score = affinity[part] * (1.0 - full)
            affinity[part] = 0
            if score > best_score or (score == best_score and best >= 0 and part < best):
                best, best_score = part, score
        if best < 0:
            best, least = 0, np.inf
            for part in range(num_parts):
                full = _fullness(load, part, mine, capacity)
                if full < least:
                    best, least = part, full
        parts[node] = best
        load[best] += mine


def fennel_passes(reader: SlabReader) -> int:
    """The number of times that :func:`fennel` counts each node by ``advance``."""
    return len(_PRICES) if _fits(reader) else _CLUSTER_PASSES + 1 + len(_PRICES_AFTER_COARSE)


def fennel(problem: Problem) -> np.ndarray:
    """Parts (N,) int32 by buffered streaming with Fennel's objective (Faraj and Schulz 2022), in two passes.

    Nodes are read in the order of the file, with some millions of their in-edges at a time. Those in the buffer are partitioned
    together, beside the nodes that are in the parts already. If the buffer is smaller than the graph, the graph's clusters are
    partitioned first (:func:`coarse_model`). Out-edges of a directed graph are known where both ends are in the buffer; of its
    other out-edges, each node only remembers the part to which most of them go. Memory is 16 bytes a node and the buffer (about
    0.5 GiB). In each part, every quantity to balance has a capacity of ``TOLERANCE`` times its mean. ``problem.advance`` counts
    all nodes :func:`fennel_passes` times.

    Raises:
        HpcgnnError: for 2**31 nodes and more.
    """
    reader, balance, num_parts = problem.reader, problem.balance, problem.options.num_parts
    nodes, rng = reader.meta.num_nodes, np.random.default_rng(problem.options.seed)
    if nodes > np.iinfo(np.int32).max:
        raise HpcgnnError(f"--method fennel counts nodes with 32 bits, and the graph has {nodes:,}: take --method ldg")
    mean = balance.totals / num_parts
    load = np.zeros((num_parts, len(balance.names)), dtype=np.int64)
    filled = Parts(load, mean, np.maximum(TOLERANCE * mean, np.ceil(mean)))
    parts, prices = np.full(nodes, -1, dtype=np.int32), _PRICES
    if not _fits(reader):  # all nodes of a cluster start in one part
        model, labels = coarse_model(problem)
        of_clusters = np.full(model.num_nodes, -1, dtype=np.int32)
        partition_model(
            model, of_clusters, filled, _PRICES[0] * (model.columns.size / 2 / max(model.num_nodes, 1)), rng
        )
        parts, prices = of_clusters[labels], _PRICES_AFTER_COARSE
        del model, labels
    votes = np.zeros((nodes if reader.meta.directed else 0, 2), dtype=np.int32)
    neighbours = reader.meta.num_edges / (1 if reader.meta.directed else 2) / max(nodes, 1)
    for price in prices:
        for first, indptr, sources in _buffers(reader):
            amounts = balance.weights(reader, first, indptr)
            begins, columns, weights = multilevel.buffer_model(
                first, indptr, sources, not reader.meta.directed, parts, votes
            )
            model = Model(begins, columns, weights, amounts, _shares(amounts, balance, nodes))
            mine = parts[first : first + indptr.size - 1]
            partition_model(model, mine, filled, price * neighbours, rng)
            del model, begins, columns, weights, amounts
            if reader.meta.directed:
                multilevel.vote(first, indptr, sources, parts, votes)
            problem.advance(mine.size)
    return parts


def _fits(reader: SlabReader) -> bool:
    return reader.meta.num_edges <= _BUFFER_EDGES and reader.meta.num_nodes <= _BUFFER_NODES


def _shares(amounts: np.ndarray, balance: Balance, num_nodes: int) -> np.ndarray:
    """(n,) float32: the mean share of nodes with ``amounts`` (n, C) in all quantities of ``balance``, 1 for an average node."""
    return (amounts * (num_nodes / balance.totals)).mean(axis=1).astype(np.float32)


def _buffers(reader: SlabReader) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """``(first node, indptr (n+1,) from 0, sources)`` of all rows, in pieces that fit into a buffer."""
    held: list[tuple[np.ndarray, np.ndarray]] = []
    first = edges = 0
    for chunk in edge_chunks(reader, 0, reader.meta.num_nodes):
        if held and (edges + chunk.sources.size > _BUFFER_EDGES or chunk.last - first > _BUFFER_NODES):
            buffer, held, edges = _joined(first, held), [], 0  # the pieces' memory is freed while the buffer is used
            yield buffer
            del buffer
            first = chunk.first
        held.append((chunk.indptr, chunk.sources.astype(np.int32)))
        edges += chunk.sources.size
    if held:
        yield _joined(first, held)


def _joined(first: int, held: list[tuple[np.ndarray, np.ndarray]]) -> tuple[int, np.ndarray, np.ndarray]:
    degrees = np.concatenate([np.diff(indptr) for indptr, _ in held])
    return first, offsets_of(degrees), np.concatenate([sources for _, sources in held])


def coarse_model(problem: Problem) -> tuple[Model, np.ndarray]:
    """``(model of the graph's clusters, labels (N,) int32 of the nodes)``, for a graph that is larger than a buffer.
    Clusters are found by streaming, and the model has a sample of the edges between them, as in semi-external partitioning
    (Akhremtsev, Sanders, Schulz 2014). They tell more about the right part of a node than the share of the graph that fits
    into a buffer. Memory is 12 bytes a node, and at most ``_MOST_EDGES`` edges."""
    reader, balance, nodes = problem.reader, problem.balance, problem.reader.meta.num_nodes
    labels, between = _clusters(problem)
    count = multilevel.number_clusters(labels)
    rate = min(_MOST_EDGES / max(between, 1) / 1.02, 1.0)
    ends = np.empty((min(between, _MOST_EDGES), 2), dtype=np.int32)
    sums, taken = np.zeros((count, len(balance.names)), dtype=np.int64), 0
    threshold, key = np.uint64(min(int(rate * 2**63), 2**63 - 1)), np.uint64(problem.options.seed)
    for chunk in edge_chunks(reader, 0, nodes):
        edges = chunk.first, chunk.indptr, chunk.sources
        taken = multilevel.sample_edges(*edges, labels, threshold, key, ends, taken)
        weights = balance.weights(reader, chunk.first, chunk.indptr)
        add_up(labels[chunk.first : chunk.last], weights, sums)
        problem.advance(chunk.last - chunk.first)
    both_ways = ends[:taken].ravel(), ends[:taken, ::-1].ravel()
    indptr = offsets_of(np.bincount(both_ways[0], minlength=count))
    indices = np.empty(indptr[-1], dtype=np.int32)
    place(*both_ways, indptr[:-1].copy(), indices)
    return Model(indptr, indices, np.ones(indices.size, np.int32), sums, _shares(sums, balance, nodes)), labels


def _clusters(problem: Problem) -> tuple[np.ndarray, int]:
    """Each node's cluster, (N,) int32, and an upper bound of the number of edges between clusters."""
    reader, balance, nodes = problem.reader, problem.balance, problem.reader.meta.num_nodes
    labels, sizes = np.arange(nodes, dtype=np.int32), np.ones(nodes, dtype=np.float32)
    affinity = np.zeros(nodes, dtype=np.int32)
    limit = nodes / problem.options.num_parts / CLUSTERS_A_PART / _SMALLER
    between = 0
    for again in range(_CLUSTER_PASSES):
        between = 0
        for chunk in edge_chunks(reader, 0, nodes):
            shares = _shares(balance.weights(reader, chunk.first, chunk.indptr), balance, nodes)
            if not again:
                sizes[chunk.first : chunk.last] += shares - 1
            edges = chunk.first, chunk.indptr, chunk.sources
            between += multilevel.join_clusters(*edges, shares, limit, labels, sizes, affinity)
            problem.advance(chunk.last - chunk.first)
    return labels, between
