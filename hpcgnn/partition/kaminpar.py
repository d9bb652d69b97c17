"""Method ``kaminpar``: KaMinPar (MIT licence, ``pip install kaminpar``) takes less memory and time than METIS for the same cut.

It balances one weight a node, here the number of in-edges; :mod:`hpcgnn.partition.repair` then balances each quantity.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from hpcgnn.data.graph_file import SlabReader
from hpcgnn.partition.balance import Balance
from hpcgnn.partition.hierarchy_file import MOST_GROUPS, divide_twice
from hpcgnn.partition.kaminpar_file import SymmetricFile, one_weight, write_symmetric
from hpcgnn.partition.kaminpar_process import run_on_file
from hpcgnn.partition.kaminpar_sample import sampled
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.repair import balance_parts, limits_of, polish
from hpcgnn.partition.slabs import Advance

_RUN = Path(__file__).with_name("kaminpar_run.py")
MANY_PARTS = 1024
# With several threads, each run finds other parts. Up to this number of neighbours, one thread takes seconds only.
REPEATABLE_ENTRIES = 1 << 24
SAMPLED_ENTRIES = 1 << 24
# Up to this number of neighbours, the preset for quality takes seconds only, too.
CAREFUL_ENTRIES = 1 << 22


def installed() -> bool:
    """Return whether KaMinPar could be imported, without importing it."""
    return importlib.util.find_spec("kaminpar") is not None


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

    Temporary files are in ``folder``, or in the system's folder for them if it is None. ``advance`` counts all nodes twice.
    """
    graph = write_symmetric(reader, balance, folder, advance)
    try:
        weights = balance.weights(reader, 0, reader.indptr(0, graph.num_nodes))
        parts = _divide_smaller(graph, one_weight(balance, weights, graph.num_nodes), options, tolerance)
        limits = limits_of(balance.totals, options.num_parts, tolerance)
        balance_parts(graph.rows, parts, weights, limits, options.num_parts)
        polish(graph.rows, parts, weights, limits, options.num_parts)
    finally:
        graph.close()
    return parts


def _divide_smaller(
    graph: SymmetricFile, weights: np.ndarray, options: PartitionOptions, tolerance: float
) -> np.ndarray:
    """Like :func:`_divide`, but of a sample of the edges if there are very many, which needs half of the memory."""
    if graph.num_entries <= SAMPLED_ENTRIES:
        return _divide(graph, weights, options, tolerance)
    fewer = sampled(graph, weights, options.seed)
    try:
        return _divide(fewer, weights, options, tolerance)
    finally:
        fewer.close()


def _divide(graph: SymmetricFile, weights: np.ndarray, options: PartitionOptions, tolerance: float) -> np.ndarray:
    """Parts (N,) int32. With several ranks a machine node, there are two levels, nodes and ranks, which share the tolerance."""
    threads, groups = _threads(graph, options), options.num_parts // options.ranks_per_node

    def divide(part: SymmetricFile, count: int) -> np.ndarray:
        slack = tolerance if count == options.num_parts else np.sqrt(tolerance)
        return run(part, count, tolerance=float(slack), seed=options.seed, threads=threads)

    if options.ranks_per_node > 1 and 1 < groups <= MOST_GROUPS:
        return divide_twice(graph, weights, options.num_parts, options.ranks_per_node, divide)
    return divide(graph, options.num_parts)


def _threads(graph: SymmetricFile, options: PartitionOptions) -> int:
    """The number of threads: 1 for a small graph, so that the same seed always gives the same parts."""
    return options.processes if graph.num_entries > REPEATABLE_ENTRIES else 1


def run(graph: SymmetricFile, num_parts: int, *, tolerance: float, seed: int, threads: int) -> np.ndarray:
    """Parts (N,) int32 by KaMinPar, with one of its presets for little memory, in a process of its own."""
    few = "terapart-eco" if graph.num_entries <= CAREFUL_ENTRIES else "terapart"
    context = "terapart-largek" if num_parts >= MANY_PARTS else few
    arguments = (context, num_parts, tolerance, seed % (1 << 31), threads)
    return run_on_file("KaMinPar", _RUN, graph.file, graph.folder, graph.num_nodes, *arguments)
