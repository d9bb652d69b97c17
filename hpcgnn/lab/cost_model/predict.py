"""Predictions of seconds, bytes and memory of runs that were not made, with a warning for each extrapolated term; and projections
of a graph in more and more parts (strong scaling), or of graphs that grow with their parts (weak scaling)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import resident_memory_bytes
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model import policies
from hpcgnn.lab.cost_model.constants import MEMORY, WORK, Model, cores_of
from hpcgnn.lab.cost_model.equations import IN_PHASES, PHASES, Messages, memory_of
from hpcgnn.lab.cost_model.fit import KIND_TERMS, TERMS, extent_of, kinds_of
from hpcgnn.lab.cost_model.policies import DECISIONS, PLAIN, Assumptions, MeanEpoch, PolicyMix, RowFacts
from hpcgnn.lab.cost_model.profiles import BANDWIDTH_SHARE, FLOPS_SHARE, SPECIFICATIONS, Profile
from hpcgnn.lab.cost_model.setup import NetworkTimes, Setup, run_of, setup_of
from hpcgnn.lab.cost_model.workload import Workload
from hpcgnn.nn.config import MODELS
from hpcgnn.policy.config import FIXED, OFF
from hpcgnn.train import account
from hpcgnn.train.standin import part_facts

_SLACK = 1.02  # within so much of a range's end nothing is extrapolated
_NETWORKS_OWN = ("byte", "shared_byte", "message", "turn")  # what a real network has in place of these constants
# Messages are gone through one by one up to so many; more of them by the nodes between which they are and by their sizes.
MOST_ONE_BY_ONE = 1 << 14
STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True, eq=False)
class Prediction(MeanEpoch):
    """The prediction of a run. about: its parts file, strategy, policies of bit-widths (a number if it is fixed) and staleness,
    message coding, and ranks. memory_bytes: (P,) of each rank. course: the assumed decisions of policies. is_grouped: whether
    messages were timed in groups. warnings: sentences."""

    about: dict[str, Any]
    memory_bytes: np.ndarray
    course: PolicyMix | None
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
        found = self.about | {
            "epoch_seconds": self.epoch.total,
            "phases_seconds": {phase: largest[phase] for phase in phases},
            "phases_seconds_mean": {phase: mean[phase] for phase in phases},
            "bytes_sent": int(sent.sum()),
            "rows_sent": int(rows.sum()),
            "largest_bytes_sent_of_a_rank": int(sent.max()),
            "largest_memory_bytes_of_a_rank": int(memory.max()),
            "messages_timed": "by nodes and sizes" if self.is_grouped else "one by one",
            "assumes": self.assumes,
            "warnings": self.warnings,
        }
        if self.course is not None:
            found["bits_shares"] = {str(bits): share for bits, share in self.course.shares}
            found |= {"stale_share": self.course.stale, "sent_share": self.course.sent}
        of_ranks = {"bytes_sent_of_ranks": sent, "rows_sent_of_ranks": rows, "memory_bytes_of_ranks": memory}
        return found | ({name: each.tolist() for name, each in of_ranks.items()} if by_rank else {})


def predict(
    model: Model,
    file: PartsFile,
    configuration: Mapping[str, Any],
    *,
    profile: Profile | None = None,
    decided: Sequence[Assumptions] = (),
    most_messages: int = MOST_ONE_BY_ONE,
    read: dict[Any, Any] | None = None,
    factors: np.ndarray | None = None,
) -> Prediction:
    """Predict a run with these settings on an open parts file. Raises HpcgnnError for settings that are not allowed, or that the
    equations do not cover.

    profile: the profile whose network connects nodes; None: the virtual hosts, or the single machine, of ``model``. decided:
    the assumed decisions of policies: from a run with these policies, else those given for any policy. most_messages: largest
    number of messages that are timed one by one. read: data that were read from the file before, to which more are added.
    factors: (P, 3) factors of each rank's work in the phases of :data:`hpcgnn.lab.cost_model.equations.COMPUTED`, where it was
    measured; only for runs without policies.
    """
    given: dict[str, Any] = {"ranks": file.num_parts, **configuration}
    kept = {} if read is None else read
    if profile is not None and not given.get("ranks_per_node"):
        given["ranks_per_node"] = profile.ranks_per_node
    policy = run_of(given).policy
    known = next((each for each in decided if each.of in (None, (policy.bits, policy.staleness))), Assumptions())
    run = run_of(given, known.settings)
    # what the equations cover, in place of policies
    plain = (
        {} if policies.is_plain(run) else {"bits": str(run.messages.bits), "staleness": OFF, "message_coding": PLAIN}
    )
    compute = str(given.get("compute") or "auto")
    compute = model.auto_compute if compute == "auto" else compute
    network = None if profile is None else profile.network
    setup = setup_of(given | plain, cores=cores_of(model.machine), compute=compute, network=network)
    parts = setup.read(file, kept)
    values = model.values() | ({} if profile is None else dict.fromkeys(_NETWORKS_OWN, 0.0))

    @cache  # an epoch that sends is gone through fresh and stale
    def messages_of(workload: Workload) -> Messages:
        return NetworkTimes(setup, most_messages).messages(values)

    def facts() -> RowFacts:
        key = "facts", str(file.path), setup.strategy, MODELS[setup.model.model].aggregation
        if key not in kept:
            kept[key] = policies.read_facts(file, *key[2:])
        return kept[key]

    if plain:
        course = policies.course_of(run, facts, known)
        outcome = policies.outcome_of(course, setup, parts, values, messages_of)
    else:
        course, workload = None, setup.workload(parts)
        workload = workload if factors is None else workload.times(factors @ IN_PHASES.T)
        epoch = setup.epoch(workload, messages_of(workload), values)
        outcome = MeanEpoch(epoch, workload, workload.bytes_sent(), workload.rows_sent())
    bits = run.messages.bits if run.policy.bits == FIXED else run.policy.bits
    chosen = {"bits": bits, "staleness": run.policy.staleness, "message_coding": run.messages.message_coding}
    return Prediction(
        **vars(outcome),
        about={"parts": parts.name, "strategy": setup.run.strategy} | chosen | {"ranks": setup.ranks},
        memory_bytes=memory_of(outcome.workload, [model.memory[name] for name in MEMORY]),
        course=course,
        is_grouped=any(each.sent.nnz > most_messages for each in outcome.workload.exchanges),
        warnings=warnings_of(model, setup, outcome.workload) + _estimates(model, profile, chosen if plain else None),
    )


def memory_parts(file: PartsFile, configuration: Mapping[str, Any], compute: str, rank: int) -> dict[str, int]:
    """Bytes of a rank by part while it trains, from a trial on this machine (:mod:`hpcgnn.train.account`). compute: the
    arithmetic that ``auto`` chooses. The libraries are those of this process. Takes seconds."""
    run = run_of(configuration)
    run = account.trial_config(run, compute if run.compute == "auto" else run.compute)
    libraries = {account.LIBRARIES: resident_memory_bytes()}
    return libraries | account.predicted(run, part_facts(file, rank, account.strategy_of(run)))


def warnings_of(model: Model, setup: Setup, workload: Workload) -> list[str]:
    """A sentence for each term that is extrapolated or unknown to the model."""
    found = []
    for name, value in extent_of(setup, workload).items():
        about = "which no run of the fit had" if model.ranges else ""
        if name in model.ranges:
            low, high = model.ranges[name]
            about = "" if low / _SLACK <= value <= high * _SLACK else f"fitted on {low:g} to {high:g}"
        if about:
            found.append(f"{name.replace('_', ' ')} is {value:g}, {about}: {_terms(TERMS[name])} extrapolated")
    for name, kind in kinds_of(setup).items():
        known = model.kinds.get(name, [])
        if known and kind not in known:
            found.append(f"{name} is {kind}, fitted on {', '.join(known)}: {_terms(KIND_TERMS[name])} extrapolated")
    if model.constants:  # of these, some records determined work
        done = zip(WORK, workload.total(), strict=True)
        unknown = [each.name for each, amount in done if amount > 0 and each.name not in model.constants]
        found += [f"no run of the fit had work of {name}: the term has its start value" for name in unknown]
    return found


def _terms(names: tuple[str, ...]) -> str:
    return f"the term{'s' if len(names) > 1 else ''} {' and '.join(names)} {'are' if len(names) > 1 else 'is'}"


def _estimates(model: Model, profile: Profile | None, mixed: Mapping[str, Any] | None) -> list[str]:
    """Sentences that mark seconds as estimates. mixed: the policies of a run whose epochs differ."""
    found = []
    if mixed is not None and model.kinds:
        found.append(
            "no run of the fit had bits {}, staleness {} and {} messages together: the additional work "
            "of its epochs is counted and not fitted".format(*mixed.values())
        )
    if model.source == SPECIFICATIONS:
        found.append(
            "seconds are estimates for comparing settings and must not be quoted: the work on "
            f"{model.machine['id']} is computed from specifications, at {BANDWIDTH_SHARE:.0%} of the memory's bandwidth and "
            f"{FLOPS_SHARE:.0%} of the peak, which were not measured there"
        )
    if profile is not None and (names := profile.estimates):
        found.append(f"{len(names)} numbers of {profile.name} are estimates: {', '.join(names)}")
    return found


# -- projections -------------------------------------------------------------------------------------------------------


def _way(strategy: str, bits: str, staleness: str = OFF, **more: str) -> dict[str, str]:
    """A way of sending, by the names of flags. bits: a number, or the name of a policy."""
    return {"strategy": strategy, "bits": bits, "staleness": staleness, "message_coding": PLAIN} | more


# Each pair of ranks has messages of its own (SuperGCN's figures), but for ``nodes``.
WAYS = {
    "vanilla": _way("post", "32", node_aware="off"),
    "pre": _way("pre", "32", node_aware="off"),
    "hybrid": _way("hybrid", "32", node_aware="off"),
    "int8": _way("hybrid", "8", node_aware="off"),
    "int2": _way("hybrid", "2", node_aware="off"),
    "nodes": _way("hybrid", "32", node_aware="on"),
    "nodes-int2": _way("hybrid", "2", node_aware="on"),
    "pipeline": _way("hybrid", "32", "pipeline", node_aware="off"),
    "uniform": _way("hybrid", "uniform", node_aware="off"),
    "adaqp": _way("hybrid", "adaqp", node_aware="off"),
    "sylvie": _way("hybrid", "sylvie", "sylvie", node_aware="off"),
    "pipeqs": _way("hybrid", "pipeqs", "pipeqs", node_aware="off"),
}
SETS = {
    "strategies": ("vanilla", "pre", "hybrid", "int2"),
    "policies": ("vanilla", "int8", "adaqp", "sylvie", "pipeqs"),
}


def ways_of(text: str) -> dict[str, dict[str, str]]:
    """The ways that a comma-separated list names: ways, or sets of them. Raises HpcgnnError for an unknown name."""
    names = [name for each in text.split(",") for name in SETS.get(each.strip(), (each.strip(),))]
    for name in names:
        if name not in WAYS:
            known = ", ".join((*SETS, *WAYS))
            raise HpcgnnError(f"--ways must be a list of {known}, separated by commas, not {name!r}")
    return {name: WAYS[name] for name in names}


def contenders(strategies: Sequence[str], bits: Collection[int]) -> dict[str, dict[str, str]]:
    """Each strategy with the largest bit-width, and the last strategy with the other bit-widths."""
    most, *fewer = sorted(set(bits), reverse=True)
    chosen = [(strategy, most) for strategy in strategies] + [(strategies[-1], each) for each in fewer]
    return {f"{strategy}, {each} bits": _way(strategy, str(each)) for strategy, each in chosen}


def project(
    model: Model,
    files: Mapping[str, Sequence[Path]],
    ways: Mapping[str, Mapping[str, str]],
    configuration: Mapping[str, Any],
    advance: Callable[[int], object] = lambda _: None,
    **how: Any,
) -> list[dict[str, Any]]:
    """A prediction for each parts file and each way, as ``--json`` prints it, by scaling and ranks. files: those of ``strong``
    and of ``weak`` scaling. configuration: the common settings of all ways. how: other arguments of :func:`predict`."""
    found = []
    for scaling in (STRONG, WEAK):
        points = []
        for path in files[scaling]:
            read: dict[Any, Any] = {}
            with PartsFile(path) as file:
                for name, way in ways.items():
                    made = predict(model, file, {**configuration, **way}, read=read, **how)
                    points.append({"scaling": scaling, "way": name, **made.as_dict(by_rank=False)})
                    advance(1)
        found += sorted(points, key=lambda point: point["ranks"])
    return found
