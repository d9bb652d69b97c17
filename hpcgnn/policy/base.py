"""The interface of policies of bits and of staleness. All methods are called by all ranks alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from hpcgnn.comm import World
from hpcgnn.policy.channel import Channel, Observation
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.policy.settings import CorrectionSettings, SmoothingSettings


@dataclass(frozen=True)
class Setup:
    """The objects that a policy is built from. channels: the exchanges of the model. measure_costs: what fits the costs of
    links in place of :func:`hpcgnn.policy.link_costs.measure_links`; None where nothing fits. Collective."""

    world: World
    channels: list[Channel]
    config: PolicyConfig
    clock: Clock
    measure_costs: Callable[[], LinkCosts | None] | None = None


class Policy:
    """The interface to the rest of the package, with defaults for a policy without a state; others override them.

    summary: what it does, for the command's help. settings: dataclasses with what it can be set. needs_clock: whether it goes
    by the seconds of epochs (:attr:`Observation.seconds`), which are then logged and replayed; what else it measures it sees
    through ``setup.clock``. compares_rows: whether received rows are to be compared with those of the message before
    (:attr:`Observation.drift`). asks_what_is_late: whether it goes by :attr:`Observation.late`. goes_with_delta: whether what is
    sent may be a difference to what the receiver has.
    remembers: the type of :meth:`state`, as msgspec has them, to which that of a checkpoint is held.
    """

    summary: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = ()
    needs_clock: ClassVar[bool] = False
    compares_rows: ClassVar[bool] = False
    asks_what_is_late: bool = False
    goes_with_delta: ClassVar[bool] = True
    remembers: ClassVar[Any] = dict[str, Any]

    def __init__(self, setup: Setup) -> None:
        """Collective."""
        self.setup, self.channels = setup, setup.channels

    def observe(self, seen: Observation) -> None:
        """Take note of an epoch. Not collective."""

    def state(self) -> dict[str, Any]:
        """The state that is the same on every rank, for a checkpoint: plain values."""
        return {}


class BitsPolicy(Policy, ABC):
    """Decides in how many bits rows travel. bits_come_back: whether it has a few assignments that it gives again and again."""

    bits_come_back: ClassVar[bool] = False

    @abstractmethod
    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bits of all exchanges; returns what is to be known of how, by exchange. Collective."""

    def rank_state(self) -> dict[str, Any]:
        """The state of this rank alone, for a checkpoint: tensors and plain values."""
        return {}

    def check_rank_state(self, state: dict[str, Any], where: str) -> None:
        """Raise HpcgnnError where it is none of :meth:`rank_state`. where: its file."""

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Go on from them; without the latter where it is of other parts."""


class StalenessPolicy(Policy, ABC):
    """Decides which exchanges are waited for in the epoch of their start. reuses_rows: whether there are any that are not."""

    settings: ClassVar[tuple[type, ...]] = (CorrectionSettings, SmoothingSettings)
    reuses_rows: ClassVar[bool] = True
    goes_with_delta = False

    @abstractmethod
    def begin(self, channels: list[Channel]) -> None:
        """Set :attr:`Exchange.freshness` of exchanges that are about to be used: forward or backward ones."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
