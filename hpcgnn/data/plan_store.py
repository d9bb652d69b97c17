"""Plans inside ``parts.h5``: made part by part in bounded memory, read slab by slab.

    /plan/STRATEGY/          attributes: plan_version, parts_uuid
        M_indptr, M_indices, M_edges      for M in L, S, R: the CSR slabs of all parts, one after another
        M_offsets (P+1, 2) int64          where each part's slab begins in M_indptr and in M_indices / M_edges
        D_offsets (P+1) int64, D_peers, D_post, D_pre (pairs) int64      for D in send, recv: the sparse table of pairs

        checksums (arrays, P) uint64      see :mod:`hpcgnn.data.checksums`

``indptr`` slabs start at 0. Columns are local: owned nodes for L and S, received rows for R.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from hpcgnn import whole_file
from hpcgnn.data import checksums, h5
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.data.schema import PAIR_ARRAYS
from hpcgnn.data.spool import Spool
from hpcgnn.data.stored_plan import PLAN_VERSION, StoredPlan, plan_attributes
from hpcgnn.plan import STRATEGIES, AggregationPlan, PeerRows, SendRows, SparseMatrix, plan_receiver, sender_matrix

_INDEX_DTYPES = {"indptr": np.int64, "indices": np.int32, "edges": np.int64}


def is_stored(parts: PartsFile, strategy: str) -> bool:
    """Whether a plan for ``strategy`` is in the file and belongs to this version of plans and of the partition."""
    group = h5.child(parts.file, f"plan/{strategy}")
    if group is None:
        return False
    return plan_attributes(group) == {"plan_version": PLAN_VERSION, "parts_uuid": parts.uuid}


def read_plan(parts: PartsFile, strategy: str, part: int) -> AggregationPlan[SparseMatrix]:
    """The stored plan of one part."""
    return StoredPlan(parts, strategy).part(part)


def read_all_pairs(parts: PartsFile, strategy: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``(sender, receiver, post, pre)`` of every pair that exchanges rows, each (pairs,) int64; for reports."""
    return StoredPlan(parts, strategy).pairs()


def store_plans(
    path: str | Path, strategies: list[str], advance: Callable[[int], object] = lambda _: None
) -> list[str]:
    """Make the plans of ``strategies`` that are missing or stale, one part at a time, and add them to ``path``.

    The file is copied beside itself, extended and renamed, so that it is whole at any moment. Memory is O(edges of the
    largest part); the rest is spooled to unnamed temporary files. ``advance`` is called once per part.
    Returns the strategies that were made.
    """
    with PartsFile(path) as parts:
        missing = [strategy for strategy in strategies if not is_stored(parts, strategy)]
    if not missing:
        return []
    with whole_file.replacing(path) as temporary:
        shutil.copyfile(path, temporary)
        add_plans(temporary, missing, advance)
    return missing


def add_plans(path: Path, strategies: list[str], advance: Callable[[int], object] = lambda _: None) -> None:
    """As :func:`store_plans`, but changing ``path`` itself: for a file that has no final name yet."""
    with PartsFile(path, "r+") as parts:
        for strategy in strategies:
            _write(parts, strategy, _make(parts, strategy, path.parent, advance))


def _make(parts: PartsFile, strategy: str, folder: Path, advance: Callable[[int], object]) -> dict[str, Spool]:
    """Plan every receiver, then every sender; everything but the table of pairs goes to spools."""
    spools = {f"{m}_{a}": Spool(folder, kind) for m in "LSR" for a, kind in _INDEX_DTYPES.items()}
    wanted = {name: Spool(folder, kind) for name, kind in _WANTED_DTYPES.items()}
    received: list[PeerRows] = []
    starts = []  # per receiver: where its wanted rows, and their entries, begin in the spools of `wanted`
    for part in range(parts.num_parts):
        first, last = parts.part(part)
        plan = plan_receiver(*parts.edges(first, last, part), parts.node_offsets, part, strategy)
        _append(spools, "L", plan.local)
        _append(spools, "R", plan.receive)
        received.append(plan.receive_from)
        starts.append(_segments(plan.receive_from, plan.wanted, wanted))
        for name in _WANTED_DTYPES:
            wanted[name].append(getattr(plan.wanted, name))
        advance(1)
    senders = _pairs_by_sender(received, starts, parts.num_parts)
    for part, pieces in enumerate(senders):
        rows = _gather(wanted, [bounds for _, bounds, _ in pieces])
        first, last = parts.part(part)
        _append(spools, "S", sender_matrix(rows, last - first))
    sent = [_send_rows(pieces) for pieces in senders]
    spools |= _pair_spools(folder, "recv", received) | _pair_spools(folder, "send", sent)
    for matrix, lengths in (("L", _part_sizes(parts)), ("R", _part_sizes(parts)), ("S", [peer.total for peer in sent])):
        spools[f"{matrix}_offsets"] = _slab_offsets(folder, spools, matrix, lengths)
    return spools


_WANTED_DTYPES = {"lengths": np.int64, "sources": np.int32, "edges": np.int64}
_Bounds = tuple[int, int, int, int]  # first and last row, first and last entry, in the spools of wanted rows
_Piece = tuple[int, _Bounds, tuple[int, int]]  # receiver, where its rows are, (post, pre)


def _append(spools: dict[str, Spool], matrix: str, value: SparseMatrix) -> None:
    for name in _INDEX_DTYPES:
        spools[f"{matrix}_{name}"].append(getattr(value, name))


def _segments(peers: PeerRows, rows: SendRows, wanted: dict[str, Spool]) -> list[_Bounds]:
    """For each sender of one receiver, where its rows will stand once they are appended to ``wanted``."""
    row_ends = np.concatenate(([0], np.cumsum(peers.rows)))
    entry_ends = np.concatenate(([0], np.cumsum(rows.lengths)))[row_ends]
    row_ends, entry_ends = row_ends + wanted["lengths"].size, entry_ends + wanted["sources"].size
    return [
        (int(row_ends[k]), int(row_ends[k + 1]), int(entry_ends[k]), int(entry_ends[k + 1]))
        for k in range(peers.peers.size)
    ]


def _pairs_by_sender(received: list[PeerRows], starts: list[list[_Bounds]], num_parts: int) -> list[list[_Piece]]:
    senders: list[list[_Piece]] = [[] for _ in range(num_parts)]
    for receiver, (peers, bounds) in enumerate(zip(received, starts, strict=True)):
        for sender, bound, post, pre in zip(peers.peers, bounds, peers.post, peers.pre, strict=True):
            senders[sender].append((receiver, bound, (int(post), int(pre))))
    return senders


def _gather(wanted: dict[str, Spool], bounds: list[_Bounds]) -> SendRows:
    rows = [wanted["lengths"].read(first, last) for first, last, _, _ in bounds]
    sources = [wanted["sources"].read(first, last) for _, _, first, last in bounds]
    edges = [wanted["edges"].read(first, last) for _, _, first, last in bounds]
    return SendRows(_concatenate(rows, np.int64), _concatenate(sources, np.int32), _concatenate(edges, np.int64))


def _send_rows(pieces: list[_Piece]) -> PeerRows:
    table = np.array([(receiver, *counts) for receiver, _, counts in pieces], dtype=np.int64).reshape(-1, 3)
    return PeerRows(table[:, 0], table[:, 1], table[:, 2])


def _concatenate(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)


def _part_sizes(parts: PartsFile) -> list[int]:
    return np.diff(parts.node_offsets).tolist()


def _slab_offsets(folder: Path, spools: dict[str, Spool], matrix: str, row_counts: list[int]) -> Spool:
    """(P + 1, 2) offsets of the slabs; the entries of a slab are the last value of its indptr."""
    indptr_offsets = np.concatenate(([0], np.cumsum(np.asarray(row_counts, dtype=np.int64) + 1)))
    entries = [int(spools[f"{matrix}_indptr"].read(end - 1, end)[0]) for end in indptr_offsets[1:]]
    spool = Spool(folder, np.int64)
    spool.append(np.stack((indptr_offsets, np.concatenate(([0], np.cumsum(entries)))), axis=1))
    return spool


def _pair_spools(folder: Path, direction: str, tables: list[PeerRows]) -> dict[str, Spool]:
    spools = {name: Spool(folder, np.int64) for name in ("offsets", *PAIR_ARRAYS)}
    spools["offsets"].append(np.concatenate(([0], np.cumsum([table.peers.size for table in tables]))))
    for table in tables:
        for name in PAIR_ARRAYS:
            spools[name].append(getattr(table, name))
    return {f"{direction}_{name}": spool for name, spool in spools.items()}


def _write(parts: PartsFile, strategy: str, spools: dict[str, Spool]) -> None:
    with h5.writing(parts.path, f"plan/{strategy}"):
        plans = parts.file.require_group("plan")
        if strategy in plans:
            del plans[strategy]
        group = plans.create_group(strategy)
        group.attrs.update({"plan_version": PLAN_VERSION, "parts_uuid": parts.uuid})
        h5.add_datasets(group, {name: (_shape(name, spool), spool.dtype) for name, spool in spools.items()})
        for name, spool in spools.items():
            _copy(spool, group[name])
            spool.close()
    _seal(parts, strategy)


def seal_plans(parts: PartsFile) -> None:
    """Make the checksums of all plans in a file that is open for writing, from what is in them now."""
    for strategy in STRATEGIES:
        if is_stored(parts, strategy):
            _seal(parts, strategy)


def _seal(parts: PartsFile, strategy: str) -> None:
    """Read back what was written, which is in memory still: a plan takes as long to look at as to load."""
    parts.file.flush()
    plan = StoredPlan(parts, strategy, sealed=False)
    table = {name: np.zeros(parts.num_parts, np.uint64) for name in plan.arrays}
    for name, of_parts in table.items():
        if name in plan.offsets:
            of_parts[0] = checksums.of_arrays([plan.offsets[name]])
            continue
        for part in range(parts.num_parts):
            of_parts[part] = checksums.of_pieces(plan.arrays[name].pieces(*plan.slab_rows(name, part)))
    with h5.writing(parts.path, f"checksums of plan/{strategy}"):
        group = parts.file[f"plan/{strategy}"]
        checksums.store(group, table, plan_attributes(group))


def _copy(spool: Spool, dataset: h5py.Dataset) -> None:
    if dataset.ndim == 2:  # the (P + 1, 2) offsets, which are small
        dataset[:] = spool.read(0, spool.size).reshape(dataset.shape)
        return
    for first, piece in spool.pieces():
        dataset[first : first + piece.size] = piece


def _shape(name: str, spool: Spool) -> tuple[int, ...]:
    return (spool.size // 2, 2) if name in ("L_offsets", "S_offsets", "R_offsets") else (spool.size,)
