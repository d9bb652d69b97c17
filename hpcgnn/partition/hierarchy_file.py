"""Partitioning on two levels, for nodes and then for their ranks: the graph in a file is divided into groups, and each group,
in a file of its own, into parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcgnn.partition.kaminpar_file import SymmetricFile

# Each group has an open file.
MOST_GROUPS = 256


def divide_twice(
    graph: SymmetricFile,
    weights: np.ndarray,
    num_parts: int,
    size: int,
    divide: Callable[[SymmetricFile, int], np.ndarray],
) -> np.ndarray:
    """Parts (N,) int32: ``divide(graph, P / size)`` makes groups, and then the edges inside each group are divided into ``size``
    parts.

    Parts ``k * size`` to ``(k + 1) * size - 1`` are group k. weights: (N,) int64 weight of each node.
    """
    groups = divide(graph, num_parts // size)
    order = np.argsort(groups, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(groups, minlength=num_parts // size))))
    parts = groups * np.int32(size)
    files = _induced(graph, weights, groups, order, bounds)
    try:
        for file, first, last in zip(files, bounds[:-1], bounds[1:], strict=True):
            members = order[first:last]
            few = file.num_nodes < 2 * size
            parts[members] += np.arange(members.size, dtype=np.int32) % size if few else divide(file, size)
            file.close()
    finally:
        for file in files:
            file.close()
    return parts


def _induced(
    graph: SymmetricFile, weights: np.ndarray, groups: np.ndarray, order: np.ndarray, bounds: np.ndarray
) -> list[SymmetricFile]:
    """The graph inside each group. Node k of group g is node ``order[bounds[g] + k]``, so that nodes keep their order."""
    local = np.empty(groups.size, dtype=graph.dtype)
    local[order] = np.arange(groups.size) - np.repeat(bounds[:-1], np.diff(bounds))
    degrees = np.zeros(groups.size, dtype=np.int64)
    files = [SymmetricFile(int(count), graph.folder) for count in np.diff(bounds)]
    for first, indptr, neighbours in graph.rows():
        here = groups[first : first + indptr.size - 1]
        owners = np.repeat(here, np.diff(indptr))
        inside = owners == groups[neighbours]
        totals = np.concatenate(([0], np.cumsum(inside)))
        degrees[first : first + here.size] = totals[indptr[1:]] - totals[indptr[:-1]]
        owners, columns = owners[inside], local[neighbours[inside]]
        columns = columns[np.argsort(owners, kind="stable")]
        ends = np.cumsum(np.bincount(owners, minlength=len(files))).tolist()
        for file, begin, end in zip(files, [0, *ends[:-1]], ends, strict=True):
            file.append(columns[begin:end])
    for file, first, last in zip(files, bounds[:-1], bounds[1:], strict=True):
        members = order[first:last]
        file.finish(degrees[members])
        file.write_weights(0, weights[members])
    return files
