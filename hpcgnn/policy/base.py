"""The interface of policies for bit-widths and staleness. All ranks call all methods in the same order.

Shapes: s rows sent, r rows received.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import numpy as np

from hpcgnn.base import typed
from hpcgnn.exchange import Exchange
from hpcgnn.exchange.changes import RowChange
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import PolicyConfig, StaleSettings
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.world import World


@dataclass(frozen=True)
class ExchangeFacts:
    """The exchange of one layer in one direction, and the facts about its rows that policies use, by collective functions."""

    exchange: Exchange
    # (s,) float64: the sum of squares of the weights with which a row's receiver adds it to others (AdaQP's sum of squared alpha)
    square_weights: Callable[[], np.ndarray]
    # (s,) and (r,) int64 in-degrees of the rows' source nodes, or destination nodes if they are aggregated before sending
    degrees: Callable[[], tuple[np.ndarray, np.ndarray]]
    # whether the weights are learned: square_weights then has those of the last training step, and ones before its first call
    weights_change: bool = False

    @property
    def name(self) -> str:
        """The name of the exchange."""
        return self.exchange.name


@dataclass(frozen=True)
class Observation:
    """The observation of an epoch, the same on every rank."""

    epoch: int
    loss: float  # mean over all training nodes
    seconds: float  # of the training step on the slowest rank, by the clock
    # by exchange that sent new rows, and has sent some at least four times before, in epochs in which rows are compared
    changes: dict[str, RowChange]
    # exchanges whose message had not arrived at some rank when the gradients were reduced, if a policy asks
    late: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Setup:
    """The arguments of a policy."""

    world: World
    all_facts: list[ExchangeFacts]  # of all exchanges of the model
    config: PolicyConfig
    clock: Clock
    measure_costs: Callable[[], LinkCosts | None] | None = None  # replaces hpcgnn.policy.link_costs.measure_links


class Policy:
    """The interface of a policy to the rest of the package."""

    summary: ClassVar[str] = ""  # a phrase about the policy, for the help of the command
    settings: ClassVar[tuple[type, ...]] = ()  # the dataclasses of its settings
    needs_clock: ClassVar[bool] = False  # whether it uses Observation.seconds, which are then logged and replayed
    compares_every: ClassVar[int] = 0  # epochs between two comparisons of rows, for Observation.changes; 0: never
    uses_late: bool = False  # whether it uses Observation.late
    allows_delta: ClassVar[bool] = True  # whether it can be combined with delta coding
    # The type of state(), with which states in checkpoints are compared. If it is a msgspec.Struct, the state consists of the
    # policy's attributes with the names of its fields.
    state_type: ClassVar[Any] = dict[str, Any]

    def __init__(self, setup: Setup) -> None:
        """Keep ``setup``, and prepare the policy. Collective."""
        self.setup, self.all_facts = setup, setup.all_facts

    def observe(self, seen: Observation) -> None:
        """Use the observation of an epoch. Not collective."""

    def details(self) -> dict[str, dict[str, Any]]:
        """Details, by exchange, of what the last observation led to, for the records of its epoch."""
        return {}

    def state(self) -> dict[str, Any]:
        """The state that is the same on every rank, as plain values, for a checkpoint."""
        return msgspec.to_builtins({name: getattr(self, name) for name in self._kept()})

    def _kept(self) -> tuple[str, ...]:
        return getattr(self.state_type, "__struct_fields__", ())

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from the states; in files of earlier versions, fields with defaults may be missing. rank_state: see
        :meth:`BitsPolicy.rank_state`; None if the checkpoint was made with other parts.
        """
        kept = typed.validated(state, self.state_type, "the state of a policy")
        for name in self._kept():
            setattr(self, name, getattr(kept, name))


class BitsPolicy(Policy, ABC):
    """A policy that chooses bit-widths."""

    @abstractmethod
    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bit-widths of all exchanges. Returns details for the records, by exchange. Collective."""

    def rank_state(self) -> dict[str, Any]:
        """The state of this rank alone, as tensors and plain values, for a checkpoint. Collective."""
        return {}

    def check_rank_state(self, state: dict[str, Any], where: str) -> None:
        """Raise HpcgnnError unless ``state`` can be one of :meth:`rank_state`. where: its file, for the message."""


class StalenessPolicy(Policy, ABC):
    """A policy that decides which exchanges use stale rows."""

    settings: ClassVar[tuple[type, ...]] = (StaleSettings,)
    reuses_rows: ClassVar[bool] = True  # whether any exchange may use stale rows
    allows_delta = False

    @abstractmethod
    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Set :attr:`Exchange.freshness` of the exchanges of the next pass, forward or backward, alike on all ranks."""
