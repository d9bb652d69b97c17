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
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import CorrectionSettings, PolicyConfig, SmoothingSettings
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.world import World


@dataclass(frozen=True)
class ExchangeFacts:
    """The exchange of one layer in one direction, and the facts about its rows that policies use.

    square_weights: a function that returns (s,) float64: for each row sent, the sum of squares of the weights with which its
    receiver adds it to other rows (AdaQP's sum of squared alpha). degrees: a function that returns (s,) and (r,) int64: for each
    row, the in-degree in the whole graph of its source node, or of its destination node if it is aggregated before sending. Both
    functions are collective.
    """

    exchange: Exchange
    square_weights: Callable[[], np.ndarray]
    degrees: Callable[[], tuple[np.ndarray, np.ndarray]]

    @property
    def name(self) -> str:
        """The name of the exchange."""
        return self.exchange.name


@dataclass(frozen=True)
class Observation:
    """The observation of an epoch, the same on every rank.

    loss: mean loss. seconds: training step on the slowest rank, by the clock. drift: for each exchange that received new rows,
    the distance d of PipeQS' Eq. 6 over the rows of all ranks, and the number of epochs between the two messages. late: the
    exchanges whose message of this epoch had not arrived at some rank when the gradients were reduced, if a policy asks.
    """

    epoch: int
    loss: float
    seconds: float
    drift: dict[str, tuple[float, int]]
    late: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Setup:
    """The arguments of a policy.

    all_facts: the exchanges of the model. measure_costs: a collective function that replaces
    :func:`hpcgnn.policy.link_costs.measure_links`; it returns None if no costs fit. None: measure.
    """

    world: World
    all_facts: list[ExchangeFacts]
    config: PolicyConfig
    clock: Clock
    measure_costs: Callable[[], LinkCosts | None] | None = None


class Policy:
    """The interface of a policy to the rest of the package.

    Attributes:
        summary: a phrase about the policy, for the help of the command.
        settings: the dataclasses of its settings.
        needs_clock: whether it uses the seconds of epochs (:attr:`Observation.seconds`), which are then logged and replayed. A
            policy makes other measurements through ``setup.clock``.
        compares_rows: whether received rows are compared with those of the previous message (:attr:`Observation.drift`).
        uses_late: whether it uses :attr:`Observation.late`.
        allows_delta: whether it can be combined with delta coding.
        state_type: the type of :meth:`state`, with which states in checkpoints are compared. If it is a ``msgspec.Struct``, the
            state consists of the policy's attributes with the names of its fields.
    """

    summary: ClassVar[str] = ""
    settings: ClassVar[tuple[type, ...]] = ()
    needs_clock: ClassVar[bool] = False
    compares_rows: ClassVar[bool] = False
    uses_late: bool = False
    allows_delta: ClassVar[bool] = True
    state_type: ClassVar[Any] = dict[str, Any]

    def __init__(self, setup: Setup) -> None:
        """Keep ``setup``, and prepare the policy. Collective."""
        self.setup, self.all_facts = setup, setup.all_facts

    def observe(self, seen: Observation) -> None:
        """Use the observation of an epoch. Not collective."""

    def state(self) -> dict[str, Any]:
        """The state that is the same on every rank, as plain values, for a checkpoint."""
        return msgspec.to_builtins({name: getattr(self, name) for name in self._kept()})

    def _kept(self) -> tuple[str, ...]:
        return getattr(self.state_type, "__struct_fields__", ())

    def _restore(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`. Files of earlier versions may lack fields with defaults."""
        kept = typed.validated(state, self.state_type, "the state of a policy")
        for name in self._kept():
            setattr(self, name, getattr(kept, name))


class BitsPolicy(Policy, ABC):
    """A policy that chooses bit-widths.

    alternates: whether it sets the same few ``RowBits`` again and again. Their numbers of rows by bit-width are then kept, and
    not summed over ranks anew.
    """

    alternates: ClassVar[bool] = False

    @abstractmethod
    def begin_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the bit-widths of all exchanges. Returns details for the records, by exchange. Collective."""

    def rank_state(self) -> dict[str, Any]:
        """The state of this rank alone, as tensors and plain values, for a checkpoint."""
        return {}

    def check_rank_state(self, state: dict[str, Any], where: str) -> None:
        """Raise HpcgnnError unless ``state`` can be one of :meth:`rank_state`. where: its file, for the message."""

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from the states. rank_state: None if the checkpoint was made with other parts."""
        self._restore(state)


class StalenessPolicy(Policy, ABC):
    """A policy that decides which exchanges use stale rows. reuses_rows: whether any exchange may do so."""

    settings: ClassVar[tuple[type, ...]] = (CorrectionSettings, SmoothingSettings)
    reuses_rows: ClassVar[bool] = True
    allows_delta = False

    @abstractmethod
    def begin(self, all_facts: list[ExchangeFacts]) -> None:
        """Set :attr:`Exchange.freshness` of the exchanges of the next pass, forward or backward, to the same values on all ranks.

        Collective only if the policy itself communicates.
        """

    def load(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state`."""
        self._restore(state)
