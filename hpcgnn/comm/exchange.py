"""Moving boundary rows between ranks: one nonblocking alltoallv for a layer and direction."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from hpcgnn.comm.agreement import together
from hpcgnn.comm.buffer import Buffer
from hpcgnn.comm.codec import Codec, DeltaCodec, PackedCodec, PlainCodec
from hpcgnn.comm.layout import BLOCK_BYTES, Layout, make_layout
from hpcgnn.comm.links import Links
from hpcgnn.comm.mailbox import FRESH, SKIPPED, STALE, Mailbox, Message
from hpcgnn.comm.messages import Messages, exchange_key
from hpcgnn.comm.row_bits import RowBits, RowRanges
from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels import Csr, keyed
from hpcgnn.kernels.packing import MESSAGE_BITS

_EVALUATION = 1 << 32  # beside the epoch, so that an evaluation rounds otherwise than the training step before it


class Exchange:
    """The exchange of one layer in one direction, forward or backward.

    messages: what it shares with the model's other exchanges. send_counts, receive_counts: (P,) int64 rows to and from
    each rank. layer: number of the exchange within a pass. is_backward: gradients travel, by the reversed plan. links: the
    graph of ranks to exchange over; None: all ranks.
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
    ) -> None:
        self.messages, self.backend, self.links = messages, backend, links
        self.send_counts, self.receive_counts = send_counts, receive_counts
        self.layer, self.is_backward = layer, is_backward
        self.name = f"layer {layer + 1}'s " + ("gradients" if is_backward else "boundary rows")
        self.bits: RowBits | None = None
        self.freshness = FRESH
        self.ranges: RowRanges | None = None
        self._uniform: dict[int, RowBits] = {}
        self._rows_fit = False

    def reverse(self) -> Exchange:
        """The exchange of the backward pass: what was received is sent back."""
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
        """The same exchange of another layer."""
        counts = (self.send_counts, self.receive_counts)
        return Exchange(self.messages, *counts, layer, backend=self.backend, links=self.links)

    # -- what policies decide -----------------------------------------------------------------------------------------

    def assign_bits(self, bits: np.ndarray) -> RowBits:
        """Give each row to send, (send rows,) uint8, its own bits in training; the receivers are told. Collective."""
        with together(self.messages.world, "assign bits"):
            rows, wrong = int(self.send_counts.sum()), np.setdiff1d(bits, MESSAGE_BITS)
            if bits.shape != (rows,):
                raise HpcgnnError(f"bits must have shape ({rows},), one for each row to send, not {bits.shape}")
            if wrong.size:
                raise HpcgnnError(f"bits must be of {', '.join(map(str, MESSAGE_BITS))}, not {wrong[0]}")
        received, _ = self.messages.world.alltoallv(bits.astype(np.uint8), self.send_counts)
        self.bits = RowBits(bits, received)
        return self.bits

    def uniform_bits(self, bits: int) -> RowBits:
        """The same bits for all rows."""
        if bits not in self._uniform:
            counts = int(self.send_counts.sum()), int(self.receive_counts.sum())
            self._uniform[bits] = RowBits.uniform(bits, *counts)
        return self._uniform[bits]

    def current_bits(self) -> RowBits:
        """Bits of a row in the present pass: as assigned where it rounds, else the setting."""
        messages = self.messages
        if self.bits is not None and messages.is_rounded:
            return self.bits
        return self.uniform_bits(messages.bits)

    def trace_ranges(self) -> RowRanges:
        """From now on, look at the ranges of the rows that are sent in training."""
        self.ranges = RowRanges(int(self.send_counts.sum()))
        return self.ranges

    def mailboxes(self) -> list[Mailbox]:
        """What is kept of this exchange between epochs: nothing before it was first started."""
        prefix = exchange_key(self.layer, self.is_backward) + "/"
        return [box for key, box in self.messages.mailboxes.items() if key.startswith(prefix)]

    def is_late(self) -> bool:
        """Whether rows that were sent to this rank in an epoch before are still on their way."""
        pendings = [box.in_flight.pending for box in self.mailboxes() if box.in_flight is not None]
        return any(pending is not None and not self.messages.world.test(pending) for pending in pendings)

    # -- a step -------------------------------------------------------------------------------------------------------

    def reused(self, width: int) -> Message | None:
        """The rows of an epoch before where nothing is to be sent in this one, in place of :meth:`start`'s message."""
        box = self._mailbox(width)
        if self.freshness != SKIPPED or box is None or box.arrived is None:
            return None
        self.messages.call(self.name)
        return box.arrived

    def rows_to_send(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(send rows, width) memory to aggregate into, for :meth:`start`; of the next exchange as well."""
        box, role = self._mailbox(width), "rows to send"
        if box is not None and not self._is_packed:  # the rows themselves are what travels
            self._settle(box)
            role = f"sent {self._key_of(width)}"
        return self.messages.scratch(role, int(self.send_counts.sum()), width, dtype)

    def start(self, rows: torch.Tensor) -> Message:
        """Encode ``rows``, from :meth:`rows_to_send`, and start moving them. Collective.

        Returns what to wait for and to add: where stale rows are to be used, the message of an epoch before.
        """
        messages, width = self.messages, rows.shape[1]
        box = self._mailbox(width)
        if box is None:
            messages.occupy(self.name)
        else:
            self._settle(box)
        codec = self._codec(rows, box)
        call = messages.call(self.name)
        trouble = codec.encode(rows, self._key(call))
        if self.ranges is not None and isinstance(codec, PackedCodec) and messages.training:
            self.ranges.add(codec.send, codec.layouts[0], width)
        messages.started(self.name, codec.send.numel() * codec.send.element_size(), trouble=trouble > 0)
        send = Buffer.of(codec.send), codec.send_counts
        received = Buffer.of(codec.received), codec.receive_counts
        neighbours = None if self.links is None else self.links.there
        pending = messages.world.start_alltoallv(*send, *received, self.name, neighbours)
        message = Message(codec, pending, messages.epoch, box)
        messages.depart(pending)
        if box is not None and box.arrived is not None and self.freshness == STALE:
            box.in_flight, message = message, box.arrived
        return message

    def wait(self, message: Message) -> None:
        """Wait until the received rows are there."""
        box = message.mailbox
        if message.pending is not None:
            self.messages.wait(message)
            if box is None:
                self.messages.vacate()
            else:
                box.accept(message, self.messages.epoch)
        if box is not None:
            self.messages.ages[self.name] = self.messages.epoch - message.epoch

    def add_received(self, message: Message, matrix: Csr, z: torch.Tensor) -> None:
        """``z`` (n, F) += ``matrix`` (n, received rows) times what has come."""
        message.codec.add_received(matrix, z)

    # -- what is kept between epochs ------------------------------------------------------------------------------------

    def _key_of(self, width: int) -> str:
        return exchange_key(self.layer, self.is_backward, self.messages.next_call(self.name), width)

    def _mailbox(self, width: int) -> Mailbox | None:
        return self.messages.mailbox(self._key_of(width))

    def _settle(self, box: Mailbox) -> None:
        """What is in flight comes into use."""
        message, box.in_flight = box.in_flight, None
        if message is None:
            return
        if message.pending is not None:
            self.messages.wait(message)
        box.accept(message, self.messages.epoch)

    # -- how rows become bytes ----------------------------------------------------------------------------------------

    def _key(self, call: int) -> int:
        messages = self.messages
        epoch = messages.epoch + (0 if messages.training else _EVALUATION)
        return keyed.derive_key(messages.seed, epoch, self.layer, call, int(self.is_backward), messages.world.rank)

    @property
    def _is_packed(self) -> bool:
        messages = self.messages
        return messages.bits != 32 or (self.bits is not None and messages.is_rounded)

    def _codec(self, rows: torch.Tensor, box: Mailbox | None) -> Codec:
        messages, width, received_role = self.messages, rows.shape[1], "received"
        if box is not None:
            received_role = f"received {self._key_of(width)} {box.next_turn()}"
        if not self._is_packed:
            self._check_rows()
            received = messages.scratch(f"rows {received_role}", int(self.receive_counts.sum()), width, rows.dtype)
            counts = (self.send_counts, self.receive_counts)
            return PlainCodec(rows, received, *counts, messages.timings, self.backend)
        sent_role = "sent" if box is None else f"sent {self._key_of(width)}"
        packed = self._packed(width, f"bytes {sent_role}", f"bytes {received_role}")
        return DeltaCodec(packed, *self._kept_rows(width)) if messages.coding == "delta" else packed

    def _packed(self, width: int, *roles: str) -> PackedCodec:
        layouts = self._layouts(width)
        send, received = (
            self.messages.scratch(role, 1, layout.num_bytes, torch.uint8)
            for role, layout in zip(roles, layouts, strict=True)
        )
        decoded = partial(self.messages.scratch, "rows received", int(self.receive_counts.sum()), width, torch.float32)
        return PackedCodec(send, received, layouts, decoded, self.messages.timings, self.backend)

    def _check_rows(self) -> None:
        """Before the first message, that MPI can count its rows. Collective."""
        if not self._rows_fit:
            self.messages.world.check_counts(self.send_counts, self.receive_counts, self.name)
            self._rows_fit = True

    def _layouts(self, width: int) -> tuple[Layout, Layout]:
        bits = self.current_bits()
        if width not in bits.layouts:
            self._check_rows()
            send = make_layout(self.send_counts, bits.sent, width)
            received = make_layout(self.receive_counts, bits.received, width)
            what = f"{self.name} in blocks of {BLOCK_BYTES} bytes"
            self.messages.world.check_counts(send.blocks, received.blocks, what)
            bits.layouts[width] = send, received
        return bits.layouts[width]

    def _kept_rows(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        kept, name = self.messages.kept, self._key_of(width)
        if name not in kept:
            sent, received = int(self.send_counts.sum()), int(self.receive_counts.sum())
            kept[name] = (torch.zeros(sent, width), torch.zeros(received, width))
        return kept[name]
