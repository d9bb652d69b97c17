"""Predictions of seconds, bytes and memory of runs that were not made, with a warning for each extrapolated term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model.cases import KIND_TERMS, TERMS, extent_of, kinds_of
from hpcgnn.lab.cost_model.constants import COLUMN, WORK, Values
from hpcgnn.lab.cost_model.courses import DECISIONS, Outcome, outcome_of
from hpcgnn.lab.cost_model.equations import PHASES, Epoch, Messages, epoch_of, memory_of
from hpcgnn.lab.cost_model.model_file import Model
from hpcgnn.lab.cost_model.policies import PLAIN, Course, Decided, course_of, is_plain
from hpcgnn.lab.cost_model.profile_model import BANDWIDTH_SHARE, FLOPS_SHARE, SPECIFICATIONS
from hpcgnn.lab.cost_model.profiles import Profile
from hpcgnn.lab.cost_model.row_facts import RowFacts, read_facts
from hpcgnn.lab.cost_model.rows import Parts, read_parts
from hpcgnn.lab.cost_model.setup import NetworkTimes, Setup, setup_of
from hpcgnn.lab.cost_model.workload import Workload
from hpcgnn.nn.config import MODELS
from hpcgnn.policy.config import FIXED, OFF
from hpcgnn.train.run_config import RunConfig, settings_by_name

_SLACK = 1.02  # within so much of a range's end nothing is extrapolated
_NETWORKS_OWN = ("byte", "shared_byte", "message", "turn")  # what a real network has in place of these constants


# Messages are gone through one by one up to so many; more of them by the nodes between which they are and by their sizes.
MOST_ONE_BY_ONE = 1 << 14


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction of a run. policies: of bit-widths (a number if it is fixed), of staleness, and the message coding.
    bytes_sent, rows_sent, memory_bytes: (P,) of each rank, int64 except for a mean over different epochs. course: the assumed
    decisions of policies. is_grouped: whether messages were timed in groups. warnings: sentences."""

    parts: str
    ranks: int
    strategy: str
    policies: tuple[int | str, str, str]
    epoch: Epoch
    bytes_sent: np.ndarray
    rows_sent: np.ndarray
    memory_bytes: np.ndarray
    course: Course | None
    is_grouped: bool
    warnings: list[str]

    @property
    def assumes(self) -> tuple[str, ...]:
        """The sentences about assumptions."""
        return () if self.course is None else self.course.assumes

    def as_dict(self, *, by_rank: bool = True) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them. by_rank: whether to include the bytes, rows and memory of each rank."""
        largest, mean = self.epoch.largest(), self.epoch.mean()
        phases = [each for each in (*PHASES, DECISIONS) if each in largest]
        sent, rows, memory = (
            np.rint(each).astype(np.int64) for each in (self.bytes_sent, self.rows_sent, self.memory_bytes)
        )
        found: dict[str, Any] = {
            "parts": self.parts,
            "strategy": self.strategy,
            "bits": self.policies[0],
            "staleness": self.policies[1],
            "message_coding": self.policies[2],
            "ranks": self.ranks,
            "epoch_seconds": self.epoch.total,
            "phases_seconds": {phase: largest[phase] for phase in phases},
            "phases_seconds_mean": {phase: mean[phase] for phase in phases},
            "bytes_sent": int(sent.sum()),
            "rows_sent": int(rows.sum()),
            "largest_bytes_sent_of_a_rank": int(sent.max()),
            "largest_memory_bytes_of_a_rank": int(memory.max()),
            "messages_timed": "by nodes and sizes" if self.is_grouped else "one by one",
            "assumes": list(self.assumes),
            "warnings": self.warnings,
        }
        if self.course is not None:
            found["bits_shares"] = {str(bits): share for bits, share in self.course.shares}
            found |= {"stale_share": self.course.stale, "sent_share": self.course.sent}
        if by_rank:
            found["bytes_sent_of_ranks"] = sent.tolist()
            found["rows_sent_of_ranks"] = rows.tolist()
            found["memory_bytes_of_ranks"] = memory.tolist()
        return found


@dataclass(frozen=True, eq=False)
class Read:
    """The data of a parts file for a strategy and a placement, which several predictions share. facts: None until they are
    needed."""

    parts: Parts
    facts: list[RowFacts]


def predict(
    model: Model,
    file: PartsFile,
    configuration: Mapping[str, Any],
    *,
    profile: Profile | None = None,
    decided: Sequence[Decided] = (),
    most_messages: int = MOST_ONE_BY_ONE,
    read: dict[Any, Read] | None = None,
) -> Prediction:
    """Predict a run with these settings on an open parts file.

    profile: the profile whose network connects nodes; None: the virtual hosts, or the single machine, of ``model``. decided:
    the assumed decisions of policies. most_messages: largest number of messages that are timed one by one. read: data that
    were read from the file before, to which more are added.

    Raises:
        HpcgnnError: for settings that are not allowed, or that the equations do not cover.
    """
    configuration = {"ranks": file.num_parts, **configuration}
    if profile is not None and not configuration.get("ranks_per_node"):
        configuration["ranks_per_node"] = profile.ranks_per_node
    asked, known = _decided(configuration, decided)
    compute = str(configuration.get("compute") or "auto")
    setup = setup_of(
        asked.plain(configuration),
        cores=model.cores,
        compute=model.auto_compute if compute == "auto" else compute,
        network=None if profile is None else profile.network,
    )
    found = _read(file, setup, {} if read is None else read)

    def facts() -> RowFacts:
        if not found.facts:
            found.facts.append(read_facts(file, setup.strategy, MODELS[setup.model.model].aggregation))
        return found.facts[0]

    course = None if is_plain(asked.run) else course_of(asked.run, facts, known)
    values = model.values() | ({} if profile is None else dict.fromkeys(_NETWORKS_OWN, 0.0))
    outcome = _outcome(course, setup, found.parts, values, most_messages)
    warnings = [
        *warnings_of(model, setup, outcome.workload),
        *_of_policies(model, asked, course),
        *profile_warnings(model, profile),
    ]
    return Prediction(
        parts=found.parts.name,
        ranks=setup.ranks,
        strategy=setup.run.strategy,
        policies=asked.names,
        epoch=outcome.epoch,
        bytes_sent=outcome.bytes_sent,
        rows_sent=outcome.rows_sent,
        memory_bytes=memory_of(outcome.workload, model.memory_factors()),
        course=course,
        is_grouped=any(each.sent.nnz > most_messages for each in outcome.workload.exchanges),
        warnings=warnings,
    )


def _outcome(course: Course | None, setup: Setup, parts: Parts, values: Values, most_messages: int) -> Outcome:
    """The outcome of equal epochs, or of a course."""

    @cache  # an epoch that sends is gone through fresh and stale
    def messages_of(workload: Workload) -> Messages:
        return NetworkTimes(setup, workload, most_messages).messages(values)

    if course is not None:
        return outcome_of(course, setup, parts, values, messages_of)
    workload = setup.workload(parts)
    epoch = epoch_of(workload, values, setup.machine, messages_of(workload), is_pipelined=setup.is_pipelined)
    return Outcome(epoch, workload, workload.bytes_sent(), workload.rows_sent())


def _read(file: PartsFile, setup: Setup, known: dict[Any, Read]) -> Read:
    key = str(file.path), setup.strategy, 0 if setup.placement is None else setup.ranks_per_node
    if key not in known:
        known[key] = Read(read_parts(file, setup.strategy, setup.placement), [])
    return known[key]


@dataclass(frozen=True)
class _Asked:
    """The settings of a run whose policies the equations do not cover."""

    run: RunConfig

    @property
    def names(self) -> tuple[int | str, str, str]:
        """The names of the policies of bit-widths and staleness, and of the coding."""
        policy, messages = self.run.policy, self.run.messages
        return (messages.bits if policy.bits == FIXED else policy.bits), policy.staleness, messages.message_coding

    def plain(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """The same settings, with values that the equations cover in place of policies."""
        if is_plain(self.run):
            return dict(configuration)
        bits = self.run.messages.bits
        return {**configuration, "bits": str(bits), "staleness": OFF, "message_coding": PLAIN}


def _decided(configuration: Mapping[str, Any], decided: Sequence[Decided]) -> tuple[_Asked, Decided]:
    """The settings that are asked for, and the known decisions of their policies: from a run with these policies, else those
    given for any policy."""
    known = settings_by_name()
    given = {name: value for name, value in configuration.items() if name in known and value not in (None, "")}
    run = RunConfig.from_settings(given, lenient=given.keys())
    names = run.policy.bits, run.policy.staleness
    found = next((each for each in decided if each.of in (None, names)), Decided())
    run = RunConfig.from_settings({**found.settings, **given}, lenient={*found.settings, *given})
    return _Asked(run), found


def _of_policies(model: Model, asked: _Asked, course: Course | None) -> list[str]:
    """Costs of policies that were counted and not fitted, if the model was fitted."""
    if course is None or not model.kinds:
        return []
    bits, staleness, coding = asked.names
    return [
        f"no run of the fit had bits {bits}, staleness {staleness} and {coding} messages together: the additional work "
        "of its epochs is counted and not fitted"
    ]


def warnings_of(model: Model, setup: Setup, workload: Workload) -> list[str]:
    """A sentence for each term that is extrapolated or unknown to the model."""
    found = []
    for name, value in extent_of(setup, workload).items():
        if name not in model.ranges:
            if model.ranges:
                found.append(
                    f"{_said(name)} is {value:g}, which no run of the fit had: {_terms(TERMS[name])} extrapolated"
                )
            continue
        low, high = model.ranges[name]
        if not low / _SLACK <= value <= high * _SLACK:
            found.append(
                f"{_said(name)} is {value:g}, fitted on {low:g} to {high:g}: {_terms(TERMS[name])} extrapolated"
            )
    for name, kind in kinds_of(setup).items():
        known = model.kinds.get(name, [])
        if known and kind not in known:
            found.append(f"{name} is {kind}, fitted on {', '.join(known)}: {_terms(KIND_TERMS[name])} extrapolated")
    return found + _undetermined(model, workload)


def _undetermined(model: Model, workload: Workload) -> list[str]:
    """The kinds of work in this run that the records did not determine."""
    if not model.constants:
        return []
    total = workload.optimiser.sum(axis=0) + sum(each.sum(axis=0) for each in (*workload.before, *workload.beside))
    unknown = [each.name for each in WORK if total[COLUMN[each.name]] > 0 and each.name not in model.constants]
    return [f"no run of the fit had work of {name}: the term has its start value" for name in unknown]


def _said(name: str) -> str:
    return name.replace("_", " ")


def _terms(names: tuple[str, ...]) -> str:
    return f"the term{'s' if len(names) > 1 else ''} {' and '.join(names)} {'are' if len(names) > 1 else 'is'}"


def profile_warnings(model: Model, profile: Profile | None) -> list[str]:
    """Sentences that mark seconds as estimates, and name the numbers that are not from a specification."""
    found = []
    if model.source == SPECIFICATIONS:
        found.append(
            "seconds are estimates for comparing settings and must not be quoted: the work on "
            f"{model.machine['id']} is computed from specifications, at {BANDWIDTH_SHARE:.0%} of the memory's bandwidth and "
            f"{FLOPS_SHARE:.0%} of the peak, which were not measured there"
        )
    if profile is not None and profile.estimates:
        found.append(
            f"{len(profile.estimates)} numbers of {profile.name} are estimates: {', '.join(profile.estimates)}"
        )
    return found
