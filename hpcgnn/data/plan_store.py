"""Plans inside ``parts.h5``, which are made part by part in bounded memory, and read slab by slab.

    /plan/STRATEGY/          attributes: plan_version, parts_uuid, edges_digest
        M_indptr, M_indices, M_edges      for M in L, S, R: the CSR slabs of all parts, one after another
        M_offsets (P+1, 2) int64          first element of each part's slab in M_indptr, and in M_indices and M_edges
        D_offsets (P+1) int64, D_peers, D_post, D_pre (pairs) int64      for D in send, recv: the sparse table of pairs

        checksums (arrays, P) uint64      see :mod:`hpcgnn.data.checksums`

``indptr`` slabs start at 0. Columns are local: owned nodes for L and S, received rows for R. Every value is checked before it is
used, because compiled code takes the indices, and MPI the counts, without checks of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.base import whole_file
from hpcgnn.base.byte_sink import LocalFile
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import checksums, h5, plan_pieces
from hpcgnn.data.digests import EDGES
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_pieces import Piece, make_pieces, path_of
from hpcgnn.data.schema import PAIR_ARRAYS, Rule, Rules, plan_offset_rules, plan_rules
from hpcgnn.data.stored import StoredArray, look
from hpcgnn.plan import STRATEGIES, AggregationPlan, PeerRows, SparseMatrix
from hpcgnn.plan.plan import PairRows, offsets_of, ranges

PLAN_VERSION = 1


def plan_attributes(group: h5py.Group) -> dict[str, int | str]:
    """The attributes that identify a plan. Plans in older files have no digest of the edges."""
    with h5.reading(group, f"the attributes of {group.name}"):
        has_digest = EDGES in group.attrs
    return {
        "plan_version": h5.attribute(group, "plan_version", int),
        "parts_uuid": h5.attribute(group, "parts_uuid", str),
    } | ({EDGES: h5.attribute(group, EDGES, int)} if has_digest else {})


def wanted_attributes(parts: PartsFile) -> dict[str, int | str]:
    """The attributes of a current plan for the parts and edges of a file."""
    found: dict[str, int | str] = {"plan_version": PLAN_VERSION, "parts_uuid": parts.uuid}
    return found | {name: value for name, value in parts.digests.items() if name == EDGES}


class StoredPlan:
    """The plan for ``strategy`` in an open parts file. All methods raise :class:`HpcgnnError` where the plan contradicts
    itself or the parts; the sentence names the file and the dataset."""

    def __init__(self, parts: PartsFile, strategy: str, *, sealed: bool = True) -> None:
        self._parts, self._prefix = parts, f"plan/{strategy}"
        group = h5.child(parts.file, self._prefix)
        if not isinstance(group, h5py.Group):
            raise h5.damaged(parts.path, f"it has no group {self._prefix}")
        assert parts.source is not None
        self._source = parts.source
        rules = plan_offset_rules(parts.num_parts)
        small = self._stored(rules)
        self.offsets = {name: array.read() for name, array in small.items()}
        self._check_offsets()
        self.rules = plan_rules(self.offsets)
        self.arrays = small | self._stored(self.rules)
        self.checksums: Mapping[str, np.ndarray] | None = None
        if sealed and (parts.attributes["version"] > 1 or checksums.NAME in group):
            self.checksums = checksums.stored(
                group, parts.source, self.arrays, parts.num_parts, plan_attributes(group), whole=self.offsets
            )
            for name, rule in rules.items():
                look(small[name], (0, rule.shape[0]), None, rule, "all parts", int(self.checksums[name][0]))

    def _stored(self, rules: Rules) -> dict[str, StoredArray]:
        file = self._parts.file
        return {n: StoredArray(file, self._source, f"{self._prefix}/{n}", rule) for n, rule in rules.items()}

    @property
    def fingerprint(self) -> int:
        """A hash of the plan's checksums, or of its offsets if it has none, by which ranks see that they read the same plan."""
        content = self.offsets if self.checksums is None else self.checksums
        return checksums.of_arrays(content[name] for name in sorted(content))

    def _check_offsets(self) -> None:
        for name, offsets in self.offsets.items():
            if offsets[0].any():
                raise self._damaged(name, "does not begin with 0")
            if (offsets[1:] < offsets[:-1]).any():
                raise self._damaged(name, "falls")
        sizes = np.diff(self._parts.node_offsets)
        for matrix in "LR":  # both have a row for each owned node; the rows of S are checked when a part is read
            if not np.array_equal(np.diff(self.offsets[f"{matrix}_offsets"][:, 0]), sizes + 1):
                raise self._damaged(f"{matrix}_offsets", "does not give each part as many rows as it has nodes")
        if self.offsets["send_offsets"][-1] != self.offsets["recv_offsets"][-1]:
            raise self._damaged("send_offsets", "has another number of pairs than recv_offsets")

    def _damaged(self, name: str, problem: str) -> HpcgnnError:
        return h5.damaged(self._parts.path, f"{self._prefix}/{name} {problem}")

    def slab_rows(self, name: str, part: int) -> tuple[int, int]:
        """The rows ``[first, last)`` of an array that belong to ``part``."""
        offsets = self.offsets[self.rules[name].rows][part : part + 2]
        column = offsets if offsets.ndim == 1 else offsets[:, 0 if name.endswith("indptr") else 1]
        return int(column[0]), int(column[1])

    def _read(self, name: str, part: int, rule: Rule) -> np.ndarray:
        """One part's slab, with its values checked by ``rule``, whose shape and dtype are ignored."""
        first, last = self.slab_rows(name, part)
        out = self.arrays[name].empty(last - first)
        self._look(name, part, rule, out)
        return out

    def _look(self, name: str, part: int, rule: Rule, out: np.ndarray | None) -> None:
        array = self.arrays[name]
        rule = replace(rule, shape=array.rule.shape, dtype=array.rule.dtype)
        expected = None if self.checksums is None else int(self.checksums[name][part])
        look(array, self.slab_rows(name, part), out, rule, f"part {part}", expected)

    def part(self, part: int, *, edges: bool = True) -> AggregationPlan[SparseMatrix]:
        """The plan of one part, with every value checked. Only all ranks together can check that senders and receivers
        agree. With ``edges=False`` the matrices' arrays ``edges`` are checked, but not kept."""
        parts = self._parts
        send_to, receive_from = (self._peers(way, part) for way in ("send", "recv"))
        first, last = parts.part(part)
        first_edge, last_edge = parts.slab_rows("edges/indices", part)
        own = Rule((), _ANY, low=first_edge, high=last_edge - 1)
        carried = Rule((), _ANY, low=-1, high=last_edge - 1, below=first_edge)
        anywhere = Rule((), _ANY, low=-1, high=parts.meta.num_edges - 1)
        nodes = last - first
        return AggregationPlan(
            local=self._matrix("L", part, (nodes, nodes), own, keep_edges=edges),
            send=self._matrix("S", part, (send_to.total, nodes), anywhere, keep_edges=edges),
            receive=self._matrix("R", part, (nodes, receive_from.total), carried, keep_edges=edges),
            send_to=send_to,
            receive_from=receive_from,
        )

    def _matrix(self, matrix: str, part: int, shape: tuple[int, int], edges: Rule, *, keep_edges: bool) -> SparseMatrix:
        rows, columns = shape
        (first_row, first), (last_row, last) = self.offsets[f"{matrix}_offsets"][part : part + 2].tolist()
        if last_row - first_row != rows + 1:
            raise self._damaged(f"{matrix}_indptr", f"has {last_row - first_row - 1} rows for part {part}, not {rows}")
        if matrix == "R" and columns > last - first:
            raise self._damaged(
                "recv_post", f"and recv_pre count more rows for part {part} than R has entries to use them"
            )
        indptr = self._read(f"{matrix}_indptr", part, Rule((), _ANY, high=last - first, step=0))
        if indptr[0] != 0 or indptr[-1] != last - first:
            raise self._damaged(f"{matrix}_indptr", f"does not run from 0 to {last - first} for part {part}")
        indices = self._read(f"{matrix}_indices", part, Rule((), _ANY, high=columns - 1))
        name = f"{matrix}_edges"
        if keep_edges:
            return SparseMatrix(indptr, indices, self._read(name, part, edges), columns)
        self._look(name, part, edges, None)
        return SparseMatrix(indptr, indices, self.arrays[name].empty(0), columns)

    def _peers(self, way: str, part: int) -> PeerRows:
        num_parts = self._parts.num_parts
        peers = self._read(f"{way}_peers", part, Rule((), _ANY, high=num_parts - 1, step=1))
        if (peers == part).any():
            raise self._damaged(f"{way}_peers", f"names part {part} as its own peer")
        post, pre = (self._read(f"{way}_{kind}", part, self._rows_of_a_pair) for kind in ("post", "pre"))
        if (post + pre == 0).any():
            raise self._damaged(f"{way}_post", f"and {way}_pre name a peer of part {part} without a row")
        return PeerRows(peers, post, pre)

    @cached_property
    def _rows_of_a_pair(self) -> Rule:
        return Rule((), _ANY, high=min(self._parts.meta.num_edges, 2**31 - 1))

    def pairs(self) -> PairRows:
        """The rows of all pairs that exchange any, sorted by receiver; the tables of senders and receivers are compared.
        Memory is O(pairs), never O(P^2): 32 bytes a pair for the result, and as much again for the comparison."""
        begins, sent = self.offsets["recv_offsets"], self.offsets["send_offsets"]
        sender, post, pre = table = np.empty((3, int(begins[-1])), np.int64)
        for part in range(self._parts.num_parts):
            peers = self._peers("recv", part)
            table[:, begins[part] : begins[part + 1]] = peers.peers, peers.post, peers.pre
        receiver = np.repeat(np.arange(self._parts.num_parts), np.diff(begins))
        by_sender = np.argsort(sender, kind="stable")
        agree = np.array_equal(np.bincount(sender, minlength=self._parts.num_parts), np.diff(sent))
        for part in range(self._parts.num_parts if agree else 0):
            peers, chosen = self._peers("send", part), by_sender[sent[part] : sent[part + 1]]
            said = (peers.peers, peers.post, peers.pre)
            agree = agree and all(map(np.array_equal, said, (receiver[chosen], post[chosen], pre[chosen])))
        if not agree:
            raise self._damaged("send_peers", "and recv_peers do not describe the same pairs of parts")
        return PairRows(sender, receiver, post, pre)


_ANY = np.dtype(np.int64)  # replaced by the dtype of the array


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
        return Piece(path_of(self.folder, self.strategy, part), self.uuid, self.strategy)

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
