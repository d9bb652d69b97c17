"""Attention over a halo of which a rank holds one piece at a time, so that its memory does not grow with the halo.

As in SAR (Mostafa, MLSys 2022), rows of one piece of the halo are received, used and forgotten, and the backward pass receives
them again. Let a piece's edges at node i have scores s_ij and rows v_j. With l, the log-sum-exp of the scores so far, and z, the
weighted sum so far, the piece's own l' and z' are merged in:

    z <- z exp(l - m) + z' exp(l' - m),   l <- m = log(exp(l) + exp(l')).

Afterwards ``alpha_ij = exp(s_ij - l_i)``, so backward needs l (n, H), and no weight of an edge. With d_ij, the factor by which
dropout multiplies the weight, and dz, the gradient of z,

    dv_j = sum_i d_ij alpha_ij dz_i,   ds_ij = alpha_ij (d_ij dz_i · v_j - dz_i · z_i)   in each head.

All ranks exchange the same number of pieces in the same order. A piece has a share of the rows of each other rank, so all ranks
have about the same work in a step, and there are as few steps as the largest halo needs.

Shapes: n owned nodes, h halo nodes, b rows of a piece, u owned nodes whose rows are sent in a step, e edges of a piece, p values
of a piece, H heads, C columns of a head, F columns of the rows that travel, N rows of the result: n, or more where several
softmaxes end at a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.exchange import Messages
from hpcgnn.exchange.mailbox import Message
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, edges
from hpcgnn.kernels.activation import DropoutMask, drop
from hpcgnn.kernels.autograd import Gradients, gradients_of, recorded, transposed_with
from hpcgnn.kernels.spmm import spmm
from hpcgnn.nn.activations import save, saved
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.halo import Block, identity, mover, picks
from hpcgnn.plan import PeerRows
from hpcgnn.plan.plan import offsets_of, ranges

# A piece has about this share of a part's mean number of nodes. Two pieces are in memory at a time, with their messages.
_SHARE = 0.25
_SPREAD = 0x9E3779B1  # multiples of it are spread evenly over 32 bits


class Edges(Protocol):
    """All edges to owned nodes: :class:`hpcgnn.nn.halo.AttentionEdges`, or those by type."""

    def cut(self, piece_of: Tensor, number: Tensor, sizes: Sequence[int], *, keyed: bool) -> Sequence[Block]:
        """The edges of each piece. piece_of, number: (n + h,) the piece of each extended row, and its number there. sizes: number
        of rows of each piece. keyed: keep the ids of edges."""
        ...


@dataclass(frozen=True)
class Piece:
    """Some rows of the halo. block: the edges from them. sent: (u,) int64 owned nodes, ascending, whose rows this rank sends in
    the same step. mover: moves (u, F) rows, of which a rank may get several, to (b, F) rows of other ranks."""

    block: Block
    sent: Tensor
    mover: Aggregator


@dataclass(frozen=True)
class HaloPieces:
    """Edges to owned nodes: local from owned nodes, the others from the pieces of the halo. There is at least one piece, which
    may have no rows."""

    local: Block
    pieces: tuple[Piece, ...]

    @property
    def blocks(self) -> list[Block]:
        """The blocks of all edges, those of local edges first."""
        return [self.local, *(piece.block for piece in self.pieces)]

    def with_movers(self, of: Callable[[Aggregator], Aggregator]) -> HaloPieces:
        """The same pieces, with the aggregators ``of(mover)``."""
        return replace(self, pieces=tuple(replace(piece, mover=of(piece.mover)) for piece in self.pieces))


def make_pieces(
    graph: LocalGraph,
    whole: Edges,
    *,
    messages: Messages,
    backend: str = "auto",
    width: int = 256,
    rows: int | None = None,
    keyed: bool = True,
) -> HaloPieces:
    """Cut the halo, and the edges from it, into pieces. Collective.

    Args:
        graph: this rank's part.
        whole: all edges to its nodes.
        messages: of the exchanges.
        backend: of the kernels.
        width: usual number of columns of a message.
        rows: about the largest number of rows of a piece, the same on all ranks; None: a share of a part's mean number of nodes.
        keyed: keep the ids of edges, 8 bytes each, which dropout needs.

    Raises:
        HpcgnnError: on every rank, for messages that keep rows between epochs, and if ``node_aware`` is ``"on"``.
    """
    if messages.config.node_aware == "on":
        raise HpcgnnError(
            "pieces of a halo travel from rank to rank only: leave --node-aware at auto, or take --halo whole",
            agreed=True,
        )
    world, size, device = graph.world, graph.world.size, graph.device.torch_device
    plan, nodes = graph.plan("post"), graph.order.nodes
    send = plan.send if nodes is None else plan.send.in_order(None, nodes)
    counts = plan.receive_from.counts(size), plan.send_to.counts(size)  # of rows that come, and that are sent
    most = int(world.allreduce(np.array([each.sum() for each in counts]), "max").max())
    rows = rows or max(1, int(_SHARE * graph.meta.num_nodes / size))
    steps, ahead = max(1, -(-most // rows)), np.arange(size) - world.rank
    piece_of = torch.zeros(graph.num_nodes + plan.receive.num_cols, dtype=torch.int64)
    number = torch.arange(piece_of.numel())
    parts = []
    for step in range(steps):
        shares = (
            share_of_piece(counts[0], ahead % size, step, steps),
            share_of_piece(counts[1], -ahead % size, step, steps),
        )
        come, sent = (
            ranges(offsets_of(all_rows)[:-1] + first, table)
            for all_rows, (first, table) in zip(counts, shares, strict=True)
        )
        columns = graph.num_nodes + torch.from_numpy(come)
        piece_of[columns], number[columns] = step + 1, torch.arange(come.size)
        parts.append((torch.unique(send.indices[sent].long(), return_inverse=True), shares[1][1], shares[0][1]))
    sizes = [graph.num_nodes, *(int(come.sum()) for _, _, come in parts)]
    local, *blocks = whole.cut(piece_of.to(device), number.to(device), sizes, keyed=keyed)
    how, pieces = {"messages": messages, "backend": backend, "width": width}, []
    for block, ((sent, places), *of_ranks) in zip(blocks, parts, strict=True):
        send_to, receive_from = (PeerRows.of(np.stack((each, np.zeros_like(each)), axis=1)) for each in of_ranks)
        stand_for = index_array(sent[places]), np.full(receive_from.total, -1)
        moving = mover(send_to, receive_from, stand_for, picks(places, sent.numel()), collective="alltoallv", **how)
        pieces.append(Piece(block, sent.to(device), moving))
    return HaloPieces(local, tuple(pieces))


def share_of_piece(
    counts: np.ndarray, distances: np.ndarray, number: int, pieces: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the piece ``number`` of ``pieces``: (P,) the first of each rank, and (P,) how many.

    counts: (P,) rows of each rank in all pieces, distances: (P,) of the sender after the receiver, both known on both ends. Every
    piece has a share of the rows of every rank, so all have about as many rows, both to send and to receive; where this share is
    a fraction, the distance says which pieces have a row more.
    """
    later = distances * _SPREAD % (1 << 32) * pieces >> 32
    first, end = (counts * number + later) // pieces, (counts * (number + 1) + later) // pieces
    return first, end - first


Sources = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PiecewiseAttention:
    """The sums of a layer with attention over the pieces of a halo, which are differentiable and collective.

    over: the pieces, with aggregators of this layer. sources: a differentiable function of (block, (N', Q) values of targets,
    (b, F) rows, parameters) with (e, H) scores and (p, H*C) values; in backward, it is called again. masks: of dropout, for each
    block. heads: H, C. of_edges: a differentiable function of (block, (e, H) weights, parameters) with (N, H*C) weighted sums of
    values of the edges themselves, which are added; or None.
    """

    over: HaloPieces
    sources: Sources
    masks: Sequence[DropoutMask | None]
    heads: tuple[int, int]
    backend: str = "auto"
    of_edges: Callable[..., Tensor] | None = None

    def __call__(self, rows: Tensor, target: Tensor, bias: Tensor | None, *parameters: Tensor) -> Tensor:
        """(N, H*C) weighted sums of the values made of rows (n, F), and the bias (H*C,). target: (N', Q) values of targets.
        parameters: those of ``sources`` and ``of_edges``."""
        return recorded(self._run, self._back, rows, target, bias, *parameters)

    def _in_turn(self, own: Tensor, calls: list[int], between: Callable[[], None]) -> Iterator[tuple[int, Tensor]]:
        """The number of each block, and its rows: local ones first, and then those of a piece, while the next piece is under way.

        own: (n, F) rows of owned nodes. calls: the numbers of the exchanges' calls that are repeated; an empty list is filled
        with those of this pass. between: is called when no rows are under way. Collective.
        """
        pieces, again = self.over.pieces, bool(calls)

        def begin(number: int) -> tuple[Any, Message]:
            piece = pieces[number]
            started = piece.mover.start_step(own[piece.sent], calls[number] if again else None)
            if not again:
                calls.append(started[1].call)
            return started

        under_way = begin(0)
        yield 0, own
        for number, piece in enumerate(pieces, 1):
            rows = piece.mover.finish_step(*under_way)
            between()
            if number < len(pieces):
                under_way = begin(number)
            yield number, rows

    def _run(self, ctx: Any, own: Tensor, target: Tensor, bias: Tensor | None, *parameters: Tensor) -> Tensor:
        own, (heads, width) = own.contiguous(), self.heads
        calls: list[int] = []
        sums = own.new_zeros(self.over.local.csr.num_rows, heads, width)
        logs = own.new_full((sums.shape[0], heads), -torch.inf)
        result = sums.view(-1, heads * width)
        for number, rows in self._in_turn(own, calls, lambda: None):
            block = self.over.blocks[number]
            if not block.csr.num_entries:
                continue
            scores, values = self.sources(block, target, rows, *parameters)
            total = torch.logaddexp(logs, self._log_sum_exp(block.csr, scores))
            sums.mul_((logs - total).exp_().nan_to_num_()[:, :, None])  # -inf less -inf, where there was no edge yet
            logs = total
            weights = self._dropped(self._weights(block.csr, scores, logs), number)
            spmm(block.csr, values, weights, out=result, backend=self.backend)
            if self.of_edges is not None:
                result += self.of_edges(block, weights, *parameters)
            del scores, values, weights, rows
        if bias is not None:
            result += bias
        save(ctx, [own, target, logs, result, bias, *parameters], [])
        ctx.again = calls, self._messages.current_pass
        return result

    def _back(self, ctx: Any, gradient: Tensor) -> Gradients:
        calls, of_pass = ctx.again
        if self._messages.current_pass != of_pass:  # its rows would be rounded otherwise
            raise HpcgnnError(
                "rows of --halo pieces are sent again in backward, and another epoch or an evaluation has begun since forward: "
                "call backward before it, or take --halo whole",
                agreed=True,
            )
        (own, target, logs, result, bias, *parameters), _ = saved(ctx)
        gradient = gradient.contiguous()
        of_targets = target, logs, self._shares(result, gradient, bias)
        del result
        found = [torch.zeros_like(each) for each in (own[:0], target, *parameters)]
        waiting: list[tuple[Piece, Tensor]] = []

        def give_back() -> None:
            """Send the gradient of the last piece's rows to their owners, and add that of the rows that this rank has sent."""
            while waiting:
                piece, of_rows = waiting.pop()
                back = piece.mover.reverse
                found[0][piece.sent] += back.finish_step(*back.start_step(of_rows))

        for number, rows in self._in_turn(own, calls, give_back):
            of_rows = self._back_block(number, rows, of_targets, gradient, found, parameters)
            del rows
            if number:
                waiting.append((self.over.pieces[number - 1], of_rows))
            else:
                found[0] = of_rows
        give_back()
        of_own, of_target, *others = found
        return of_own, of_target, None if bias is None else gradient.sum(0), *others

    def _back_block(
        self,
        number: int,
        rows: Tensor,
        of_targets: tuple[Tensor, ...],
        gradient: Tensor,
        found: list[Tensor],
        parameters: list[Tensor],
    ) -> Tensor:
        """The (b, F) gradient of a block's rows; those of targets and of parameters are added to ``found[1:]``.

        of_targets: the values of targets, the log-sum-exp of their scores and ``dz · z``. gradient: ``dz``.
        """
        block, (target, logs, shares) = self.over.blocks[number], of_targets
        csr = block.csr
        if not csr.num_entries:
            return torch.zeros_like(rows)
        with torch.enable_grad():
            given = [each.detach().requires_grad_() for each in (rows, target, *parameters)]
            scores, values = self.sources(block, given[1], given[0], *given[2:])
        alpha = self._weights(csr, scores.detach(), logs)
        weights = self._dropped(alpha, number)
        of_weights = edges.sddmm(csr, gradient, values.detach(), "dot", self.heads[0], self.backend)
        if self.of_edges is not None:
            of_weights += self._back_of_edges(block, weights, gradient, found, parameters)
        of_scores = self._dropped(of_weights, number).sub_(edges.repeat_rows(csr, shares, self.backend)).mul_(alpha)
        transpose, factors = transposed_with(csr, weights, self.backend)
        del alpha, weights, of_weights
        if values is given[0]:  # whose gradient is written once
            of_rows, of_target, *others = gradients_of((scores,), given, (of_scores,))
            of_rows = spmm(transpose, gradient, factors, out=of_rows.contiguous(), backend=self.backend)
        else:
            of_values = spmm(transpose, gradient, factors, backend=self.backend)
            of_rows, of_target, *others = gradients_of((scores, values), given, (of_scores, of_values))
        for total, each in zip(found[1:], (of_target, *others), strict=True):
            total += each
        return of_rows

    def _back_of_edges(
        self, block: Block, weights: Tensor, gradient: Tensor, found: list[Tensor], parameters: list[Tensor]
    ) -> Tensor:
        """The (e, H) gradient of the weights through :attr:`of_edges`; those of parameters are added to ``found[2:]``."""
        assert self.of_edges is not None
        with torch.enable_grad():
            given = [each.detach().requires_grad_() for each in (weights, *parameters)]
            sums = self.of_edges(block, *given)
        of_weights, *others = gradients_of((sums,), given, (gradient,))
        for total, each in zip(found[2:], others, strict=True):
            total += each
        return of_weights

    def _log_sum_exp(self, csr: Csr, scores: Tensor) -> Tensor:
        """(N, H) log-sum-exp of the scores (e, H) of each row; -inf in one without entries."""
        alpha = edges.edge_softmax(csr, scores, self.backend)
        # because each log alpha is a score less it, and the alphas of a row add up to 1
        sums = edges.edge_sum(csr, torch.xlogy(alpha, alpha).neg_().addcmul_(alpha, scores), self.backend)
        return sums.masked_fill_((csr.row_lengths() == 0)[:, None], -torch.inf)

    def _weights(self, csr: Csr, scores: Tensor, logs: Tensor) -> Tensor:
        """(e, H) weights in the softmax over all edges, or over those so far."""
        alpha = edges.repeat_rows(csr, logs, self.backend)
        return torch.sub(scores, alpha, out=alpha).exp_()

    def _shares(self, result: Tensor, gradient: Tensor, bias: Tensor | None) -> Tensor:
        """(n, H): ``dz · z`` in each head, of z = ``result`` less the bias, without an (n, H*C) temporary."""
        each = identity(result.shape[0]).to(result.device)
        shares = edges.sddmm(each, gradient, result, "dot", self.heads[0], self.backend)
        return shares if bias is None else shares - gradient @ torch.block_diag(*bias.view(*self.heads, 1))

    def _dropped(self, weights: Tensor, number: int) -> Tensor:
        """(e, H) weights, or gradients of dropped weights, after dropout."""
        mask = self.masks[number]
        return weights if mask is None else drop(weights, mask, self.backend)

    @property
    def _messages(self) -> Messages:
        return self.over.pieces[0].mover.exchange.messages
