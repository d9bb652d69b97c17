"""Aggregation over all ranks: ``z = Dl · (L x' + R · exchange(S x'))`` with ``x' = Dr · x`` (SuperGCN §3.3).

Shapes: n owned nodes, F columns, s rows sent, r rows received. x and z are (n, F), S is (s, n), L is (n, n) and R is (n, r).
The backward pass makes the same seven calls on the transposed matrices, with Dl and Dr exchanged.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from hpcgnn.base.host import host_values, index_array
from hpcgnn.exchange import Codes, Exchange, Messages
from hpcgnn.exchange.codecs import Codec
from hpcgnn.exchange.mailbox import Message
from hpcgnn.kernels import Csr, buffers
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.spmm import multiply
from hpcgnn.nn.correction import Correction
from hpcgnn.nn.int8 import Int8
from hpcgnn.plan import AggregationPlan
from hpcgnn.policy.base import Channel


class Aggregator:
    """A linear aggregator of one graph: the plan, the exchange and the diagonal scalings.

    left, right: (n, 1) diagonals Dl and Dr, or None for the identity. correction: the correction of stale rows, which all
    layers share.
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
        # The arithmetic that quantizes rows before they are aggregated, where that is faster.
        self.int8: Int8 | None = None
        self.moves_rows = False  # True if the aggregator only copies rows, and adds none up
        # The (s,) and (r,) owned nodes for which sent and received rows stand, or -1 where only the other rank knows the node.
        # With None, the nodes follow from the plan.
        self.stands_for: tuple[np.ndarray, np.ndarray] | None = None
        exchange.boundary_nodes = self.correction.nodes.numel()
        self._aggregating = exchange.messages.timings.measure("aggregation_seconds")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Aggregate (n, F) features over all in-edges; differentiable. Collective, forward and backward."""
        return self.begin(x).finish()

    def begin(self, x: torch.Tensor) -> PendingAggregation:
        """Start to aggregate (n, F) features. Work before :meth:`PendingAggregation.finish` overlaps with communication.

        The same holds in backward, in reverse order: operations between the two calls are differentiated while gradients
        travel. Collective. No other aggregation may begin before this one is finished.
        """
        return PendingAggregation(self, x)

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
        """Aggregate in 8-bit integers from now on, forward and backward; None returns to float32."""
        self.int8 = self.reverse.int8 = int8

    def for_layer(self, layer: int) -> Aggregator:
        """A copy of this aggregator for another layer, with the same plan and scalings but messages of its own."""
        own = self.over(self.exchange.for_layer(layer))
        own.moves_rows, own.stands_for = self.moves_rows, self.stands_for
        return own

    def over(self, exchange: Exchange) -> Aggregator:
        """This aggregator with the messages of another exchange of the same rows."""
        return Aggregator(self.plan, exchange, self.left, self.right, self.backend, self.correction)

    def start_step(self, x: torch.Tensor) -> tuple[torch.Tensor | Int8Rows, Message]:
        """Run the first half of an aggregation, up to the start of the exchange. Not differentiable. Collective.

        Returns:
            The scaled features and the message, which are the arguments of :meth:`finish_step`.
        """
        with self._aggregating:
            own = self._scaled(x)
        step = self.exchange.step(x.shape[1], x.dtype)
        reused = step.reused()
        if reused is not None:
            return own, reused
        rows = step.rows_to_send()
        given, is_enough = (None, False) if self.int8 is None else self._codes_to_send(own, step.codec)
        if not is_enough:
            with self._aggregating:
                self._multiply(self.plan.send, own, rows)  # pre-aggregate
        return own, step.start(given)  # encode, start

    def finish_step(self, x: torch.Tensor | Int8Rows, message: Message) -> torch.Tensor:
        """Run the second half of an aggregation, and return the (n, F) result. Collective."""
        exchange = self.exchange
        with self._aggregating:
            z = self._aggregate_locally(x)  # while rows travel
            sums = self.correction.sums(x, z) if message.mailbox is not None and message.is_corrected else None
        exchange.wait(message)
        self._add_received(message, z)  # decode, post-aggregate
        then = None if sums is None else exchange.keep_sums(message, sums)
        if sums is not None and then is not None:
            with self._aggregating:
                self.correction.apply(z, sums, then)
        elif self.int8 is not None and self.is_halo:
            self.int8.record_extended(x, message, z)
        return z if self.left is None else z.mul_(self.left)

    def _aggregate_locally(self, x: torch.Tensor | Int8Rows) -> torch.Tensor:
        """``L x``, in new memory."""
        return self._multiply(self.plan.local, x)

    def _add_received(self, message: Message, z: torch.Tensor) -> None:
        """``z += R`` times the received rows."""
        self.exchange.add_received(message, self.plan.receive, z)

    @property
    def is_halo(self) -> bool:
        """Return whether this aggregator copies rows of halo nodes instead of adding rows up (:mod:`hpcgnn.nn.halo`)."""
        return self.correction.copies is not None

    @cached_property
    def single_sources(self) -> tuple[torch.Tensor, bool]:
        """Sent rows that are plain copies of a row of x.

        Returns:
            (s,) int64, the row of x that each sent row copies, or -1 if it is a sum or is weighted; and whether there are such
                other rows.
        """
        send = self.plan.send
        is_copy = send.indptr.diff() == 1
        first = send.indptr[:-1].clamp(max=max(send.num_entries - 1, 0))
        if send.weight is not None and send.num_entries:
            is_copy &= send.weight[first] == 1
        sources = send.indices[first].long() if send.num_entries else torch.zeros_like(first)
        return torch.where(is_copy, sources, -1), not bool(is_copy.all())

    def _codes_to_send(self, own: torch.Tensor | Int8Rows, codec: Codec) -> tuple[Codes | None, bool]:
        """The rows that can be sent as the 8-bit integers that they already are, if messages have 8 bits; and whether all rows
        can.
        """
        if self.int8 is None or not self.int8.is_training_pass:
            return None, False
        if codec.sends_int8_rows and self.is_halo and isinstance(own, torch.Tensor) and self.int8.weighs_in_int8(own):
            own = self.int8.quantizer.rows(own)  # the same integers are used later, when attention weighs the rows
        if not (codec.sends_int8_rows and isinstance(own, Int8Rows)):
            return None, False
        sources, has_sums = self.single_sources
        return Codes(own, sources), not (codec.sends_other_rows or has_sums)

    @cached_property
    def _factor(self) -> torch.Tensor | None:
        """The diagonal Dr as (n,), or None for the identity."""
        return None if self.right is None else self.right.view(-1)

    def _scaled(self, x: torch.Tensor) -> torch.Tensor | Int8Rows:
        """``Dr x``, quantized to 8-bit integers if the aggregation uses them."""
        if self.int8 is not None and not self.moves_rows and self.int8.aggregates(self.plan.local, x):
            return self.int8.quantizer.rows(x, self._factor)
        return (x if self.right is None else _scaled(x, self.right)).contiguous()

    def _multiply(self, matrix: Csr, x: torch.Tensor | Int8Rows, out: torch.Tensor | None = None) -> torch.Tensor:
        if isinstance(x, torch.Tensor):
            return multiply(matrix, x, out, self.backend, accumulate=False)
        return multiply(matrix, x.codes, out, self.backend, scale=x.scale, accumulate=False)

    # -- information for policies ---------------------------------------------------------------------------------------

    def channels(self, degrees: np.ndarray) -> list[Channel]:
        """The exchange of this aggregator and that of its reverse. degrees: (n,) int64 in-degrees in the whole graph."""

        back = self.reverse
        return [
            Channel(self.exchange, self.square_weights, lambda: self.row_degrees(degrees)),
            Channel(back.exchange, back.square_weights, lambda: self.row_degrees(degrees)[::-1]),
        ]

    def row_degrees(self, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(s,) and (r,) int64 in-degrees of the nodes for which rows stand: a post row's source, a pre row's destination.
        Collective.

        The sender knows the sources and the receiver knows the destinations, so each sends its in-degrees to the other.
        """
        exchange = self.exchange
        mine, theirs = self._known_degrees(degrees)
        world = exchange.messages.world
        from_senders, _ = world.alltoallv(mine, exchange.send_counts)
        from_receivers, _ = world.alltoallv(theirs, exchange.receive_counts)
        return mine + from_receivers, theirs + from_senders

    def _known_degrees(self, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(s,) and (r,) int64 in-degrees of the rows whose node this rank knows; 0 for the other rows."""
        if self.stands_for is not None:
            sent, received = (np.append(degrees, 0)[nodes] for nodes in self.stands_for)
            return sent, received
        post, pre = self.plan.send_to.is_post(), ~self.plan.receive_from.is_post()
        return np.where(post, self._source_degrees(degrees), 0), np.where(pre, self._destination_degrees(degrees), 0)

    def _source_degrees(self, degrees: np.ndarray) -> np.ndarray:
        """(s,) int64 in-degree of the first source of each sent row. A *post* row has only one source."""
        return degrees[first_sources(self.plan.send)]

    def _destination_degrees(self, degrees: np.ndarray) -> np.ndarray:
        """(r,) int64 in-degree of one node to which each received row is added; 0 for rows of a halo. A *pre* row is added to
        one node only.
        """
        return padded(degrees, self.plan.receive.num_rows)[index_array(destinations(self.plan.receive))]

    def square_weights(self) -> np.ndarray:
        """(s,) float64: for each sent row, the squared norm of its column of Dl R at the receiver. Collective."""
        exchange = self.exchange
        told, _ = exchange.messages.world.alltoallv(self._square_columns(self.plan.receive), exchange.receive_counts)
        return told

    def _square_columns(self, received: Csr) -> np.ndarray:
        """(columns,) float64 squared norms of Dl times ``received``."""
        # Imported here, because few policies need it and its modules take memory on each rank.
        import scipy.sparse as sp

        values = np.ones(received.num_entries) if received.weight is None else host_values(received.weight.double())
        if self.left is not None:
            values = values * host_values(self.left.double())[index_array(received.entry_rows()), 0]
        shape = received.num_rows, received.num_cols
        matrix = sp.csr_array((values, index_array(received.indices), index_array(received.indptr)), shape, copy=True)
        matrix.sum_duplicates()  # two edges between the same nodes add the same error twice
        return np.bincount(matrix.indices, matrix.data**2, minlength=matrix.shape[1]).astype(
            np.float64
        )  # minlength also counts columns without entries


class PendingAggregation:
    """One aggregation under way, first forward and then backward; see :meth:`Aggregator.begin`.

    back: the aggregator of the backward pass, if it is another one than ``aggregator.reverse``.
    """

    def __init__(self, aggregator: Aggregator, x: torch.Tensor, back: Aggregator | None = None) -> None:
        self.aggregator, self._back = aggregator, back
        self._gradient: PendingAggregation | None = None
        self.under_way: tuple[torch.Tensor | Int8Rows, Message] | None = None
        self._begun: torch.Tensor | None = _Begin.apply(x, self)

    def finish(self) -> torch.Tensor:
        """Finish the aggregation, and return the (n, F) result."""
        # autograd's nodes refer to this object: a reference cycle would keep their memory
        begun, self._begun = self._begun, None
        return _Finish.apply(begun, self)

    @property
    def back(self) -> Aggregator:
        """The aggregator of the backward pass."""
        return self._back or self.aggregator.reverse

    def begin_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Begin the backward pass as an aggregation that is differentiable itself (``create_graph=True``)."""
        self._gradient = PendingAggregation(self.back, gradient, self.aggregator)
        assert self._gradient._begun is not None
        return self._gradient._begun

    def finish_gradient(self) -> torch.Tensor:
        """Finish what :meth:`begin_gradient` began."""
        assert self._gradient is not None
        pending, self._gradient = self._gradient, None
        return pending.finish()

    def run_first_half(self, aggregator: Aggregator, x: torch.Tensor) -> None:
        """Run the first half of the aggregation in one direction."""
        assert self.under_way is None, "an aggregation is begun once"
        self.under_way = aggregator.start_step(x)

    def run_second_half(self, aggregator: Aggregator) -> torch.Tensor:
        """Run the second half of the aggregation in one direction."""
        assert self.under_way is not None, "an aggregation is finished once, after it has begun"
        under_way, self.under_way = self.under_way, None
        return aggregator.finish_step(*under_way)


class _Begin(torch.autograd.Function):
    """Sends rows in forward, and receives gradients in backward. Its result has no elements, and connects it to
    :class:`_Finish`.

    Autograd visits functions in reverse order: first _Finish, then the operations in between, then this one.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pending: PendingAggregation) -> torch.Tensor:
        ctx.pending = pending
        pending.run_first_half(pending.aggregator, x)
        return x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        if torch.is_grad_enabled():  # of a backward pass that will be differentiated
            return ctx.pending.finish_gradient(), None
        return ctx.pending.run_second_half(ctx.pending.back), None


class _Finish(torch.autograd.Function):
    """Receives rows in forward, and sends gradients in backward."""

    @staticmethod
    def forward(ctx: Any, begun: torch.Tensor, pending: PendingAggregation) -> torch.Tensor:
        ctx.pending = pending
        return pending.run_second_half(pending.aggregator)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        if torch.is_grad_enabled():
            return ctx.pending.begin_gradient(gradients[0]), None
        ctx.pending.run_first_half(ctx.pending.back, gradients[0])
        return gradients[0].new_empty(0), None


def destinations(receive: Csr) -> torch.Tensor:
    """(r,) int64: for each column of R, one row of the result to which the received row is added. A *pre* row has only one."""
    found = torch.zeros(receive.num_cols, dtype=torch.int64, device=receive.device)
    found[receive.indices.long()] = receive.entry_rows()
    return found


def padded(degrees: np.ndarray, rows: int) -> np.ndarray:
    """(rows,) int64: the in-degrees of the owned nodes, followed by zeros."""
    return np.concatenate((degrees, np.zeros(rows - degrees.size, degrees.dtype)))


def first_sources(send: Csr) -> np.ndarray:
    """(s,) int64: the first source of each row of S, none of which is empty."""
    return index_array(send.indices)[index_array(send.indptr)[:-1]]


def _scaled(x: torch.Tensor, diagonal: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, diagonal, out=buffers.empty(x.shape[0], x.shape[1], x.dtype, x.device))


class CachedAggregator:
    """Aggregates features that never change once, with float32 messages, and keeps the (n, F) result.

    It takes the place of an :class:`Aggregator` in a layer whose input needs no gradient.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        exchange = aggregator.exchange
        shared = exchange.messages
        self._messages = Messages(
            shared.world, timings=shared.timings, device=shared.device, transport=shared.transport
        )
        counts = (exchange.send_counts, exchange.receive_counts)
        exact = Exchange(self._messages, *counts, backend=aggregator.backend, links=exchange.links)
        self._aggregator = aggregator.over(exact)
        self.backend, self.exchange = aggregator.backend, exchange
        self._features: torch.Tensor | None = None
        self._kept: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(n, F) aggregated features. Collective if the features are not those of the last call."""
        return self.begin(x).finish()

    def begin(self, x: torch.Tensor) -> CachedAggregator:
        """See :meth:`Aggregator.begin`."""
        if self._features is not x:
            with torch.no_grad():
                self._features, self._kept = x, self._aggregator(x)
            traffic = self._messages.traffic
            self.exchange.messages.traffic.take_bytes(traffic)
            nonfinite = torch.tensor([float(traffic.nonfinite_count())])
            self._messages.raise_if_nonfinite(float(self._messages.world.allreduce(nonfinite)))
        return self

    def finish(self) -> torch.Tensor:
        """See :meth:`PendingAggregation.finish`."""
        assert self._kept is not None
        return self._kept
