"""Targets of a study: bounds that figures must keep, in a TOML file with ``[[targets]]``.

``where = {axis = value}`` chooses configurations, and ``figure`` a figure of them (measures.py). ``baseline = {axis
= value}`` chooses the configuration to compare with, by the ratio, or by the difference if the figure ends in ``_difference``.
``at_most`` or ``at_least`` is the bound, and ``about`` the reason for it. The estimate must keep the bound, or, with ``of =
"low"`` or ``"high"``, that end of its 95 % interval, which is shown beside it. With fewer than ``pairs`` pairs (runs, without a
baseline) there is no verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import Count
from hpcgnn.lab.study import catalogue, measures, summary
from hpcgnn.lab.study.axes import matches
from hpcgnn.lab.study.catalogue import Document
from hpcgnn.lab.study.groups import Estimate, Groups, in_words
from hpcgnn.lab.study.specification import Specification
from hpcgnn.lab.study.tables import NOTHING

YES, NO, NOT_MEASURED = "yes", "no", "not measured"


class Target(msgspec.Struct, kw_only=True, frozen=True):
    """A target, as in its file."""

    figure: str
    where: dict[str, Any] = {}
    baseline: dict[str, Any] = {}
    at_most: float | None = None
    at_least: float | None = None
    of: Literal["value", "low", "high"] = "value"
    pairs: Count = 0
    about: str = ""

    @property
    def compared(self) -> str:
        """The name of the figure to compare: with a baseline, its ratio, unless the figure itself compares."""
        return self.figure + (measures.RATIO if self.baseline and not measures.needs_baseline(self.figure) else "")

    def is_kept_by(self, value: float) -> bool:
        """Return whether a value keeps the bounds; a NaN keeps none."""
        most, least = self.at_most, self.at_least
        return (most is None or value <= most) and (least is None or value >= least)


class Verdict(NamedTuple):
    """The verdict on a target for one configuration. wanted, found: bound and value as text."""

    target: str
    configuration: str
    wanted: str
    found: str
    reached: str


def default_path(study: Specification) -> Path:
    """The targets of the shipped specification with the study's name. Raises HpcgnnError if there are none."""
    path = catalogue.FOLDER / f"{study.name}.targets.toml"
    if study.name not in catalogue.shipped() or not path.exists():
        raise HpcgnnError(f"no targets ship with {study.name}: give a file TARGETS.toml")
    return path


def read(path: str | Path) -> list[Target]:
    """The targets in a file. Raises HpcgnnError with the line for a target that is not valid."""
    file = Document(Path(path))
    given = file.values.get("targets")
    if not isinstance(given, list) or not given or len(file.values) > 1:
        raise HpcgnnError(f"{path} must have [[targets]] and no other keys")
    found = []
    for number, each in enumerate(given):
        place = ("targets", number)
        target = file.checked(each, Target, place, "a target has no key")
        if not measures.is_known(target.compared):
            known = ", ".join(measures.known())
            file.refuse(place, f"there is no figure {target.figure}: the figures are {known}")
        if target.at_most is None and target.at_least is None:
            file.refuse(place, "a target needs at_most or at_least")
        if measures.needs_baseline(target.compared) and not target.baseline:
            file.refuse(place, f"{target.figure} needs a baseline")
        found.append(target)
    return found


def verdicts(groups: Groups, targets: list[Target]) -> list[Verdict]:
    """A verdict on each target for each configuration that it chooses."""
    found = []
    for target in targets:
        chosen = groups.matching(target.where)
        if target.baseline:
            chosen = [group for group in chosen if not matches(group.configuration, target.baseline)]
        open_axes = groups.left_open(chosen, ())
        for group in chosen:
            estimate = groups.estimate(group, target.compared, target.baseline)
            found.append(_verdict(target, in_words(open_axes, group.label(open_axes)), estimate))
        if not chosen:
            found.append(_verdict(target, "", None))
    return found


def _verdict(target: Target, configuration: str, estimate: Estimate | None) -> Verdict:
    end = "" if target.of == "value" else f"{target.of} end of the interval "
    wanted = end + " and ".join(
        f"{words} {measures.shown(target.compared, bound)}{measures.unit(target.compared)}"
        for words, bound in (("at most", target.at_most), ("at least", target.at_least))
        if bound is not None
    )
    name, value = target.about or measures.label(target.compared), getattr(estimate, target.of, None)
    shown = NOTHING if estimate is None else summary.shown(target.compared, estimate) + measures.unit(target.compared)
    if estimate is not None and estimate.count < target.pairs:
        shown, value = f"{shown}, {estimate.count} of {target.pairs} pairs", None
    reached = NOT_MEASURED if value is None else YES if target.is_kept_by(value) else NO
    return Verdict(name, configuration, wanted, shown, reached)
