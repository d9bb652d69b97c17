"""What the exchanges of a model counted and noticed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm.passes import ExchangeId
from hpcgnn.comm.world import World
from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels.contract import Count

BYTES = ("bytes_sent", "bytes_between_nodes", "bytes_shared_on_nodes")


@dataclass(frozen=True, eq=False)
class Sent:
    """Bytes of a message. to_ranks: (P,) int64, for each rank. total: for all. between_nodes: for those on other nodes."""

    to_ranks: np.ndarray
    total: int
    between_nodes: int


class Traffic:
    """Counts of all passes, and what a training step so far has shown; among P ranks.

    bytes_sent: bytes that left this rank so far in messages, by exchange; parameters included. bytes_between_nodes:
    those of them for ranks on other nodes. bytes_shared_on_nodes: bytes of rows that this rank read where other ranks of its node
    had written them. bytes_to: (P,) int64, ``bytes_sent`` of all exchanges by the rank that gets them.
    ages: epochs since the rows that each exchange last used in this step were sent.
    """

    def __init__(self, num_ranks: int) -> None:
        self.bytes_to = np.zeros(num_ranks, np.int64)
        self.bytes_sent: Counter[ExchangeId] = Counter()
        self.bytes_shared_on_nodes: Counter[ExchangeId] = Counter()
        self.bytes_between_nodes: Counter[ExchangeId] = Counter()
        self.ages: dict[ExchangeId, int] = {}
        self._calls: Counter[ExchangeId] = Counter()
        self._started: list[ExchangeId] = []
        self._troubles: list[Count] = []

    def bytes(self) -> dict[str, int]:
        """All of them so far, by what :data:`BYTES` names."""
        return {name: getattr(self, name).total() for name in BYTES}

    def take_bytes(self, other: Traffic) -> None:
        """What ``other`` has counted counts here, and there no more."""
        for name in BYTES:
            getattr(self, name).update(getattr(other, name))
            getattr(other, name).clear()
        self.bytes_to += other.bytes_to
        other.bytes_to[:] = 0

    def begin_step(self) -> None:
        """A training step starts."""
        self._started, self._troubles = [], []
        self._calls.clear()
        self.ages.clear()

    # -- calls --------------------------------------------------------------------------------------------------------

    def next_call(self, exchange: ExchangeId) -> int:
        """How often ``exchange`` was started before in this step: more than once only by layers used twice."""
        return self._calls[exchange]

    def count_call(self, exchange: ExchangeId) -> int:
        """:meth:`next_call`, for an exchange that starts now."""
        self._calls[exchange] += 1
        return self._calls[exchange] - 1

    @property
    def exchanges_started(self) -> set[ExchangeId]:
        """Those of this step so far, the same on all ranks."""
        return set(self._started)

    def shared(self, exchange: ExchangeId, num_bytes: int) -> None:
        """So many bytes are read where other ranks of this node have written them."""
        self.bytes_shared_on_nodes[exchange] += num_bytes

    def started(self, exchange: ExchangeId, sent: Sent, trouble: Count) -> None:
        """An exchange has started, of so many bytes; so many of its rows held a NaN or an infinity."""
        self.bytes_to += sent.to_ranks
        self.bytes_sent[exchange] += sent.total
        self.bytes_between_nodes[exchange] += sent.between_nodes
        self._started.append(exchange)
        self._troubles.append(trouble)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def rows_in_trouble(self) -> Count:
        """How many rows with a NaN or an infinity this rank has sent in this step: a number, or one on the device."""
        on_device = [trouble for trouble in self._troubles if isinstance(trouble, torch.Tensor)]
        on_host = sum(trouble for trouble in self._troubles if not isinstance(trouble, torch.Tensor))
        return torch.stack(on_device).sum() + on_host if on_device else on_host

    def raise_if_trouble(self, world: World, epoch: int, ranks_in_trouble: float) -> None:
        """Say which rank sent the first NaN or infinity of this step, and where. Collective if any rank did.

        ``ranks_in_trouble`` is the sum of :meth:`rows_in_trouble` over ranks: the same number everywhere.
        """
        if not ranks_in_trouble:
            return
        mine = next((number for number, rows in enumerate(self._troubles) if int(rows)), len(self._started))
        first = int(world.allreduce(np.array([mine * world.size + world.rank]), "min")[0])
        which, rank = divmod(first, world.size)  # all ranks start the same exchanges in the same order
        raise HpcgnnError(
            f"{self._started[which].name} of rank {rank} held NaN or infinite values in epoch {epoch}: lower --lr "
            "or scale the features down",
            agreed=True,
        )
