"""Attention whose cut edges are aggregated where their sources are, so that the hybrid plan's saving holds for it as well.

A node's softmax-weighted sum over some of its in-edges, and the logarithm of these edges' sum of exponentials, stand for all of
them: a row ``(v, l)`` of a sender is merged by the receiver's softmax like one more neighbour with value v and score l. A
*post* row is that of a single edge whose target is not known yet: ``(W x_j, b · W x_j)``.

Scores of targets, H numbers each, go to senders first, for their *pre* rows. Then all rows travel, H*C + H wide.

Shapes: n owned nodes, s rows sent, r rows received, H heads, C columns of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.comm import Messages
from hpcgnn.errors import HpcgnnError
from hpcgnn.graph import LocalGraph
from hpcgnn.host import index_array
from hpcgnn.kernels import Csr, edge_softmax, edge_sum, sddmm, spmm
from hpcgnn.kernels.edges import repeat_rows
from hpcgnn.nn.aggregate import Aggregator, destinations
from hpcgnn.nn.aggregators import connected
from hpcgnn.nn.halo import edge_ids, identity
from hpcgnn.nn.self_loops import with_self_loops
from hpcgnn.plan import AggregationPlan, PeerRows

NEGATIVE_SLOPE = 0.2


@dataclass(frozen=True)
class PartialPlan:
    """One rank's plan of attention, with exchanges.

    send: (s, n) S. merge: (n, n + r) L beside R. send_sources, merge_sources: (entries, columns) that pick the source's row for
    each entry of these. pre_rows: (s, q) that puts what is told of the q *pre* rows of S where they are; is_pre: (entries of
    send,) bool, which entries are in one. targets: (p, n) that picks the destinations of the pre rows received, in their order.
    is_partial: (entries of merge,) bool, which stand for such a row.
    send_ids, merge_ids: (entries,) int64 of edges, as in :class:`hpcgnn.nn.halo.AttentionEdges`. scores: moves (p, H) of
    targets to senders. rows: moves (s, H*C + H) to receivers.
    """

    send: Csr
    merge: Csr
    send_sources: Csr
    merge_sources: Csr
    pre_rows: Csr
    is_pre: torch.Tensor
    targets: Csr
    is_partial: torch.Tensor
    send_ids: torch.Tensor
    merge_ids: torch.Tensor
    scores: Aggregator
    rows: Aggregator

    def for_layer(self, scores: int, rows: int) -> PartialPlan:
        """The plan of another layer, whose exchanges have these numbers."""
        return replace(self, scores=self.scores.for_layer(scores), rows=self.rows.for_layer(rows))


def make_partial_plan(
    graph: LocalGraph, strategy: str = "hybrid", *, messages: Messages, backend: str = "auto"
) -> PartialPlan:
    """The plan of attention with one self-loop a node. Collective.

    Rows go between ranks, also where ranks share nodes: those of a node's ranks for one destination cannot be added up, as each
    has a maximum of its own.

    Raises:
        HpcgnnError: on every rank, where ``node_aware="on"`` asks for it.
    """
    if messages.config.node_aware == "on":
        raise HpcgnnError(
            "the sums of --attention partial cannot be added up on a node: leave --node-aware at auto, which sends them from "
            "rank to rank, or take --attention halo",
            agreed=True,
        )
    plan, _ = with_self_loops(graph.plan(strategy), graph, torch.float32)
    if graph.order.nodes is not None:
        plan = plan.in_order(graph.order.nodes)
    pre_to_send, pre_received = _only_pre(plan.send_to), _only_pre(plan.receive_from)
    to_send, received = (torch.from_numpy(~rows.is_post()) for rows in (plan.send_to, plan.receive_from))
    received_targets = destinations(plan.receive)[received]
    merge, where = _beside(plan.local, plan.receive), graph.device.where
    ids, world = graph.original_ids, graph.world
    # What an edge is called: a sender is told the targets of its pre rows, a receiver the sources of its post rows.
    targets, _ = world.alltoallv(ids[received_targets], pre_received.counts(world.size))
    of_row = torch.zeros(plan.send.num_rows, dtype=torch.int64)
    of_row[to_send] = targets
    first_sources = plan.send.indices[plan.send.indptr[:-1]].long()
    sources, _ = world.alltoallv(ids[first_sources], plan.send_to.counts(world.size))
    all_ids = torch.cat((ids, sources))
    return PartialPlan(
        send=plan.send.to(where),
        merge=merge.to(where),
        send_sources=_picks(plan.send.indices, plan.send.num_cols).to(where),
        merge_sources=_picks(merge.indices, merge.num_cols).to(where),
        pre_rows=_picks(torch.nonzero(to_send).flatten(), plan.send.num_rows).transpose().to(where),
        is_pre=to_send[plan.send.entry_rows()].to(where),
        targets=_picks(received_targets, graph.num_nodes).to(where),
        is_partial=torch.cat((torch.zeros(graph.num_nodes, dtype=torch.bool), received))[merge.indices.long()].to(
            where
        ),
        send_ids=edge_ids(of_row[plan.send.entry_rows()], ids[plan.send.indices.long()]).to(where),
        merge_ids=edge_ids(ids[merge.entry_rows()], all_ids[merge.indices.long()]).to(where),
        scores=_mover(pre_received, pre_to_send, messages, backend, _nodes_of_scores(received_targets, pre_to_send)),
        rows=_mover(plan.send_to, plan.receive_from, messages, backend, _nodes_of_rows(plan)),
    )


Drop = Callable[[torch.Tensor], torch.Tensor]


def partial_attention(
    plan: PartialPlan,
    rows: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    drops: tuple[Drop, Drop],
    backend: str = "auto",
    weighed: Callable[..., torch.Tensor] = spmm,
) -> torch.Tensor:
    """The (n, H*C) sums of GAT, differentiable. Collective, forward and backward.

    rows: (n, H*C). source, target: (n, H) what a node's row adds to the scores of edges from, and to, it. drops: dropout of
    the (entries, H) weights of S and of L beside R. weighed: :func:`hpcgnn.kernels.spmm` for rows with weights.
    """
    width, send = rows.shape[1], plan.send
    told = plan.scores(spmm(plan.targets, target, backend=backend))
    of_row = spmm(plan.pre_rows, told, backend=backend)
    scores = _scores(send, plan.send_sources, source, of_row, plan.is_pre, backend)
    weights = edge_softmax(send, scores, backend)
    values = weighed(send, rows, torch.where(plan.is_pre[:, None], drops[0](weights), weights), backend=backend)
    came = plan.rows(torch.cat((values, _log_sum_exp(send, scores, backend)), dim=1))
    sources = torch.cat((source, came[:, width:]))
    scores = _scores(plan.merge, plan.merge_sources, sources, target, ~plan.is_partial, backend)
    alpha = edge_softmax(plan.merge, scores, backend)
    alpha = torch.where(plan.is_partial[:, None], alpha, drops[1](alpha))
    return weighed(plan.merge, torch.cat((rows, came[:, :width])), alpha, backend=backend)


def _scores(
    csr: Csr, sources: Csr, source: torch.Tensor, target: torch.Tensor, both: torch.Tensor, backend: str
) -> torch.Tensor:
    """(entries, H): LeakyReLU of the two ends' sum for entries of which ``both`` are known, else what the source has."""
    of_source = spmm(sources, source, backend=backend)
    joint = F.leaky_relu(sddmm(csr, target, source, "add", backend=backend), NEGATIVE_SLOPE, inplace=True)
    return torch.where(both[:, None], joint, of_source)


def _log_sum_exp(csr: Csr, scores: torch.Tensor, backend: str) -> torch.Tensor:
    """(rows, H), of each row's entries. No row is empty."""
    with torch.no_grad():
        rows = csr.entry_rows()[:, None].expand_as(scores)
        largest = scores.new_zeros(csr.num_rows, scores.shape[1])
        largest.scatter_reduce_(0, rows, scores, "amax", include_self=False)
    return largest + torch.log(edge_sum(csr, torch.exp(scores - repeat_rows(csr, largest, backend)), backend))


# -- making the plan ---------------------------------------------------------------------------------------------------


def _picks(columns: torch.Tensor, num_cols: int) -> Csr:
    """(m, num_cols) with a one in each row, in these (m,) columns: it gathers rows, and its transpose, made once, scatters."""
    return Csr(torch.arange(columns.numel() + 1), columns.to(torch.int32), num_cols, check=False)


def _only_pre(rows: PeerRows) -> PeerRows:
    return PeerRows(rows.peers, np.zeros_like(rows.post), rows.pre)


def _beside(left: Csr, right: Csr) -> Csr:
    """(n, a + b) of (n, a) and (n, b); a row's entries of ``left`` come first."""
    rows = torch.cat((left.entry_rows(), right.entry_rows()))
    columns = torch.cat((left.indices, right.indices + left.num_cols))
    indptr = left.indptr + right.indptr
    return Csr(indptr, columns[torch.argsort(rows, stable=True)], left.num_cols + right.num_cols, check=False)


def _nodes_of_scores(targets: torch.Tensor, receive_from: PeerRows) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of their sender for which the scores' rows stand (``Aggregator.stands_for``)."""
    return index_array(targets), np.full(receive_from.total, -1)


def _nodes_of_rows(plan: AggregationPlan) -> tuple[np.ndarray, np.ndarray]:
    """The nodes for which the rows of attention stand, as those of the plan's sums."""
    sources = index_array(plan.send.indices[plan.send.indptr[:-1]])
    sent = np.where(plan.send_to.is_post(), sources, -1)
    return sent, np.where(~plan.receive_from.is_post(), index_array(destinations(plan.receive)), -1)


def _mover(
    send_to: PeerRows, receive_from: PeerRows, messages: Messages, backend: str, nodes: tuple[np.ndarray, np.ndarray]
) -> Aggregator:
    """An aggregator that only moves rows: L is empty, S and R are identities. nodes: that the rows stand for. Collective."""
    no_rows = torch.zeros(receive_from.total + 1, dtype=torch.int64)
    nothing = Csr(no_rows, torch.zeros(0, dtype=torch.int32), send_to.total, check=False)
    plan = AggregationPlan(nothing, identity(send_to.total), identity(receive_from.total), send_to, receive_from)
    mover = connected(plan, messages=messages, backend=backend)
    mover.moves_rows, mover.stands_for = True, nodes
    return mover
