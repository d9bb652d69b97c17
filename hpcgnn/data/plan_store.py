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
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from hpcgnn.base import whole_file
from hpcgnn.base.byte_sink import LocalFile
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import checksums, h5, plan_pieces
from hpcgnn.data.digests import EDGES
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_pieces import Piece, make_pieces, path_of
from hpcgnn.data.schema import PAIR_ARRAYS, Rules, layout, plan_offset_rules, plan_rules
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


class PlanCounts(NamedTuple):
    """The sizes of one rank's plan. local, send, receive: entries of L, S and R. sent, received: *post* rows and *pre* rows."""

    local: int
    send: int
    receive: int
    sent: tuple[int, int]
    received: tuple[int, int]


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
        if name in self.offsets:
            return 0, self._parts.num_parts + 1
        offsets = self.offsets[self.rules[name].rows][part : part + 2]
        column = offsets if offsets.ndim == 1 else offsets[:, 0 if name.endswith("indptr") else 1]
        return int(column[0]), int(column[1])

    def _read(self, name: str, part: int, *, keep: bool = True, **limits: Any) -> np.ndarray:
        """One part's slab, (0,) unless ``keep``, with its values checked. limits: fields of the array's :class:`Rule`."""
        array, (first, last) = self.arrays[name], self.slab_rows(name, part)
        out = array.empty(last - first) if keep else None
        expected = None if self.checksums is None else int(self.checksums[name][part])
        look(array, (first, last), out, replace(array.rule, **limits), f"part {part}", expected)
        return array.empty(0) if out is None else out

    def part(self, part: int, *, edges: bool = True) -> AggregationPlan[SparseMatrix]:
        """The plan of one part, with every value checked. Only all ranks together can check that senders and receivers
        agree. With ``edges=False`` the matrices' arrays ``edges`` are checked, but not kept."""
        parts = self._parts
        send_to, receive_from = (self._peers(way, part) for way in ("send", "recv"))
        first, last = parts.part(part)
        first_edge, last_edge = parts.slab_rows("edges/indices", part)
        own = {"low": first_edge, "high": last_edge - 1}
        carried = {"low": -1, "high": last_edge - 1, "below": first_edge}
        anywhere = {"low": -1, "high": parts.meta.num_edges - 1}
        nodes = last - first
        return AggregationPlan(
            local=self._matrix("L", part, (nodes, nodes), own, keep_edges=edges),
            send=self._matrix("S", part, (send_to.total, nodes), anywhere, keep_edges=edges),
            receive=self._matrix("R", part, (nodes, receive_from.total), carried, keep_edges=edges),
            send_to=send_to,
            receive_from=receive_from,
        )

    def _matrix(
        self, matrix: str, part: int, shape: tuple[int, int], limits: dict[str, int], *, keep_edges: bool
    ) -> SparseMatrix:
        rows, columns = shape
        (first_row, first), (last_row, last) = self.offsets[f"{matrix}_offsets"][part : part + 2].tolist()
        if last_row - first_row != rows + 1:
            raise self._damaged(f"{matrix}_indptr", f"has {last_row - first_row - 1} rows for part {part}, not {rows}")
        if matrix == "R" and columns > last - first:
            raise self._damaged(
                "recv_post", f"and recv_pre count more rows for part {part} than R has entries to use them"
            )
        indptr = self._read(f"{matrix}_indptr", part, high=last - first, step=0)
        if indptr[0] != 0 or indptr[-1] != last - first:
            raise self._damaged(f"{matrix}_indptr", f"does not run from 0 to {last - first} for part {part}")
        indices = self._read(f"{matrix}_indices", part, high=columns - 1)
        return SparseMatrix(indptr, indices, self._read(f"{matrix}_edges", part, keep=keep_edges, **limits), columns)

    def _peers(self, way: str, part: int) -> PeerRows:
        num_parts = self._parts.num_parts
        peers = self._read(f"{way}_peers", part, high=num_parts - 1, step=1)
        if (peers == part).any():
            raise self._damaged(f"{way}_peers", f"names part {part} as its own peer")
        most = min(self._parts.meta.num_edges, 2**31 - 1)
        post, pre = (self._read(f"{way}_{kind}", part, high=most) for kind in ("post", "pre"))
        if (post + pre == 0).any():
            raise self._damaged(f"{way}_post", f"and {way}_pre name a peer of part {part} without a row")
        return PeerRows(peers, post, pre)

    def entries(self) -> dict[str, np.ndarray]:
        """(P,) int64 entries of L, S and R of each part: additions and copies of rows, the work of one aggregation."""
        return {matrix: np.diff(self.offsets[f"{matrix}_offsets"][:, 1]) for matrix in "LSR"}

    def counts(self, part: int) -> PlanCounts:
        """The sizes of one part's plan, for which its matrices are not read."""
        entries = {matrix: int(counts[part]) for matrix, counts in self.entries().items()}
        sent, received = (self._peers(way, part) for way in ("send", "recv"))
        rows = [(int(peers.post.sum()), int(peers.pre.sum())) for peers in (sent, received)]
        return PlanCounts(entries["L"], entries["S"], entries["R"], *rows)

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


def count(path: Path, plan: str, advance: Callable[[int], object], jobs: int) -> tuple[PairRows, dict[str, np.ndarray]]:
    """The rows of all pairs, and the entries as of :meth:`StoredPlan.entries`, of a plan that is not stored. advance, jobs: as of
    :func:`store_plans`. Raises HpcgnnError for a plan by types of edges if edges have none."""
    with PartsFile(path) as parts, whole_file.temporary_folder(path) as folder:
        make_pieces(path, plan, folder, range(parts.num_parts), jobs, advance)
        pieces = _Pieces(folder, parts.uuid, plan, parts.num_parts)
    pairs, offsets = pieces.pairs, pieces.offsets()
    counts = pairs.peers, pairs.receivers(np.arange(pairs.peers.size)), pairs.post, pairs.pre
    entries = {matrix: np.diff(offsets[f"{matrix}_offsets"][:, 1]) for matrix in "LSR"}
    return PairRows(*(each.astype(np.int64) for each in counts)), entries


def add_plan(path: Path, strategy: str, folder: Path) -> None:
    """Add the plan whose pieces are in ``folder`` to ``path``, a file that does not have its final name yet."""
    with PartsFile(path, "r+") as parts:
        assemble(parts, strategy, folder)
        seal_plan(parts, strategy)


def seal_plan(parts: PartsFile, strategy: str) -> None:
    """Write the checksums of a plan in a file that is open for writing; the plan is read back, from the system's cache."""
    with h5.writing(parts.path, f"plan/{strategy}"):
        parts.file.flush()
    plan = StoredPlan(parts, strategy, sealed=False)
    table = checksums.of_slabs(plan.arrays, plan.slab_rows, parts.num_parts, range(parts.num_parts))
    with h5.writing(parts.path, f"checksums of plan/{strategy}"):
        group = parts.file[f"plan/{strategy}"]
        checksums.store(group, table, plan_attributes(group))


_GROUP_ENTRIES = 1 << 21
_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class _Pairs:
    """All pairs of parts that exchange rows, sorted by receiver, then sender. begins: (P+1,) int64 first pair of each
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
        """(P,) int64: the sum of ``values`` (pairs,) over each sender's pairs, in float64, which is exact below 2**53."""
        return np.bincount(self.peers, weights=values, minlength=self.begins.size - 1).astype(np.int64)


class _Pieces:
    """The pieces of a plan, one for each part. lengths: (P, 4) int64 of their L_indptr, L_indices, R_indptr, R_indices. pairs:
    the pairs of parts, from all pieces."""

    def __init__(self, folder: Path, uuid: str, strategy: str, num_parts: int) -> None:
        self.num_parts, self._folder, self._uuid, self._strategy = num_parts, folder, uuid, strategy
        self.lengths = np.zeros((num_parts, 4), np.int64)
        counts, tables = np.zeros(num_parts, np.int64), []
        for part in range(num_parts):
            with self.open(part) as piece:
                self.lengths[part] = [piece.lengths[f"{m}_{name}"] for m in "LR" for name in ("indptr", "indices")]
                counts[part] = piece.lengths["peers"]
                tables.append([piece.read(name).astype(np.int32) for name in (*PAIR_ARRAYS, "entries")])
        peers, post, pre, entries = map(np.concatenate, zip(*tables, strict=True))
        del tables
        by_sender = np.argsort(peers, kind="stable")
        sent = offsets_of(np.bincount(peers, minlength=num_parts))
        self.pairs = _Pairs(offsets_of(counts), peers, post, pre, entries, by_sender, sent)

    def open(self, part: int) -> Piece:
        """Open the piece of a part."""
        return Piece(path_of(self._folder, self._strategy, part), self._uuid, self._strategy)

    def offsets(self) -> dict[str, np.ndarray]:
        """The plan's small arrays with the places at which each part's slabs begin."""
        pairs = self.pairs
        sizes = {"L": self.lengths[:, :2].T, "R": self.lengths[:, 2:].T}
        sizes["S"] = np.stack((pairs.sums(pairs.post) + pairs.sums(pairs.pre) + 1, pairs.sums(pairs.entries)))
        found = {f"{matrix}_offsets": np.stack(list(map(offsets_of, each)), axis=1) for matrix, each in sizes.items()}
        return found | {"recv_offsets": pairs.begins, "send_offsets": pairs.sent}


def assemble(parts: PartsFile, strategy: str, folder: Path) -> None:
    """Add ``plan/strategy`` from the pieces in ``folder`` to a parts file that is open for writing, without checksums.

    The rows of S go from the pieces of their receivers to their senders. Tables are never O(parts squared): they have an entry
    for each pair that exchanges rows, 24 bytes a pair and about as much again while they are made. The rows of many senders
    are read at once, so that each piece is opened once for every ``_GROUP_ENTRIES`` entries of S. Beside the tables, one part's
    plan, one part's rows of S, or ``_GROUP_ENTRIES`` entries of S are in memory.
    """
    pieces = _Pieces(folder, parts.uuid, strategy, parts.num_parts)
    small = pieces.offsets()
    with h5.writing(parts.path, f"plan/{strategy}"):
        plans = parts.file.require_group("plan")
        if strategy in plans:
            del plans[strategy]
        group = plans.create_group(strategy)
        group.attrs.update(wanted_attributes(parts))
        schema = layout(plan_offset_rules(parts.num_parts) | plan_rules(small))
        places = h5.add_datasets(group, schema)
        parts.file.flush()
    with LocalFile(parts.path) as sink:
        writer = h5.SlabWriter(sink, places, schema)
        for name, values in small.items():
            writer.write(name, 0, values)
        _write_tables(pieces.pairs, writer)
        _write_receivers(pieces, small, writer)
        _write_senders(pieces, small["S_offsets"], writer)


def _write_tables(pairs: _Pairs, writer: h5.SlabWriter) -> None:
    for first in range(0, pairs.peers.size, _PAIRS_AT_ONCE):
        received = slice(first, first + _PAIRS_AT_ONCE)
        sent = pairs.by_sender[received]
        writer.write("recv_peers", first, pairs.peers[received])
        writer.write("send_peers", first, pairs.receivers(sent))
        for name, values in (("post", pairs.post), ("pre", pairs.pre)):
            writer.write(f"recv_{name}", first, values[received])
            writer.write(f"send_{name}", first, values[sent])


def _write_receivers(pieces: _Pieces, offsets: dict[str, np.ndarray], writer: h5.SlabWriter) -> None:
    for part in range(pieces.num_parts):
        with pieces.open(part) as piece:
            for matrix in "LR":
                row, entry = offsets[f"{matrix}_offsets"][part].tolist()
                writer.write(f"{matrix}_indptr", row, piece.read(f"{matrix}_indptr"))
                for name in (f"{matrix}_indices", f"{matrix}_edges"):
                    writer.write(name, entry, piece.read(name))


def _write_senders(pieces: _Pieces, offsets: np.ndarray, writer: h5.SlabWriter) -> None:
    taken = np.zeros((pieces.num_parts, 2), np.int64)
    for first, last in _groups(offsets[:, 1]):
        lengths, sources, edges = _rows_of(pieces, first, last, taken)
        (row, entry), rows = offsets[first].tolist(), np.diff(offsets[first : last + 1, 0]) - 1
        begins, ends = offsets_of(rows)[:-1], offsets_of(lengths)  # each sender's indptr begins with 0
        writer.write("S_indptr", row, np.insert(ends[1:] - np.repeat(ends[begins], rows), begins, 0))
        writer.write("S_indices", entry, sources)
        writer.write("S_edges", entry, edges)


def _groups(ends: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of senders that have about ``_GROUP_ENTRIES`` entries of S together. ends: (P+1,) entries of all earlier senders."""
    first, num_parts = 0, ends.size - 1
    while first < num_parts:
        last = int(np.searchsorted(ends, ends[first] + _GROUP_ENTRIES, side="right")) - 1
        last = min(max(last, first + 1), num_parts)
        yield first, last
        first = last


def _rows_of(pieces: _Pieces, first: int, last: int, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows that senders ``[first, last)`` send, by sender and then receiver: the length of each, and the sources and edges
    of their entries. taken: (P, 2), rows and entries of each receiver's piece that went to earlier senders; these are added."""
    pairs = pieces.pairs
    wanted = pairs.by_sender[pairs.sent[first] : pairs.sent[last]]
    read = np.sort(wanted)  # by receiver: the rows of neighbouring senders lie together in a receiver's piece
    rows, entries = pairs.post[read].astype(np.int64) + pairs.pre[read], pairs.entries[read].astype(np.int64)
    receivers = pairs.receivers(read)
    begins = np.flatnonzero(np.diff(receivers, prepend=-1))
    sizes = np.stack([np.add.reduceat(counts, begins) for counts in (rows, entries)], axis=1)
    found: list[tuple[np.ndarray, ...]] = [(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))]
    for part, size in zip(receivers[begins].tolist(), sizes, strict=True):
        (row, entry), (last_row, last_entry) = taken[part].tolist(), (taken[part] + size).tolist()
        taken[part] += size
        with pieces.open(part) as piece:
            lengths = piece.read("lengths", row, last_row)
            found.append((lengths, *(piece.read(name, entry, last_entry) for name in ("sources", "edges"))))
    lengths, sources, edges = map(np.concatenate, zip(*found, strict=True))
    order = np.searchsorted(read, wanted)
    row_order, entry_order = _moved(rows, order), _moved(entries, order)
    return lengths[row_order], sources[entry_order], edges[entry_order]


def _moved(lengths: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The indices that put consecutive runs of these lengths into another order."""
    return ranges(offsets_of(lengths)[:-1][order], lengths[order])
