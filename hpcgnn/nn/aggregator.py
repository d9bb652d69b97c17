"""Aggregation over all ranks: ``z = Dl · (L x' + R · exchange(S x'))`` with ``x' = Dr · x`` (SuperGCN §3.3).

Shapes: n owned nodes, F columns, s rows sent, r rows received. x and z are (n, F), S is (s, n), L is (n, n) and R is (n, r).
The backward pass makes the same seven calls on the transposed matrices, with Dl and Dr exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.host import host_values, index_array
from hpcgnn.exchange import Exchange, Messages, QuantizedRows
from hpcgnn.exchange.exchange import Step
from hpcgnn.exchange.mailbox import Message
from hpcgnn.graph.features_on_disk import FeaturesOnDisk
from hpcgnn.kernels import Csr
from hpcgnn.kernels.again import PRESENT, once, tell, told_before
from hpcgnn.kernels.autograd import recorded_linear, tracked
from hpcgnn.kernels.sizes import block_size
from hpcgnn.nn.activations import Form, opened
from hpcgnn.nn.correction import Correction
from hpcgnn.nn.int8 import SUMMED, Int8
from hpcgnn.nn.linear_map import FloatRows, LinearMap, RowKind, Rows, destinations, first_sources, padded
from hpcgnn.policy.base import ExchangeFacts

_BLOCK_BYTES = 1 << 24  # of a block of rows: several megabytes for each of many threads


class Aggregator:
    """A linear aggregator of one graph.

    linear: its matrices on this rank. correction: the correction of stale rows, which all layers share. kind: what its rows are.
    """

    def __init__(self, linear: LinearMap, exchange: Exchange, correction: Correction, kind: RowKind = SUMMED) -> None:
        self.linear, self.exchange, self.correction, self.kind = linear, exchange, correction, kind
        self.plan, self.backend = linear.plan, linear.backend
        self.rows = FloatRows(linear)
        exchange.boundary_nodes = correction.nodes.numel()
        self._aggregating = exchange.messages.timings.measure("aggregation_seconds")
        self._is_alone = exchange.messages.world.size == 1
        # (n,) float64 sum of squares of the weights with which a layer adds up the result's rows, None: ones; and whether it
        # learns them
        self.row_squares: Callable[[], np.ndarray | None] | None = None
        self.row_squares_change = True

    def __call__(self, x: Rows) -> Tensor:
        """Aggregate (n, F) features over all in-edges; differentiable. Collective, forward and backward."""
        return self.begin(x).finish()

    def begin(self, x: Rows) -> PendingAggregation:
        """Start to aggregate (n, F) features. Work before :meth:`PendingAggregation.finish` overlaps with communication.

        The same holds in backward, in reverse order: operations between the two calls are differentiated while gradients
        travel. Collective. No other aggregation may begin before this one is finished.
        """
        return PendingAggregation(self, x)

    def overlaps(self) -> bool:
        """Return whether the halves of an aggregation are apart: of a rank that is alone, only random numbers for integers
        depend on the order.
        """
        return not self._is_alone or type(self.rows) is not FloatRows

    @cached_property
    def reverse(self) -> Aggregator:
        """The aggregator of the backward pass."""
        linear, exchange = self.linear.reverse(), self.exchange.reverse()
        return type(self)(linear, exchange, self.correction.reverse, self.kind.reverse())

    def over(self, exchange: Exchange) -> Aggregator:
        """This aggregator with the messages of another exchange of the same rows."""
        return type(self)(self.linear, exchange, self.correction, self.kind)

    def for_layer(self, layer: int, wide_from: int | None = None) -> Aggregator:
        """A copy of this aggregator for another layer, with the same matrices but messages of its own. wide_from: see
        :class:`hpcgnn.exchange.Exchange`; None: as here."""
        return self.over(self.exchange.for_layer(layer, wide_from))

    def use_compute(self, compute: str | Int8) -> None:
        """Aggregate in this arithmetic from now on, forward and backward: its name, or 8-bit integers."""
        for one in (self, self.reverse):
            one.rows = one.kind.rows(one.linear, compute)

    def start_step(self, x: Rows, again: int | None = None, *, is_temporary: bool = False) -> tuple[Any, Message]:
        """Run the first half of an aggregation, up to the start of the exchange. Not differentiable. Collective.

        Args:
            x: (n, F) features.
            again: see :meth:`hpcgnn.exchange.exchange.Step.start`.
            is_temporary: x is made anew in each pass, and nothing else uses it, so its memory may be written to.

        Returns:
            The scaled features and the message, which are the arguments of :meth:`finish_step`.
        """
        with self._aggregating:
            own = self.rows.scaled(x, overwrites=is_temporary)
        if PRESENT.part is not None and (came := told_before()) is not None:
            return own, came
        self._share(own, x)
        changes = x.requires_grad or is_temporary or self.exchange.is_backward
        step = self.exchange.step(x.shape[1], x.dtype, None if changes else x)
        message = step.reused()
        if message is None:
            message = step.start(self._pre_aggregate(own, step), again)  # encode, start
        return own, message

    def finish_step(self, x: Any, message: Message, plus: Tensor | None = None, *, has_own: bool = False) -> Tensor:
        """Run the second half of an aggregation, and return the (n, F) result, to which ``plus`` is added, whose memory it may
        take. has_own: ``plus`` is L x itself, and nothing is added to the result; where L moves rows only, their memory can be
        that of x. Collective."""
        sums = then = None
        adds = has_own or (plus is not None and self.linear.left is None and message.mailbox is None)
        with self._aggregating:
            z = self._aggregate_locally(x, plus if adds else None, has_own=has_own)  # while rows travel
            if message.mailbox is not None and message.mailbox.corrects:
                sums = self.correction.sums(x, z)
        self.exchange.wait(message)
        if PRESENT.part is not None:
            tell(lambda: self._copy(message))
        self._add_received(message, z)  # decode, post-aggregate
        if sums is not None:
            then = self.exchange.keep_sums(message, sums)
        if sums is None or then is None:
            self.rows.note(x, message, z)
        else:
            with self._aggregating:
                self.correction.apply(z, sums, then)
        z = self._scaled(z)
        return z if adds or plus is None else plus.add_(z)

    def _scaled(self, z: Tensor) -> Tensor:
        """``Dl z``, over z."""
        left = self.linear.left
        return z if left is None else z.mul_(left)

    def in_blocks(self, x: Tensor) -> Iterator[tuple[slice, Tensor]] | None:
        """The result for x (n, F) in blocks of rows, each with its place, on a rank that is alone; None elsewhere, where local
        sums are computed while rows travel. A block's memory is that of the last one. Not differentiable."""
        messages = self.exchange.messages
        if not self._is_alone or messages.keeps_rows:
            return None
        self.exchange.wait(self.exchange.step(x.shape[1], x.dtype).start())  # which counts the exchange
        return self._blocks(x)

    def _blocks(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        size = block_size(_BLOCK_BYTES // max(1, x.shape[1] * x.element_size()), x.shape[0])
        blocks = self.rows.in_blocks(self.plan.local, x, size)
        while True:
            with self._aggregating:
                block = next(blocks, None)
                if block is not None and self.linear.left is not None:
                    block[1].mul_(self.linear.left[block[0]])
            if block is None:
                return
            yield block

    def kept(self, message: Message) -> Form | None:
        """The form of a copy of a message that has arrived, with which :meth:`again` repeats its aggregation; None if that is
        impossible: a message that is itself kept changes with the epochs, unless its rows are constant, and integers are rounded
        anew."""
        changes = message.mailbox is not None and not message.is_constant
        if changes or message.differences is not None or not self.rows.is_repeatable:
            return None
        codec, nothing, epoch = message.codec, message.sent[:0], message.epoch
        received = message.received.clone() if message.mailbox is None else message.received  # its mailbox keeps it
        return [received], lambda tensors: Message(codec, nothing, tensors[0], epoch)

    def _copy(self, message: Message) -> Message:
        form = self.kept(message)
        assert form is not None, "a part of a model that runs again keeps its messages"
        found: Message = opened(form)
        return found

    def again(self, x: Tensor, message: Message) -> Tensor:
        """The (n, F) result of an aggregation of x once more, bit for bit, with a message of :meth:`kept`. Not collective."""
        with self._aggregating:
            z = self._aggregate_locally(self.rows.scaled(x))
        self._add_received(message, z)
        return self._scaled(z)

    def _share(self, own: Any, x: Rows) -> None:
        """Nothing: ranks share no memory."""

    def _pre_aggregate(self, own: Any, step: Step) -> QuantizedRows | None:
        """Write the rows to send to the memory of ``step``. Return those that are 8-bit integers already."""
        if not self.overlaps():
            return None
        rows = step.rows_to_send()
        with self._aggregating:
            return self.rows.pre_aggregate(own, rows, step.codec)

    def _aggregate_locally(self, x: Any, plus: Tensor | None = None, *, has_own: bool = False) -> Tensor:
        """``L x``, in new memory or added to ``plus``, unless that has it."""
        if has_own:
            assert plus is not None
            return plus
        return self.rows.multiply(self.plan.local, x, plus, accumulate=plus is not None)

    def _add_received(self, message: Message, z: Tensor) -> None:
        """``z += R`` times the received rows."""
        self.exchange.add_received(message, self.plan.receive, z)

    # -- information for policies ---------------------------------------------------------------------------------------

    def exchange_facts(self, degrees: np.ndarray) -> list[ExchangeFacts]:
        """The exchange of this aggregator and that of its reverse. degrees: (n,) int64 in-degrees in the whole graph."""
        back = self.reverse
        return [
            ExchangeFacts(
                self.exchange,
                self.square_weights,
                lambda: self.row_degrees(degrees),
                self.row_squares is not None and self.row_squares_change,
            ),
            ExchangeFacts(back.exchange, back.square_weights, lambda: self.row_degrees(degrees)[::-1]),
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
        if self.kind.nodes is not None:
            sent, received = (np.append(degrees, 0)[nodes] for nodes in self.kind.nodes)
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
        """(s,) float64: for each sent row, the squared norm of its column of Dl R at the receiver. Rows of the result count by
        the squares of learned weights if a layer knows them. Collective."""
        exchange = self.exchange
        told, _ = exchange.messages.world.alltoallv(self._known_squares(), exchange.receive_counts)
        return told

    def _known_squares(self) -> np.ndarray:
        return self._square_columns(self.plan.receive)

    def _square_columns(self, received: Csr) -> np.ndarray:
        """(columns,) float64 squared norms of Dl times ``received``."""
        # Imported here, because few policies need it and its modules take memory on each rank.
        import scipy.sparse as sp

        values = np.ones(received.num_entries) if received.weight is None else host_values(received.weight.double())
        if self.linear.left is not None:
            values = values * host_values(self.linear.left.double())[index_array(received.entry_rows()), 0]
        shape = received.num_rows, received.num_cols
        matrix = sp.csr_array((values, index_array(received.indices), index_array(received.indptr)), shape, copy=True)
        matrix.sum_duplicates()  # two edges between the same nodes add the same error twice
        squares, of_rows = matrix.data**2, None if self.row_squares is None else self.row_squares()
        if of_rows is not None:
            squares = squares * np.repeat(of_rows, np.diff(matrix.indptr))
        # minlength also counts columns without entries
        return np.bincount(matrix.indices, squares, minlength=matrix.shape[1]).astype(np.float64)


class PendingAggregation:
    """One aggregation under way, first forward and then backward; see :meth:`Aggregator.begin`.

    back: the aggregator of the backward pass, if it is another one than ``aggregator.reverse``.
    """

    def __init__(self, aggregator: Aggregator, x: Rows, back: Aggregator | None = None) -> None:
        self.aggregator, self._back = aggregator, back
        self.gradient: PendingAggregation | None = None  # the backward pass, if it will be differentiated
        self.under_way: tuple[Any, Message] | None = None
        self.begun: Tensor | None = None
        self._whole: Tensor | None = None
        if isinstance(x, FeaturesOnDisk) or not tracked(x):
            self.under_way = aggregator.start_step(x)
        elif aggregator.overlaps():
            self.begun = _Begin.apply(x, self)
        else:
            self._whole = recorded_linear(x, partial(_whole, aggregator), partial(_whole, self.back))

    def finish(self) -> Tensor:
        """Finish the aggregation, and return the (n, F) result."""
        # autograd's nodes refer to this object: a reference cycle would keep their memory
        begun, self.begun = self.begun, None
        if begun is not None:
            return _Finish.apply(begun, self)
        return self.second_half(self.aggregator) if self._whole is None else self._whole

    @property
    def back(self) -> Aggregator:
        """The aggregator of the backward pass."""
        return self._back or self.aggregator.reverse

    def second_half(self, aggregator: Aggregator) -> Tensor:
        """Run the second half of the aggregation in one direction."""
        assert self.under_way is not None, "an aggregation is finished once, after it has begun"
        under_way, self.under_way = self.under_way, None
        return aggregator.finish_step(*under_way)


class _Begin(torch.autograd.Function):
    """Sends rows in forward, and receives gradients in backward. Its result has no elements, and connects it to :class:`_Finish`.

    Autograd visits functions in reverse order: first _Finish, then the operations in between, then this one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, pending: PendingAggregation) -> Tensor:
        ctx.pending = pending
        pending.under_way = pending.aggregator.start_step(x)
        return x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        pending = ctx.pending
        begun, pending.gradient = pending.gradient, None
        return pending.second_half(pending.back) if begun is None else begun.finish(), None


class _Finish(torch.autograd.Function):
    """Receives rows in forward, and sends gradients in backward."""

    @staticmethod
    def forward(ctx: Any, begun: Tensor, pending: PendingAggregation) -> Tensor:
        ctx.pending = pending
        return pending.second_half(pending.aggregator)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        pending = ctx.pending
        if torch.is_grad_enabled():  # create_graph=True: this backward pass will be differentiated
            pending.gradient = PendingAggregation(pending.back, gradients[0], pending.aggregator)
            if pending.gradient.begun is not None:
                return pending.gradient.begun, None
        else:
            pending.under_way = pending.back.start_step(gradients[0])
        return gradients[0].new_empty(0), None


def _whole(aggregator: Aggregator, x: Tensor) -> Tensor:
    """Both halves at once."""
    return aggregator.finish_step(*aggregator.start_step(x))


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
        self._features: Rows | None = None
        self._kept = self._found = torch.empty(0)

    def __call__(self, x: Rows) -> Tensor:
        """(n, F) aggregated features. Collective if the features are not those of the last call."""
        return self.begin(x).finish()

    def begin(self, x: Rows) -> CachedAggregator:
        """See :meth:`Aggregator.begin`."""
        self._found = once(lambda: self._of(x))
        return self

    def _of(self, x: Rows) -> Tensor:
        if self._features is not x:
            with torch.no_grad():
                self._features, self._kept = x, self._aggregator(x)
            traffic = self._messages.traffic
            self.exchange.messages.traffic.take_bytes(traffic)
            nonfinite = torch.tensor([float(traffic.nonfinite_count())])
            self._messages.raise_if_nonfinite(float(self._messages.world.allreduce(nonfinite)))
        return self._kept

    def overlaps(self) -> bool:
        """See :meth:`Aggregator.overlaps`."""
        return False

    def finish(self) -> Tensor:
        """See :meth:`PendingAggregation.finish`."""
        return self._found
