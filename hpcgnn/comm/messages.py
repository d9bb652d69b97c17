"""What the exchanges of one model share: settings, the epoch, memory, and what they counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.links import COLLECTIVES
from hpcgnn.comm.mailbox import Keeping, Mailbox, Message
from hpcgnn.comm.pending import Pending
from hpcgnn.comm.timings import Timings
from hpcgnn.comm.world import World
from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.packing import MESSAGE_BITS
from hpcgnn.settings import Checked, setting

CODINGS = ("plain", "delta")
EVAL_PRECISIONS = ("float32", "training")


@dataclass(frozen=True)
class MessageConfig(Checked):
    """bits: of a value that travels in training. message_coding: ``plain``, or ``delta`` for differences to what the
    receiver has. eval_precision: ``float32``, or ``training`` for evaluations that send as few bits as training does.
    overlap: whether a rank computes while its messages travel; without it, each waits at once, to see what that costs.
    collective: ``alltoallv``, ``neighbour``, or ``auto`` for the faster one (:mod:`hpcgnn.comm.links`)."""

    bits: int = setting(32, name=None, choices=MESSAGE_BITS)
    message_coding: str = setting(
        "plain",
        "delta sends differences to what the receiver has from the last epoch, so that nothing that rounding lost is lost for "
        "good; it keeps all rows sent and received in memory.",
        choices=CODINGS,
    )
    eval_precision: str = setting(
        "float32", "What evaluations send: float32, or as few bits as training does.", choices=EVAL_PRECISIONS
    )
    overlap: bool = setting(
        True, "Compute while messages travel; off shows what that saves. Results are the same, bit for bit."
    )
    collective: str = setting(
        "auto",
        "MPI's call for boundary messages: over all ranks, or over those that have some for each other. auto measures both "
        "where that may pay.",
        choices=COLLECTIVES,
    )

    def check(self) -> None:
        """Raise HpcgnnError for settings that do not exist or do not go together."""
        super().check()
        if self.message_coding == "delta" and self.bits == 32:
            raise HpcgnnError(
                "message_coding delta compensates for what few bits lose: choose --bits 16 or fewer with it"
            )
        if self.message_coding == "delta" and self.eval_precision == "training":
            raise HpcgnnError("an evaluation sends no differences: leave --eval-precision float32 with delta")


class Messages:
    """The settings and counts of all exchanges of a model.

    Whoever trains calls :meth:`begin_epoch` before each step, and sets ``training`` to False for evaluations and back; a
    :class:`hpcgnn.nn.GraphModel` does the latter itself.

    bytes_sent: bytes that left this rank so far, by exchange ("layer 1's boundary rows"); parameters included.
    kept: what delta coding keeps, by layer, direction, call and width: (rows sent, F) and (rows received, F) float32.
    keeping: set where rows of an epoch before may be used in training, and how they are kept; None: nowhere.
    mailboxes: what is kept then, by the same names.
    ages: epochs since the rows that each exchange last used in this step were sent.
    """

    def __init__(
        self, world: World, config: MessageConfig | None = None, *, seed: int = 0, timings: Timings | None = None
    ) -> None:
        self.world, self.config, self.seed = world, config or MessageConfig(), seed
        self.config.check()
        self.timings = timings or Timings()
        self.epoch, self.training = 0, True
        self.bytes_sent: Counter[str] = Counter()
        self.kept: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self.keeping: Keeping | None = None
        self.mailboxes: dict[str, Mailbox] = {}
        self.ages: dict[str, int] = {}
        self._calls: Counter[str] = Counter()
        self._started: list[str] = []
        self._first_trouble: int | None = None
        self._under_way: str | None = None
        self._scratch: dict[str, torch.Tensor] = {}

    @property
    def is_rounded(self) -> bool:
        """Whether the present pass sends as few bits as training does."""
        return self.training or self.config.eval_precision == "training"

    @property
    def bits(self) -> int:
        """Bits of a value in the present pass, where rows have none of their own."""
        return self.config.bits if self.is_rounded else 32

    @property
    def exchanges_started(self) -> set[str]:
        """Names of the exchanges of this step so far, the same on all ranks."""
        return set(self._started)

    @property
    def coding(self) -> str:
        """Coding of the present pass: an evaluation leaves alone what delta coding keeps."""
        return self.config.message_coding if self.training else "plain"

    def scratch(self, role: str, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """(rows, width) uninitialised memory, one for each role: the rows of one exchange are used before the next starts."""
        num_bytes = rows * width * dtype.itemsize
        if role not in self._scratch or self._scratch[role].numel() < num_bytes:
            self._scratch[role] = buffers.empty(1, num_bytes, torch.uint8).view(-1)
        return self._scratch[role][:num_bytes].view(dtype).view(rows, width)

    # -- what is under way ------------------------------------------------------------------------------------------------

    def mailbox(self, name: str) -> Mailbox | None:
        """What the exchange of this name (:func:`exchange_key`) keeps; None where it keeps nothing, as in evaluations."""
        return self._mailbox(name) if self.keeping is not None and self.training else None

    def _mailbox(self, name: str) -> Mailbox:
        assert self.keeping is not None
        if name not in self.mailboxes:
            is_backward = name.split("/")[1] == "1"
            self.mailboxes[name] = Mailbox(self.keeping, self.timings, is_backward=is_backward)
        return self.mailboxes[name]

    def depart(self, pending: Pending) -> None:
        """``pending`` has started: a thread makes progress with it while this rank computes, or it is waited for at once."""
        if self.config.overlap:
            self.world.watch(pending)
        else:
            with self.timings.measure("communication_wait_seconds"):
                self.world.wait(pending)

    def wait(self, message: Message) -> None:
        """Wait until ``message``, which is under way, is there."""
        pending, message.pending = message.pending, None
        assert pending is not None
        with self.timings.measure("communication_wait_seconds"):
            self.world.wait(pending)
        self.timings.add("wire_seconds", pending.seconds)

    def drain(self) -> None:
        """Wait for all that is in flight, which is used when its time comes. Collective."""
        with self.timings.measure("communication_wait_seconds"):
            for mailbox in self.mailboxes.values():
                if mailbox.in_flight is not None and mailbox.in_flight.pending is not None:
                    self.world.wait(mailbox.in_flight.pending)

    def mailbox_state(self) -> dict[str, Any]:
        """What mailboxes hold, for a checkpoint; after :meth:`drain`."""
        return {name: mailbox.state() for name, mailbox in self.mailboxes.items()}

    def restore_mailboxes(self, state: dict[str, Any], backend: str) -> None:
        """Go on from :meth:`mailbox_state`."""
        for name, content in state.items():
            self._mailbox(name).restore(content, backend)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """A training step starts."""
        self.epoch, self._started, self._first_trouble = epoch, [], None
        self._calls.clear()
        self.ages.clear()

    def call(self, name: str) -> int:
        """How often the exchange ``name`` was started before in this step: more than once only by layers used twice."""
        self._calls[name] += 1
        return self._calls[name] - 1

    def next_call(self, name: str) -> int:
        """What :meth:`call` will say, which then counts it."""
        return self._calls[name]

    def occupy(self, name: str) -> None:
        """The exchange ``name`` begins, in memory that all exchanges share.

        Raises:
            RuntimeError: where another one has not been waited for, whose rows would be overwritten.
        """
        if self._under_way is not None:
            raise RuntimeError(f"{name} cannot travel before those under way, {self._under_way}, were waited for")
        self._under_way = name

    def vacate(self) -> None:
        """The exchange under way has ended."""
        self._under_way = None

    def started(self, name: str, num_bytes: int, *, trouble: bool) -> None:
        """An exchange has started; ``trouble`` if its rows held a NaN or an infinity."""
        self.bytes_sent[name] += num_bytes
        if trouble and self._first_trouble is None:
            self._first_trouble = len(self._started)
        self._started.append(name)

    @property
    def in_trouble(self) -> bool:
        """Whether this rank has sent a NaN or an infinity in this step."""
        return self._first_trouble is not None

    def raise_if_trouble(self, ranks_in_trouble: float) -> None:
        """Say which rank sent the first NaN or infinity of this step, and where. Collective if any rank did.

        ``ranks_in_trouble`` is the sum of :attr:`in_trouble` over ranks: the same number everywhere.
        """
        if not ranks_in_trouble:
            return
        world, last = self.world, len(self._started)
        mine = last if self._first_trouble is None else self._first_trouble
        first = int(world.allreduce(np.array([mine * world.size + world.rank]), "min")[0])
        which, rank = divmod(first, world.size)  # all ranks start the same exchanges in the same order
        raise HpcgnnError(
            f"{self._started[which]} of rank {rank} held NaN or infinite values in epoch {self.epoch}: lower --lr "
            "or scale the features down",
            agreed=True,
        )


def exchange_key(layer: int, is_backward: bool, *call_and_width: int) -> str:
    """Name of what an exchange keeps, also in files; without call and width, what all its names begin with."""
    return "/".join(map(str, (layer, int(is_backward), *call_and_width)))
