"""Reading of a plan in ``parts.h5``: every value is checked before it is used.

Compiled code takes its indices, and MPI its counts, without checks of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import h5py
import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import checksums, h5
from hpcgnn.data.digests import EDGES
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.schema import Rule, Rules, plan_offset_rules, plan_rules
from hpcgnn.data.stored import StoredArray, look
from hpcgnn.plan import AggregationPlan, PeerRows, SparseMatrix
from hpcgnn.plan.plan import PairRows

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
