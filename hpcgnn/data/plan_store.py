"""Plans inside ``parts.h5``, which are made part by part in bounded memory, and read slab by slab.

    /plan/STRATEGY/          attributes: plan_version, parts_uuid, edges_digest
        M_indptr, M_indices, M_edges      for M in L, S, R: the CSR slabs of all parts, one after another
        M_offsets (P+1, 2) int64          first element of each part's slab in M_indptr, and in M_indices and M_edges
        D_offsets (P+1) int64, D_peers, D_post, D_pre (pairs) int64      for D in send, recv: the sparse table of pairs

        checksums (arrays, P) uint64      see :mod:`hpcgnn.data.checksums`

``indptr`` slabs start at 0. Columns are local: owned nodes for L and S, received rows for R.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.base import whole_file
from hpcgnn.base.byte_sink import LocalFile
from hpcgnn.data import checksums, h5, plan_pieces
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_pieces import Piece, make_pieces, path_of
from hpcgnn.data.schema import PAIR_ARRAYS, plan_offset_rules, plan_rules
from hpcgnn.data.stored_plan import StoredPlan, plan_attributes, wanted_attributes
from hpcgnn.plan import STRATEGIES
from hpcgnn.plan.plan import PairRows, offsets_of, ranges


def is_stored(parts: PartsFile, strategy: str) -> bool:
    """Return whether the file has a plan for ``strategy``, of the current version of plans, made for these parts and edges."""
    group = h5.child(parts.file, f"plan/{strategy}")
    if group is None:
        return False
    found, wanted = plan_attributes(group), wanted_attributes(parts)
    return all(found[name] == wanted[name] for name in found.keys() & wanted.keys())


def stored_strategies(parts: PartsFile) -> list[str]:
    """The strategies whose plans are stored and current, in the order of ``STRATEGIES``."""
    return [strategy for strategy in STRATEGIES if is_stored(parts, strategy)]


def read_all_pairs(parts: PartsFile, strategy: str) -> PairRows:
    """The rows of all pairs that exchange any, for reports."""
    return StoredPlan(parts, strategy).pairs()


def store_plans(
    path: str | Path, strategies: list[str], advance: Callable[[int], object] = lambda _: None, *, jobs: int = 1
) -> list[str]:
    """Make the plans of ``strategies`` that are missing or of an older version, and add them to ``path``. Not collective.
    Returns the strategies whose plans were made. ``jobs`` processes plan part by part, each in O(edges of the largest part)
    memory; ``advance`` is called once per part. A copy of the file is extended and renamed, so that ``path`` is complete at
    any moment."""
    whole_file.remove_left(Path(path).parent)
    with PartsFile(path) as parts:
        num_parts, missing = parts.num_parts, [name for name in strategies if not is_stored(parts, name)]
    if not missing:
        return []
    with whole_file.replacing(path) as temporary, whole_file.temporary_folder(path) as folder:
        shutil.copyfile(path, temporary)
        for strategy in missing:
            make_pieces(temporary, strategy, folder, range(num_parts), jobs, advance)
            add_plan(temporary, strategy, folder)
            plan_pieces.remove(folder, strategy)
    return missing


def add_plan(path: Path, strategy: str, folder: Path) -> None:
    """Add the plan whose pieces are in ``folder`` to ``path``, a file that does not have its final name yet."""
    with PartsFile(path, "r+") as parts:
        assemble(parts, strategy, folder)
        _seal(parts, strategy)


def seal_plans(parts: PartsFile) -> None:
    """Write the checksums of the present contents of all plans in a file that is open for writing."""
    for strategy in stored_strategies(parts):
        _seal(parts, strategy)


def _seal(parts: PartsFile, strategy: str) -> None:
    """Read the plan back, from the system's cache, and write its checksums."""
    with h5.writing(parts.path, f"plan/{strategy}"):
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


_GROUP_ENTRIES = 1 << 21
_PAIRS_AT_ONCE = 1 << 20
_MATRIX_ARRAYS = ("L_indptr", "L_indices", "R_indptr", "R_indices")


@dataclass(frozen=True)
class _Pairs:
    """All pairs of ranks that exchange rows, sorted by receiver, then sender. begins: (P+1,) int64 first pair of each
    receiver. peers: (pairs,) int32 sender. post, pre, entries: (pairs,) int32 rows of each kind, and entries in them.
    by_sender: (pairs,) int64 the pairs sorted by sender, then receiver. sent: (P+1,) int64 place there of each sender's
    first pair."""

    begins: np.ndarray
    peers: np.ndarray
    post: np.ndarray
    pre: np.ndarray
    entries: np.ndarray
    by_sender: np.ndarray
    sent: np.ndarray

    def receivers(self, pairs: np.ndarray) -> np.ndarray:
        """The receiver of each of ``pairs``, int64."""
        return np.searchsorted(self.begins, pairs, side="right") - 1

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(P,) int64: the sum of ``values`` (pairs,) over each sender's pairs. Sums are float64 inside, and exact below
        2**53."""
        return np.bincount(self.peers, weights=values, minlength=self.begins.size - 1).astype(np.int64)


@dataclass(frozen=True)
class _Pieces:
    """The pieces of a plan for ``strategy`` in ``folder``, one for each part."""

    folder: Path
    uuid: str
    strategy: str
    num_parts: int

    def open(self, part: int) -> Piece:
        return Piece.open(path_of(self.folder, self.strategy, part), self.uuid, self.strategy)

    def pairs(self) -> tuple[_Pairs, np.ndarray]:
        """The pairs, and the lengths (P, 4) int64 of L_indptr, L_indices, R_indptr, R_indices."""
        lengths = np.zeros((self.num_parts, 5), dtype=np.int64)
        for part in range(self.num_parts):
            with self.open(part) as piece:
                lengths[part] = [piece.lengths[name] for name in (*_MATRIX_ARRAYS, "peers")]
        begins = offsets_of(lengths[:, 4])
        tables = {name: np.empty(begins[-1], dtype=np.int32) for name in (*PAIR_ARRAYS, "entries")}
        for part in range(self.num_parts):
            with self.open(part) as piece:
                for name, values in tables.items():
                    values[begins[part] : begins[part + 1]] = piece.read(name)
        sent = offsets_of(np.bincount(tables["peers"], minlength=self.num_parts))
        return _Pairs(begins, **tables, by_sender=np.argsort(tables["peers"], kind="stable"), sent=sent), lengths


def assemble(parts: PartsFile, strategy: str, folder: Path) -> None:
    """Add ``plan/strategy`` from the pieces in ``folder`` to a parts file that is open for writing, without checksums.

    The rows of S go from the pieces of their receivers to their senders. Tables are never O(parts squared): they have an entry
    for each pair that exchanges rows, 24 bytes a pair and about as much again while they are sorted. The rows of many senders
    are read at once, so that each piece is opened once for every ``_GROUP_ENTRIES`` entries of S. Beside the tables, one part's
    plan, one part's rows of S, or ``_GROUP_ENTRIES`` entries of S are in memory.
    """
    pieces = _Pieces(folder, parts.uuid, strategy, parts.num_parts)
    pairs, lengths = pieces.pairs()
    small = _offsets(pairs, lengths)
    with h5.writing(parts.path, f"plan/{strategy}"):
        plans = parts.file.require_group("plan")
        if strategy in plans:
            del plans[strategy]
        group = plans.create_group(strategy)
        group.attrs.update(wanted_attributes(parts))
        rules = plan_offset_rules(parts.num_parts) | plan_rules(small)
        schema = {name: (rule.shape, rule.dtype) for name, rule in rules.items()}
        places = h5.add_datasets(group, schema)
        parts.file.flush()
    with LocalFile(parts.path) as sink:
        writer = h5.SlabWriter(sink, places, schema)
        for name, values in small.items():
            writer.write(name, 0, values)
        _write_tables(pairs, writer)
        _write_receivers(pieces, small, writer)
        _write_senders(pieces, pairs, small, writer)


def _write_tables(pairs: _Pairs, writer: h5.SlabWriter) -> None:
    for first in range(0, pairs.peers.size, _PAIRS_AT_ONCE):
        some = slice(first, first + _PAIRS_AT_ONCE)
        for name in PAIR_ARRAYS:
            writer.write(f"recv_{name}", first, getattr(pairs, name)[some].astype(np.int64))
        sent = pairs.by_sender[some]
        writer.write("send_peers", first, pairs.receivers(sent))
        for name in ("post", "pre"):
            writer.write(f"send_{name}", first, getattr(pairs, name)[sent].astype(np.int64))


def _offsets(pairs: _Pairs, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The small arrays with the places at which each part's slabs begin."""
    sent_rows = pairs.sums(pairs.post) + pairs.sums(pairs.pre)
    return {
        "L_offsets": np.stack((offsets_of(lengths[:, 0]), offsets_of(lengths[:, 1])), axis=1),
        "R_offsets": np.stack((offsets_of(lengths[:, 2]), offsets_of(lengths[:, 3])), axis=1),
        "S_offsets": np.stack((offsets_of(sent_rows + 1), offsets_of(pairs.sums(pairs.entries))), axis=1),
        "recv_offsets": pairs.begins,
        "send_offsets": pairs.sent,
    }


def _write_receivers(pieces: _Pieces, offsets: dict[str, np.ndarray], writer: h5.SlabWriter) -> None:
    for part in range(pieces.num_parts):
        with pieces.open(part) as piece:
            for matrix in "LR":
                row, entry = offsets[f"{matrix}_offsets"][part].tolist()
                writer.write(f"{matrix}_indptr", row, piece.read(f"{matrix}_indptr"))
                for name in (f"{matrix}_indices", f"{matrix}_edges"):
                    writer.write(name, entry, piece.read(name))


def _write_senders(pieces: _Pieces, pairs: _Pairs, offsets: dict[str, np.ndarray], writer: h5.SlabWriter) -> None:
    given = np.zeros((2, pieces.num_parts), dtype=np.int64)
    for first, last in _groups(np.diff(offsets["S_offsets"][:, 1])):
        sender, lengths, sources, edges = _rows_of(pieces, pairs, first, last, given)
        row, entry = offsets["S_offsets"][first].tolist()
        writer.write("S_indptr", row, _indptrs(sender, lengths, first, last))
        writer.write("S_indices", entry, sources)
        writer.write("S_edges", entry, edges)


def _groups(entries: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of senders that have about ``_GROUP_ENTRIES`` entries of S together, from the ``entries`` (P,) of each."""
    ends, first = offsets_of(entries), 0
    while first < entries.size:
        last = int(np.searchsorted(ends, ends[first] + _GROUP_ENTRIES, side="right")) - 1
        last = min(max(last, first + 1), entries.size)
        yield first, last
        first = last


def _rows_of(pieces: _Pieces, pairs: _Pairs, first: int, last: int, given: np.ndarray) -> tuple[np.ndarray, ...]:
    """The rows that senders ``[first, last)`` send: each row's sender and length, and the sources and edges of its entries.
    In each receiver's piece they follow those that earlier senders have taken: ``given`` (2, P), modified, has the numbers
    of these rows, and of entries in them. Memory and time are O(pairs and rows of these senders + P)."""
    by_sender = pairs.by_sender[pairs.sent[first] : pairs.sent[last]]
    mine = np.sort(by_sender)  # by receiver, in the order in which they are read
    receiver = pairs.receivers(mine)
    rows_each = pairs.post[mine].astype(np.int64) + pairs.pre[mine]
    entries_each = pairs.entries[mine].astype(np.int64)
    taken = np.zeros_like(given)
    np.add.at(taken.T, receiver, np.stack((rows_each, entries_each), axis=1))
    found: list[tuple[np.ndarray, ...]] = []
    for part in np.flatnonzero(taken[0]).tolist():
        (row, entry), (rows, entries) = given[:, part].tolist(), taken[:, part].tolist()
        with pieces.open(part) as piece:
            lengths = piece.read("lengths", row, row + rows)
            sources, edges = (piece.read(name, entry, entry + entries) for name in ("sources", "edges"))
        found.append((lengths, sources, edges))
    given += taken
    empty = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64)
    lengths, sources, edges = (np.concatenate(arrays) for arrays in zip(empty, *found, strict=True))
    order = np.searchsorted(mine, by_sender)
    row_order = ranges(offsets_of(rows_each)[:-1][order], rows_each[order])
    entry_order = ranges(offsets_of(entries_each)[:-1][order], entries_each[order])
    sender = np.repeat(pairs.peers[by_sender].astype(np.int64), rows_each[order])
    return sender, lengths[row_order], sources[entry_order], edges[entry_order]


def _indptrs(sender: np.ndarray, lengths: np.ndarray, first: int, last: int) -> np.ndarray:
    """The ``indptr`` arrays of the senders ``[first, last)``, one after the other; each starts with 0."""
    rows = np.bincount(sender - first, minlength=last - first)
    begins = offsets_of(rows)
    ends = offsets_of(lengths)
    place = np.arange(begins[-1]) + (sender - first) + 1  # a 0 stands before each sender's first row
    indptrs = np.zeros(begins[-1] + last - first, dtype=np.int64)
    indptrs[place] = ends[1:] - np.repeat(ends[begins[:-1]], rows)
    return indptrs
