"""What an exchange keeps from epoch to epoch, where rows of an epoch before may be used (PipeGCN's schedule, PipeQS §3.4).

Rows that were sent in one epoch may be waited for, and used, in a later one. There is one message in flight at a time, and
memory for two: for the rows in use, and for those to come. Shapes: r rows received, F columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.codecs import Codec, CodecTools, Differences, restored
from hpcgnn.comm.codecs.choice import plain_rows
from hpcgnn.comm.pending import Pending
from hpcgnn.kernels import Csr
from hpcgnn.kernels.edges import sddmm

# Of an exchange in an epoch. FRESH: a message is sent and waited for. STALE: one is sent, and that of an epoch before is used.
# REUSED: none is sent, and the last one is used. SKIPPED: none is sent, and the last one that had come is used, whether or not
# a later one is on its way.
FRESH, STALE, REUSED, SKIPPED = "fresh", "stale", "reused", "skipped"


@dataclass(eq=False)
class Message:
    """The rows of all peers, to and from this rank.

    sent, received: wires of ``codec``, (items, item_bytes) uint8. epoch: when they were sent. differences: what delta coding
    keeps of these rows. mailbox: where they are kept; None: they are used at once. pending: None once they have come.
    sums: (b, F) what this rank's nodes at the boundary had of their neighbours here when the rows were sent, where stale rows
    are corrected by what that has changed (:mod:`hpcgnn.nn.correction`).
    """

    codec: Codec
    sent: torch.Tensor
    received: torch.Tensor
    epoch: int
    differences: Differences | None = None
    mailbox: Mailbox | None = None
    pending: Pending | None = None
    sums: torch.Tensor | None = None

    @property
    def is_corrected(self) -> bool:
        """Whether its rows are, where they are used late."""
        return self.mailbox is not None and self.mailbox.corrects

    def become(self, rows: torch.Tensor, tools: CodecTools) -> None:
        """(r, F) numbers take the place of what has come."""
        self.codec, self.received = plain_rows(rows, tools)


@dataclass(frozen=True)
class Keeping:
    """How received rows are kept. smooths_features, smooths_gradients: use a moving average of stale rows, of which ``decay``
    is from before (PipeGCN's smoothing). compares: sum up how far each message is from the one before (PipeQS' Eq. 6).
    corrects: correct stale rows by what changed here (:mod:`hpcgnn.nn.correction`), where they are no average."""

    smooths_features: bool = False
    smooths_gradients: bool = False
    decay: float = 0.95
    compares: bool = False
    corrects: bool = False


class Mailbox:
    """Of one exchange and width. in_flight: to be waited for in a later epoch. arrived: the rows in use.

    apart: how many epochs apart the two messages were sent that :meth:`take_drift` compares. corrects: whether rows that are
    used late are corrected.
    """

    def __init__(self, keeping: Keeping, tools: CodecTools, *, is_backward: bool) -> None:
        self.in_flight: Message | None = None
        self.arrived: Message | None = None
        self._drift: torch.Tensor | None = None
        self.apart = 1
        self._smooths = keeping.smooths_gradients if is_backward else keeping.smooths_features
        self.corrects = keeping.corrects and not self._smooths
        self._keeping, self._tools = keeping, tools
        self._last: torch.Tensor | None = None
        self._average: torch.Tensor | None = None
        self._diagonal: Csr | None = None
        self._turn = 0

    def next_turn(self) -> int:
        """0 or 1: which half of the memory the next message may come to. The other one holds the rows in use."""
        self._turn = 1 - self._turn
        return self._turn

    def accept(self, message: Message, epoch: int) -> None:
        """``message`` has come, and is what is used from now on. epoch: the present one."""
        before, self.arrived = self.arrived, message
        if not (self._smooths or self._keeping.compares):
            return
        with self._tools.timings.measure("quantization_seconds"):
            rows, last = message.codec.received_rows(message.received), self._last
            if self._keeping.compares:
                if last is not None and before is not None:
                    self._drift = torch.stack([self._dots(last, rows), self._dots(last, last), self._dots(rows, rows)])
                    self.apart = message.epoch - before.epoch
                self._last = rows  # in the other half of the memory than what comes next
            if self._smooths:
                if self._average is None or message.epoch == epoch:
                    self._average = rows.clone()
                rows = self._average.lerp_(rows, 1 - self._keeping.decay)
        message.become(rows, self._tools)

    def _dots(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The sum of a·b over rows: the same for any number of threads, as decisions follow from it."""
        if self._diagonal is None:
            rows, where = a.shape[0], a.device
            columns = torch.arange(rows, dtype=torch.int32, device=where)
            self._diagonal = Csr(torch.arange(rows + 1, device=where), columns, rows, check=False)
        products = sddmm(self._diagonal, a, b, backend=self._tools.backend).double()
        # On the host in numpy's order, which is the same for any number of threads; torch's is not.
        with np.errstate(invalid="ignore"):  # of products that overflow in both directions
            return torch.tensor(products.numpy().sum()) if products.is_cpu else products.sum()

    def take_drift(self) -> np.ndarray:
        """(3,) float64, over this rank's received rows o of the message before and n of the new one: the sums of o·n, o·o and
        n·n; zeros where no message has come since it was last taken."""
        drift, self._drift = self._drift, None
        return np.zeros(3) if drift is None else drift.cpu().numpy()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _loaded(self, values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.to(self._tools.scratch.where)

    def state(self) -> dict[str, Any]:
        """What has come, and what is needed for what comes. What is in flight must have come."""
        messages = {"arrived": self.arrived, "in_flight": self.in_flight}
        state: dict[str, Any] = {
            name: (message.codec.received_state(message.received), message.epoch)
            for name, message in messages.items()
            if message is not None
        }
        rows = {"last": self._last, "average": self._average}
        rows |= {f"{name}_sums": message.sums for name, message in messages.items() if message is not None}
        return state | {name: values.to("cpu", copy=True) for name, values in rows.items() if values is not None}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        for name in ("arrived", "in_flight"):
            if name in state:
                content, epoch = state[name]
                codec, received = restored(content, self._tools)
                sums = self._loaded(state.get(f"{name}_sums"))
                setattr(self, name, Message(codec, received[:0], received, epoch, mailbox=self, sums=sums))
        self._last, self._average = self._loaded(state.get("last")), self._loaded(state.get("average"))
        if self.arrived is not None and self._average is not None:  # the rows in use are the average itself
            self.arrived.become(self._average, self._tools)
