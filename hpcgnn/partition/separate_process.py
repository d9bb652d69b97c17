"""Methods ``kaminpar`` and ``mtkahypar``, whose libraries run in a process of their own (:mod:`hpcgnn.partition.library_run`).

KaMinPar (MIT licence, ``pip install kaminpar``) takes less memory and time than METIS for the same cut. mt-KaHyPar (MIT
licence, ``pip install mtkahypar``) finds parts with few *post* rows, in many times METIS' time. A node and the destinations of
its out-edges form a net of a hypergraph. If a net has pins in c parts, one row is sent to c - 1 of them, so the connectivity
that mt-KaHyPar minimises is the number of rows that the ``post`` plan sends. With several ranks a machine node, it minimises
the weights of the trees that connect the parts of a net, in which links between machine nodes cost more than links within one.

Both balance one weight a node (:meth:`Balance.one_of`); :mod:`hpcgnn.partition.repair` then balances each quantity.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import numpy as np
import scipy.sparse as sp

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.problem import TOLERANCE, Advance, Problem, simple_graph
from hpcgnn.partition.repair import balance_parts, excess_of, limits_of, loads_of, polish
from hpcgnn.partition.streaming import assign_blocks
from hpcgnn.partition.symmetric_file import MOST_GROUPS, SymmetricFile, divide_twice, sampled, write_symmetric

_RUN = Path(__file__).with_name("library_run.py")
MANY_PARTS = 1024
# With several threads, each run finds other parts. Up to this number of neighbours, one thread takes seconds only.
REPEATABLE_ENTRIES = 1 << 24
SAMPLED_ENTRIES = 1 << 24
# Up to this number of neighbours, the preset for quality takes seconds only, too.
CAREFUL_ENTRIES = 1 << 22
# More parts take mt-KaHyPar minutes even for a small graph, because the trees of all small sets of parts are computed first.
MOST_MAPPED_PARTS = 32
_ROOM_FOR_MOVES = 0.02
_MORE_CUT = 1.02
_MORE_LOAD = 0.02  # of a part's limit
_NETS_AT_A_TIME = 1 << 14


def installed(name: str) -> bool:
    """Return whether a library could be imported, without importing it."""
    return importlib.util.find_spec(name) is not None


def kaminpar(problem: Problem) -> np.ndarray:
    """Parts (N,) int32 of all nodes. Each quantity is at most the tolerance times its mean, if such parts are found; where
    ``auto`` is asked for, also the number of nodes, if this costs few cut edges and 2 % of the other quantities at most.
    ``problem.advance`` counts all nodes twice."""
    options, balance = problem.options, problem.balance
    with contextlib.closing(write_symmetric(problem)) as graph:
        weights = problem.all_weights()
        one, large = balance.one_of(weights, graph.num_nodes), graph.num_entries > SAMPLED_ENTRIES
        # With a sample of the edges, the library takes half of the memory.
        with contextlib.closing(sampled(graph, one, options.seed)) if large else contextlib.nullcontext(graph) as fewer:
            parts = _divide(fewer, one, options)
        limits = limits_of(balance.totals, options.num_parts, TOLERANCE)
        balance_parts(graph.rows, parts, weights, limits, options.num_parts)
        polish(graph.rows, parts, weights, limits, options.num_parts)
        evens = "auto" in options.balance and "nodes" not in balance.names
        return _evened(graph, parts, weights, limits, options) if evens else parts


def _evened(
    graph: SymmetricFile, parts: np.ndarray, weights: np.ndarray, limits: np.ndarray, options: PartitionOptions
) -> np.ndarray:
    """Parts with equal numbers of nodes, for which products with weights take equal times, if at most ``_MORE_CUT`` times as many
    edges lie between them, and each asked quantity exceeds its limit by 2 % of it at most, but in parts that exceeded it before;
    else ``parts``. weights: (N, C). limits: (C,) of a part."""
    count, even, asked = options.num_parts, parts.copy(), weights
    weights = np.column_stack((weights, np.ones(graph.num_nodes, np.int64)))
    limits = np.append(limits, limits_of(np.array([graph.num_nodes]), count, TOLERANCE))
    if excess_of(loads_of(parts, weights[:, -1:], count), limits[-1:]) == 0:
        return parts
    balance_parts(graph.rows, even, weights, limits, count)
    polish(graph.rows, even, weights, limits, count)
    before, after = (np.sort(loads_of(each, asked, count), axis=0) for each in (parts, even))
    is_balanced = (after <= np.maximum(before, limits[:-1]) + _MORE_LOAD * limits[:-1]).all()
    return even if is_balanced and _cut(graph, even) <= _MORE_CUT * _cut(graph, parts) else parts


def _cut(graph: SymmetricFile, parts: np.ndarray) -> int:
    """Number of edges between parts, in both directions."""
    return sum(
        int(np.count_nonzero(np.repeat(parts[first : first + indptr.size - 1], np.diff(indptr)) != parts[neighbours]))
        for first, indptr, neighbours in graph.rows()
    )


def _divide(graph: SymmetricFile, weights: np.ndarray, options: PartitionOptions) -> np.ndarray:
    """Parts (N,) int32. With several ranks a machine node, there are two levels, nodes and ranks, which share the tolerance."""
    # With one thread, as for a small graph, the same seed always gives the same parts.
    threads = options.processes if graph.num_entries > REPEATABLE_ENTRIES else 1
    groups = options.num_parts // options.ranks_per_node

    def divide(part: SymmetricFile, count: int) -> np.ndarray:
        slack = TOLERANCE if count == options.num_parts else np.sqrt(TOLERANCE)
        return run(part, count, tolerance=float(slack), seed=options.seed, threads=threads)

    if options.ranks_per_node > 1 and 1 < groups <= MOST_GROUPS:
        return divide_twice(graph, weights, options.num_parts, options.ranks_per_node, divide)
    return divide(graph, options.num_parts)


def run(graph: SymmetricFile, num_parts: int, *, tolerance: float, seed: int, threads: int) -> np.ndarray:
    """Parts (N,) int32 by KaMinPar, with one of its presets for little memory, in a process of its own."""
    few = "terapart-eco" if graph.num_entries <= CAREFUL_ENTRIES else "terapart"
    context = "terapart-largek" if num_parts >= MANY_PARTS else few
    arguments = (context, num_parts, tolerance, seed % (1 << 31), threads)
    return run_on_file("KaMinPar", [_RUN, "kaminpar"], graph.file, graph.folder, graph.num_nodes, *arguments)


def maps(options: PartitionOptions) -> bool:
    """Return whether mt-KaHyPar itself groups the parts by machine node."""
    return 1 < options.ranks_per_node < options.num_parts <= MOST_MAPPED_PARTS


def mtkahypar(problem: Problem) -> np.ndarray:
    """Like :func:`kaminpar`, by mt-KaHyPar, but numbers of nodes count only where they are asked for. The same seed gives the
    same parts, except where :func:`maps` is true and there are several threads. Memory is 8 bytes an edge, and then several
    times that in a process of its own."""
    options, balance = problem.options, problem.balance
    nodes, mapped = problem.reader.meta.num_nodes, maps(options)
    outgoing = simple_graph(*problem.all_edges()).T.tocsr()
    if not outgoing.nnz:  # mt-KaHyPar ends the process for a hypergraph without nets
        return assign_blocks(0, nodes, nodes, options.num_parts)
    weights = problem.all_weights()
    loose = TOLERANCE - (_ROOM_FOR_MOVES if len(balance.names) > 1 else 0)
    with tempfile.TemporaryFile(dir=problem.folder) as file:
        _write_hypergraph(file, outgoing, balance.one_of(weights, nodes), problem.advance)
        parts = run_on_file(
            "mt-KaHyPar", [_RUN, "mtkahypar"], file, problem.folder, nodes,
            "DEFAULT" if mapped else "DETERMINISTIC", options.num_parts, loose, options.seed % (1 << 31),
            options.processes, options.ranks_per_node if mapped else 1,
        )  # fmt: skip
    symmetric = (outgoing + outgoing.T).tocsr()
    limits = limits_of(balance.totals, options.num_parts, TOLERANCE)
    balance_parts(lambda: [(0, symmetric.indptr, symmetric.indices)], parts, weights, limits, options.num_parts)
    return parts


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


def run_on_file(
    name: str, script: list[object], graph: IO[bytes], folder: Path | None, num_nodes: int, *arguments: object
) -> np.ndarray:
    """Parts (N,) int32 that ``script GRAPH PARTS ARGUMENTS`` writes for the N nodes of the file ``graph``. The script, a
    path and perhaps first arguments, runs in a new process, not a fork of this one. Its parts go through a file in
    ``folder``. Raises :class:`HpcgnnError`, which has ``name``, if it fails."""
    with tempfile.TemporaryFile(dir=folder) as out:
        inherited = (graph.fileno(), out.fileno())
        # With -P, Python does not import from the script's folder, whose modules have the names of the libraries that they use.
        words = [*script, *(f"/dev/fd/{number}" for number in inherited), *arguments]
        command = [sys.executable, "-P", *map(str, words)]
        ended = subprocess.run(command, pass_fds=inherited, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise HpcgnnError(f"{name} failed ({_reason(ended)}): try --method metis or fennel")
        out.seek(0)
        parts = np.fromfile(out, dtype=np.int32)
    if parts.size != num_nodes:
        raise HpcgnnError(f"{name} gave parts for {parts.size:,} of {num_nodes:,} nodes: try --method metis or fennel")
    return parts


def _reason(ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode < 0:
        hint = ": is there too little memory?" if ended.returncode == -signal.SIGKILL else ""
        return f"signal {-ended.returncode} ended it{hint}"
    lines = ended.stderr.strip().splitlines()
    return lines[-1] if lines else f"status {ended.returncode}"
