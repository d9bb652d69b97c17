"""The assumed decisions of policies: the mean epoch is a mixture of different epochs (docs/cost-model.md).

The rows and the loss of a run are unknown before the run. So each policy gets the decisions that its own code makes under a
stated assumption, or the decisions of an earlier run; either is named with the prediction.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model.row_facts import RowFacts, Shares
from hpcgnn.policy import sylvie
from hpcgnn.policy.assignment import CHOICES
from hpcgnn.policy.config import (
    FIXED,
    OFF,
    SAFE_BITS,
    AdaQPSettings,
    AgeSettings,
    BypassSettings,
    PeriodSettings,
    PolicyConfig,
    SmoothingSettings,
)
from hpcgnn.train.run_config import CONFIG, RunConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.summary import bit_shares

PIPELINE, PLAIN = "pipeline", "plain"
# AdaQP's prices: as many rounds as there may be of one assignment, and what a rank computes in one for each rank that it sends
# to, measured on a core of a server (docs/cost-model.md).
ASSIGNMENT_ROUNDS, ASSIGNMENT_PAIR_SECONDS = 400, 4e-6
Facts = Callable[[], RowFacts]


@dataclass(frozen=True)
class Course:
    """The course of a run. shares: (bits, share of the rows sent) pairs. stale: share of epochs that use stale rows. sent:
    share of epochs in which messages are sent. compares: whether received rows are compared with earlier ones. is_delta:
    whether messages hold differences. period: epochs between two assignments of bit-widths that ranks compute together; 0 for
    none. assumes: sentences about assumptions."""

    shares: tuple[tuple[int, float], ...]
    stale: float = 0.0
    sent: float = 1.0
    compares: bool = False
    is_delta: bool = False
    period: int = 0
    assumes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decided:
    """The known decisions of a run; None if they are unknown. of: the policies of bit-widths and staleness that decided, or
    None for any. source: the origin of the decisions, in words."""

    shares: Mapping[int, float] | None = None
    stale: float | None = None
    sent: float | None = None
    of: tuple[str, str] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = "as given"

    def check(self) -> None:
        """Raise HpcgnnError for shares that are not allowed."""
        told = {} if self.shares is None else self.shares
        if self.shares is not None and (not abs(sum(told.values()) - 1) <= 1e-3 or min(told.values()) < 0):
            raise HpcgnnError(
                f"shares of bits must add up to 1, as 2:0.7,4:0.2,8:0.1 do, not to {sum(told.values()):g}"
            )
        for name, share in (("stale", self.stale), ("sent", self.sent)):
            if share is not None and not 0 <= share <= 1:
                raise HpcgnnError(f"the {name} share must lie between 0 and 1, not be {share:g}")


def decided_by(path: Path) -> Decided:
    """The decisions in the records of the run in the folder ``path``.

    Raises:
        HpcgnnError: if there are none.
    """
    try:
        settings = tomllib.loads(typed.text_of(path / CONFIG))
    except tomllib.TOMLDecodeError as error:
        raise HpcgnnError(f"{path / CONFIG} is not a TOML file ({error})") from error
    records = RunFolder(path).records()
    if not records:
        raise HpcgnnError(f"{path} holds no epochs: give a folder that `hpcgnn train --out` made")
    bits, staleness = str(settings.get("bits", FIXED)), str(settings.get("staleness", OFF))
    return Decided(
        shares={int(name): share for name, share in bit_shares([each["bits"] for each in records]).items()},
        stale=_mean(float(each["stale"]) for each in records),
        sent=_sent(records),
        of=(FIXED if bits.isdigit() else bits, staleness),
        settings={name: value for name, value in settings.items() if name in _OWN_SETTINGS},
        source=f"as in {len(records)} epochs of {path}",
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _sent(records: Sequence[Mapping[str, Any]]) -> float:
    """The share of exchanges that sent messages: those with bit-widths of their own, or by bytes if all have the same."""
    started = [len(each["bits"]) for each in records if isinstance(each["bits"], dict)]
    if started:
        return _mean(each / max(started) for each in started) if max(started) else 0.0
    most = max(each["bytes_sent"] for each in records)
    return _mean(each["bytes_sent"] / most for each in records) if most else 1.0


# -- what each policy does ------------------------------------------------------------------------------------------------

_OWN_SETTINGS = frozenset(
    setting.name
    for section in (PeriodSettings, AdaQPSettings, AgeSettings, BypassSettings, SmoothingSettings)
    for setting in fields(section)
)
_SLOWER = 0.5  # of epochs, those in which the loss falls more slowly than before, where nobody says how many


def is_plain(run: RunConfig) -> bool:
    """Return whether the equations cover all decisions of the run, without assumptions."""
    return run.policy.bits == FIXED and run.policy.staleness in (OFF, PIPELINE) and run.messages.message_coding == PLAIN


def course_of(run: RunConfig, facts: Facts, decided: Decided) -> Course:
    """The course of a run with these settings. facts: a function that reads facts about rows, which some policies use.

    Raises:
        HpcgnnError: for a policy that is not covered.
    """
    decided.check()
    policy = run.policy
    for name, known in ((policy.bits, _BITS), (policy.staleness, _STALENESS)):
        if name not in known:
            raise HpcgnnError(f"the cost model covers the policies {', '.join(known)}, but not {name}")
    assumes: list[str] = []
    shares = _known_shares(decided, assumes) if policy.bits != FIXED else None
    shares = shares or _BITS[policy.bits](run, facts, decided, assumes)
    stale, sent = _STALENESS[policy.staleness](policy, decided, assumes)
    period = policy.section(PeriodSettings).bits_period if policy.bits == "adaqp" else 0
    if period:
        assumes.append(
            f"assumes an assignment every {period} epochs, of {ASSIGNMENT_ROUNDS} rounds, each with an all-reduce and with "
            f"{1e6 * ASSIGNMENT_PAIR_SECONDS:g} us of a CPU core for each receiver of a rank and each exchange"
        )
    return Course(
        shares=tuple(sorted(shares.items())),
        stale=stale,
        sent=sent,
        compares=policy.compares,
        is_delta=run.messages.message_coding != PLAIN,
        period=period,
        assumes=tuple(assumes),
    )


def _known_shares(decided: Decided, assumes: list[str]) -> Shares | None:
    if decided.shares is None:
        return None
    total = sum(decided.shares.values())  # 1 but for rounding, which draws of rows do not take
    shares = {bits: share / total for bits, share in decided.shares.items() if share > 0}
    assumes.append(f"assumes {_in_words(shares)}, {decided.source}")
    return shares


def _in_words(shares: Mapping[int, float]) -> str:
    return "bit-widths " + ", ".join(f"{bits}: {share:.1%}" for bits, share in sorted(shares.items()))


def _fixed(run: RunConfig, facts: Facts, decided: Decided, assumes: list[str]) -> Shares:
    return {run.messages.bits: 1.0}


def _uniform(run: RunConfig, facts: Facts, decided: Decided, assumes: list[str]) -> Shares:
    assumes.append(f"assumes bit-widths {', '.join(map(str, CHOICES))} in equal shares, drawn at random")
    return dict.fromkeys(CHOICES, 1 / len(CHOICES))


def _adaqp(run: RunConfig, facts: Facts, decided: Decided, assumes: list[str]) -> Shares:
    own, found = run.policy.section(AdaQPSettings), facts()
    shares = found.by_variance(own.variance_weight, own.group_rows)
    assumes.append(
        f"assumes {_in_words(shares)}: the assignment with a variance weight of {own.variance_weight:g} if all rows have equal "
        f"ranges and no rank is a straggler, computed from the plan's weights of {found.in_words}"
    )
    return shares


def _slower(decided: Decided) -> float:
    return _SLOWER if decided.stale is None else 1 - decided.stale


def _sylvie(run: RunConfig, facts: Facts, decided: Decided, assumes: list[str]) -> Shares:
    """The shares of bit-widths if the base bits double in epochs in which the loss falls more slowly and halve in others: a
    random walk with this probability."""
    slower, found = min(max(_slower(decided), 1e-9), 1 - 1e-9), facts()
    odds = [(slower / (1 - slower)) ** step for step in range(len(sylvie.CHOICES))]
    shares: Shares = {}
    for base, odd in zip(sylvie.CHOICES, odds, strict=True):
        for bits, share in found.by_importance(base).items():
            shares[bits] = shares.get(bits, 0.0) + share * odd / sum(odds)
    assumes.append(
        f"assumes {_in_words(shares)}: the result if the loss falls more slowly than before in {slower:.0%} of epochs, chosen at "
        f"random, for the in-degrees of {found.in_words}"
    )
    return shares


def _pipeqs(run: RunConfig, facts: Facts, decided: Decided, assumes: list[str]) -> Shares:
    assumes.append(
        f"assumes that rows change so little that they keep {SAFE_BITS} bits, the initial bit-width of PipeQS"
    )
    return {SAFE_BITS: 1.0}


_BITS: dict[str, Callable[[RunConfig, Facts, Decided, list[str]], Shares]] = {
    FIXED: _fixed, "uniform": _uniform, "adaqp": _adaqp, "sylvie": _sylvie, "pipeqs": _pipeqs,
}  # fmt: skip


def _never(policy: PolicyConfig, decided: Decided, assumes: list[str]) -> tuple[float, float]:
    return 0.0, 1.0


def _always(policy: PolicyConfig, decided: Decided, assumes: list[str]) -> tuple[float, float]:
    return 1.0, 1.0


def _while_it_falls(policy: PolicyConfig, decided: Decided, assumes: list[str]) -> tuple[float, float]:
    stale = 1 - _slower(decided)
    source = (
        decided.source
        if decided.stale is not None
        else "namely those after which the loss falls as fast as before or faster"
    )
    assumes.append(f"assumes that {stale:.0%} of epochs use rows of the epoch before, {source}")
    return stale, 1.0


def _while_rows_stay(policy: PolicyConfig, decided: Decided, assumes: list[str]) -> tuple[float, float]:
    most, bypass = policy.section(AgeSettings).most_stale_epochs, policy.section(BypassSettings).bypass
    stale = 1.0 if decided.stale is None else decided.stale
    if decided.sent is not None:
        sent = max(decided.sent, 1 - stale)
        assumes.append(f"assumes that {stale:.0%} of epochs use older rows and {sent:.0%} send any, {decided.source}")
        return stale, sent
    if bypass == "late":
        assumes.append("assumes that no message is late when the next epoch begins, so that no exchange is skipped")
        return stale, 1.0
    assumes.append(
        f"assumes that rows change little: each row is sent in one of {most} epochs and used again in the others"
    )
    return stale, max(1 / most, 1 - stale)


_STALENESS: dict[str, Callable[[PolicyConfig, Decided, list[str]], tuple[float, float]]] = {
    OFF: _never, PIPELINE: _always, "sylvie": _while_it_falls, "pipeqs": _while_rows_stay,
}  # fmt: skip
