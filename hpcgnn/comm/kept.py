"""What exchanges keep from one epoch to the next, and its place in checkpoints: rows that are still used (staleness), and what
receivers have been sent (delta coding)."""

from __future__ import annotations

from typing import Any

import torch

from hpcgnn.comm.codecs import Codec, CodecTools, Differences
from hpcgnn.comm.mailbox import Keeping, Mailbox
from hpcgnn.comm.passes import ExchangeId, Slot
from hpcgnn.comm.pending import Pending

_PlainSlot = tuple[int, bool, int, int]  # as in a file


class Kept:
    """By :class:`Slot`.

    keeping: how received rows are kept for later epochs; None: they are used in their own.
    mailboxes: with messages that are in flight or in use. differences: of delta coding.
    """

    def __init__(self) -> None:
        self.keeping: Keeping | None = None
        self.mailboxes: dict[Slot, Mailbox] = {}
        self.differences: dict[Slot, Differences] = {}

    def begin(self, keeping: Keeping | None) -> None:
        """Keep rows like this from now on; those that another trainer of the model kept are forgotten."""
        self.keeping, self.mailboxes = keeping, {}

    def mailbox(self, slot: Slot, tools: CodecTools) -> Mailbox | None:
        """The one of ``slot``, made when it is first asked for; None where rows are used in their own epoch."""
        if self.keeping is None:
            return None
        if slot not in self.mailboxes:
            self.mailboxes[slot] = Mailbox(self.keeping, tools, is_backward=slot.exchange.is_backward)
        return self.mailboxes[slot]

    def differences_of(self, slot: Slot, codec: Codec) -> Differences | None:
        """What ``codec`` keeps of ``slot``, which begins with zeros; None if it keeps nothing."""
        if slot not in self.differences:
            new = codec.new_differences()
            if new is None:
                return None
            self.differences[slot] = new
        return self.differences[slot]

    def mailboxes_of(self, exchange: ExchangeId) -> list[Mailbox]:
        """Of one exchange: none before it was first started, more than one in layers that are used twice."""
        return [box for slot, box in self.mailboxes.items() if slot.exchange == exchange]

    def in_flight(self) -> list[Pending]:
        """Of messages that nobody has waited for."""
        messages = [box.in_flight for box in self.mailboxes.values()]
        return [message.pending for message in messages if message is not None and message.pending is not None]

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """This rank's, as tensors and plain values. What is in flight must have come (:meth:`Messages.drain`)."""
        return {
            "mailboxes": {_plain(slot): box.state() for slot, box in self.mailboxes.items()},
            "differences": {
                _plain(slot): (kept.sent.cpu(), kept.received.cpu()) for slot, kept in self.differences.items()
            },
        }

    def load(self, state: dict[str, Any], tools: CodecTools, *, is_delta: bool) -> None:
        """Go on from :meth:`state`, as far as the present settings keep the same."""
        found: dict[_PlainSlot, tuple[torch.Tensor, torch.Tensor]] = state["differences"] if is_delta else {}
        where = tools.scratch.where
        self.differences = {_slot(slot): Differences(*(r.to(where) for r in rows)) for slot, rows in found.items()}
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
