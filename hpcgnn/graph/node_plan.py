"""Construction of the plan of ranks that share nodes, by all ranks together.

Here a node is a host, unless "of the graph" is said. Rank i writes rows ``w_i = S_i x_i`` into memory that all ranks of its
node read; ``w`` is all rows written on the node. Some are for ranks of this node, and others for other nodes. The rank that
carries a row to another node adds up the node's contributions to it, ``c = C w``. The rows that have arrived on the node,
``v``, also lie in memory that all of its ranks read, and each rank adds up the rows that it needs:

    z = L x + R (N w + F v)

N and F pick rows. The backward pass is the same on the transposes: rows that were read are written, and rows that were written
are read. Each edge is an entry of L, of S or of R. For edges between ranks, the choice between S and R is a minimum vertex
cover for each pair of nodes, and for each pair of ranks of one node.

Ranks have three roles, and send each other records: the *reader* of an edge owns its destination; a *solver* on the reader's
node gets all edges from one other node and covers them; the *writer* owns the source. Memory is O(edges of a rank) on average,
and O(k P) for tables of the k ranks of a node. A solver has all edges between two nodes, so with few nodes of many ranks it
needs much more than others: some 150 bytes for each of these edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcgnn.data.graph_file import PartsFile
from hpcgnn.plan import AggregationPlan, PeerRows, SparseMatrix
from hpcgnn.plan.build import csr_matrix, post_edges
from hpcgnn.plan.plan import PairRows, owners_of
from hpcgnn.plan.relations import BY_TYPE
from hpcgnn.world import World
from hpcgnn.world.placement import Carriers, Placement

_POST, _PRE = 1, 0


@dataclass(frozen=True)
class NodeRoute:
    """The matrices by which this rank reads rows that the k ranks of its node share; columns are in the order of the ranks.

    written, arrived: (k,) int64 number of rows that each rank of the node writes, and of rows that arrive at it.
    carry: (rows sent, all rows written) C. near: (rows read, all rows written) N. far: (rows read, all rows arrived) F.
    """

    written: np.ndarray
    arrived: np.ndarray
    carry: SparseMatrix
    near: SparseMatrix
    far: SparseMatrix


@dataclass(frozen=True)
class NodePlan:
    """One rank's plan where ranks share nodes.

    plan: L, S of the rows that this rank writes, and R of the rows that it reads; ``send_to`` and ``receive_from`` count the
    rows that it carries between nodes. forward, backward: the routes of the forward and of the backward pass.
    """

    plan: AggregationPlan[SparseMatrix]
    forward: NodeRoute
    backward: NodeRoute


class _Cut(NamedTuple):
    """Edges that end on this rank, (m,) int64 each: positions of sources, local indices of destinations, positions of the edges
    in ``parts.h5``, and ranks that own the sources."""

    sources: np.ndarray
    destinations: np.ndarray
    edges: np.ndarray
    owners: np.ndarray

    def where(self, chosen: np.ndarray) -> _Cut:
        return _Cut(*(values[chosen] for values in self))


class _Written(NamedTuple):
    """S; for each record about edges within the node, (m,) int64, the row of S; and the rows of S that are added to rows between
    nodes, (r, 5) int64: sender, receiver and index of the row between nodes, whether it is a *post* row, and the row of S."""

    send: SparseMatrix
    near: np.ndarray
    added: np.ndarray


class _Reads(NamedTuple):
    """R, and for each of its columns, (reads,) each: whether the row is written on this node or has arrived there, the rank that
    has written or received it, and its index among the rows that this rank has written or received."""

    receive: SparseMatrix
    is_near: np.ndarray
    holders: np.ndarray
    rows: np.ndarray


class _Builder:
    """One rank's steps of the construction. node: the world of the ranks on this rank's node. offsets: (P + 1,) int64 first
    position of each rank."""

    def __init__(self, world: World, node: World, placement: Placement, offsets: np.ndarray, strategy: str) -> None:
        self.world, self.node, self.placement, self.offsets, self.strategy = world, node, placement, offsets, strategy
        self.my_node = int(placement.node_of[world.rank])
        self.mates = placement.ranks_of(self.my_node)
        self.first = int(offsets[world.rank])
        self.num_owned = int(offsets[world.rank + 1]) - self.first

    def edges(self, indptr: np.ndarray, indices: np.ndarray) -> _Cut:
        """All edges that end on this rank, from its slab of the global CSR by destination."""
        destinations = np.repeat(np.arange(self.num_owned), np.diff(indptr))
        return _Cut(indices, destinations, np.arange(indptr[0], indptr[-1]), owners_of(indices, self.offsets))

    def of_mates(self, values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """From (k, ...) values of the node's k ranks, the values of each rank in ``ranks``."""
        return values[np.searchsorted(self.mates, ranks)]

    def gathered(self, value: int | np.ndarray) -> np.ndarray:
        """(k, ...) int64 values of all ranks of the node. Collective on the node."""
        found = self.node.allgather(np.atleast_1d(np.asarray(value, np.int64)))
        return found[:, 0] if np.ndim(value) == 0 else found

    def solve(self, cut: _Cut) -> tuple[RecordExchange, RowsOfNodes]:
        """Send edges from other nodes to their solvers. Returns the edges for which this rank is the solver, as records
        (source, destination, edge), and the rows that carry them. Collective."""
        solvers = self.mates[self.placement.node_of[cut.owners] % self.mates.size]
        asked = RecordExchange(self.world, solvers, _table(cut.sources, cut.destinations + self.first, cut.edges))
        sources, destinations, _ = asked.received.T
        edges = NodeEdges(sources, destinations, self.placement.node_of[owners_of(sources, self.offsets)])
        return asked, rows_between(edges, self.strategy, int(self.offsets[-1]))

    def choose_far(self, cut: _Cut) -> tuple[np.ndarray, RecordExchange]:
        """Choose the rows that carry edges from other nodes. Collective.

        Returns (m, 4) int64, for each edge whether it is *post*, and sender, receiver and index of its row; and the records
        for writers: kind, source, sender, receiver, index, edge.
        """
        asked, rows = self.solve(cut)
        sources, _, edges = asked.received.T
        of_row = np.stack(rows.carriers(self.placement, self.my_node), axis=1)
        chosen = asked.answered(_table(rows.is_post, *of_row[rows.row].T))
        posts, pre = np.flatnonzero(rows.posts), np.flatnonzero(~rows.is_post)
        told = np.concatenate((
            _table(_POST, rows.ids[posts], *of_row[posts].T, -1),
            _table(_PRE, sources[pre], *of_row[rows.row[pre]].T, edges[pre]),
        ))  # fmt: skip
        return chosen, RecordExchange(self.world, owners_of(told[:, 1], self.offsets), told)

    def choose_near(self, cut: _Cut) -> tuple[np.ndarray, np.ndarray, RecordExchange]:
        """Choose the rows that carry edges from other ranks of this node. Collective.

        Returns (m,) bool, whether an edge is *post*; (m,) int64 the record that asks for its row; and the records for writers:
        kind, source, destination, edge.
        """
        is_post = post_edges(cut.sources, cut.owners * max(self.num_owned, 1) + cut.destinations, self.strategy)
        posts, of_post = np.unique(cut.sources[is_post], return_inverse=True)
        pre = np.flatnonzero(~is_post)
        record = np.empty(is_post.size, np.int64)
        record[is_post], record[pre] = of_post, posts.size + np.arange(pre.size)
        records = np.concatenate((
            _table(_POST, posts, -1, -1),
            _table(_PRE, cut.sources[pre], cut.destinations[pre], cut.edges[pre]),
        ))  # fmt: skip
        return is_post, record, RecordExchange(self.world, owners_of(records[:, 1], self.offsets), records)

    def write(self, far: RecordExchange, near: RecordExchange) -> _Written:
        """Build S from the records of readers: first rows of sources as they are, then sums for rows between nodes, then sums
        for ranks of this node."""
        kind, source, destination, edge = near.received.T
        # Sums for a rank of this node come last, because no rank between nodes has the number of their sender.
        within = _table(kind, source, self.world.size, near.senders, destination, edge)
        kind, source, sender, receiver, index, edge = np.concatenate((far.received, within)).T
        is_post = kind == _POST
        copies, of_copy = np.unique(source[is_post], return_inverse=True)
        sums, of_sum = _distinct(sender[~is_post], receiver[~is_post], index[~is_post])
        row = np.empty(kind.size, np.int64)
        row[is_post], row[~is_post] = of_copy, copies.size + of_sum
        send = csr_matrix(
            np.concatenate((np.arange(copies.size), row[~is_post])),
            np.concatenate((copies, source[~is_post])) - self.first,
            np.concatenate((np.full(copies.size, -1), edge[~is_post])),
            (copies.size + len(sums), self.num_owned),
        )
        between = slice(len(far.received))
        added, _ = _distinct(sender[between], receiver[between], index[between], kind[between], row[between])
        return _Written(send, row[between.stop :], added)

    def carry(self, mine: _Written, written: np.ndarray) -> tuple[SparseMatrix, PeerRows]:
        """C, and the numbers of rows that this rank sends, by peer. Collective."""
        told = RecordExchange(self.world, mine.added[:, 0], mine.added[:, 1:])
        receiver, index, kind, row = told.received.T
        sent, _ = _distinct(receiver, index, kind)
        counts = np.zeros((self.world.size, 2), np.int64)  # post rows and pre rows
        np.add.at(counts, (sent[:, 0], _POST - sent[:, 2]), 1)
        columns = self.of_mates(_begins(written), told.senders) + row
        rows = _begins(counts.sum(axis=1))[receiver] + index
        return csr_matrix(rows, columns, None, (len(sent), int(written.sum()))), PeerRows.of(counts)

    def read(
        self, cut: _Cut, is_near: np.ndarray, is_post: np.ndarray, holders: np.ndarray, rows: np.ndarray
    ) -> _Reads:
        """Build R, whose columns are *post* rows by position of their source, then *pre* rows by their place. The arrays (m,)
        tell of each edge's row what :class:`_Reads` does, and whether it is *post*."""
        posts, of_post = np.unique(cut.sources[is_post], return_inverse=True)
        sums, of_sum = _distinct(~is_near[~is_post], holders[~is_post], rows[~is_post])
        column = np.empty(is_post.size, np.int64)
        column[is_post], column[~is_post] = of_post, posts.size + of_sum
        carried, _ = _distinct(cut.destinations[~is_post], column[~is_post])
        receive = csr_matrix(
            np.concatenate((cut.destinations[is_post], carried[:, 0])),
            np.concatenate((column[is_post], carried[:, 1])),
            np.concatenate((cut.edges[is_post], np.full(len(carried), -1))),
            (self.num_owned, posts.size + len(sums)),
        )
        an_edge = np.empty(receive.num_cols, np.int64)  # for each row read, one of the edges that need it
        an_edge[column] = np.arange(column.size)
        return _Reads(receive, is_near[an_edge], holders[an_edge], rows[an_edge])

    def picks(self, reads: _Reads, written: np.ndarray, arrived: np.ndarray) -> list[SparseMatrix]:
        """N and F, which pick each row that is read from the rows written on the node, or from those that have arrived there."""
        matrices = []
        for chosen, counts in ((reads.is_near, written), (~reads.is_near, arrived)):
            at = self.of_mates(_begins(counts), reads.holders[chosen]) + reads.rows[chosen]
            matrices.append(csr_matrix(np.flatnonzero(chosen), at, None, (chosen.size, int(counts.sum()))))
        return matrices

    def back(self, reads: _Reads, mine: _Written, send_to: PeerRows, num_arrived: int) -> NodeRoute:
        """The route of the backward pass: rows that were read are written, and rows that were sent arrive. Collective."""
        read, sent = self.gathered(reads.rows.size), self.gathered(send_to.total)
        first_sent = self.gathered(_begins(send_to.counts(self.world.size)))  # (k, P): by sender and receiver
        numbers = np.arange(reads.rows.size)
        told = RecordExchange(self.world, reads.holders, _table(reads.is_near, reads.rows, numbers))
        is_near, row, number = told.received.T
        columns = self.of_mates(_begins(read), told.senders) + number
        carry, near = (
            csr_matrix(row[is_near == kind], columns[is_near == kind], None, (num_rows, int(read.sum())))
            for kind, num_rows in enumerate((num_arrived, mine.send.num_rows))
        )
        sender, receiver, index, _, row = mine.added.T
        mate = np.searchsorted(self.mates, sender)
        columns = _begins(sent)[mate] + first_sent[mate, receiver] + index
        far = csr_matrix(row, columns, None, (mine.send.num_rows, int(sent.sum())))
        return NodeRoute(read, sent, carry, near, far)


def build_node_plan(
    world: World, node: World, placement: Placement, node_offsets: np.ndarray, indptr: np.ndarray,
    indices: np.ndarray, strategy: str,
) -> NodePlan:  # fmt: skip
    """This rank's plan. Collective.

    Args:
        node: the ranks of this rank's node, in the order of their ranks in ``world``. placement: the nodes of all ranks.
        node_offsets: (P + 1,) int64 first position of each rank. indptr: (n + 1,) int64 slab of the global CSR by
            destination. indices: (e,) int64 source positions. strategy: ``pre``, ``post`` or ``hybrid``.
    """
    builder = _Builder(world, node, placement, node_offsets, strategy)
    every = builder.edges(indptr, indices)
    inside = every.where(every.owners == world.rank)
    local = csr_matrix(inside.destinations, inside.sources - builder.first, inside.edges, (builder.num_owned,) * 2)
    on_node = placement.node_of[every.owners] == builder.my_node
    near, far = every.where(on_node & (every.owners != world.rank)), every.where(~on_node)
    del every, inside

    chosen, to_write = builder.choose_far(far)
    near_post, record, near_to_write = builder.choose_near(near)
    mine = builder.write(to_write, near_to_write)
    written = builder.gathered(mine.send.num_rows)
    carry, send_to = builder.carry(mine, written)
    receive_from = PeerRows.of(world.alltoallv(send_to.table(world.size), np.ones(world.size, dtype=np.int64))[0])
    arrived = builder.gathered(receive_from.total)
    first_arrived = builder.gathered(_begins(receive_from.counts(world.size)))  # (k, P): by receiver and sender

    far_post, sender, receiver, index = chosen.T
    near_rows = near_to_write.answered(mine.near[:, None])[record, 0]
    far_rows = first_arrived[np.searchsorted(builder.mates, receiver), sender] + index
    reads = builder.read(
        _Cut(*map(np.concatenate, zip(near, far, strict=True))),
        is_near=np.arange(near_rows.size + far_rows.size) < near_rows.size,
        is_post=np.concatenate((near_post, far_post == _POST)),
        holders=np.concatenate((near.owners, receiver)),
        rows=np.concatenate((near_rows, far_rows)),
    )
    plan = AggregationPlan(local, mine.send, reads.receive, send_to, receive_from)
    there = NodeRoute(written, arrived, carry, *builder.picks(reads, written, arrived))
    return NodePlan(plan, there, builder.back(reads, mine, send_to, receive_from.total))


def rows_if_placed(
    world: World, placement: Placement, node_offsets: np.ndarray, indptr: np.ndarray, indices: np.ndarray,
    strategy: str,
) -> int:  # fmt: skip
    """Number of rows that all ranks together would send between nodes with this placement; arguments are those of
    :func:`build_node_plan`. Collective."""
    builder = _Builder(world, world, placement, node_offsets, strategy)
    every = builder.edges(indptr, indices)
    far = every.where(placement.node_of[every.owners] != builder.my_node)
    return int(world.allreduce(np.array([builder.solve(far)[1].ids.size]))[0])


def _begins(counts: np.ndarray) -> np.ndarray:
    """The index at which each of consecutive groups begins, from the groups' sizes."""
    return np.cumsum(counts) - counts


def _table(*columns: np.ndarray | int) -> np.ndarray:
    """(m, c) int64 records from their columns, each (m,) or one number for all."""
    return np.stack(np.broadcast_arrays(*columns), axis=1)


def _distinct(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct records among those with these columns, (r, c) int64 ascending, and the number there of each, (m,)."""
    order = np.lexsort(columns[::-1])
    records = _table(*columns)[order]
    is_new = np.ones(order.size, bool)
    is_new[1:] = (records[1:] != records[:-1]).any(axis=1)
    number = np.empty(order.size, np.int64)
    number[order] = np.cumsum(is_new) - 1
    return records[is_new], number


class NodeEdges(NamedTuple):
    """Edges that end on one node and begin on others, (m,) int64 each: positions of sources and destinations, sending nodes.

    The edges between two nodes form a bipartite graph. A source in its minimum vertex cover travels once, for all ranks of the
    other node (*post*). The edges of a destination in the cover are summed on the sending node, whichever ranks own their
    sources, and the sum travels once (*pre*): SuperGCN's choice (§3.3.1), made for nodes in place of ranks.
    """

    sources: np.ndarray
    destinations: np.ndarray
    senders: np.ndarray


@dataclass(frozen=True)
class RowsOfNodes:
    """The rows that carry m edges to one node. is_post: (m,) bool, whether each edge is aggregated after it has travelled. row:
    (m,) int64 the row that carries it. Rows are ordered by sending node, *post* before *pre*, then by id. Of each row, (rows,):
    senders: int64 sending node; posts: bool, whether it is a *post* row; ids: int64 position of its source, or of the destination
    of a *pre* row."""

    is_post: np.ndarray
    row: np.ndarray
    senders: np.ndarray
    posts: np.ndarray
    ids: np.ndarray

    def carriers(self, placement: Placement, node: int) -> Carriers:
        """The sending and receiving rank of each row to ``node``, and the row's index among those from one to the other."""
        begins = np.searchsorted(self.senders, np.arange(placement.num_nodes + 1))
        number = np.arange(self.senders.size) - begins[self.senders]
        there = np.full(self.senders.size, node, np.int64)
        return placement.carriers(self.senders, there, number, np.diff(begins)[self.senders])


def rows_between(edges: NodeEdges, strategy: str, num_nodes: int) -> RowsOfNodes:
    """Choose the rows that carry ``edges``, with one matching for all senders if ``strategy`` is ``hybrid``. num_nodes:
    nodes of the graph. Time O(edges log edges) plus the matching, memory O(edges)."""
    is_post = post_edges(edges.sources, edges.senders * max(num_nodes, 1) + edges.destinations, strategy)
    ids = np.where(is_post, edges.sources, edges.destinations)
    keys, row = np.unique((edges.senders * 2 + ~is_post) * max(num_nodes, 1) + ids, return_inverse=True)
    kinds, of_row = np.divmod(keys, max(num_nodes, 1))
    return RowsOfNodes(is_post, row, kinds // 2, kinds % 2 == 0, of_row)


def node_rows(
    parts: PartsFile, strategy: str, pairs: PairRows, placement: Placement, bytes_per_row: int,
    advance: Callable[[int], object],
) -> dict[str, int]:  # fmt: skip
    """Numbers of rows and bytes of one aggregation in one direction, by their names in the JSON of ``hpcgnn plan``. pairs:
    rows between pairs of ranks, where these exchange their own messages, as they always do in a plan by types of edges. See
    :func:`count_between`."""
    on_node = placement.node_of[pairs.sender] == placement.node_of[pairs.receiver]
    within, by_pairs = (int(pairs.rows[chosen].sum()) for chosen in (on_node, ~on_node))
    between = by_pairs if strategy.endswith(BY_TYPE) else count_between(parts, strategy, placement, advance)
    return {
        "rows_between_nodes": between,
        "rows_within_nodes": within,
        "rows_between_nodes_by_pairs_of_ranks": by_pairs,
        "bytes_between_nodes": between * bytes_per_row,
        "bytes_within_nodes": within * bytes_per_row,
    }


def count_between(
    parts: PartsFile, strategy: str, placement: Placement, advance: Callable[[int], object] = lambda _: None
) -> int:
    """Number of rows from node to node with this placement, where each rank has one part. ``advance`` is called with the
    number of parts done. Memory is O(edges that end on a node)."""
    total = 0
    for node in range(placement.num_nodes):
        edges = edges_into(parts, placement, node)
        total += rows_between(edges, strategy, int(parts.node_offsets[-1])).ids.size
        advance(placement.ranks_of(node).size)
    return total


def edges_into(parts: PartsFile, placement: Placement, node: int) -> NodeEdges:
    """The edges that end in the parts of a node and begin on other nodes."""
    cut = []
    for rank in placement.ranks_of(node).tolist():
        first, last = parts.part(rank)
        indptr, sources = parts.edges(first, last, rank)
        senders = placement.node_of[owners_of(sources, parts.node_offsets)]
        away = senders != node
        destinations = np.repeat(np.arange(first, last), np.diff(indptr))
        cut.append((sources[away], destinations[away], senders[away]))
    return NodeEdges(*map(np.concatenate, zip(*cut, strict=True)))


class RecordExchange:
    """An exchange of records between all ranks. Construction is collective. to: (m,) int64 receiver of each record. records: (m,
    c) int64. received: (r, c) int64 records for this rank, by sender and then in the sender's order. senders: (r,) int64."""

    def __init__(self, world: World, to: np.ndarray, records: np.ndarray) -> None:
        self._world, self._order = world, np.argsort(to, kind="stable")
        counts = np.bincount(to, minlength=world.size)
        self.received, self._counts = world.alltoallv(records[self._order], counts)
        self.senders = np.repeat(np.arange(world.size), self._counts)

    def answered(self, answers: np.ndarray) -> np.ndarray:
        """(m, k) int64 answers to this rank's records, in their order. answers: (r, k) int64, this rank's to the records that
        it received. Collective."""
        back, _ = self._world.alltoallv(answers, self._counts)
        mine = np.empty_like(back)
        mine[self._order] = back
        return mine
