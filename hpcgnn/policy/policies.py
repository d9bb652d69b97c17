"""The policies of a run, behind one interface for the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from hpcgnn.base import typed
from hpcgnn.base.typed import MESSAGE_BITS
from hpcgnn.exchange import Messages
from hpcgnn.exchange.changes import SUMS
from hpcgnn.exchange.mailbox import FRESH, StaleRowRules
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Observation, Setup, StalenessPolicy
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import FIXED, PolicyConfig, StaleSettings
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.world import World


class _RankState(msgspec.Struct, forbid_unknown_fields=True):
    """The state of one rank: of its policy of bits, and the rows of its exchanges that are compared."""

    bits: dict[str, Any]
    changes: dict[str, Any] = {}


def _rank_state(state: Any, where: str) -> _RankState:
    """The state of a rank in a checkpoint; in files of earlier versions it is that of the policy of bits alone."""
    found = typed.validated(state, dict[str, Any], f"{where}: policies")
    return typed.validated(found if "bits" in found else {"bits": found}, _RankState, f"{where}: policies")


class Policies:
    """Decides before each pass, observes each epoch, and returns the decisions for the records. Methods are collective where
    their text says so. The arguments are described by :class:`Setup`.
    """

    def __init__(
        self,
        world: World,
        messages: Messages,
        all_facts: list[ExchangeFacts],
        config: PolicyConfig,
        clock: Clock | None = None,
        measure_costs: Callable[[], LinkCosts | None] | None = None,
    ) -> None:
        self.config, self.clock = config, clock or Clock()
        self._world, self._messages, self.all_facts = world, messages, all_facts
        for facts in all_facts:  # another trainer of the model may have set them
            exchange = facts.exchange
            exchange.row_bits, exchange.freshness, exchange.ranges, exchange.changes = None, FRESH, None, None
        every = config.compares_every
        self._changes = {facts.name: facts.exchange.trace_changes(every) for facts in all_facts if every}
        own = config.section(StaleSettings)
        features, gradients = (own.smoothing in (name, "both") for name in ("features", "gradients"))
        reuses = config.staleness_policy.reuses_rows
        corrects = own.stale_correction == "neighbours" and reuses
        self._is_off, self._needs_clock = config.is_off, config.needs_clock
        rules = StaleRowRules(reuses, features, gradients, own.smoothing_decay, corrects)
        messages.kept.begin(None if config.is_off else rules)
        setup = Setup(world, all_facts, config, self.clock, measure_costs)
        self._bits: BitsPolicy = config.bits_policy(setup)
        self._staleness: StalenessPolicy = config.staleness_policy(setup)
        self._details: dict[str, Any] = {}
        self._seen: Observation | None = None  # the last one

    @property
    def names(self) -> list[str]:
        """The names of both policies, which a checkpoint stores beside their state."""
        return [self.config.bits, self.config.staleness]

    # -- an epoch -----------------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Decide about the bit-widths of a training step, and about the freshness of forward exchanges. Collective."""
        if self._is_off:
            return
        with self._messages.timings.measure("policy_seconds"):
            self.clock.epoch = epoch
            self._details = self._bits.begin_epoch(epoch)
            current = dict.fromkeys(facts.exchange.row_bits for facts in self.all_facts)
            new = [bits for bits in current if bits is not None and bits.of_ranks is None]
            if new:  # the rows of each bit-width over all ranks
                counts = self._world.allreduce(np.stack([bits.counts() for bits in new]), what="bits of rows")
                for bits, rows in zip(new, counts.tolist(), strict=True):
                    bits.of_ranks = {str(b): count for b, count in zip(MESSAGE_BITS, rows, strict=True) if count}
            self._staleness.begin([facts for facts in self.all_facts if not facts.exchange.is_backward])

    def begin_backward(self) -> None:
        """Decide about the freshness of backward exchanges. Collective."""
        if self._is_off:
            return
        with self._messages.timings.measure("policy_seconds"):
            self._staleness.begin([facts for facts in self.all_facts if facts.exchange.is_backward])

    def sums(self) -> list[float]:
        """The numbers that the trainer sums over ranks for :meth:`observe`; as many on every rank. Not collective."""
        changes = [traced.take() for traced in self._changes.values()]
        late = [float(facts.exchange.is_late()) for facts in self.all_facts] if self._staleness.uses_late else []
        return [*np.concatenate([[], *changes]).tolist(), *late]

    def observe(self, epoch: int, loss: float, seconds: float, sums: list[float]) -> None:
        """Pass the observation of an epoch to both policies. Not collective.

        seconds: those of the slowest rank. sums: those of :meth:`sums`, summed over ranks.
        """
        if self._is_off:
            return
        if self._needs_clock:
            seconds = self.clock.observe("seconds", lambda: seconds)
        pairs = zip(self._changes.items(), np.reshape(sums[: SUMS * len(self._changes)], (-1, SUMS)), strict=True)
        found = {name: traced.of_ranks(of_ranks) for (name, traced), of_ranks in pairs}
        changes = {name: change for name, change in found.items() if change is not None}
        late = self.clock.observe("late", lambda: self._late(sums)) if self._staleness.uses_late else []
        seen = Observation(epoch, loss, seconds, changes, late)
        self._seen = seen
        for policy in (self._bits, self._staleness):
            policy.observe(seen)
            told = {name: self._details.get(name, {}) | each for name, each in policy.details().items()}
            self._details = self._details | told

    def _late(self, sums: list[float]) -> list[str]:
        ranks = sums[-len(self.all_facts) :]
        return [facts.name for facts, count in zip(self.all_facts, ranks, strict=True) if count > 0]

    # -- records ------------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """The keys of policies in the epoch's line of ``metrics.jsonl``: bit-widths and staleness. Not collective."""
        ages = {exchange.name: age for exchange, age in self._messages.traffic.ages.items()}
        bits: int | dict[str, dict[str, int]] = self._messages.config.bits
        if self.config.bits != FIXED:
            started = self._messages.traffic.exchanges_started
            exchanges = [facts.exchange for facts in self.all_facts if facts.exchange.id in started]
            given = [(each, each.row_bits.of_ranks or {}) for each in exchanges if each.row_bits is not None]
            whole = {each.name: {"32": sum(rows.values())} for each, rows in given if rows and each.sends_whole_rows}
            bits = {each.name: rows for each, rows in given} | whole
        record: dict[str, Any] = {"bits": bits, "stale": any(age > 0 for age in ages.values())}
        if self.config.staleness_policy.reuses_rows:
            record["stale_epochs"] = ages
        if self._details:
            record["policy"] = self._details
        return record

    def decisions(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The epoch's line of ``decisions.jsonl``; None if no policy decides. Not collective."""
        if self._is_off:
            return None
        told: dict[str, Any] = {name: record[name] for name in ("bits", "stale_epochs", "policy") if name in record}
        seen = self._seen
        if seen is not None and seen.epoch == record["epoch"]:
            changes = {name: asdict(change) for name, change in seen.changes.items()}
            told |= {"loss": seen.loss} | ({"changes": changes} if changes else {})
        return {"epoch": record["epoch"], "observed": self.clock.take()} | told

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The state that is the same on every rank."""
        return {"bits": self._bits.state(), "staleness": self._staleness.state()}

    def rank_state(self) -> dict[str, Any]:
        """The state of this rank alone. Collective."""
        changes = {name: traced.state() for name, traced in self._changes.items()}
        return {"bits": self._bits.rank_state(), "changes": changes}

    def check_state(self, state: Any, where: str) -> None:
        """Raise HpcgnnError unless ``state`` can be one of :meth:`state` of the same policies. where: its file."""
        for name, policy in (("bits", self._bits), ("staleness", self._staleness)):
            part = state.get(name) if isinstance(state, dict) else None
            typed.validated(part, policy.state_type, f"{where}: policies: {name}")

    def check_rank_state(self, state: Any, where: str) -> None:
        """As :meth:`check_state`, for :meth:`rank_state`."""
        kept = _rank_state(state, where)
        self._bits.check_rank_state(kept.bits, where)
        for name, traced in self._changes.items():
            if name in kept.changes:
                traced.check_state(kept.changes[name], f"{where}: policies: {name}")

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None) -> None:
        """Continue from the states. rank_state: None if the checkpoint was made with other parts."""
        kept = None if rank_state is None else _rank_state(rank_state, "the checkpoint")
        self._bits.load(state["bits"], None if kept is None else kept.bits)
        changes = {} if kept is None else kept.changes
        for name, traced in self._changes.items():
            if name in changes:
                traced.load(changes[name], name)
        self._staleness.load(state["staleness"])
