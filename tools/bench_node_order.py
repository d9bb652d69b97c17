"""The speed of local aggregation in each node order, forward and transposed. Prints one JSON object on a line for each case.

    python tools/bench_node_order.py rmat:scale=17,degree=28 npz:cnr-2000.npz --parts 8 --width 256

The cases of each graph are: with the file's ids and with random ids, the whole graph and the part with the most inner edges of
a METIS partition. Speedups are relative to the order in the file. The number of threads is torch's (OMP_NUM_THREADS).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pymetis
import scipy.sparse as sp
import torch

from hpcgnn.graph import ORDERS
from hpcgnn.graph.node_order import node_order
from hpcgnn.kernels import Csr, buffers, spmm
from hpcgnn.sources import open_source

_ROUNDS = 7


def read(source: str) -> sp.csr_matrix:
    """(N, N) matrix of ones by destination; parallel edges are merged."""
    opened = open_source(source, Path())
    edges = np.concatenate([np.stack(chunk[:2]) for chunk in opened.edges()], axis=1)
    num_nodes = opened.info.num_nodes or int(edges.max()) + 1
    return sp.csr_matrix((np.ones(edges.shape[1], np.int32), (edges[1], edges[0])), shape=(num_nodes, num_nodes))


def part(matrix: sp.csr_matrix, parts: int) -> sp.csr_matrix:
    """The METIS part with the most inner edges, with its nodes by id as in ``parts.h5``."""
    symmetric = sp.csr_matrix((matrix + matrix.T) > 0)
    symmetric.setdiag(False)
    symmetric.eliminate_zeros()
    adjacency = pymetis.CSRAdjacency(symmetric.indptr, symmetric.indices)
    owners = np.array(pymetis.part_graph(parts, adjacency)[1])
    pieces = (matrix[owners == k][:, owners == k].tocsr() for k in range(parts))
    return max(pieces, key=lambda piece: piece.nnz)


def cases(matrix: sp.csr_matrix, parts: int) -> Iterator[tuple[str, sp.csr_matrix]]:
    """Yield the cases of one graph."""
    shuffle = np.random.default_rng(0).permutation(matrix.shape[0])
    for ids, one in (("given", matrix), ("random", matrix[shuffle][:, shuffle].tocsr())):
        yield f"{ids} ids, whole", one
        yield f"{ids} ids, part of {parts}", part(one, parts)


def measure(matrix: sp.csr_matrix, width: int) -> dict[str, object]:
    """The median milliseconds of each order, measured in turns, and the order that ``auto`` chooses."""
    local = Csr(matrix.indptr, matrix.indices, matrix.shape[1])
    found: dict[str, dict[str, float]] = {}
    products = {"none": (local, local.transpose())}
    for name in ORDERS:
        started = time.perf_counter()
        nodes = node_order(local, name, width).nodes
        found[name] = {"order_seconds": time.perf_counter() - started}
        ordered = local.in_order(nodes, nodes)
        products[name] = (ordered, ordered.transpose())
    x, out = (buffers.empty(local.num_rows, width, torch.float32) for _ in range(2))
    x.fill_(1)
    times = np.empty((1 + _ROUNDS, len(products), 2))
    for turn in range(1 + _ROUNDS):
        for k, pair in enumerate(products.values()):
            for direction, product in enumerate(pair):
                started = time.perf_counter()
                spmm(product, x, out=out, accumulate=False)
                times[turn, k, direction] = time.perf_counter() - started
    medians = 1e3 * np.median(times[1:], axis=0)
    for name, (forward, transposed) in zip(products, medians.tolist(), strict=True):
        found.setdefault(name, {}).update(forward_ms=forward, transposed_ms=transposed)
        found[name]["speedup"] = float(medians[0].sum() / (forward + transposed))
    started = time.perf_counter()
    chosen = node_order(local, "auto", width).method
    return {"orders": found, "auto": chosen, "auto_seconds": time.perf_counter() - started}


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="sources of graphs, as for hpcgnn convert")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    arguments = parser.parse_args()
    for source in arguments.sources:
        for name, matrix in cases(read(source), arguments.parts):
            facts = {"source": source, "case": name, "nodes": matrix.shape[0], "edges": matrix.nnz}
            settings = {"width": arguments.width, "threads": torch.get_num_threads()}
            print(json.dumps(facts | settings | measure(matrix, arguments.width)), flush=True)


if __name__ == "__main__":
    main()
