"""Method ``mtkahypar``: mt-KaHyPar (MIT licence, ``pip install mtkahypar``), for few *post* rows, in many times METIS' time.

A node and the destinations of its out-edges form a net of a hypergraph. If a net has pins in c parts, one row is sent to c - 1
of them, so the connectivity that mt-KaHyPar minimises is the number of rows that the ``post`` plan sends. With several ranks a
machine node, it minimises the weights of the trees that connect the parts of a net, in which links between machine nodes cost
more than links within one.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import IO

import numpy as np
import scipy.sparse as sp

from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.kaminpar_file import one_weight
from hpcgnn.partition.kaminpar_process import run_on_file
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.repair import balance_parts, limits_of
from hpcgnn.partition.slabs import Advance, edge_chunks
from hpcgnn.partition.streaming import assign_blocks

_RUN = Path(__file__).with_name("mtkahypar_run.py")
# More parts take minutes even for a small graph, because the trees of all small sets of parts are computed first.
MOST_MAPPED_PARTS = 32
_ROOM_FOR_MOVES = 0.02
_NETS_AT_A_TIME = 1 << 14


def installed() -> bool:
    """Return whether mt-KaHyPar could be imported, without importing it."""
    return importlib.util.find_spec("mtkahypar") is not None


def maps(options: PartitionOptions) -> bool:
    """Return whether mt-KaHyPar itself groups the parts by machine node."""
    return 1 < options.ranks_per_node < options.num_parts <= MOST_MAPPED_PARTS


def assign(
    reader: SlabReader,
    balance: Balance,
    options: PartitionOptions,
    tolerance: float,
    folder: Path | None,
    advance: Advance,
) -> np.ndarray:
    """Parts (N,) int32 of all nodes. Each quantity of ``balance`` is at most ``tolerance`` times its mean, if such parts are
    found.

    The same seed gives the same parts, except where :func:`maps` is true and there are several threads. Memory is 8 bytes an
    edge, and then several times that in a process of its own. ``advance`` counts all nodes twice.
    """
    nodes, mapped = reader.meta.num_nodes, maps(options)
    outgoing = _outgoing(reader, advance)
    if not outgoing.nnz:  # mt-KaHyPar ends the process for a hypergraph without nets
        return assign_blocks(0, nodes, nodes, options.num_parts)
    weights = balance.weights(reader, 0, reader.indptr(0, nodes))
    loose = tolerance - (_ROOM_FOR_MOVES if len(balance.names) > 1 else 0)
    with tempfile.TemporaryFile(dir=folder) as file:
        _write_hypergraph(file, outgoing, one_weight(balance, weights, nodes), advance)
        parts = run_on_file(
            "mt-KaHyPar", _RUN, file, folder, nodes,
            "DEFAULT" if mapped else "DETERMINISTIC", options.num_parts, loose, options.seed % (1 << 31),
            options.processes, options.ranks_per_node if mapped else 1,
        )  # fmt: skip
    symmetric = (outgoing + outgoing.T).tocsr()
    limits = limits_of(balance.totals, options.num_parts, tolerance)
    balance_parts(lambda: [(0, symmetric.indptr, symmetric.indices)], parts, weights, limits, options.num_parts)
    return parts


def _outgoing(reader: SlabReader, advance: Advance) -> sp.csr_matrix:
    """(N, N) bool matrix with a row for the out-edges of each node, without self-loops and duplicates."""
    nodes = reader.meta.num_nodes
    incoming = []
    for chunk in edge_chunks(reader, 0, nodes):
        incoming.append(chunk.sources.astype(np.int32 if nodes < 1 << 31 else np.int64))
        advance(chunk.last - chunk.first)
    sources = np.concatenate([np.zeros(0, dtype=np.int32), *incoming])
    matrix = sp.csr_matrix((np.ones(sources.size, np.int8), sources, reader.indptr(0, nodes)), shape=(nodes, nodes))
    matrix = matrix.astype(bool).T.tocsr()
    matrix.sum_duplicates()
    matrix.setdiag(False)
    matrix.eliminate_zeros()
    return matrix


def _write_hypergraph(file: IO[bytes], outgoing: sp.csr_matrix, weights: np.ndarray, advance: Advance) -> None:
    """Write hMETIS' text format: a line for each net, with nodes numbered from 1, then a line with the weight of each node."""
    indptr, indices, nodes = outgoing.indptr, outgoing.indices, outgoing.shape[0]
    file.write(b"%d %d 10\n" % (np.count_nonzero(np.diff(indptr)), nodes))
    for first in range(0, nodes, _NETS_AT_A_TIME):
        last = min(first + _NETS_AT_A_TIME, nodes)
        pins = (indices[indptr[first] : indptr[last]] + 1).tolist()
        ends = (indptr[first : last + 1] - indptr[first]).tolist()
        for net in range(last - first):
            if ends[net + 1] > ends[net]:
                file.write(" ".join(map(str, [first + net + 1, *pins[ends[net] : ends[net + 1]]])).encode() + b"\n")
        advance(last - first)
    for first in range(0, nodes, _NETS_AT_A_TIME):
        lines = "\n".join(map(str, weights[first : first + _NETS_AT_A_TIME].tolist()))
        file.write(lines.encode() + b"\n")
    file.flush()
