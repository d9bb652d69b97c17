"""Rows that exchanges keep from one epoch to the next, and in checkpoints: received rows that are used later (staleness), and the
rows that receivers hold (delta coding)."""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.exchange.codecs import Codec, CodecTools, Differences
from hpcgnn.exchange.mailbox import Keeping, Mailbox
from hpcgnn.exchange.passes import ExchangeId, Slot
from hpcgnn.world.buffer import Pending

_PlainSlot = tuple[int, bool, int, int]  # a slot in a checkpoint: layer, is_backward, call, width


class Kept:
    """The kept rows of one model's exchanges, by :class:`Slot`.

    keeping: how received rows are kept for later epochs; None: rows are used in the epoch in which they were sent.
    mailboxes: messages in flight and messages in use. differences: the rows that delta coding keeps. changes: number of times
    that :meth:`begin` and :meth:`load` have replaced mailboxes or differences.
    """

    def __init__(self) -> None:
        self.keeping: Keeping | None = None
        self.changes = 0
        self.mailboxes: dict[Slot, Mailbox] = {}
        self.differences: dict[Slot, Differences] = {}

    def begin(self, keeping: Keeping | None) -> None:
        """Keep rows as ``keeping`` says from now on; drop the rows that an earlier trainer of the model kept."""
        self.keeping, self.mailboxes, self.differences = keeping, {}, {}
        self.changes += 1

    def mailbox(self, slot: Slot, tools: CodecTools) -> Mailbox | None:
        """The mailbox of ``slot``, made on first use; None where rows are used in the epoch in which they were sent."""
        if self.keeping is None:
            return None
        if slot not in self.mailboxes:
            self.mailboxes[slot] = Mailbox(self.keeping, tools, is_backward=slot.exchange.is_backward)
        return self.mailboxes[slot]

    def differences_of(self, slot: Slot, codec: Codec) -> Differences | None:
        """The rows that ``codec`` keeps for ``slot``, zeros at first; None if it keeps none."""
        if slot not in self.differences:
            new = codec.new_differences()
            if new is None:
                return None
            self.differences[slot] = new
        return self.differences[slot]

    def mailboxes_of(self, exchange: ExchangeId) -> list[Mailbox]:
        """The mailboxes of one exchange: none before it first starts, several if a pass uses its layer more than once."""
        return [box for slot, box in self.mailboxes.items() if slot.exchange == exchange]

    def in_flight(self) -> list[Pending]:
        """The started collectives of messages that were not waited for yet."""
        messages = [box.in_flight for box in self.mailboxes.values()]
        return [message.pending for message in messages if message is not None and message.pending is not None]

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """This rank's kept rows as tensors and plain values. Messages in flight must have arrived (:meth:`Messages.drain`)."""
        return {
            "mailboxes": {_plain(slot): box.state() for slot, box in self.mailboxes.items()},
            "differences": {
                _plain(slot): (kept.sent.cpu(), kept.received.cpu()) for slot, kept in self.differences.items()
            },
        }

    def load(self, state: dict[str, Any], tools: CodecTools, *, is_delta: bool) -> None:
        """Restore the rows of :meth:`state` that the present settings keep as well."""
        self.changes += 1
        found: dict[_PlainSlot, tuple[torch.Tensor, torch.Tensor]] = state["differences"] if is_delta else {}
        torch_device = tools.scratch.torch_device
        self.differences = {
            _slot(slot): Differences(*(r.to(torch_device) for r in rows)) for slot, rows in found.items()
        }
        if self.keeping is None:
            return
        for slot, content in state["mailboxes"].items():
            box = self.mailbox(_slot(slot), tools)
            assert box is not None
            box.load(content)


def _plain(slot: Slot) -> _PlainSlot:
    return slot.exchange.layer, slot.exchange.is_backward, slot.call, slot.width


def _slot(plain: _PlainSlot) -> Slot:
    layer, is_backward, call, width = plain
    return Slot(ExchangeId(layer, is_backward), call, width)
