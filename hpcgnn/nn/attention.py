"""Layers in which the weight of a neighbour depends on both ends of the edge: GAT, GATv2 and the graph transformer.

Only transformed rows travel: the receiver computes a neighbour's scores from the row that it has received. GAT's scores depend
on the row alone. Where rows are rounded to fewer than 8 bits, the owner computes them, and they travel as *wide* columns beside
the row (:mod:`hpcgnn.exchange.layout`): a softmax makes factors of their errors. GATv2's scores need the whole row.

With *partial* attention, cut edges are aggregated on the ranks of their sources, so that the hybrid plan sends fewer rows here,
too. The softmax-weighted sum over some in-edges of a node, together with the log-sum-exp of their scores, represents these
edges completely: the receiver merges such a row ``(v, l)`` from a sender like one more neighbour with value v and score l (a
log-sum-exp merge). A *post* row is that of a single edge whose target the sender does not know: ``(W x_j, b · W x_j)``. First,
the scores of targets, H numbers each, are sent to the senders of *pre* rows. Then all rows travel; they are H*C + H wide.

Shapes: n owned nodes, m extended rows (:mod:`hpcgnn.nn.halo`), e edges, s rows sent, r rows received, H heads, C columns of a
head.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import host_values, index_array
from hpcgnn.exchange import Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, attention_weights, edge_softmax, edge_sum, sddmm, spmm
from hpcgnn.kernels import int8_autograd as integers
from hpcgnn.kernels.autograd import layer_product
from hpcgnn.kernels.edges import repeat_rows
from hpcgnn.nn.activations import Activations
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.attention_step import Attention, GATScores, GATv2Scores, Map
from hpcgnn.nn.attention_step import Scores as StepScores
from hpcgnn.nn.config import FLOAT32
from hpcgnn.nn.edge_blocks import EdgeFeatures, joint_scores
from hpcgnn.nn.halo import AttentionEdges, Block, edge_ids, entries_of, mover, picks
from hpcgnn.nn.int8 import Int8
from hpcgnn.nn.layers import BiasedLayer, KeyedDropout, xavier
from hpcgnn.nn.linear import Compute, Features, LabelledFeatures, Operand, matmul, operand
from hpcgnn.nn.linear_map import destinations
from hpcgnn.nn.pieces import HaloPieces, PiecewiseAttention, Sources
from hpcgnn.nn.plans import with_self_loops
from hpcgnn.plan import PeerRows

NEGATIVE_SLOPE = 0.2
Over = tuple[Aggregator, AttentionEdges]
Halo = Over | tuple[Aggregator, Aggregator, AttentionEdges]


@dataclass(frozen=True)
class PartialPlan:
    """One rank's plan of partial attention, with its exchanges.

    send: S (s, n). merge: (n, n + r), L and R side by side. send_sources, merge_sources: (entries, columns) matrices that
    gather the source's row for each entry of ``send`` and ``merge``. pre_rows: (s, q), which puts the received scores of the q
    *pre* rows of S in their places. is_pre: (entries of send,) bool, whether an entry is in a pre row. targets: (p, n), which
    gathers the destinations of the received pre rows, in their order. is_partial: (entries of merge,) bool, whether an entry
    stands for a pre row. send_ids, merge_ids: (entries,) int64 ids of edges, as in :class:`hpcgnn.nn.halo.AttentionEdges`.
    scores: an aggregator that moves (p, H) scores of targets to senders. rows: an aggregator that moves (s, H*C + H) rows to
    receivers.
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


def make_partial_plan(
    graph: LocalGraph, strategy: str = "hybrid", *, messages: Messages, backend: str = "auto"
) -> PartialPlan:
    """Make the plan of attention with one self-loop on each node. Collective.

    Rows travel from rank to rank even where ranks share nodes: the rows of several ranks for one destination cannot be added
    up, because each is relative to a maximum of its own.

    Raises:
        HpcgnnError: on every rank, if ``node_aware`` is ``"on"``.
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
    pre_to_send, pre_received = (
        PeerRows(rows.peers, np.zeros_like(rows.post), rows.pre) for rows in (plan.send_to, plan.receive_from)
    )
    to_send, received = (torch.from_numpy(~rows.is_post()) for rows in (plan.send_to, plan.receive_from))
    received_targets = destinations(plan.receive)[received]
    merge, torch_device = _beside(plan.local, plan.receive), graph.device.torch_device
    ids, world = graph.original_ids, graph.world
    # The ids of edges: each sender gets the targets of its pre rows, and each receiver gets the sources of its post rows.
    targets, _ = world.alltoallv(ids[received_targets], pre_received.counts(world.size))
    of_row = torch.zeros(plan.send.num_rows, dtype=torch.int64)
    of_row[to_send] = targets
    first_sources = plan.send.indices[plan.send.indptr[:-1]].long()
    sources, _ = world.alltoallv(ids[first_sources], plan.send_to.counts(world.size))
    all_ids = torch.cat((ids, sources))
    # The nodes for which rows stand (:attr:`RowKind.nodes`): those of attention's rows are the same as of the plan's sums.
    of_scores = index_array(received_targets), np.full(pre_to_send.total, -1)
    sent_for = np.where(plan.send_to.is_post(), index_array(first_sources), -1)
    received_for = np.where(~plan.receive_from.is_post(), index_array(destinations(plan.receive)), -1)
    return PartialPlan(
        send=plan.send.to(torch_device),
        merge=merge.to(torch_device),
        send_sources=picks(plan.send.indices, plan.send.num_cols).to(torch_device),
        merge_sources=picks(merge.indices, merge.num_cols).to(torch_device),
        pre_rows=picks(torch.nonzero(to_send).flatten(), plan.send.num_rows).transpose().to(torch_device),
        is_pre=to_send[plan.send.entry_rows()].to(torch_device),
        targets=picks(received_targets, graph.num_nodes).to(torch_device),
        is_partial=torch.cat((torch.zeros(graph.num_nodes, dtype=torch.bool), received))[merge.indices.long()].to(
            torch_device
        ),
        send_ids=edge_ids(of_row[plan.send.entry_rows()], ids[plan.send.indices.long()]).to(torch_device),
        merge_ids=edge_ids(ids[merge.entry_rows()], all_ids[merge.indices.long()]).to(torch_device),
        scores=mover(pre_received, pre_to_send, of_scores, messages=messages, backend=backend),
        rows=mover(plan.send_to, plan.receive_from, (sent_for, received_for), messages=messages, backend=backend),
    )


def _joint_scores(
    csr: Csr, sources: Csr, source: torch.Tensor, target: torch.Tensor, both: torch.Tensor, backend: str
) -> torch.Tensor:
    """(entries, H) scores: LeakyReLU of the sum of both ends where ``both`` is true, else the source's contribution alone."""
    of_source = spmm(sources, source, backend=backend)
    joint = F.leaky_relu(sddmm(csr, target, source, "add", backend=backend), NEGATIVE_SLOPE, inplace=True)
    return torch.where(both[:, None], joint, of_source)


def _log_sum_exp(csr: Csr, scores: torch.Tensor, backend: str) -> torch.Tensor:
    """(rows, H) log-sum-exp of the scores in each row. No row is empty."""
    with torch.no_grad():
        rows = csr.entry_rows()[:, None].expand_as(scores)
        largest = scores.new_zeros(csr.num_rows, scores.shape[1])
        largest.scatter_reduce_(0, rows, scores, "amax", include_self=False)
    return largest + torch.log(edge_sum(csr, torch.exp(scores - repeat_rows(csr, largest, backend)), backend))


# -- construction of the plan -------------------------------------------------------------------------------------------


def _beside(left: Csr, right: Csr) -> Csr:
    """``left`` (n, a) and ``right`` (n, b) side by side as (n, a + b); in each row, the entries of ``left`` come first."""
    rows = torch.cat((left.entry_rows(), right.entry_rows()))
    columns = torch.cat((left.indices, right.indices + left.num_cols))
    indptr = left.indptr + right.indptr
    return Csr(indptr, columns[torch.argsort(rows, stable=True)], left.num_cols + right.num_cols, check=False)


@dataclass(frozen=True)
class Heads:
    """The heads of a layer. count: H. width: C. join: True concatenates the heads, False averages them."""

    count: int
    width: int
    join: bool


class WeighingLayer(torch.nn.Module):
    """A layer that makes a weight of each edge and head. Its call is collective.

    parts: the aggregators of its exchanges. drops: dropouts of the attention weights; as submodules, they follow ``eval``. over:
    what it works over: a halo, whole or in pieces, or a plan.
    """

    over: Any = None

    def __init__(
        self, heads: Heads, parts: list[Aggregator], drops: tuple[KeyedDropout, ...], compute: Compute
    ) -> None:
        super().__init__()
        self.heads, self.parts, self.drops = heads, parts, torch.nn.ModuleList(drops)
        self.compute, self.backend = compute, parts[0].backend
        self._keeps_weights, self._weights = False, torch.zeros(0)

    def keeps_rows(self, x: Features | LabelledFeatures) -> bool:
        """See :func:`hpcgnn.nn.layers.keeps_its_input`; rows of pieces are received again in backward."""
        return isinstance(self.over, HaloPieces) or self._is_one_step(x)

    def _is_one_step(self, x: Features | LabelledFeatures) -> TypeGuard[torch.Tensor]:
        """Return whether the layer is one step in this pass, which repeats itself."""
        return False

    def kept(self, weights: torch.Tensor) -> torch.Tensor:
        """``weights`` (e, H), which are kept in training steps if :meth:`row_squares` was asked for."""
        if self._keeps_weights and self.training:
            self._weights = weights.detach()
        return weights

    def row_squares(self, edges: Csr) -> np.ndarray | None:
        """(m,) float64 sum over edges of the squared weights of the last training step, a mean over heads; None before the first
        step after the first call. Parallel edges count one by one."""
        self._keeps_weights = True
        if not self._weights.numel():
            return None
        squares = host_values(self._weights.double().square().mean(dim=1))
        return np.bincount(index_array(edges.indices), squares, minlength=edges.num_cols)

    def piecewise(
        self, over: HaloPieces, sources: Sources, of_edges: Callable[..., torch.Tensor] | None = None
    ) -> PiecewiseAttention:
        """The sums over the pieces of a halo, with this layer's heads and dropout."""
        masks = [each.mask() for each in self.drops if isinstance(each, KeyedDropout)]
        heads = self.heads.count, self.heads.width
        return PiecewiseAttention(over, sources, masks, heads, self.backend, of_edges)

    @property
    def spmm(self) -> Callable[..., torch.Tensor]:
        """:func:`hpcgnn.kernels.spmm` with weights, in the layer's arithmetic."""
        return self.compute.spmm if isinstance(self.compute, Int8) else spmm


class AttentionLayer(WeighingLayer, BiasedLayer):
    """A layer with attention: (n, F_in) features to (n, H*C), or (n, C) with averaged heads, and a bias. Its call is collective.

    Arguments are those of :class:`WeighingLayer`.
    """

    def __init__(
        self, heads: Heads, parts: list[Aggregator], drops: tuple[KeyedDropout, ...], compute: Compute
    ) -> None:
        super().__init__(heads, parts, drops, compute)
        self.bias = torch.nn.Parameter(torch.zeros(heads.count * heads.width if heads.join else heads.width))
        self.activations = Activations()

    def _is_one_step(self, x: Features | LabelledFeatures) -> TypeGuard[torch.Tensor]:
        """Return whether attention is one step (:mod:`hpcgnn.nn.attention_step`) in this pass: over a whole halo, and not with
        sparse features, nor with scores in integers."""
        is_tensor = isinstance(x, torch.Tensor)
        return is_tensor and isinstance(self.over, tuple) and len(self.over) == 2 and not self.scores_are_integers

    def at_once(
        self, over: Over, scores: StepScores, x: torch.Tensor, maps: Sequence[Map], *attend: torch.Tensor
    ) -> torch.Tensor:
        """The layer's result by :class:`hpcgnn.nn.attention_step.Attention`, whose arguments these are."""
        (halo, edges), (drop,), heads = over, self.drops, self.heads
        mask = drop.mask() if isinstance(drop, KeyedDropout) else None
        note = self.kept if self._keeps_weights and self.training else None
        compute = FLOAT32 if isinstance(self.compute, Int8) and not self.compute.is_training_pass else self.compute
        step = Attention(halo, edges.csr, (heads.count, heads.width), scores, compute, self.activations, mask, note)
        return step(x, self.bias, maps, *attend) if heads.join else self.joined(step(x, None, maps, *attend))

    def joined(self, y: torch.Tensor) -> torch.Tensor:
        """Concatenate or average the heads of (n, H*C), and add the bias: (n, H*C) or (n, C)."""
        heads = self.heads
        return (y if heads.join else y.view(-1, heads.count, heads.width).mean(1)).add_(self.bias)

    def _edge_weights(self, weight: torch.Tensor) -> torch.Tensor:
        """(H, D, C) weights of edges, by head, of (D, H*C)."""
        return weight.view(-1, self.heads.count, self.heads.width).transpose(0, 1)

    def in_pieces(
        self,
        over: HaloPieces,
        sources: Sources,
        rows: torch.Tensor,
        target: torch.Tensor,
        *parameters: torch.Tensor,
        of_edges: Callable[..., torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The layer's result by attention over the pieces of a halo (:class:`hpcgnn.nn.pieces.PiecewiseAttention`)."""
        attend = self.piecewise(over, sources, of_edges)
        if self.heads.join:  # which need no sums without the bias beside the result
            return attend(rows, target, self.bias, *parameters)
        return self.joined(attend(rows, target, None, *parameters))

    def scores(self, rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """(r, H) products of each head of (r, H*C) with its vector of (H, C), by one product and without an (r, H*C) temporary.

        These become attention's scores, for which 8-bit integers are too coarse (Tango Eq. 8), so integers are used only if the
        user asks for them before the softmax.
        """
        block, compute = torch.block_diag(*vectors[:, :, None]), self.compute
        if isinstance(compute, Int8) and self.scores_are_integers:
            return integers.dense(rows, block, None, None, compute.quantizer)
        if isinstance(compute, Int8) and rows.is_cpu and compute.weighs_in_int8(rows.shape):
            return integers.head_products(rows, vectors, compute.quantizer)  # keeps the integers that the sums read
        return layer_product(rows, block, backend=self.backend)

    @property
    def scores_are_integers(self) -> bool:
        """Return whether 8-bit integers make the scores in this pass."""
        compute = self.compute
        return isinstance(compute, Int8) and compute.config.before_softmax and compute.is_training_pass


def parts(over: Aggregator | Halo | HaloPieces | PartialPlan) -> list[Aggregator]:
    """The aggregators of a halo, whole or in pieces, or of partial attention."""
    if isinstance(over, HaloPieces):
        return [piece.mover for piece in over.pieces]
    if isinstance(over, PartialPlan):
        return [over.scores, over.rows]
    return [over] if isinstance(over, Aggregator) else [*over[:-1]]


class UntypedAttention(AttentionLayer, ABC):
    """A layer whose edges have no types.

    over: the halo's aggregators, the last of which brings the rows that are weighed, and the edges; or the halo in pieces.
    """

    def __init__(
        self,
        in_width: int,
        heads: Heads,
        over: Halo | HaloPieces | PartialPlan,
        drops: tuple[KeyedDropout, ...],
        compute: Compute = "float32",
    ) -> None:
        super().__init__(heads, parts(over), drops, compute)
        self.over, attr = over, over.local.attr if isinstance(over, HaloPieces) else None
        if isinstance(over, tuple):
            *_, halo, edges = over
            halo.row_squares, attr = partial(self.row_squares, edges.csr), edges.attr
        self.add_weights(in_width, heads.count * heads.width, 0 if attr is None else attr.shape[1])

    @abstractmethod
    def add_weights(self, in_width: int, width: int, edge_width: int) -> None:
        """Make the layer's parameters. edge_width: the number of features of an edge."""


class GATLayer(UntypedAttention):
    """GAT (Veličković et al.). Scores are ``LeakyReLU(a · W x_i + b · W x_j)``, as in PyG's ``GATConv``.

    over: one aggregator and the edges, the halo in pieces, or the plan of partial attention.
    """

    def add_weights(self, in_width: int, width: int, edge_width: int) -> None:
        self.weight = xavier(in_width, width)
        self.attend_source = xavier(self.heads.count, self.heads.width)
        self.attend_target = xavier(self.heads.count, self.heads.width)

    def _is_one_step(self, x: Features | LabelledFeatures) -> TypeGuard[torch.Tensor]:
        """See :meth:`AttentionLayer._is_one_step`; scores that travel beside rows that are too coarse are not made of them."""
        halo = self.parts[0]
        return super()._is_one_step(x) and not (halo.exchange.is_coarse and halo.overlaps())

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        if self._is_one_step(x):
            scores = GATScores(NEGATIVE_SLOPE, self.backend)
            return self.at_once(self.over, scores, x, [(self.weight, None)], self.attend_source, self.attend_target)
        own = matmul(operand(x, self.compute), self.weight, self.backend)
        if isinstance(self.over, PartialPlan):
            return self.joined(self._partial(self.over, own))
        if isinstance(self.over, HaloPieces):
            return self._in_pieces(self.over, own)
        halo, edges = self.over
        is_coarse = halo.exchange.is_coarse
        under_way = halo.begin(torch.cat((own, self.scores(own, self.attend_source)), 1) if is_coarse else own)
        target = self.scores(own, self.attend_target)  # while rows travel
        rows = under_way.finish()
        if is_coarse:
            rows, source = (each.contiguous() for each in rows.tensor_split([own.shape[1]], 1))
        else:
            source = self.scores(rows, self.attend_source)
        weights = self.kept(attention_weights(edges.csr, target, source, NEGATIVE_SLOPE, self.backend))
        return self.joined(self.spmm(edges.csr, rows, self.drops[0](weights), backend=self.backend))

    def _in_pieces(self, over: HaloPieces, own: torch.Tensor) -> torch.Tensor:
        """The layer's result for transformed rows (n, H*C). In backward, scores are made again, and by floats."""
        width, target, backend = own.shape[1], self.scores(own, self.attend_target), self.backend
        is_coarse = any(piece.mover.exchange.is_coarse for piece in over.pieces)

        def sources(block: Block, target: torch.Tensor, rows: torch.Tensor, *attend: torch.Tensor) -> Any:
            if attend:
                values, source = rows, layer_product(rows, torch.block_diag(*attend[0][:, :, None]), backend=backend)
            else:
                values, source = (each.contiguous() for each in rows.tensor_split([width], 1))
            joint = sddmm(block.csr, target, source, "add", backend=backend)
            return F.leaky_relu(joint, NEGATIVE_SLOPE, inplace=True), values

        if not is_coarse:
            return self.in_pieces(over, sources, own, target, self.attend_source)
        return self.in_pieces(over, sources, torch.cat((own, self.scores(own, self.attend_source)), 1), target)

    def _partial(self, plan: PartialPlan, rows: torch.Tensor) -> torch.Tensor:
        """The (n, H*C) weighted sums of ``rows`` (n, H*C) by partial attention; differentiable. Collective."""
        source, target = self.scores(rows, self.attend_source), self.scores(rows, self.attend_target)
        width, send, backend = rows.shape[1], plan.send, self.backend
        told = plan.scores(spmm(plan.targets, target, backend=backend))
        of_row = spmm(plan.pre_rows, told, backend=backend)
        scores = _joint_scores(send, plan.send_sources, source, of_row, plan.is_pre, backend)
        weights = edge_softmax(send, scores, backend)
        weights = torch.where(plan.is_pre[:, None], self.drops[0](weights), weights)
        values = self.spmm(send, rows, weights, backend=backend)
        came = plan.rows(torch.cat((values, _log_sum_exp(send, scores, backend)), dim=1))
        sources = torch.cat((source, came[:, width:]))
        scores = _joint_scores(plan.merge, plan.merge_sources, sources, target, ~plan.is_partial, backend)
        alpha = edge_softmax(plan.merge, scores, backend)
        alpha = torch.where(plan.is_partial[:, None], alpha, self.drops[1](alpha))
        return self.spmm(plan.merge, torch.cat((rows, came[:, :width])), alpha, backend=backend)


class GATv2Layer(UntypedAttention):
    """GATv2 (Brody et al.). Scores are ``a · LeakyReLU(W_t x_i + W_s x_j + W_e e_ij)``, as in PyG's ``GATv2Conv``, without the
    last term where edges have no features e (entries, D).

    over: one aggregator and the edges, or the halo in pieces. The rows in the LeakyReLU, one for each edge, exist for one
    block of edges at a time (:mod:`hpcgnn.nn.edge_blocks`), so (entries, H) weights are what an edge keeps; PyG's layer keeps
    (entries, H*C).
    """

    def add_weights(self, in_width: int, width: int, edge_width: int) -> None:
        self.weight_source = xavier(in_width, width)
        self.bias_source = torch.nn.Parameter(torch.zeros(width))
        self.weight_target = xavier(in_width, width)
        self.bias_target = torch.nn.Parameter(torch.zeros(width))
        self.attend = xavier(self.heads.count, self.heads.width)
        self.weight_edge = xavier(edge_width, width) if edge_width else None

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        if self._is_one_step(x):
            scores = GATv2Scores(NEGATIVE_SLOPE, self.backend, self.over[1].attr)
            maps = [(self.weight_source, self.bias_source), (self.weight_target, self.bias_target)]
            by_head = [] if self.weight_edge is None else [self._edge_weights(self.weight_edge)]
            return self.at_once(self.over, scores, x, maps, self.attend, *by_head)
        given = operand(x, self.compute)
        if isinstance(self.over, HaloPieces):
            return self._in_pieces(self.over, given)
        halo, edges = self.over
        under_way = halo.begin(matmul(given, self.weight_source, self.backend, bias=self.bias_source))
        target = matmul(given, self.weight_target, self.backend, bias=self.bias_target)  # while rows travel
        rows = under_way.finish()
        weights = self.kept(edge_softmax(edges.csr, self._joint_scores(edges, target, rows), backend=self.backend))
        return self.joined(self.spmm(edges.csr, rows, self.drops[0](weights), backend=self.backend))

    def _in_pieces(self, over: HaloPieces, given: Operand) -> torch.Tensor:
        """The layer's result. In backward, scores are made again, and by floats."""

        def sources(block: Block, target: torch.Tensor, rows: torch.Tensor, *weights: torch.Tensor) -> Any:
            attend, *edge = weights
            features = EdgeFeatures(block.attr, *edge) if block.attr is not None and edge else None
            return joint_scores(block.csr, (target, rows), attend, features, NEGATIVE_SLOPE, self.backend), rows

        rows = matmul(given, self.weight_source, self.backend, bias=self.bias_source)
        target = matmul(given, self.weight_target, self.backend, bias=self.bias_target)
        edge = () if self.weight_edge is None else (self.weight_edge,)
        return self.in_pieces(over, sources, rows, target, self.attend, *edge)

    def _joint_scores(self, edges: AttentionEdges, target: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """(entries, H) scores, from target (n, H*C) and rows (m, H*C)."""
        features = None
        if edges.attr is not None and self.weight_edge is not None:
            features = EdgeFeatures(edges.attr, self.weight_edge)
        if not self.scores_are_integers:
            return joint_scores(edges.csr, (target, rows), self.attend, features, NEGATIVE_SLOPE, self.backend)
        joint = sddmm(edges.csr, target, rows, "add", backend=self.backend)
        if features is not None:
            joint = layer_product(features.values, features.weight, plus=joint, backend=self.backend)
        return self.scores(F.leaky_relu(joint, NEGATIVE_SLOPE, inplace=True), self.attend)


class TransformerLayer(UntypedAttention):
    """The graph transformer (Shi et al. 2021), as PyG's ``TransformerConv``:

        ``x_i W_root + b + sum_j alpha_ij (x_j W_v + b_v + e_ij W_e)``, with the softmax ``alpha_ij`` over j of
        ``(x_i W_q + b_q) · (x_j W_k + e_ij W_e) / sqrt(C)`` in each head,

    without ``e_ij W_e`` where edges have no features e (entries, D). Keys have no bias: it would add the same number to all
    scores of a node, which a softmax does not see.

    over: the aggregators of keys and of values, and the edges; or the halo in pieces. Both terms with e are sums of e by
    node and head, so no row of H*C columns exists for an edge: its (entries, H) weights are kept, PyG's layer keeps several
    (entries, H*C).
    """

    def add_weights(self, in_width: int, width: int, edge_width: int) -> None:
        self.weight_query, self.weight_key, self.weight_value = (xavier(in_width, width) for _ in range(3))
        self.bias_query, self.bias_value = (torch.nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.weight_root = xavier(in_width, self.bias.numel())
        self.weight_edge = xavier(edge_width, width) if edge_width else None

    def forward(self, x: Features | LabelledFeatures) -> torch.Tensor:
        given, backend = operand(x, self.compute), self.backend
        if isinstance(self.over, HaloPieces):
            return self._in_pieces(self.over, given)
        keys, values, edges = self.over
        under_way = keys.begin(matmul(given, self.weight_key, backend))
        # While keys travel:
        query = matmul(given, self.weight_query, backend, bias=self.bias_query) / math.sqrt(self.heads.width)
        own = matmul(given, self.weight_value, backend, bias=self.bias_value)
        root = matmul(given, self.weight_root, backend)
        key = under_way.finish()
        under_way = values.begin(own)
        scores = sddmm(edges.csr, query, key, "dot", self.heads.count, backend)  # while values travel
        if self.weight_edge is not None:
            scores = scores + self._edge_scores(query, edges, self.weight_edge)
        weights = self.drops[0](self.kept(edge_softmax(edges.csr, scores, backend=backend)))
        sums = self.spmm(edges.csr, under_way.finish(), weights, backend=backend)
        if self.weight_edge is not None:
            sums = sums + self._edge_sums(edges, weights, self.weight_edge)
        return self.joined(sums) + root

    def _in_pieces(self, over: HaloPieces, given: Operand) -> torch.Tensor:
        """The layer's result. A row that travels has the values, and the keys behind them."""
        backend, width = self.backend, self.heads.count * self.heads.width

        def sources(block: Block, query: torch.Tensor, rows: torch.Tensor, *edge: torch.Tensor) -> Any:
            values, keys = (each.contiguous() for each in rows.tensor_split([width], 1))
            scores = sddmm(block.csr, query, keys, "dot", self.heads.count, backend)
            return scores + self._edge_scores(query, block, *edge) if edge else scores, values

        query = matmul(given, self.weight_query, backend, bias=self.bias_query) / math.sqrt(self.heads.width)
        values = matmul(given, self.weight_value, backend, bias=self.bias_value)
        rows = torch.cat((values, matmul(given, self.weight_key, backend)), 1)
        edge = () if self.weight_edge is None else (self.weight_edge,)
        sums = self.in_pieces(over, sources, rows, query, *edge, of_edges=self._edge_sums if edge else None)
        return sums + matmul(given, self.weight_root, backend)

    def _edge_scores(self, query: torch.Tensor, edges: AttentionEdges | Block, weight: torch.Tensor) -> torch.Tensor:
        """(entries, H) products ``q_i · (e W_e) = (W_e q_i) · e`` of query (n, H*C)."""
        assert edges.attr is not None
        by_head = query.view(-1, self.heads.count, self.heads.width).transpose(0, 1)
        seen = by_head @ self._edge_weights(weight).transpose(1, 2)  # (H, n, D)
        entries = entries_of(edges.csr)
        return torch.stack([sddmm(entries, each, edges.attr, "dot", backend=self.backend) for each in seen], 1)

    def _edge_sums(self, edges: AttentionEdges | Block, weights: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """(n, H*C) sums ``sum alpha (e W_e) = (sum alpha e) W_e`` of weights (entries, H)."""
        assert edges.attr is not None
        entries, by_head = entries_of(edges.csr), weights.unbind(1)
        sums = torch.stack([spmm(entries, edges.attr, each.contiguous(), backend=self.backend) for each in by_head])
        return (sums @ self._edge_weights(weight)).transpose(0, 1).flatten(1)
