"""Counts of the bytes that a model's exchanges move, and of rows with a NaN or an infinity."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange.passes import ExchangeId
from hpcgnn.kernels.contract import DeviceCount
from hpcgnn.world.world import World

BYTES = ("bytes_sent", "bytes_between_nodes", "bytes_shared_on_nodes")


@dataclass(frozen=True, eq=False)
class Sent:
    """Bytes of a message. to_ranks: (P,) int64 bytes for each rank. total: their sum. between_nodes: the sum over ranks on other
    nodes."""

    to_ranks: np.ndarray
    total: int
    between_nodes: int


class Traffic:
    """Bytes of all passes, and the observations of the present training step; among P ranks.

    bytes_sent: bytes that this rank has sent in messages, by exchange; quantization parameters are included. bytes_between_nodes:
    the part of them for ranks on other nodes. bytes_shared_on_nodes: bytes of rows that this rank has read from memory which it
    shares with other ranks of its node. bytes_to: (P,) int64 ``bytes_sent`` of all exchanges, by receiving rank. ages: number of
    epochs since the rows that each exchange last used in this step were sent. calls: number of times that each exchange was
    started in this step, if it was; above 1 only if a pass uses its layer more than once.
    """

    def __init__(self, num_ranks: int) -> None:
        self.bytes_to = np.zeros(num_ranks, np.int64)
        self.bytes_sent: Counter[ExchangeId] = Counter()
        self.bytes_shared_on_nodes: Counter[ExchangeId] = Counter()
        self.bytes_between_nodes: Counter[ExchangeId] = Counter()
        self.ages: dict[ExchangeId, int] = {}
        self.calls: dict[ExchangeId, int] = {}
        self._started: list[ExchangeId] = []
        self._nonfinite: list[DeviceCount] = []

    def bytes(self) -> dict[str, int]:
        """Totals over all exchanges so far, by the names in :data:`BYTES`."""
        return {name: getattr(self, name).total() for name in BYTES}

    def take_bytes(self, other: Traffic) -> None:
        """Move the bytes that ``other`` has counted to this object."""
        for name in BYTES:
            getattr(self, name).update(getattr(other, name))
            getattr(other, name).clear()
        self.bytes_to += other.bytes_to
        other.bytes_to[:] = 0

    def begin_step(self) -> None:
        """Begin a training step."""
        self._started, self._nonfinite = [], []
        self.calls.clear()
        self.ages.clear()

    # -- calls --------------------------------------------------------------------------------------------------------

    @property
    def exchanges_started(self) -> set[ExchangeId]:
        """The exchanges that this step has started so far; the same on all ranks."""
        return set(self._started)

    def shared(self, exchange: ExchangeId, num_bytes: int) -> None:
        """Count ``num_bytes`` that ``exchange`` reads from memory which ranks of this node share."""
        self.bytes_shared_on_nodes[exchange] += num_bytes

    def started(self, exchange: ExchangeId, sent: Sent, nonfinite: DeviceCount) -> None:
        """Count the start of an exchange and its bytes. nonfinite: a number above 0 if its rows hold a NaN or an infinity."""
        self.bytes_to += sent.to_ranks
        self.bytes_sent[exchange] += sent.total
        self.bytes_between_nodes[exchange] += sent.between_nodes
        self._started.append(exchange)
        self._nonfinite.append(nonfinite)

    # -- NaN and infinities -------------------------------------------------------------------------------------------

    def nonfinite_count(self) -> DeviceCount:
        """A number above 0 if this rank has sent a NaN or an infinity in this step, else 0: an int, or a tensor on the device."""
        on_device = [count for count in self._nonfinite if isinstance(count, torch.Tensor)]
        on_host = sum(count for count in self._nonfinite if not isinstance(count, torch.Tensor))
        return torch.stack(on_device).sum() + on_host if on_device else on_host

    def raise_if_nonfinite(self, world: World, epoch: int, nonfinite_on_ranks: float) -> None:
        """Raise HpcgnnError if a rank has sent a NaN or an infinity in this step. Collective if any rank has.

        The error names the first exchange that sent one, and its rank. nonfinite_on_ranks: sum of :meth:`nonfinite_count` over
        ranks, the same number on each.
        """
        if not nonfinite_on_ranks:
            return
        mine = next((number for number, rows in enumerate(self._nonfinite) if int(rows)), len(self._started))
        first = int(world.allreduce(np.array([mine * world.size + world.rank]), "min")[0])
        which, rank = divmod(first, world.size)  # all ranks start the same exchanges in the same order
        raise HpcgnnError(
            f"{self._started[which].name} of rank {rank} held NaN or infinite values in epoch {epoch}: lower --lr "
            "or scale the features down",
            agreed=True,
        )
