"""Inner loops of partitioning, compiled by numba. They modify arrays only where the docstring says so."""

from __future__ import annotations

import numpy as np

from hpcgnn.base.compiled import njit

_SHORT_ROW = 32


@njit(cache=True)
def place(rows: np.ndarray, columns: np.ndarray, cursor: np.ndarray, indices: np.ndarray) -> None:
    """Store ``columns[i]`` at ``indices[cursor[rows[i]]]`` for all m entries, and advance that row's cursor each time. Modifies
    ``cursor`` and ``indices``."""
    for i in range(rows.size):
        row = rows[i]
        indices[cursor[row]] = columns[i]
        cursor[row] += 1


@njit(cache=True)
def sort_unique_rows(indptr: np.ndarray, indices: np.ndarray) -> None:
    """Sort each CSR row, remove its duplicates and close the gaps. Modifies both arrays; the result ends at ``indptr[-1]``."""
    written = 0
    begin = indptr[0]
    for row in range(indptr.size - 1):
        end = indptr[row + 1]
        indices[begin:end].sort()
        first_written = written
        for i in range(begin, end):
            if written == first_written or indices[i] != indices[written - 1]:
                indices[written] = indices[i]
                written += 1
        begin = end
        indptr[row + 1] = written


@njit(cache=True, nogil=True)
def sort_rows(indptr: np.ndarray, keys: np.ndarray, order: np.ndarray) -> None:
    """Sort each CSR row by a stable sort: ``keys`` (nnz,) is sorted in place, and ``order`` (nnz,) is permuted with it."""
    for row in range(indptr.size - 1):
        begin, end = indptr[row], indptr[row + 1]
        if end - begin > _SHORT_ROW:
            permutation = np.argsort(keys[begin:end], kind="mergesort")
            keys[begin:end] = keys[begin:end][permutation]
            order[begin:end] = order[begin:end][permutation]
            continue
        for i in range(begin + 1, end):
            key, item, j = keys[i], order[i], i
            while j > begin and keys[j - 1] > key:
                keys[j], order[j] = keys[j - 1], order[j - 1]
                j -= 1
            keys[j], order[j] = key, item


@njit(cache=True, nogil=True)
def sorted_rows(
    indptr: np.ndarray, sources: np.ndarray, order: np.ndarray, gathered: np.ndarray, out: np.ndarray
) -> None:
    """Copy the rows of a CSR matrix in ``order`` to ``out`` (nnz,), each row sorted; row k begins at ``gathered[k]`` there.
    ``indptr`` may start with any number."""
    for k in range(order.size):
        begin, end = indptr[order[k]] - indptr[0], indptr[order[k] + 1] - indptr[0]
        row = out[gathered[k] : gathered[k] + end - begin]
        row[:] = sources[begin:end]
        if end - begin > _SHORT_ROW:
            row.sort()
            continue
        for i in range(1, row.size):
            key, j = row[i], i
            while j > 0 and row[j - 1] > key:
                row[j] = row[j - 1]
                j -= 1
            row[j] = key


@njit(cache=True)
def mark_remote(sources: np.ndarray, first: int, last: int, seen: np.ndarray) -> tuple[int, int]:
    """``(cut edges, sources not seen before)`` among edges into nodes ``[first, last)``. ``seen`` (ceil(N/8),) has a bit for each
    node; the bits of sources outside the range are set."""
    cut = 0
    new = 0
    for source in sources:
        if first <= source < last:
            continue
        cut += 1
        bit = np.uint8(1 << (source & 7))
        if not seen[source >> 3] & bit:
            seen[source >> 3] |= bit
            new += 1
    return cut, new


@njit(cache=True)
def _fullness(load: np.ndarray, part: int, extra: np.ndarray, capacity: np.ndarray) -> float:
    fullest = 0.0
    for c in range(extra.size):
        fullest = max(fullest, (load[part, c] + extra[c]) / capacity[c])
    return fullest


@njit(cache=True)
def stream_greedily(
    first: int,
    indptr: np.ndarray,
    sources: np.ndarray,
    weights: np.ndarray,
    capacity: np.ndarray,
    parts: np.ndarray,
    load: np.ndarray,
    affinity: np.ndarray,
) -> None:
    """Assign the nodes of a chunk, from ``first`` on, by linear deterministic greedy. Modifies ``parts``, ``load``, ``affinity``.

    A node goes to the part with the largest ``(neighbours there) * (1 - fullness)`` above 0, else to the emptiest part. If it has
    a part from an earlier pass, it is first taken out of that. indptr: (n+1,), may start with any number. weights: (n, C) and
    capacity: (C,) of the quantities to balance. parts: (N,) int32, -1 where no part is decided. load: (P, C). affinity: (P,)
    zeros, work space.
    """
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
            fullness = _fullness(load, part, mine, capacity)
            score = affinity[part] * (1.0 - fullness)
            affinity[part] = 0
            if score > best_score or (score == best_score and best >= 0 and part < best):
                best, best_score = part, score
        if best < 0:
            best, least = 0, np.inf
            for part in range(num_parts):
                fullness = _fullness(load, part, mine, capacity)
                if fullness < least:
                    best, least = part, fullness
        parts[node] = best
        load[best] += mine
