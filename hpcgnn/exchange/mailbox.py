"""The messages that an exchange keeps between epochs where stale rows may be used (PipeGCN's schedule, PipeQS §3.4).

Rows that were sent in one epoch may be waited for, and used, in a later one. At most one message is in flight at a time, and
there is memory for two: for the rows in use, and for the rows in flight. Shapes: r rows received, F columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.exchange.codecs import Codec, CodecTools, Differences, restored
from hpcgnn.exchange.codecs.choice import plain_rows
from hpcgnn.kernels import Csr
from hpcgnn.kernels.edges import sddmm
from hpcgnn.world.buffer import Pending

# Freshness of an exchange in an epoch. FRESH: a message is sent and waited for. STALE: a message is sent, and that of an earlier
# epoch is used. REUSED: no message is sent, and the last one sent is used. SKIPPED: no message is sent, and the last one that
# has arrived is used, even if a later one is on its way.
FRESH, STALE, REUSED, SKIPPED = "fresh", "stale", "reused", "skipped"


@dataclass(eq=False)
class Message:
    """The rows that this rank sends to, and receives from, all peers in one exchange.

    sent, received: wires of ``codec``, (items, item_bytes) uint8. epoch: the epoch in which the rows were sent. differences: the
    rows that delta coding keeps. mailbox: the mailbox that keeps the message; None: its rows are used at once. pending: the
    started collective; None once the rows have arrived. sums: (b, F) sums over local neighbours of this rank's b boundary nodes
    when the rows were sent; stale rows are corrected by the change of these sums since (:mod:`hpcgnn.nn.correction`).
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
        """Return whether its rows are corrected if they are used in a later epoch."""
        return self.mailbox is not None and self.mailbox.corrects

    def replace_rows(self, rows: torch.Tensor, tools: CodecTools) -> None:
        """Replace the received bytes with ``rows`` (r, F)."""
        self.codec, self.received = plain_rows(rows, tools)


@dataclass(frozen=True)
class Keeping:
    """The treatment of received rows that are kept.

    smooths_features, smooths_gradients: use a moving average of stale rows, ``decay * average + (1 - decay) * rows`` (PipeGCN's
    smoothing). compares: compute the drift of each message from the one before (PipeQS Eq. 6). corrects: correct stale rows by
    the change of local sums (:mod:`hpcgnn.nn.correction`), unless they are averaged.
    """

    smooths_features: bool = False
    smooths_gradients: bool = False
    decay: float = 0.95
    compares: bool = False
    corrects: bool = False


class Mailbox:
    """The kept messages of one slot.

    in_flight: the message to wait for in a later epoch. arrived: the message whose rows are in use. epochs_between_messages:
    number of epochs between the two messages that :meth:`take_drift` compares. corrects: whether stale rows are corrected.
    """

    def __init__(self, keeping: Keeping, tools: CodecTools, *, is_backward: bool) -> None:
        self.in_flight: Message | None = None
        self.arrived: Message | None = None
        self._drift: torch.Tensor | None = None
        self.epochs_between_messages = 1
        self._smooths = keeping.smooths_gradients if is_backward else keeping.smooths_features
        self.corrects = keeping.corrects and not self._smooths
        self._keeping, self._tools = keeping, tools
        self._last: torch.Tensor | None = None
        self._average: torch.Tensor | None = None
        self._diagonal: Csr | None = None
        self._turn = 0

    def next_turn(self) -> int:
        """0 or 1: the half of the memory into which the next message is received. The other half holds the rows in use."""
        self._turn = 1 - self._turn
        return self._turn

    def accept(self, message: Message, epoch: int) -> None:
        """Use ``message``, which has arrived, from now on. epoch: the present epoch."""
        before, self.arrived = self.arrived, message
        if not (self._smooths or self._keeping.compares):
            return
        with self._tools.timings.measure("quantization_seconds"):
            rows, last = message.codec.received_rows(message.received), self._last
            if self._keeping.compares:
                if last is not None and before is not None:
                    self._drift = torch.stack([self._dots(last, rows), self._dots(last, last), self._dots(rows, rows)])
                    self.epochs_between_messages = message.epoch - before.epoch
                self._last = rows  # stays valid: the next message is received into the other half of the memory
            if self._smooths:
                if self._average is None or message.epoch == epoch:
                    self._average = rows.clone()
                rows = self._average.lerp_(rows, 1 - self._keeping.decay)
        message.replace_rows(rows, self._tools)

    def _dots(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The sum of the rows' dot products a·b. It is the same for any number of threads, because policies decide by it."""
        if self._diagonal is None:
            rows, device = a.shape[0], a.device
            columns = torch.arange(rows, dtype=torch.int32, device=device)
            self._diagonal = Csr(torch.arange(rows + 1, device=device), columns, rows, check=False)
        products = sddmm(self._diagonal, a, b, backend=self._tools.backend).double()
        # On the host in numpy's order, which is the same for any number of threads; torch's is not.
        with np.errstate(invalid="ignore"):  # some products may overflow to +inf and others to -inf
            return torch.tensor(products.numpy().sum()) if products.is_cpu else products.sum()

    def take_drift(self) -> np.ndarray:
        """(3,) float64 sums of o·n, o·o and n·n over this rank's received rows, o of the message before and n of the new one.

        Zeros if no message has arrived since the drift was last taken.
        """
        drift, self._drift = self._drift, None
        return np.zeros(3) if drift is None else drift.cpu().numpy()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _loaded(self, values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.to(self._tools.scratch.torch_device)

    def state(self) -> dict[str, Any]:
        """The messages, averages and sums that later epochs need. The message in flight must have arrived."""
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
        """Restore :meth:`state`."""
        for name in ("arrived", "in_flight"):
            if name in state:
                content, epoch = state[name]
                codec, received = restored(content, self._tools)
                sums = self._loaded(state.get(f"{name}_sums"))
                setattr(self, name, Message(codec, received[:0], received, epoch, mailbox=self, sums=sums))
        self._last, self._average = self._loaded(state.get("last")), self._loaded(state.get("average"))
        if self.arrived is not None and self._average is not None:  # the rows in use are the average itself
            self.arrived.replace_rows(self._average, self._tools)
