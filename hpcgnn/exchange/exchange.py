"""The exchange of boundary rows between ranks: one nonblocking collective for each layer and direction.

With P ranks, each of which exchanges rows with k others, MPI's ``Ialltoallv`` may read P counts in each call, and its
neighbourhood form reads k. Which one is faster also depends on the library: so both are measured, with the rows of the plan,
before training starts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import INT8_BITS, MESSAGE_BITS
from hpcgnn.exchange.changes import RowChanges
from hpcgnn.exchange.codecs import Codec, DeltaCodec, PackedCodec, PlainCodec, QuantizedRows
from hpcgnn.exchange.layout import BLOCK_BYTES, RowBits, RowRanges, make_layout
from hpcgnn.exchange.mailbox import FRESH, REUSED, SKIPPED, STALE, Mailbox, Message
from hpcgnn.exchange.messages import Messages
from hpcgnn.exchange.passes import ExchangeId, ScratchKey, ScratchUse, Slot
from hpcgnn.exchange.traffic import Sent
from hpcgnn.kernels import Csr
from hpcgnn.world.buffer import Buffer, Neighbours, Pending, Segments
from hpcgnn.world.world import World, raise_on_all_ranks

_ROUNDS = 5
Links = tuple[Neighbours, Neighbours]  # the graph of ranks of an exchange, and that of the backward pass's exchange


def choose_links(
    world: World, send_counts: np.ndarray, receive_counts: np.ndarray, collective: str = "auto", row_bytes: int = 1024
) -> Links | None:
    """The graph of ranks to exchange rows over, or None to use ``Ialltoallv``. Collective.

    send_counts, receive_counts: (P,) int64 rows to and from each rank. collective: ``alltoallv``, ``neighbour``, or ``auto``,
    which measures both with rows of ``row_bytes`` bytes if no rank sends to, or receives from, more than half of the others,
    and else takes ``Ialltoallv``.
    """
    if collective == "alltoallv":
        return None
    peers = np.array([np.count_nonzero(send_counts), np.count_nonzero(receive_counts)])
    most = int(world.allreduce(peers, "max").max())
    if most == 0 or (collective == "auto" and 2 * most > world.size - 1):
        return None
    forward = world.neighbours(receive_counts > 0, send_counts > 0)
    if collective == "auto" and not _is_faster(world, forward, send_counts, receive_counts, row_bytes):
        world.free(forward)
        return None
    return forward, world.neighbours(send_counts > 0, receive_counts > 0)


def _is_faster(
    world: World, forward: Neighbours, send_counts: np.ndarray, receive_counts: np.ndarray, row_bytes: int
) -> bool:
    """Return whether the neighbourhood collective takes less time on the slowest rank; the same answer on all ranks.
    Collective.
    """
    world.check_counts(send_counts, receive_counts, "a trial exchange")
    send, received = (
        Segments(Buffer.of(torch.zeros(int(counts.sum()), row_bytes, dtype=torch.uint8)), counts)
        for counts in (send_counts, receive_counts)
    )
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_ROUNDS):
        for over_neighbours, times in seconds.items():
            linked = forward if over_neighbours else None
            pending = world.start_alltoallv(send, received, "a trial exchange", linked)
            world.wait(pending)
            times.append(float(world.allreduce(np.array([pending.seconds]), "max")[0]))
    return statistics.median(seconds[True]) < statistics.median(seconds[False])


class Exchange:
    """The exchange of one layer in one direction, forward or backward.

    messages: settings, memory and counters that all exchanges of a model share. send_counts, receive_counts: (P,) int64 number of
    rows to and from each rank. layer: number of the exchange within a pass. links: graph of the ranks that exchange rows; None:
    all ranks take part. wide_from: the columns from this number on travel in 16 bits or more, whatever the bit-width of the
    row (:mod:`hpcgnn.exchange.layout`); None: no column does.

    Attributes:
        name: layer and direction in messages to users.
        boundary_nodes: number of owned nodes to which received rows are added.
        freshness: ``FRESH``, ``STALE``, ``REUSED`` or ``SKIPPED`` (:mod:`hpcgnn.exchange.mailbox`), the same on all ranks. A
            policy sets it before each pass.
        ranges: ranges of the rows that were sent; None before :meth:`trace_ranges`.
        changes: changes of the rows between messages; None before :meth:`trace_changes`.
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
        links: Links | None = None,
        wide_from: int | None = None,
    ) -> None:
        self.messages, self.backend, self.links, self.wide_from = messages, backend, links, wide_from
        self.send_counts, self.receive_counts = send_counts, receive_counts
        self.id, self.layer, self.is_backward = ExchangeId(layer, is_backward), layer, is_backward
        self.name = self.id.name
        self.freshness, self.boundary_nodes = FRESH, 0
        self.tools = messages.tools(backend)
        self.ranges: RowRanges | None = None
        self.changes: RowChanges | None = None
        self.sends_whole_rows = False  # whether the last message had rows in full precision, because they never change
        self._bits: RowBits | None = None
        self._uniform: dict[int, RowBits] = {}
        self._codecs: dict[tuple[RowBits | None, bool, int, torch.dtype], Codec] = {}
        self._steps: dict[tuple[int, torch.dtype, int, bool, bool, RowBits | None], Step] = {}

    def reverse(self) -> Exchange:
        """The exchange of the backward pass: gradients of the received rows go back to the ranks that sent them."""
        links = None if self.links is None else self.links[::-1]
        return Exchange(
            self.messages,
            self.receive_counts,
            self.send_counts,
            self.layer,
            is_backward=not self.is_backward,
            backend=self.backend,
            links=links,
            wide_from=self.wide_from,
        )

    def for_layer(self, layer: int, wide_from: int | None = None) -> Exchange:
        """The same exchange for another layer, or with other wide columns."""
        counts, first = (self.send_counts, self.receive_counts), self.wide_from if wide_from is None else wide_from
        return Exchange(self.messages, *counts, layer, backend=self.backend, links=self.links, wide_from=first)

    # -- decisions of policies ----------------------------------------------------------------------------------------

    @property
    def row_bits(self) -> RowBits | None:
        """Bit-width of each row in passes that round messages; None: all rows have the bit-width of the settings."""
        return self._bits

    @row_bits.setter
    def row_bits(self, bits: RowBits | None) -> None:
        if bits is self._bits:  # policies say in each epoch what they have chosen
            return
        self._bits = bits
        lasting = (None, bits, *self._uniform.values())
        self._codecs = {key: codec for key, codec in self._codecs.items() if key[0] in lasting}
        self._steps = {}

    bits = row_bits  # the name that policies of a user's own were told to use before

    @property
    def is_coarse(self) -> bool:
        """Return whether rows may travel in fewer than 8 bits in the present pass; the same on all ranks."""
        return self.messages.is_rounded and (self._bits is not None or self.messages.config.bits < INT8_BITS)

    @property
    def is_exact(self) -> bool:
        """Return whether rows arrive in the present pass, and as they were sent; the same on all ranks."""
        messages = self.messages
        is_rounded = messages.is_rounded and (self._bits is not None or messages.config.bits != 32)
        return messages.world.size == 1 or not (is_rounded or messages.keeps_rows)

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
        self.row_bits = RowBits(bits, received)
        return self.row_bits

    def uniform_bits(self, bits: int) -> RowBits:
        """The same bit-width for all rows."""
        if bits not in self._uniform:
            counts = self.send_counts, self.receive_counts
            self._uniform[bits] = RowBits(*(np.full(each.sum(), bits, np.uint8) for each in counts))
        return self._uniform[bits]

    def trace_ranges(self) -> RowRanges:
        """Record the ranges of values of the rows that are sent in training from now on."""
        self.ranges = RowRanges(int(self.send_counts.sum()), self.messages.device.torch_device)
        return self.ranges

    def trace_changes(self, every: int = 1) -> RowChanges:
        """Measure the changes of the rows that are sent in training from now on, in epochs that are multiples of ``every``."""
        self.changes = RowChanges(int(self.send_counts.sum()), self.messages.device.torch_device, every)
        return self.changes

    def rows_that_travel(self) -> torch.Tensor:
        """(2, P) int64 number of rows to and from each rank; rows that are kept between epochs have these counts."""
        return torch.from_numpy(np.stack((self.send_counts, self.receive_counts)))

    # -- answers to policies ------------------------------------------------------------------------------------------

    def mailboxes(self) -> list[Mailbox]:
        """The mailboxes in which rows of this exchange are kept between epochs: none before it first starts, several if a pass
        uses its layer more than once.
        """
        return [box for slot, box in self.messages.kept.mailboxes.items() if slot[:2] == self.id]

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

    # -- a step -------------------------------------------------------------------------------------------------------

    def step(self, width: int, dtype: torch.dtype, source: Any = None) -> Step:
        """The exchange of rows of ``width`` columns in the present pass. It is made once, and again where a policy has changed
        bit-widths, which is collective, or where the memory of this rank has changed.

        source: the input of which alone the rows are made, if it needs no gradient. Where policies keep rows, they are sent in
        full precision in the first training step, and not again while the source stays the same.
        """
        messages = self.messages
        is_training = messages.current_pass.is_training
        call = messages.traffic.calls.get(self.id, 0) if is_training and messages.keeps_rows else 0
        slot = Slot(*self.id, call, width)
        is_constant = is_training and source is not None and messages.kept.stays(slot, source)
        key = width, dtype, call, is_training, is_constant, self._bits
        step, state = self._steps.get(key), messages.scratch.allocations + messages.kept.changes
        if step is None or step.memory_state != state:
            # steps of an earlier state would keep memory that has been replaced
            self._steps = {key: step for key, step in self._steps.items() if step.memory_state == state}
            codec = self._codec(width, dtype, is_constant=is_constant)
            step = self._steps[key] = Step(self, slot, dtype, codec, is_constant=is_constant)
        return step

    def wait(self, message: Message) -> None:
        """Wait until the rows of ``message`` have arrived."""
        box, epoch = message.mailbox, self.messages.current_pass.epoch
        if message.pending is not None:
            self.messages.wait(message)
            if box is None or message.is_constant:
                self.messages.release_memory()
            if box is not None:
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
        if matrix.num_cols:
            message.codec.add_received(message.received, message.differences, matrix, z)

    # -- parts of a step ----------------------------------------------------------------------------------------------

    def settle(self, box: Mailbox) -> None:
        """Wait for the message in flight, if there is one, and use its rows from now on."""
        message, box.in_flight = box.in_flight, None
        if message is None:
            return
        if message.pending is not None:
            self.messages.wait(message)
        box.accept(message, self.messages.current_pass.epoch)

    def _codec(self, width: int, dtype: torch.dtype, *, is_constant: bool) -> Codec:
        """The codec of the present pass. It is made once and kept while bit-widths and settings stay; making it is collective."""
        messages, bits = self.messages, None  # None: rows travel unchanged
        if messages.is_rounded and not is_constant and (self._bits is not None or messages.config.bits != 32):
            bits = self._bits or self.uniform_bits(messages.config.bits)
        key = bits, messages.is_delta, width, dtype
        if key not in self._codecs:
            self._codecs[key] = codec = self._new_codec(bits, width, dtype)
            codec.route = messages.transport.route(codec.send_counts, codec.receive_counts, codec.item_bytes)
        return self._codecs[key]

    def _new_codec(self, bits: RowBits | None, width: int, dtype: torch.dtype) -> Codec:
        """Raises HpcgnnError, on every rank, where a rank has more rows or blocks of bytes than MPI can count. Collective."""
        world, counts = self.messages.world, (self.send_counts, self.receive_counts)
        if bits is None:
            world.check_counts(*counts, self.name)
            return PlainCodec(counts, width, dtype, self.tools)
        if width not in bits.layouts:
            world.check_counts(*counts, self.name)
            of_rows, wide_from = zip(counts, (bits.sent, bits.received), strict=True), self.wide_from
            send, received = (make_layout(*each, width, wide_from) for each in of_rows)
            world.check_counts(send.blocks, received.blocks, f"{self.name} in blocks of {BLOCK_BYTES} bytes")
            torch_device = self.messages.device.torch_device
            bits.layouts[width] = send.to(torch_device), received.to(torch_device)
        packed = PackedCodec(bits.layouts[width], width, self.tools)
        return DeltaCodec(packed) if self.messages.is_delta else packed


class Step:
    """One exchange of rows of one width and type, in passes of one kind: what is the same in each epoch is decided here.

    rows: (s, F) memory to aggregate into before :meth:`start`; other exchanges may use it, too. memory_state: number of changes
    of the memory that it refers to.
    """

    def __init__(
        self, exchange: Exchange, slot: Slot, dtype: torch.dtype, codec: Codec, *, is_constant: bool = False
    ) -> None:
        messages, scratch, kept = exchange.messages, exchange.messages.scratch, exchange.messages.kept
        self.codec, self._exchange, self.is_constant = codec, exchange, is_constant
        # None in evaluations, and where rows are used in their own epoch
        is_training = messages.current_pass.is_training
        self._box = kept.mailbox(slot, exchange.tools, is_constant=is_constant) if is_training else None
        self._differences = kept.differences_of(slot, codec)
        self._own = None if self._box is None else slot  # messages that outlive their step have memory of their own
        # constant rows have left when their step ends
        stays = codec.sends_rows_as_they_are and not is_constant
        key = ScratchKey(ScratchUse.ROWS_TO_SEND, self._own if stays else None)
        self.rows = scratch.rows(key, int(exchange.send_counts.sum()), slot.width, dtype)
        if codec.sends_rows_as_they_are:
            self._sent = self.rows.view(torch.uint8)
        else:
            key = ScratchKey(ScratchUse.SENT_BYTES, self._own)
            self._sent = scratch.bytes(key, int(codec.send_counts.sum()), codec.item_bytes)
        nodes, to_ranks = messages.placement.node_of, codec.send_counts * codec.item_bytes
        away = to_ranks[nodes != nodes[messages.world.rank]]
        self._counted = Sent(to_ranks, int(to_ranks.sum()), int(away.sum()))
        self._wires = [self._wire(turn) for turn in range(1 if self._box is None or is_constant else 2)]
        is_alone = messages.world.size == 1 and self._box is None and not self.rows.shape[0]
        # the message of a rank that is alone, which has no rows
        self._nothing = Message(codec, self._sent, self._wires[0][0], 0) if is_alone else None
        self.memory_state = scratch.allocations + messages.kept.changes

    def _wire(self, turn: int) -> tuple[torch.Tensor, Callable[[], Pending]]:
        """The memory of the rows that come, and the function that starts to move rows."""
        exchange, codec = self._exchange, self.codec
        key = ScratchKey(
            ScratchUse.RECEIVED_ROWS if codec.sends_rows_as_they_are else ScratchUse.RECEIVED_BYTES, self._own, turn
        )
        received = exchange.messages.scratch.bytes(key, int(codec.receive_counts.sum()), codec.item_bytes)
        neighbours = None if exchange.links is None else exchange.links[0]
        transport = exchange.messages.transport
        return received, transport.bind(self._sent, received, codec.route, exchange.name, neighbours)

    def reused(self) -> Message | None:
        """The message of an earlier epoch, if no rows are to be sent in this one; None if :meth:`start` is to be called."""
        exchange, box = self._exchange, self._box
        if box is None or box.arrived is None:
            return None
        if self.is_constant and (box.in_flight or box.arrived).is_constant:
            exchange.settle(box)
            box.arrived.epoch = exchange.messages.current_pass.epoch
        elif exchange.freshness not in (REUSED, SKIPPED):
            return None
        elif exchange.freshness == REUSED:
            exchange.settle(box)
        calls = exchange.messages.traffic.calls
        calls[exchange.id] = calls.get(exchange.id, 0) + 1
        return box.arrived

    def rows_to_send(self) -> torch.Tensor:
        """:attr:`rows`, which no message under way needs any more."""
        if self._box is not None and self.codec.sends_rows_as_they_are:
            self._exchange.settle(self._box)  # the last message is sent from this very memory, and must have left
        return self.rows

    def start(self, given: QuantizedRows | None = None, again: int | None = None) -> Message:
        """Encode :attr:`rows`, and start moving them. Collective.

        given: the rows that are 8-bit integers already. again: number of the call that is repeated: its rows are rounded with the
        same noise, and policies do not see them a second time. Returns the message to wait for and to add: with stale rows, this
        is the message of an earlier epoch.
        """
        exchange, messages, box = self._exchange, self._exchange.messages, self._box
        present, traffic, changes = messages.current_pass, messages.traffic, exchange.changes
        if self._nothing is not None and exchange.ranges is None:
            traffic.started(exchange.id, self._counted, 0)
            return self._nothing
        if box is None or self.is_constant:
            messages.claim_memory(exchange.name)
        if box is not None:
            exchange.settle(box)
        received, start = self._wires[box.next_turn() if len(self._wires) > 1 and box is not None else 0]
        message = Message(self.codec, self._sent, received, present.epoch, self._differences, box)
        message.is_constant = self.is_constant
        message.call = call = traffic.calls.get(exchange.id, 0) if again is None else again
        if again is None:
            traffic.calls[exchange.id] = call + 1
        key = present.noise_key(exchange.id, call, messages.world.rank)
        if changes is not None and present.is_training and again is None:
            with messages.timings.measure("policy_seconds"):
                changes.note(self.rows, given, call, present.epoch)
        nonfinite = self.codec.encode(self.rows, self._sent, key, self._differences, given)
        if exchange.ranges is not None and present.is_training and again is None:
            self.codec.add_ranges(self._sent, exchange.ranges)
        traffic.started(exchange.id, self._counted, nonfinite)
        messages.world.meet()
        message.pending = start()
        messages.make_progress(message.pending)
        exchange.sends_whole_rows = self.is_constant
        if box is not None and box.arrived is not None and exchange.freshness == STALE and not self.is_constant:
            box.in_flight, message = message, box.arrived
        return message
