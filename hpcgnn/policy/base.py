"""What a policy of bits, or of staleness, offers; and the simplest ones. All methods are called by all ranks alike."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hpcgnn.comm.mailbox import FRESH, STALE
from hpcgnn.kernels import keyed
from hpcgnn.policy.channel import Channel, Observation
from hpcgnn.policy.problem import CHOICES

_DRAW = int.from_bytes(b"bits", "big")  # stands where a message's key has its layer


class BitsPolicy(Protocol):
    """Decides in how many bits rows travel."""

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bits of all exchanges; returns what is to be known of how, by exchange. Collective."""
        ...

    def observe(self, seen: Observation) -> None:
        """Take note of an epoch. Not collective."""
        ...

    def state(self) -> dict[str, Any]:
        """What is the same on every rank, for a checkpoint: plain values."""
        ...

    def rank_state(self) -> dict[str, Any]:
        """What is this rank's, for a checkpoint: tensors and plain values."""
        ...

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None) -> None:
        """Go on from them; without the latter where it is of other parts."""
        ...


class StalenessPolicy(Protocol):
    """Decides which exchanges are waited for in the epoch of their start."""

    def begin(self, channels: list[Channel]) -> None:
        """Set :attr:`Exchange.freshness` of exchanges that are about to be used: forward or backward ones. Collective."""
        ...

    def observe(self, seen: Observation) -> None:
        """Take note of an epoch. Not collective."""
        ...

    def state(self) -> dict[str, Any]:
        """What is the same on every rank, for a checkpoint: plain values."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Go on from it."""
        ...


class Stateless:
    """What a policy has that remembers nothing; others override what they do remember."""

    def observe(self, seen: Observation) -> None:
        """Nothing to note."""

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def rank_state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Nothing to go on from."""


class FixedBits(Stateless):
    """As MessageConfig has them."""

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Nothing to decide."""
        return {}


class UniformBits(Stateless):
    """Each row's bits are drawn from {2, 4, 8}, anew every ``period`` epochs: what AdaQP is compared with (its Table 6).

    A draw is a function of (seed, epoch, layer, direction, sender, send row).
    """

    def __init__(self, channels: list[Channel], period: int) -> None:
        self._channels, self._period = channels, period
        self._drawn: int | None = None

    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Draw bits where they are due. Collective."""
        drawing = epoch - epoch % self._period
        if drawing != self._drawn:
            self._drawn = drawing
            for channel in self._channels:
                channel.exchange.assign_bits(self._draws(channel, drawing))
        return {}

    @staticmethod
    def _draws(channel: Channel, epoch: int) -> np.ndarray:
        exchange = channel.exchange
        where = (exchange.layer, int(exchange.is_backward), exchange.messages.world.rank)
        key = keyed.derive_key(exchange.messages.present.seed, epoch, _DRAW, *where)
        rows = np.arange(int(exchange.send_counts.sum()))
        draws = keyed.draws(keyed.row_hashes(key, rows), np.zeros(1, np.uint32)).astype(np.uint64)
        return np.array(CHOICES, np.uint8)[(draws * len(CHOICES)) >> np.uint64(32)]


class Synchronous(Stateless):
    """Every exchange is waited for in its epoch."""

    def begin(self, channels: list[Channel]) -> None:
        """All fresh."""
        for channel in channels:
            channel.exchange.freshness = FRESH


class Pipeline(Stateless):
    """Every exchange is waited for in the next epoch (PipeGCN's schedule); the first one, with nothing before it, at once."""

    def begin(self, channels: list[Channel]) -> None:
        """All stale."""
        for channel in channels:
            channel.exchange.freshness = STALE
