"""Attention over a halo of which a rank holds one piece at a time, so that its memory does not grow with the halo.

As in SAR (Mostafa, MLSys 2022), rows of one piece of the halo are received, used and forgotten, and the backward pass receives
them again. Let a piece's edges at node i have scores s_ij and rows v_j. With l, the log-sum-exp of the scores so far, and z, the
weighted sum so far, the piece's own l' and z' are merged in:

    z <- z exp(l - m) + z' exp(l' - m),   l <- m = log(exp(l) + exp(l')).

Afterwards ``alpha_ij = exp(s_ij - l_i)``, so backward needs l (n, H), and no weight of an edge. With d_ij, the factor by which
dropout multiplies the weight, and dz, the gradient of z,

    dv_j = sum_i d_ij alpha_ij dz_i,   ds_ij = alpha_ij (d_ij dz_i · v_j - dz_i · z_i)   in each head.

All ranks exchange the same number of pieces in the same order. In a step, a rank receives from the rank at some distance k after
it, and sends to that before it, so that all ranks have about the same work; small messages of several distances travel together,
and large ones are cut.

Shapes: n owned nodes, h halo nodes, b rows of a piece, u owned nodes whose rows are sent in a step, t owned nodes that have edges
from a piece, e edges, H heads, C columns of a head, F columns of the rows that travel: H*C, and those behind them that only the
scores use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import index_array
from hpcgnn.exchange import Messages
from hpcgnn.exchange.mailbox import Message
from hpcgnn.exchange.passes import Pass
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels import Csr, buffers, edges
from hpcgnn.kernels.activation import DropoutMask, drop
from hpcgnn.kernels.autograd import Gradients, recorded, transposed_with
from hpcgnn.kernels.spmm import spmm
from hpcgnn.nn.aggregator import Aggregator
from hpcgnn.nn.config import KEEPS_NO_ROW
from hpcgnn.nn.halo import AttentionEdges, identity, mover, picks
from hpcgnn.plan import PeerRows
from hpcgnn.plan.plan import offsets_of, ranges

# A piece has at most this share of a part's mean number of nodes. Two pieces are in memory at a time, with their messages.
_SHARE = 0.25


@dataclass(frozen=True)
class Block:
    """Edges to owned nodes. csr: (t, b) structure. targets: (t,) int64 the owned nodes, ascending, or a slice of all. ids: (e,)
    int64, as :attr:`AttentionEdges.ids`, or None. attr: (e, D) features of the edges, or None."""

    csr: Csr
    targets: Tensor | slice
    ids: Tensor | None
    attr: Tensor | None


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
        return HaloPieces(self.local, tuple(replace(piece, mover=of(piece.mover)) for piece in self.pieces))


def make_pieces(
    graph: LocalGraph,
    whole: AttentionEdges,
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
        rows: the largest number of rows of a piece, the same on all ranks; None: a share of a part's mean number of nodes.
        keyed: keep the ids of edges, 8 bytes each, which dropout needs.

    Raises:
        HpcgnnError: on every rank, for messages that keep rows between epochs, and if ``node_aware`` is ``"on"``.
    """
    check_messages(messages)
    if messages.config.node_aware == "on":
        raise HpcgnnError(
            "pieces of a halo travel from rank to rank only: leave --node-aware at auto, or take --halo whole",
            agreed=True,
        )
    world, size, device = graph.world, graph.world.size, graph.device.torch_device
    plan, nodes = graph.plan("post"), graph.order.nodes
    send = plan.send if nodes is None else plan.send.in_order(None, nodes)
    counts = plan.receive_from.counts(size), plan.send_to.counts(size)  # of rows that come, and that are sent
    after = (world.rank + np.arange(1, size)) % size
    most = world.allreduce(counts[0][after], "max") if size > 1 else np.zeros(0, np.int64)
    rows = rows or max(1, int(_SHARE * graph.meta.num_nodes / size))
    steps = schedule(most, rows)
    piece_of = torch.zeros(graph.num_nodes + plan.receive.num_cols, dtype=torch.int64)
    number = torch.arange(piece_of.numel())
    parts = []
    for step, (distances, first) in enumerate(steps, 1):
        peers = (world.rank + distances) % size, (world.rank - distances) % size
        (come, tables), (sent, of_sent) = (
            _chosen(each, ranks, first, rows) for each, ranks in zip(counts, peers, strict=True)
        )
        columns = graph.num_nodes + torch.from_numpy(come)
        piece_of[columns], number[columns] = step, torch.arange(come.size)
        parts.append((torch.unique(send.indices[sent].long(), return_inverse=True), of_sent, tables))
    sizes = [graph.num_nodes, *(int(tables.sum()) for _, _, tables in parts)]
    local, *blocks = _cut(whole, piece_of.to(device), number.to(device), sizes, keyed=keyed)
    how, pieces = {"messages": messages, "backend": backend, "width": width}, []
    for block, ((sent, places), *of_ranks) in zip(blocks, parts, strict=True):
        send_to, receive_from = (PeerRows.of(np.stack((each, np.zeros_like(each)), axis=1)) for each in of_ranks)
        stand_for = index_array(sent[places]), np.full(receive_from.total, -1)
        moving = mover(send_to, receive_from, stand_for, picks(places, sent.numel()), collective="alltoallv", **how)
        pieces.append(Piece(block, sent.to(device), moving))
    return HaloPieces(local, tuple(pieces))


def check_messages(messages: Messages) -> None:
    """Raise HpcgnnError, on every rank, for messages whose rows are kept between epochs."""
    if messages.keeps_rows:
        raise HpcgnnError(KEEPS_NO_ROW, agreed=True)


def schedule(most: np.ndarray, rows: int) -> list[tuple[np.ndarray, int]]:
    """The pieces in their order, at least one: distances of the ranks, and the first of the rows from each of them.

    most: (P - 1,) largest number of rows that any rank receives from the rank at distance 1, 2, ... after it. A piece has at most
    ``rows`` rows on each rank, and each rank sends at most as many at a time.
    """
    steps: list[tuple[list[int], int]] = []
    room = 0
    for distance, count in enumerate(most.tolist(), 1):
        if count > rows:
            steps += [([distance], first) for first in range(0, count, rows)]
            room = 0
        elif count > room:
            steps.append(([distance], 0))
            room = rows - count
        elif count:
            steps[-1][0].append(distance)
            room -= count
    return [(np.array(distances, np.int64), first) for distances, first in steps or [([], 0)]]


def _chosen(counts: np.ndarray, ranks: np.ndarray, first: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rows ``first`` to ``first + rows`` of ``ranks`` among all rows, and (P,) their number by rank."""
    table = np.zeros_like(counts)
    table[ranks] = (counts[ranks] - first).clip(0, rows)
    return ranges(offsets_of(counts)[:-1] + first, table), table


def _cut(whole: AttentionEdges, piece_of: Tensor, number: Tensor, sizes: Sequence[int], *, keyed: bool) -> list[Block]:
    """The edges from the rows of each piece. piece_of, number: (n + h,) the piece of each extended row, and its place there.
    sizes: number of rows of each piece."""
    csr, blocks = whole.csr, []
    columns, targets = csr.indices.long(), csr.entry_rows()
    order = torch.argsort(piece_of[columns], stable=True)
    entries = torch.bincount(piece_of[columns], minlength=len(sizes)).tolist()
    ids = whole.ids if keyed else None
    for size, mine in zip(sizes, order.split(entries), strict=True):
        rows, lengths = torch.unique_consecutive(targets[mine], return_counts=True)
        indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        blocks.append(
            Block(
                Csr(indptr, number[columns[mine]].to(torch.int32), size, check=False),
                slice(None) if rows.numel() == csr.num_rows else rows,
                *(None if each is None else each[mine] for each in (ids, whole.attr)),
            )
        )
    return blocks


Scores = Callable[..., Tensor]


@dataclass(frozen=True)
class PiecewiseAttention:
    """The sums of a layer with attention over the pieces of a halo, which are differentiable and collective.

    over: the pieces, with aggregators of this layer. scores: a differentiable function of (block, (t, Q) values of targets,
    (b, F) rows, parameters) with (e, H) scores; in backward, it is called again. masks: of dropout, for each block. heads: H, C.
    """

    over: HaloPieces
    scores: Scores
    masks: Sequence[DropoutMask | None]
    heads: tuple[int, int]
    backend: str = "auto"

    def __call__(self, rows: Tensor, target: Tensor, bias: Tensor | None, *parameters: Tensor) -> Tensor:
        """(n, H*C) weighted sums of the first H*C columns of rows (n, F), and the bias (H*C,). target: (n, Q) values of targets.
        parameters: those of the scores."""
        return recorded(self._run, self._back, rows, target, bias, *parameters)

    @property
    def _width(self) -> int:
        return self.heads[0] * self.heads[1]

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
        check_messages(self._messages)
        own, (heads, width) = own.contiguous(), self.heads
        calls: list[int] = []
        sums = own.new_zeros(own.shape[0], heads, width)
        logs = own.new_full((own.shape[0], heads), -torch.inf)
        work = self._work(own)
        for number, rows in self._in_turn(own, calls, lambda: None):
            block = self.over.blocks[number]
            csr, at = block.csr, block.targets
            if not csr.num_entries:
                continue
            scores = self.scores(block, target[at], rows, *parameters)
            alpha = edges.edge_softmax(csr, scores, self.backend)
            # the log-sum-exp, because each log alpha is a score less it, and the alphas of a row add up to 1
            terms = torch.xlogy(alpha, alpha).neg_().addcmul_(alpha, scores)
            later = edges.edge_sum(csr, terms, self.backend)
            weights, out = self._dropped(alpha, number), work[: csr.num_rows]
            values = spmm(csr, self._values(rows), weights, out=out, backend=self.backend, accumulate=False)
            total = torch.logaddexp(logs[at], later)
            earlier = (logs[at] - total).exp_()[:, :, None]
            logs[at] = total
            values = values.view(-1, heads, width).mul_((later - total).exp_()[:, :, None])
            sums[at] = values.addcmul_(sums[at], earlier)
        result = sums.view(-1, self._width)
        if bias is not None:
            result += bias
        ctx.save_for_backward(own, target, logs, result, bias, *parameters)
        ctx.again = calls, self._messages.current_pass
        return result

    def _back(self, ctx: Any, gradient: Tensor) -> Gradients:
        own, target, logs, result, bias, *parameters = ctx.saved_tensors
        calls, of_pass = ctx.again
        self._check_pass(of_pass)
        gradient = gradient.contiguous()
        shares, work = self._shares(result, gradient, bias), self._work(own)
        found = [torch.zeros_like(each) for each in (own[:0], target, *parameters)]
        waiting: list[tuple[Piece, Tensor]] = []

        def give_back() -> None:
            """Send the gradient of the last piece's rows to their owners, and add that of the rows that this rank has sent."""
            while waiting:
                piece, of_rows = waiting.pop()
                back = piece.mover.reverse
                found[0][piece.sent] += back.finish_step(*back.start_step(of_rows))

        for number, rows in self._in_turn(own, calls, give_back):
            of_rows = self._back_block(number, rows, (target, logs, shares), (gradient, work), found, parameters)
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
        whole: tuple[Tensor, Tensor],
        found: list[Tensor],
        parameters: list[Tensor],
    ) -> Tensor:
        """The (b, F) gradient of a block's rows; those of targets and of parameters are added to ``found[1:]``.

        of_targets: the values of targets, the log-sum-exp of their scores and ``dz · z``. whole: ``dz`` and memory for those of
        its rows that are used.
        """
        block = self.over.blocks[number]
        csr, at, width = block.csr, block.targets, self._width
        if not csr.num_entries:
            return torch.zeros_like(rows)
        target, logs, shares = (each[at] for each in of_targets)
        gradient, work = whole
        if isinstance(at, Tensor):
            gradient = torch.index_select(gradient, 0, at, out=work[: csr.num_rows])
        with torch.enable_grad():
            given = [each.detach().requires_grad_() for each in (rows, target, *parameters)]
            scores = self.scores(block, given[1], given[0], *given[2:])
        # (e, H) values are written over others where these are not needed again: they are the most memory of many edges
        alpha = edges.repeat_rows(csr, logs, self.backend)
        torch.sub(scores.detach(), alpha, out=alpha).exp_()
        values, heads = self._values(rows), self.heads[0]
        of_weights = self._dropped(edges.sddmm(csr, gradient, values, "dot", heads, self.backend), number)
        of_scores = of_weights.sub_(edges.repeat_rows(csr, shares, self.backend)).mul_(alpha)
        of_rows, of_target, *others = torch.autograd.grad(scores, given, of_scores)
        del scores, of_weights, of_scores
        found[1][at] += of_target
        for total, each in zip(found[2:], others, strict=True):
            total += each
        transpose, weight = transposed_with(csr, self._dropped(alpha, number), self.backend)
        if of_rows.shape[1] == width:
            return spmm(transpose, gradient, weight, out=of_rows.contiguous(), backend=self.backend)
        of_rows[:, :width] += spmm(transpose, gradient, weight, backend=self.backend)
        return of_rows

    def _work(self, own: Tensor) -> Tensor:
        """Memory for a row of H*C columns for each target of a block; all blocks use it in turn."""
        return buffers.empty(max(block.csr.num_rows for block in self.over.blocks), self._width, own.dtype, own.device)

    def _shares(self, result: Tensor, gradient: Tensor, bias: Tensor | None) -> Tensor:
        """(n, H): ``dz · z`` in each head, of z = ``result`` less the bias, without an (n, H*C) temporary."""
        each = identity(result.shape[0]).to(result.device)
        shares = edges.sddmm(each, gradient, result, "dot", self.heads[0], self.backend)
        return shares if bias is None else shares - gradient @ torch.block_diag(*bias.view(*self.heads, 1))

    def _values(self, rows: Tensor) -> Tensor:
        return rows if rows.shape[1] == self._width else rows[:, : self._width].contiguous()

    def _dropped(self, weights: Tensor, number: int) -> Tensor:
        """(e, H) weights, or gradients of dropped weights, after dropout."""
        mask = self.masks[number]
        return weights if mask is None else drop(weights, mask, self.backend)

    @property
    def _messages(self) -> Messages:
        return self.over.pieces[0].mover.exchange.messages

    def _check_pass(self, of_pass: Pass) -> None:
        """Raise HpcgnnError, on every rank, if another pass has begun, whose rows would be rounded otherwise."""
        if self._messages.current_pass != of_pass:
            raise HpcgnnError(
                "rows of --halo pieces are sent again in backward, and another epoch or an evaluation has begun since forward: "
                "call backward before it, or take --halo whole",
                agreed=True,
            )
