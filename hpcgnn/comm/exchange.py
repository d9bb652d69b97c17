"""Moving boundary rows between ranks: one nonblocking alltoallv for a layer and direction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hpcgnn.comm.codec import Codec, DeltaCodec, PackedCodec, PlainCodec
from hpcgnn.comm.layout import BLOCK_BYTES, Layout, make_layout
from hpcgnn.comm.links import Links
from hpcgnn.comm.messages import Messages
from hpcgnn.comm.world import Pending
from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels import Csr, keyed
from hpcgnn.kernels.packing import MESSAGE_BITS

_MIXED = 0  # in place of bits, where rows have their own
_EVALUATION = 1 << 32  # beside the epoch, so that an evaluation rounds otherwise than the training step before it


@dataclass
class Message:
    """What is under way: the rows of all peers, to and from this rank."""

    codec: Codec
    pending: Pending


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
        self._bits: tuple[np.ndarray, np.ndarray] | None = None
        self._layouts: dict[tuple[int, int], tuple[Layout, Layout]] = {}
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

    def assign_bits(self, bits: np.ndarray) -> None:
        """Give each row to send, (send rows,) uint8, its own bits in training; the receivers are told. Collective."""
        with self.messages.world.together("assign bits"):
            rows, wrong = int(self.send_counts.sum()), np.setdiff1d(bits, MESSAGE_BITS)
            if bits.shape != (rows,):
                raise HpcgnnError(f"bits must have shape ({rows},), one for each row to send, not {bits.shape}")
            if wrong.size:
                raise HpcgnnError(f"bits must be of {', '.join(map(str, MESSAGE_BITS))}, not {wrong[0]}")
        received, _ = self.messages.world.alltoallv(bits.astype(np.uint8), self.send_counts)
        self._bits, self._layouts = (bits.astype(np.uint8), received), {}

    # -- a step -------------------------------------------------------------------------------------------------------

    def rows_to_send(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(send rows, width) memory to aggregate into, for :meth:`start`; of the next exchange as well."""
        return self.messages.scratch("rows to send", int(self.send_counts.sum()), width, dtype)

    def start(self, rows: torch.Tensor) -> Message:
        """Encode ``rows``, from :meth:`rows_to_send`, and start moving them. Collective."""
        messages = self.messages
        messages.occupy(self.name)
        call = messages.call(self.name)
        codec = self._codec(rows, call)
        trouble = codec.encode(rows, self._key(call))
        messages.started(self.name, codec.send.numel() * codec.send.element_size(), trouble=trouble > 0)
        send, received = (codec.send.numpy(), codec.send_counts), (codec.received.numpy(), codec.receive_counts)
        neighbours = None if self.links is None else self.links.there
        pending = messages.world.start_alltoallv(*send, *received, self.name, neighbours)
        if messages.config.overlap:
            messages.world.watch(pending)
        else:
            self._wait(pending)
        return Message(codec, pending)

    def wait(self, message: Message) -> None:
        """Wait until the received rows are there."""
        self._wait(message.pending)
        self.messages.vacate()
        self.messages.timings.add("wire_seconds", message.pending.seconds)

    def _wait(self, pending: Pending) -> None:
        with self.messages.timings.measure("communication_wait_seconds"):
            self.messages.world.wait(pending)

    def add_received(self, message: Message, matrix: Csr, z: torch.Tensor) -> None:
        """``z`` (n, F) += ``matrix`` (n, received rows) times what has come."""
        message.codec.add_received(matrix, z)

    # -- how rows become bytes ----------------------------------------------------------------------------------------

    def _key(self, call: int) -> int:
        messages = self.messages
        epoch = messages.epoch + (0 if messages.training else _EVALUATION)
        return keyed.derive_key(messages.seed, epoch, self.layer, call, int(self.is_backward), messages.world.rank)

    def _codec(self, rows: torch.Tensor, call: int) -> Codec:
        messages, width = self.messages, rows.shape[1]
        if messages.bits == 32 and not self._is_mixed:
            self._check_rows()
            received = messages.scratch("rows received", int(self.receive_counts.sum()), width, rows.dtype)
            counts = (self.send_counts, self.receive_counts)
            return PlainCodec(rows, received, *counts, messages.timings, self.backend)
        packed = self._packed(width, messages.bits)
        return DeltaCodec(packed, *self._kept_rows(width, call)) if messages.coding == "delta" else packed

    @property
    def _is_mixed(self) -> bool:
        return self._bits is not None and self.messages.training

    def _packed(self, width: int, bits: int) -> PackedCodec:
        bits = _MIXED if self._is_mixed else bits
        if (width, bits) not in self._layouts:
            self._layouts[width, bits] = self._make_layouts(width, bits)
        layouts = self._layouts[width, bits]
        send, received = (
            self.messages.scratch(role, 1, layout.num_bytes, torch.uint8)
            for role, layout in zip(("bytes to send", "bytes received"), layouts, strict=True)
        )
        decoded = partial(self.messages.scratch, "rows received", int(self.receive_counts.sum()), width, torch.float32)
        return PackedCodec(send, received, layouts, decoded, self.messages.timings, self.backend)

    def _check_rows(self) -> None:
        """Before the first message, that MPI can count its rows. Collective."""
        if not self._rows_fit:
            self.messages.world.check_counts(self.send_counts, self.receive_counts, self.name)
            self._rows_fit = True

    def _make_layouts(self, width: int, bits: int) -> tuple[Layout, Layout]:
        self._check_rows()
        counts = (self.send_counts, self.receive_counts)
        each = self._bits if bits == _MIXED else tuple(np.full(int(rows.sum()), bits, np.uint8) for rows in counts)
        assert each is not None
        send, received = (make_layout(rows, row_bits, width) for rows, row_bits in zip(counts, each, strict=True))
        self.messages.world.check_counts(send.blocks, received.blocks, f"{self.name} in blocks of {BLOCK_BYTES} bytes")
        return send, received

    def _kept_rows(self, width: int, call: int) -> tuple[torch.Tensor, torch.Tensor]:
        kept, name = self.messages.kept, f"{self.layer}/{int(self.is_backward)}/{call}/{width}"
        if name not in kept:
            sent, received = int(self.send_counts.sum()), int(self.receive_counts.sum())
            kept[name] = (torch.zeros(sent, width), torch.zeros(received, width))
        return kept[name]
