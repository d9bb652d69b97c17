"""One plan in ``parts.h5`` from the pieces of all receivers: handing the rows of S to their senders is a transposition.

Nothing here is O(parts squared): tables are as long as there are pairs that exchange rows, and the rows of many senders are read
at once, so that each piece is opened once for every ``_GROUP_ENTRIES`` entries of S.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.byte_sink import LocalFile
from hpcgnn.data import h5
from hpcgnn.data.parts_file import PartsFile
from hpcgnn.data.plan_pieces import Piece, path_of
from hpcgnn.data.schema import plan_offset_rules, plan_rules
from hpcgnn.data.stored_plan import PLAN_VERSION

_GROUP_ENTRIES = 1 << 21


@dataclass(frozen=True)
class _Pairs:
    """Every pair that exchanges rows, by receiver, then sender: (pairs,) int64 each; ``begins`` (P+1,) of each receiver.

    rows: of both kinds. first_row, first_entry: where they, and their entries, begin among those that the receiver wants.
    """

    begins: np.ndarray
    receiver: np.ndarray
    sender: np.ndarray
    post: np.ndarray
    pre: np.ndarray
    rows: np.ndarray
    entries: np.ndarray
    first_row: np.ndarray
    first_entry: np.ndarray


@dataclass(frozen=True)
class _Pieces:
    """The pieces of a plan in a folder."""

    folder: Path
    uuid: str
    strategy: str
    num_parts: int

    def open(self, part: int) -> Piece:
        return Piece.open(path_of(self.folder, self.strategy, part), self.uuid, self.strategy)

    def pairs(self) -> tuple[_Pairs, np.ndarray]:
        """The pairs, and the lengths (P, 4) int64 of L_indptr, L_indices, R_indptr, R_indices."""
        tables: dict[str, list[np.ndarray]] = {name: [] for name in ("peers", "post", "pre", "entries")}
        lengths = np.zeros((self.num_parts, 4), dtype=np.int64)
        for part in range(self.num_parts):
            with self.open(part) as piece:
                for name, values in tables.items():
                    values.append(piece.read(name))
                lengths[part] = [piece.lengths[name] for name in ("L_indptr", "L_indices", "R_indptr", "R_indices")]
        begins = _ends([peers.size for peers in tables["peers"]])
        sender, post, pre, entries = (np.concatenate(values) for values in tables.values())
        receiver = np.repeat(np.arange(self.num_parts), np.diff(begins))
        rows = post + pre
        row_ends, entry_ends = _ends(rows), _ends(entries)
        first_row = row_ends[:-1] - row_ends[begins[receiver]]
        first_entry = entry_ends[:-1] - entry_ends[begins[receiver]]
        return _Pairs(begins, receiver, sender, post, pre, rows, entries, first_row, first_entry), lengths


def assemble(parts: PartsFile, strategy: str, folder: Path) -> None:
    """Add ``plan/strategy`` from the pieces in ``folder`` to a parts file that is open for writing. No checksums yet.

    Memory: the table of pairs, and the largest of: one part's plan, one part's rows of S, ``_GROUP_ENTRIES`` entries of S.
    """
    pieces = _Pieces(folder, parts.uuid, strategy, parts.num_parts)
    pairs, lengths = pieces.pairs()
    by_sender = np.argsort(pairs.sender, kind="stable")
    small = _offsets(parts.num_parts, pairs, lengths)
    with h5.writing(parts.path, f"plan/{strategy}"):
        plans = parts.file.require_group("plan")
        if strategy in plans:
            del plans[strategy]
        group = plans.create_group(strategy)
        group.attrs.update({"plan_version": PLAN_VERSION, "parts_uuid": parts.uuid})
        rules = plan_offset_rules(parts.num_parts) | plan_rules(small)
        schema = {name: (rule.shape, rule.dtype) for name, rule in rules.items()}
        places = h5.add_datasets(group, schema)
        parts.file.flush()
    tables = {f"recv_{name}": values for name, values in _table(pairs.sender, pairs).items()}
    tables |= {f"send_{name}": values[by_sender] for name, values in _table(pairs.receiver, pairs).items()}
    with LocalFile(parts.path) as sink:
        writer = h5.SlabWriter(sink, places, schema)
        for name, values in (small | tables).items():
            writer.write(name, 0, values)
        _write_receivers(pieces, small, writer)
        _write_senders(pieces, pairs, small, writer)


def _table(peers: np.ndarray, pairs: _Pairs) -> dict[str, np.ndarray]:
    return {"peers": peers, "post": pairs.post, "pre": pairs.pre}


def _offsets(num_parts: int, pairs: _Pairs, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The small arrays that say where each part's slabs begin."""
    sent_rows, sent_entries = (_sums(pairs.sender, values, num_parts) for values in (pairs.rows, pairs.entries))
    return {
        "L_offsets": np.stack((_ends(lengths[:, 0]), _ends(lengths[:, 1])), axis=1),
        "R_offsets": np.stack((_ends(lengths[:, 2]), _ends(lengths[:, 3])), axis=1),
        "S_offsets": np.stack((_ends(sent_rows + 1), _ends(sent_entries)), axis=1),
        "recv_offsets": pairs.begins,
        "send_offsets": _ends(np.bincount(pairs.sender, minlength=num_parts)),
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
    for first, last in _groups(np.diff(offsets["S_offsets"][:, 1])):
        sender, lengths, sources, edges = _rows_of(pieces, pairs, first, last)
        row, entry = offsets["S_offsets"][first].tolist()
        writer.write("S_indptr", row, _indptrs(sender, lengths, first, last))
        writer.write("S_indices", entry, sources)
        writer.write("S_edges", entry, edges)


def _groups(entries: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of senders with about ``_GROUP_ENTRIES`` ``entries`` (P,)."""
    ends, first = _ends(entries), 0
    while first < entries.size:
        last = int(np.searchsorted(ends, ends[first] + _GROUP_ENTRIES, side="right")) - 1
        last = min(max(last, first + 1), entries.size)
        yield first, last
        first = last


def _rows_of(pieces: _Pieces, pairs: _Pairs, first: int, last: int) -> tuple[np.ndarray, ...]:
    """What senders ``[first, last)`` send: each row's sender and length, and the entries' sources and edges."""
    keys = pairs.receiver * pieces.num_parts + pairs.sender  # ascending
    receivers = np.arange(pieces.num_parts) * pieces.num_parts
    bounds = np.searchsorted(keys, receivers + first), np.searchsorted(keys, receivers + last)
    found: list[tuple[np.ndarray, ...]] = []
    for part in np.flatnonzero(bounds[1] > bounds[0]).tolist():
        begin, end = int(bounds[0][part]), int(bounds[1][part]) - 1
        rows = int(pairs.first_row[begin]), int(pairs.first_row[end] + pairs.rows[end])
        entries = int(pairs.first_entry[begin]), int(pairs.first_entry[end] + pairs.entries[end])
        with pieces.open(part) as piece:
            found.append((piece.read("lengths", *rows), piece.read("sources", *entries), piece.read("edges", *entries)))
    empty = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64)
    lengths, sources, edges = (np.concatenate(arrays) for arrays in zip(empty, *found, strict=True))
    mine = _ranges(bounds[0], bounds[1] - bounds[0])
    order = np.argsort(pairs.sender[mine], kind="stable")
    rows_each, entries_each = pairs.rows[mine], pairs.entries[mine]
    row_order = _ranges(_ends(rows_each)[:-1][order], rows_each[order])
    entry_order = _ranges(_ends(entries_each)[:-1][order], entries_each[order])
    sender = np.repeat(pairs.sender[mine][order], rows_each[order])
    return sender, lengths[row_order], sources[entry_order], edges[entry_order]


def _indptrs(sender: np.ndarray, lengths: np.ndarray, first: int, last: int) -> np.ndarray:
    """The ``indptr`` of each of the senders ``[first, last)``, one after the other, each from 0."""
    rows = np.bincount(sender - first, minlength=last - first)
    begins = _ends(rows)
    ends = _ends(lengths)
    place = np.arange(begins[-1]) + (sender - first) + 1  # a 0 stands before each sender's first row
    indptrs = np.zeros(begins[-1] + last - first, dtype=np.int64)
    indptrs[place] = ends[1:] - np.repeat(ends[begins[:-1]], rows)
    return indptrs


def _ends(counts: np.ndarray | list[int]) -> np.ndarray:
    """(n + 1,) int64: 0, then the running sum."""
    return np.concatenate(([0], np.cumsum(np.asarray(counts, dtype=np.int64))))


def _sums(index: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """(count,) int64: the sum of the ``values`` of each ``index``."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, index, values)
    return sums


def _ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The concatenation of ``arange(b, b + n)`` over all pairs."""
    ends = _ends(lengths)
    return np.arange(ends[-1]) + np.repeat(begins - ends[:-1], lengths)
