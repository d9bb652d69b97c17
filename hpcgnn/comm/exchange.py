"""The exchange of boundary rows between ranks: one nonblocking alltoallv for each layer and direction."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.bit_widths import MESSAGE_BITS
from hpcgnn.comm.agreement import raise_on_all_ranks
from hpcgnn.comm.codecs import Codec, Codes, make_codec
from hpcgnn.comm.links import RankGraphs
from hpcgnn.comm.mailbox import FRESH, REUSED, SKIPPED, STALE, Mailbox, Message
from hpcgnn.comm.messages import Messages
from hpcgnn.comm.passes import ExchangeId, Slot
from hpcgnn.comm.row_bits import RowBits, RowRanges
from hpcgnn.comm.scratch import Place, Use
from hpcgnn.comm.traffic import Sent
from hpcgnn.comm.transport import Route
from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels import Csr


class Exchange:
    """The exchange of one layer in one direction, forward or backward.

    Args:
        messages: settings, memory and counters that all exchanges of a model share.
        send_counts, receive_counts: (P,) int64 number of rows that go to, and come from, each rank.
        layer: number of the exchange within a pass.
        is_backward: whether gradients travel, by the reversed plan.
        backend: backend of the kernels.
        links: graph of the ranks that exchange rows; None: all ranks take part.

    Attributes:
        id: layer and direction.
        boundary_nodes: number of owned nodes to which received rows are added.
        freshness: ``FRESH``, ``STALE``, ``REUSED`` or ``SKIPPED`` (:mod:`hpcgnn.comm.mailbox`), the same on all ranks. A policy
            sets it before each pass.
        ranges: ranges of the rows that were sent; None before :meth:`trace_ranges`.
    """

    def __init__(
        self,
        messages: Messages,
        send_counts: np.ndarray,
        receive_counts: np.ndarray,
        layer: int = 0,
        *,
        is_backward: bool = False,
        backend: str = "auto",
        links: RankGraphs | None = None,
    ) -> None:
        self.messages, self.backend, self.links = messages, backend, links
        self.send_counts, self.receive_counts = send_counts, receive_counts
        self.id = ExchangeId(layer, is_backward)
        self.freshness, self.boundary_nodes = FRESH, 0
        self._tools = messages.tools(backend)
        self.ranges: RowRanges | None = None
        self._bits: RowBits | None = None
        self._uniform: dict[int, RowBits] = {}
        self._codecs: dict[tuple[RowBits | None, bool, int, torch.dtype], Codec] = {}
        self._routes: dict[Codec, Route] = {}
        self._sent: dict[Codec, Sent] = {}

    @property
    def layer(self) -> int:
        """Number of the exchange within a pass."""
        return self.id.layer

    @property
    def is_backward(self) -> bool:
        """Return whether gradients travel."""
        return self.id.is_backward

    @property
    def name(self) -> str:
        """Name of the exchange in messages to users."""
        return self.id.name

    def reverse(self) -> Exchange:
        """The exchange of the backward pass: gradients of the received rows go back to the ranks that sent them."""
        return Exchange(
            self.messages,
            self.receive_counts,
            self.send_counts,
            self.layer,
            is_backward=not self.is_backward,
            backend=self.backend,
            links=None if self.links is None else self.links.reverse(),
        )

    def for_layer(self, layer: int) -> Exchange:
        """The same exchange for another layer."""
        counts = (self.send_counts, self.receive_counts)
        return Exchange(self.messages, *counts, layer, backend=self.backend, links=self.links)

    # -- decisions of policies ----------------------------------------------------------------------------------------

    @property
    def bits(self) -> RowBits | None:
        """Bit-width of each row in passes that round messages; None: all rows have the bit-width of the settings."""
        return self._bits

    @bits.setter
    def bits(self, bits: RowBits | None) -> None:
        self._bits = bits
        lasting = (None, bits, *self._uniform.values())
        self._codecs = {key: codec for key, codec in self._codecs.items() if key[0] in lasting}
        self._routes = {codec: self._routes[codec] for codec in self._codecs.values()}
        self._sent = {codec: self._sent[codec] for codec in self._codecs.values()}

    def assign_bits(self, bits: np.ndarray) -> RowBits:
        """Give each row to send its own bit-width in training, from ``bits`` (send rows,) uint8, and tell the receivers.

        Collective.

        Raises:
            HpcgnnError: on every rank, where ``bits`` has another shape or holds an unknown bit-width.
        """
        with raise_on_all_ranks(self.messages.world, "assign bits"):
            rows, wrong = int(self.send_counts.sum()), np.setdiff1d(bits, MESSAGE_BITS)
            if bits.shape != (rows,):
                raise HpcgnnError(f"bits must have shape ({rows},), one for each row to send, not {bits.shape}")
            if wrong.size:
                raise HpcgnnError(f"bits must be of {', '.join(map(str, MESSAGE_BITS))}, not {wrong[0]}")
        received, _ = self.messages.world.alltoallv(bits.astype(np.uint8), self.send_counts)
        self.bits = RowBits(bits, received)
        return self.bits

    def uniform_bits(self, bits: int) -> RowBits:
        """The same bit-width for all rows."""
        if bits not in self._uniform:
            counts = int(self.send_counts.sum()), int(self.receive_counts.sum())
            self._uniform[bits] = RowBits.uniform(bits, *counts)
        return self._uniform[bits]

    def trace_ranges(self) -> RowRanges:
        """Record the ranges of values of the rows that are sent in training from now on."""
        self.ranges = RowRanges(int(self.send_counts.sum()), self.messages.device.torch_device)
        return self.ranges

    def rows_that_travel(self) -> torch.Tensor:
        """(2, P) int64 number of rows to and from each rank; rows that are kept between epochs have these counts."""
        return torch.from_numpy(np.stack((self.send_counts, self.receive_counts)))

    # -- answers to policies ------------------------------------------------------------------------------------------

    def mailboxes(self) -> list[Mailbox]:
        """The mailboxes in which rows of this exchange are kept between epochs; none before it first starts."""
        return self.messages.kept.mailboxes_of(self.id)

    def is_late(self) -> bool:
        """Return whether rows that were sent to this rank in an earlier epoch are still on their way."""
        pendings = [box.in_flight.pending for box in self.mailboxes() if box.in_flight is not None]
        return any(pending is not None and not self.messages.world.test(pending) for pending in pendings)

    def has_rows_from_last(self, epochs: int, *, in_flight: bool = False) -> bool:
        """Return whether this rank holds rows for every mailbox that were sent at most ``epochs`` epochs ago. in_flight: rows
        that are still on their way count as well.
        """
        now, boxes = self.messages.current_pass.epoch, self.mailboxes()
        messages = [(in_flight and box.in_flight) or box.arrived for box in boxes]
        return all(message is not None and now - message.epoch <= epochs for message in messages)

    def take_drift(self) -> np.ndarray:
        """(3,) float64 sum of :meth:`Mailbox.take_drift` over the mailboxes of this exchange; their drifts are reset to zero."""
        return sum((box.take_drift() for box in self.mailboxes()), np.zeros(3))

    def epochs_between_messages(self) -> int:
        """Number of epochs between the two messages that the last drift compares."""
        return max(box.epochs_between_messages for box in self.mailboxes())

    # -- a step -------------------------------------------------------------------------------------------------------

    def reused(self, width: int) -> Message | None:
        """The message of an earlier epoch, if no rows are to be sent in this one; None if :meth:`start` is to be called."""
        box = self._mailbox(self._slot(width))
        if self.freshness not in (REUSED, SKIPPED) or box is None or box.arrived is None:
            return None
        if self.freshness == REUSED:
            self._settle(box)
        self.messages.traffic.count_call(self.id)
        return box.arrived

    def rows_to_send(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(send rows, width) memory to aggregate into, to be given to :meth:`start`; the next exchange may use it again."""
        slot = self._slot(width)
        box, place = self._mailbox(slot), Place(Use.ROWS_TO_SEND)
        if box is not None and self._codec(width, dtype).sends_rows_as_they_are:
            self._settle(box)  # the last message is sent from this very memory, and must have left
            place = Place(Use.ROWS_TO_SEND, slot)
        return self.messages.scratch.rows(place, int(self.send_counts.sum()), width, dtype)

    def row_forms(self, width: int) -> tuple[bool, bool]:
        """Two answers for the present pass: whether some rows travel as 8-bit integers, so that rows which are such integers
        already can be sent unchanged, and whether some rows travel in another form.

        Collective under the same conditions as :meth:`start`.
        """
        codec = self._codec(width, torch.float32)
        return codec.sends_int8_rows, codec.sends_other_rows

    def start(self, rows: torch.Tensor, given: Codes | None = None) -> Message:
        """Encode ``rows``, from :meth:`rows_to_send`, and start moving them. Collective.

        given: the rows that are 8-bit integers already. Returns the message to wait for and to add: with stale rows, this is the
        message of an earlier epoch.
        """
        messages, slot = self.messages, self._slot(rows.shape[1])
        box = self._mailbox(slot)
        if box is None:
            messages.claim_memory(self.name)
        else:
            self._settle(box)
        message = self._new_message(rows, slot, box)
        call = messages.traffic.count_call(self.id)
        key = messages.current_pass.noise_key(self.id, call, messages.world.rank)
        nonfinite = message.codec.encode(rows, message.sent, key, message.differences, given)
        if self.ranges is not None and messages.current_pass.is_training:
            message.codec.add_ranges(message.sent, self.ranges)
        messages.traffic.started(self.id, self._sent[message.codec], nonfinite)
        neighbours = None if self.links is None else self.links.forward
        route = self._routes[message.codec]
        message.pending = messages.transport.start(message.sent, message.received, route, self.name, neighbours)
        messages.make_progress(message.pending)
        if box is not None and box.arrived is not None and self.freshness == STALE:
            box.in_flight, message = message, box.arrived
        return message

    def wait(self, message: Message) -> None:
        """Wait until the rows of ``message`` have arrived."""
        box, epoch = message.mailbox, self.messages.current_pass.epoch
        if message.pending is not None:
            self.messages.wait(message)
            if box is None:
                self.messages.release_memory()
            else:
                box.accept(message, epoch)
        if box is not None:
            self.messages.traffic.ages[self.id] = epoch - message.epoch

    def keep_sums(self, message: Message, sums: torch.Tensor) -> torch.Tensor | None:
        """Keep ``sums`` (b, F) of this epoch beside the message that was sent in it. Return the sums that were kept beside
        ``message`` if that is of an earlier epoch, else None."""
        epoch, box = self.messages.current_pass.epoch, message.mailbox
        assert box is not None
        sent = box.in_flight or box.arrived
        if sent is not None and sent.epoch == epoch:
            sent.sums = sums
        return message.sums if message.epoch < epoch else None

    def add_received(self, message: Message, matrix: Csr, z: torch.Tensor) -> None:
        """``z`` (n, F) += ``matrix`` (n, received rows) times the received rows of ``message``."""
        message.codec.add_received(message.received, message.differences, matrix, z)

    # -- parts of a message -------------------------------------------------------------------------------------------

    def _slot(self, width: int) -> Slot:
        return Slot(self.id, self.messages.traffic.next_call(self.id), width)

    def _mailbox(self, slot: Slot) -> Mailbox | None:
        """The mailbox that keeps rows of ``slot``; None in evaluations, and where rows are used in their own epoch."""
        messages = self.messages
        return messages.kept.mailbox(slot, self._tools) if messages.current_pass.is_training else None

    def _settle(self, box: Mailbox) -> None:
        """Wait for the message in flight, if there is one, and use its rows from now on."""
        message, box.in_flight = box.in_flight, None
        if message is None:
            return
        if message.pending is not None:
            self.messages.wait(message)
        box.accept(message, self.messages.current_pass.epoch)

    def _new_message(self, rows: torch.Tensor, slot: Slot, box: Mailbox | None) -> Message:
        """A message with its memory: the slot has its own where messages outlive their step; else all exchanges share it."""
        messages, scratch = self.messages, self.messages.scratch
        codec = self._codec(slot.width, rows.dtype)
        own, turn = (None, 0) if box is None else (slot, box.next_turn())
        arrives_in = Use.RECEIVED_ROWS if codec.sends_rows_as_they_are else Use.RECEIVED_BYTES
        received = scratch.bytes(Place(arrives_in, own, turn), int(codec.receive_counts.sum()), codec.item_bytes)
        if codec.sends_rows_as_they_are:
            sent = rows.view(torch.uint8)
        else:
            sent = scratch.bytes(Place(Use.SENT_BYTES, own), int(codec.send_counts.sum()), codec.item_bytes)
        differences = messages.kept.differences_of(slot, codec)
        return Message(codec, sent, received, messages.current_pass.epoch, differences, box)

    def _codec(self, width: int, dtype: torch.dtype) -> Codec:
        """The codec of the present pass. It is made once and kept while bit-widths and settings stay; making it is collective."""
        messages, bits = self.messages, self._present_bits()
        key = bits, messages.is_delta, width, dtype
        if key not in self._codecs:
            counts = self.send_counts, self.receive_counts
            self._codecs[key] = codec = make_codec(
                messages.world, self.name, counts, bits, width, dtype, self._tools,
                is_delta=messages.is_delta,
            )  # fmt: skip
            self._routes[codec] = messages.transport.route(codec.send_counts, codec.receive_counts, codec.item_bytes)
            nodes = messages.placement.node_of
            away = nodes != nodes[messages.world.rank]
            to_ranks = codec.send_counts * codec.item_bytes
            self._sent[codec] = Sent(to_ranks, int(to_ranks.sum()), int(to_ranks[away].sum()))
        return self._codecs[key]

    def _present_bits(self) -> RowBits | None:
        """Bit-widths of rows in the present pass: those assigned, or those of the settings; None: rows travel unchanged."""
        if not self.messages.is_rounded:
            return None
        if self.bits is not None:
            return self.bits
        return None if self.messages.config.bits == 32 else self.uniform_bits(self.messages.config.bits)
