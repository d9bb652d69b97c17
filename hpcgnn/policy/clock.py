"""The clock of policies: measurements are logged, and can be read back to repeat a run bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import Count, Finite, MessageBits, NotNegative
from hpcgnn.data.digests import differences
from hpcgnn.exchange.changes import RowChange
from hpcgnn.exchange.passes import ExchangeName
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.world import World, raise_on_all_ranks


class Observed(msgspec.Struct):
    """The observations of the policies in this package; other policies may use other names."""

    seconds: NotNegative = 0.0
    link_costs: LinkCosts | None = None
    late: list[str] = []


class Decision(msgspec.Struct, forbid_unknown_fields=True):
    """A line of ``decisions.jsonl``: the observations of an epoch by name, and the decisions."""

    epoch: Count
    observed: Observed
    bits: MessageBits | dict[ExchangeName, dict[str, Count]] = 32
    stale_epochs: dict[ExchangeName, Count] = {}
    policy: dict[str, Any] = {}
    loss: Finite | None = None  # of the epoch
    changes: dict[ExchangeName, RowChange] = {}  # of rows that were sent in the epoch
    data: dict[str, str] = {}  # of the graph, in the first line (hpcgnn.data.digests.in_text)


class Clock:
    """Observations by epoch and name. log: those of another run, which replace measurements; None: measure."""

    def __init__(self, log: dict[int, dict[str, Any]] | None = None) -> None:
        self._log, self.epoch = log, 0
        self._seen: dict[str, Any] = {}

    def observe(self, name: str, measure: Callable[[], Any]) -> Any:
        """The result of ``measure``, or in a replay the result in the log. It must be plain JSON and the same on every rank.

        Raises:
            HpcgnnError: on every rank, if the log has no such observation.
        """
        found = None if self._log is None else self._log.get(self.epoch, {})
        if found is not None and name not in found:
            raise HpcgnnError(
                f"the log of --replay has no {name} of epoch {self.epoch}: it comes from a shorter run or other settings; "
                "resume with --replay none to measure instead",
                agreed=True,
            )
        value = self._seen[name] = measure() if found is None else found[name]
        return value

    def take(self) -> dict[str, Any]:
        """Return and forget the observations since the last call."""
        seen, self._seen = self._seen, {}
        return seen


def read_log(world: World, path: Path, data: Mapping[str, str] | None = None) -> dict[int, dict[str, Any]]:
    """The observations in a run's ``decisions.jsonl``, by epoch. Rank 0 reads it for all. Collective.

    data: of the graph of this run; None accepts the log of any graph. A log of another graph is refused, since a replay repeats a
    run bit for bit.
    """
    lines: list[dict[str, Any]] = []
    with raise_on_all_ranks(world, f"read the log {path}"):
        if world.rank == 0:
            try:
                lines = typed.read_lines(path, Decision)
                typed.check_epochs(lines, path)
            except HpcgnnError as error:
                raise HpcgnnError(f"{error}: --replay needs the decisions.jsonl of a run") from error
            if differing := differences(lines[0].get("data", {}) if lines else {}, data or {}):
                raise HpcgnnError(
                    f"{path} is the log of a run on another graph, which differs in {differing}: replay it with parts of that "
                    "graph, or leave --replay out"
                )
    return {line["epoch"]: line["observed"] for line in world.broadcast(lines, what="the log to replay")}
