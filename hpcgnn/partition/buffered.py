"""Method ``fennel``: partitioning by buffered streaming, for graphs that do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition import multilevel_loops
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.coarse import COARSE_PASSES, coarse_model, node_shares
from hpcgnn.partition.multilevel import Model, Parts, Search, partition_model
from hpcgnn.partition.slabs import Advance, edge_chunks

# The price of fullness in each pass over the buffers, in units of an average node's edges (1.5 is Fennel's own): of passes that
# start without parts, and of passes after a coarse model of the whole graph has been partitioned.
_PRICES, _PRICES_AFTER_COARSE = (1.5, 0.5), (0.5, 0.25)
_BUFFER_EDGES = 1 << 23
_BUFFER_NODES = 1 << 21
_ROUNDS = 8


def fennel_passes(reader: SlabReader) -> int:
    """The number of times that :func:`fennel` counts each node by ``advance``."""
    return len(_PRICES) if _fits(reader) else COARSE_PASSES + len(_PRICES_AFTER_COARSE)


def fennel(
    reader: SlabReader, balance: Balance, num_parts: int, tolerance: float, seed: int, advance: Advance
) -> np.ndarray:
    """Parts (N,) int32 by buffered streaming with Fennel's objective (Faraj and Schulz 2022), with a second pass to improve them.

    Nodes are read in the order of the file, with some millions of their in-edges at a time. Those in the buffer are partitioned
    together, beside the nodes that are in the parts already. If the buffer is smaller than the graph, the graph's clusters are
    partitioned first (:mod:`hpcgnn.partition.coarse`). Out-edges of a directed graph are known where both ends are in the buffer;
    of its other out-edges, each node only remembers the part to which most of them go. Memory is 16 bytes a node and the buffer
    (about 0.5 GiB). In each part, every quantity of ``balance`` has a capacity of ``tolerance`` times its mean. ``advance``
    counts all nodes :func:`fennel_passes` times.

    Raises:
        HpcgnnError: for 2**31 nodes and more.
    """
    nodes, rng = reader.meta.num_nodes, np.random.default_rng(seed)
    if nodes > np.iinfo(np.int32).max:
        raise HpcgnnError(f"--method fennel counts nodes with 32 bits, and the graph has {nodes:,}: take --method ldg")
    mean = balance.totals / num_parts
    load = np.zeros((num_parts, len(balance.names)), dtype=np.int64)
    filled = Parts(load, mean, np.maximum(tolerance * mean, np.ceil(mean)))
    if _fits(reader):
        parts, prices = np.full(nodes, -1, dtype=np.int32), _PRICES
    else:
        parts, prices = _coarsely(reader, balance, filled, seed, rng, advance), _PRICES_AFTER_COARSE
    votes = np.zeros((nodes if reader.meta.directed else 0, 2), dtype=np.int32)
    neighbours = reader.meta.num_edges / (1 if reader.meta.directed else 2) / max(nodes, 1)
    for price in prices:
        for first, indptr, sources in _buffers(reader):
            model = _model(reader, balance, first, (indptr, sources), (parts, votes))
            mine = parts[first : first + indptr.size - 1]
            partition_model(model, mine, filled, Search(price * neighbours, _ROUNDS), rng)
            del model
            if reader.meta.directed:
                multilevel_loops.vote(first, indptr, sources, parts, votes)
            advance(mine.size)
    return parts


def _fits(reader: SlabReader) -> bool:
    return reader.meta.num_edges <= _BUFFER_EDGES and reader.meta.num_nodes <= _BUFFER_NODES


def _coarsely(
    reader: SlabReader, balance: Balance, filled: Parts, seed: int, rng: np.random.Generator, advance: Advance
) -> np.ndarray:
    """Parts (N,) int32 from a partition of the coarse model, in which all nodes of a cluster are in one part."""
    model, labels = coarse_model(reader, balance, filled.load.shape[0], seed, advance)
    parts = np.full(model.num_nodes, -1, dtype=np.int32)
    edges = model.columns.size / 2 / max(model.num_nodes, 1)
    partition_model(model, parts, filled, Search(_PRICES[0] * edges, _ROUNDS), rng)
    return parts[labels]


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
    indptr = np.concatenate([held[0][0][:1], *(indptr[1:] for indptr, _ in held)]) - held[0][0][0]
    return first, indptr, np.concatenate([sources for _, sources in held])


def _model(
    reader: SlabReader,
    balance: Balance,
    first: int,
    edges: tuple[np.ndarray, np.ndarray],
    known: tuple[np.ndarray, np.ndarray],
) -> Model:
    """The model of a buffer: ``edges`` are the (indptr, sources) of nodes from ``first`` on, ``known`` the (parts, votes) of all
    nodes."""
    symmetric = not reader.meta.directed
    degrees = np.zeros(edges[0].size - 1, dtype=np.int64)
    multilevel_loops.count_model(first, *edges, symmetric, *known, degrees)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    columns, weights = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.int32)
    multilevel_loops.fill_model(first, *edges, symmetric, *known, indptr[:-1].copy(), columns, weights)
    amounts = balance.weights(reader, first, edges[0])
    return Model(indptr, columns, weights, amounts, node_shares(amounts, balance, reader.meta.num_nodes))
