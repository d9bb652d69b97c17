"""Aggregation over all ranks: ``z = Dl · (L x' + R · exchange(S x'))`` with ``x' = Dr · x`` (SuperGCN §3.3).

Shapes: n owned nodes, F columns, s rows sent, r rows received. x, z (n, F); S (s, n); L (n, n); R (n, r).
Backward is the same seven calls on the transposes, with Dl and Dr exchanged.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import Codes, Exchange
from hpcgnn.comm.mailbox import Message
from hpcgnn.host import host_values, index_array
from hpcgnn.kernels import Csr, buffers, spmm
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.nn.correction import Correction
from hpcgnn.nn.int8 import Int8
from hpcgnn.plan import AggregationPlan
from hpcgnn.policy.channel import Channel


class Aggregator:
    """A linear aggregator of one graph: the plan, the exchange and the diagonal scalings.

    left, right: (n, 1) diagonals Dl and Dr, or None for the identity. correction: of stale rows; layers share it.
    """

    def __init__(
        self,
        plan: AggregationPlan[Csr],
        exchange: Exchange,
        left: torch.Tensor | None,
        right: torch.Tensor | None,
        backend: str,
        correction: Correction,
    ) -> None:
        self.plan = plan
        self.exchange = exchange
        self.left = left
        self.right = right
        self.backend = backend
        self.correction = correction
        self.int8: Int8 | None = None  # what is aggregated is quantized first, where that is faster
        self.moves_rows = False  # and adds none up
        # (s,) and (r,) owned nodes that rows sent and received stand for, -1 where the other side knows; None: the plan tells.
        self.stands_for: tuple[np.ndarray, np.ndarray] | None = None
        exchange.boundary_nodes = self.correction.nodes.numel()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Aggregate (n, F) features over all in-edges; differentiable. Collective, forward and backward."""
        return self.begin(x).finish()

    def begin(self, x: torch.Tensor) -> Passage:
        """Start to aggregate (n, F) features; what is done before :meth:`Passage.finish` runs while bytes travel.

        In backward the same holds in reverse: what came between is differentiated while gradients travel. Collective;
        no other aggregation may begin before this one is finished.
        """
        return Passage(self, x)

    @cached_property
    def reverse(self) -> Aggregator:
        """The aggregator of the backward pass."""
        reverse = self._reversed()
        reverse.int8, reverse.moves_rows = self.int8, self.moves_rows
        return reverse

    def _reversed(self) -> Aggregator:
        plan, exchange, correction = self.plan.reverse(), self.exchange.reverse(), self.correction.reverse()
        return Aggregator(plan, exchange, self.right, self.left, self.backend, correction)

    def use_int8(self, int8: Int8 | None) -> None:
        """From now on, forward and backward, in 8-bit integers; or, with None, in float32."""
        self.int8 = self.reverse.int8 = int8

    def for_layer(self, layer: int) -> Aggregator:
        """This aggregator for another layer: same plan and scalings, messages of its own."""
        own = self.over(self.exchange.for_layer(layer))
        own.moves_rows, own.stands_for = self.moves_rows, self.stands_for
        return own

    def over(self, exchange: Exchange) -> Aggregator:
        """This aggregator with the messages of another exchange of the same rows."""
        return Aggregator(self.plan, exchange, self.left, self.right, self.backend, self.correction)

    def start_step(self, x: torch.Tensor) -> tuple[torch.Tensor | Int8Rows, Message]:
        """The first half of an aggregation, not differentiable: what is sent is under way. Collective.

        Returns what :meth:`finish_step` takes.
        """
        exchange, measure = self.exchange, self.exchange.messages.timings.measure
        with measure("aggregation_seconds"):
            own = self._scaled(x)
        reused = exchange.reused(x.shape[1])
        if reused is not None:
            return own, reused
        rows = exchange.rows_to_send(x.shape[1], x.dtype)
        given, is_enough = self._codes_to_send(own)
        with measure("aggregation_seconds"):
            if not is_enough:
                self._multiply(self.plan.send, own, rows)  # pre-aggregate
        return own, exchange.start(rows, given)  # encode, start

    def finish_step(self, x: torch.Tensor | Int8Rows, message: Message) -> torch.Tensor:
        """The other half. Collective."""
        exchange, measure = self.exchange, self.exchange.messages.timings.measure
        with measure("aggregation_seconds"):
            z = self._multiply(self.plan.local, x)  # aggregate locally, while rows travel
            sums = self.correction.sums(x, z) if message.is_corrected else None
        exchange.wait(message)
        exchange.add_received(message, self.plan.receive, z)  # decode, post-aggregate
        then = None if sums is None else exchange.keep_sums(message, sums)
        if sums is not None and then is not None:
            with measure("aggregation_seconds"):
                self.correction.apply(z, sums, then)
        elif self.int8 is not None and self.is_halo:
            self.int8.extend(x, message, z)
        return z if self.left is None else z.mul_(self.left)

    @property
    def is_halo(self) -> bool:
        """Whether rows are copied and not added up, see :mod:`hpcgnn.nn.halo`."""
        return self.correction.copies is not None

    @cached_property
    def single_sources(self) -> tuple[torch.Tensor, bool]:
        """(s,) int64: the row of x that a row sent is a copy of, -1 for the others; and whether there are others."""
        send = self.plan.send
        is_copy = send.indptr.diff() == 1
        first = send.indptr[:-1].clamp(max=max(send.num_entries - 1, 0))
        if send.weight is not None and send.num_entries:
            is_copy &= send.weight[first] == 1
        sources = send.indices[first].long() if send.num_entries else torch.zeros_like(first)
        return torch.where(is_copy, sources, -1), not bool(is_copy.all())

    def _codes_to_send(self, own: torch.Tensor | Int8Rows) -> tuple[Codes | None, bool]:
        """The rows that are sent as the 8-bit integers that they are already, where messages have 8 bits; and whether those are
        all."""
        if self.int8 is None or not self.int8.is_on:
            return None, False
        takes_codes, takes_rows = self.exchange.takes(own.shape[1])
        if takes_codes and self.is_halo and isinstance(own, torch.Tensor) and self.int8.weighs(own):
            own = self.int8.quantizer.rows(own)  # as it will be where it is weighed
        if not (takes_codes and isinstance(own, Int8Rows)):
            return None, False
        sources, has_sums = self.single_sources
        return Codes(own, sources), not (takes_rows or has_sums)

    @cached_property
    def _factor(self) -> torch.Tensor | None:
        """Dr, (n,)."""
        return None if self.right is None else self.right.view(-1)

    def _scaled(self, x: torch.Tensor) -> torch.Tensor | Int8Rows:
        """``Dr x``, as 8-bit integers where it is aggregated as such."""
        if self.int8 is not None and not self.moves_rows and self.int8.aggregates(self.plan.local, x):
            return self.int8.quantizer.rows(x, self._factor)
        return (x if self.right is None else _scaled(x, self.right)).contiguous()

    def _multiply(self, matrix: Csr, x: torch.Tensor | Int8Rows, out: torch.Tensor | None = None) -> torch.Tensor:
        how: dict[str, Any] = {"out": out, "backend": self.backend, "accumulate": False}
        if isinstance(x, Int8Rows):
            return spmm(matrix, x.codes, scale=x.scale, **how)
        return spmm(matrix, x, **how)

    # -- what policies ask ----------------------------------------------------------------------------------------------

    def channels(self, degrees: np.ndarray) -> list[Channel]:
        """The exchange of this aggregator and that of its reverse. degrees: (n,) int64 in-degrees in the whole graph."""

        back = self.reverse
        return [
            Channel(self.exchange, self.square_weights, lambda: self.row_degrees(degrees)),
            Channel(back.exchange, back.square_weights, lambda: self.row_degrees(degrees)[::-1]),
        ]

    def row_degrees(self, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(s,) and (r,) int64 in-degrees of what rows stand for: a post row's source, a pre row's destination. Collective.

        The sender knows the former, the receiver the latter; each tells the other.
        """
        exchange = self.exchange
        mine, theirs = self._known_degrees(degrees)
        world = exchange.messages.world
        from_senders, _ = world.alltoallv(mine, exchange.send_counts)
        from_receivers, _ = world.alltoallv(theirs, exchange.receive_counts)
        return mine + from_receivers, theirs + from_senders

    def _known_degrees(self, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(s,) and (r,) int64 of rows of which this side knows what they stand for; 0 for the others."""
        if self.stands_for is not None:
            sent, received = (np.append(degrees, 0)[nodes] for nodes in self.stands_for)
            return sent, received
        post, pre = self.plan.send_to.is_post(), ~self.plan.receive_from.is_post()
        return np.where(post, self._source_degrees(degrees), 0), np.where(pre, self._destination_degrees(degrees), 0)

    def _source_degrees(self, degrees: np.ndarray) -> np.ndarray:
        """(s,) int64 of the first source of each row sent: the only one of a *post* row."""
        return degrees[first_sources(self.plan.send)]

    def _destination_degrees(self, degrees: np.ndarray) -> np.ndarray:
        """(r,) int64 of a node that each row received is added to, the only one of a *pre* row; 0 for rows of a halo."""
        return padded(degrees, self.plan.receive.num_rows)[index_array(destinations(self.plan.receive))]

    def square_weights(self) -> np.ndarray:
        """(s,) float64: for each row sent, the squared norm of its column of Dl R at the receiver. Collective."""
        exchange = self.exchange
        told, _ = exchange.messages.world.alltoallv(self._square_columns(self.plan.receive), exchange.receive_counts)
        return told

    def _square_columns(self, received: Csr) -> np.ndarray:
        """(columns,) float64 squared norms of Dl times ``received``."""
        import scipy.sparse as sp  # here, as few policies ask, and a rank is spared its modules

        values = np.ones(received.num_entries) if received.weight is None else host_values(received.weight.double())
        if self.left is not None:
            values = values * host_values(self.left.double())[index_array(received.entry_rows()), 0]
        shape = received.num_rows, received.num_cols
        matrix = sp.csr_array((values, index_array(received.indices), index_array(received.indptr)), shape, copy=True)
        matrix.sum_duplicates()  # two edges between the same nodes add one error twice
        return np.bincount(matrix.indices, matrix.data**2, minlength=matrix.shape[1]).astype(
            np.float64
        )  # also of no entry


class Passage:
    """One aggregation under way, forward and then backward: see :meth:`Aggregator.begin`."""

    def __init__(self, aggregator: Aggregator, x: torch.Tensor) -> None:
        self.aggregator = aggregator
        self.under_way: tuple[torch.Tensor | Int8Rows, Message] | None = None
        self._begun: torch.Tensor | None = _Begin.apply(x, self)

    def finish(self) -> torch.Tensor:
        """(n, F) aggregated features."""
        begun, self._begun = self._begun, None  # autograd's nodes know this passage: a cycle would keep their memory
        return _Finish.apply(begun, self)

    def start(self, aggregator: Aggregator, x: torch.Tensor) -> None:
        """The first half of a direction."""
        assert self.under_way is None, "a passage is begun once"
        self.under_way = aggregator.start_step(x)

    def end(self, aggregator: Aggregator) -> torch.Tensor:
        """Its second half."""
        assert self.under_way is not None, "a passage is finished once, after it has begun"
        under_way, self.under_way = self.under_way, None
        return aggregator.finish_step(*under_way)


class _Begin(torch.autograd.Function):
    """Sends what is aggregated; in backward, receives gradients. The result has no elements: it ties the two halves.

    Autograd goes back in the order in which it came: first to _Finish, then through what was done in between, then here.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, passage: Passage) -> torch.Tensor:
        ctx.passage = passage
        passage.start(passage.aggregator, x)
        return x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.passage.end(ctx.passage.aggregator.reverse), None


class _Finish(torch.autograd.Function):
    """Receives what is aggregated; in backward, sends gradients."""

    @staticmethod
    def forward(ctx: Any, begun: torch.Tensor, passage: Passage) -> torch.Tensor:
        ctx.passage = passage
        return passage.end(passage.aggregator)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.passage.start(ctx.passage.aggregator.reverse, gradients[0])
        return gradients[0].new_empty(0), None


def destinations(receive: Csr) -> torch.Tensor:
    """(r,) int64 of R: for each row received a row that it is added to, the only one of a *pre* row."""
    found = torch.zeros(receive.num_cols, dtype=torch.int64, device=receive.device)
    found[receive.indices.long()] = receive.entry_rows()
    return found


def padded(degrees: np.ndarray, rows: int) -> np.ndarray:
    """(rows,) int64: those of owned nodes, and zeros behind them."""
    return np.concatenate((degrees, np.zeros(rows - degrees.size, degrees.dtype)))


def first_sources(send: Csr) -> np.ndarray:
    """(s,) int64 of S: the first source of each row. No row is empty."""
    return index_array(send.indices)[index_array(send.indptr)[:-1]]


def _scaled(x: torch.Tensor, diagonal: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, diagonal, out=buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device))
