"""Fitting the constants to records of a study: bounded least squares on logarithms of epochs and of their phases. Constants are
fitted as logarithms, so errors are relative. Each is held, weakly, to where the fit begins (a factor of e counts as much as an
error of 10 % in one epoch), so constants that the records do not determine stay there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy import optimize

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model import constants
from hpcgnn.lab.cost_model.constants import COLUMN, MEMORY, Constant, Fitted, Model, Residuals, Values
from hpcgnn.lab.cost_model.equations import PHASES, Epoch
from hpcgnn.lab.cost_model.network import bits_per_second
from hpcgnn.lab.cost_model.rows import Parts
from hpcgnn.lab.cost_model.setup import NetworkTimes, Setup, setup_of
from hpcgnn.lab.cost_model.workload import Workload
from hpcgnn.lab.study.axes import HPCGNN, NATIVE
from hpcgnn.lab.study.records import Record, by_machine, in_words

T = TypeVar("T")
_FIRST_EPOCHS = 2  # that are not counted: memory is taken and links are opened in them
FITTED_PHASES = ("aggregation", "communication_wait", "quantization", "synchronisation", "other")
_NOISE = 0.1  # of an epoch's logarithm
_PHASE_WEIGHT = 0.4
_CROWDED_WEIGHT = 0.05  # of phases where ranks share cores: who computes and who waits is then the scheduler's choice
_LEAST_SHARE = 0.05  # of an epoch, below which a phase's error does not count fully
_DETERMINED = 0.6  # of a constant's logarithm: the largest deviation of one that the records determine
_INTERVAL = 1.96
_MOST_EVALUATIONS = 60


@dataclass(frozen=True, eq=False)
class Case:
    """A run as input of a fit. seconds: median of an epoch. phases: by name, the median over epochs of the mean over ranks.
    memory_bytes: largest peak of a rank, or 0. spread: interquartile range of its epochs' seconds, divided by their median."""

    name: str
    setup: Setup
    workload: Workload
    times: NetworkTimes
    seconds: float
    phases: dict[str, float]
    memory_bytes: float = 0.0
    spread: float = 0.0

    def predicted(self, values: Values) -> Epoch:
        """The prediction of the equations."""
        return self.setup.epoch(self.workload, self.times.messages(values), values)


@dataclass(frozen=True, eq=False)
class Cases:
    """The cases of one machine. machine: facts about it. left_out: a sentence for each other run."""

    machine: dict[str, Any]
    cases: list[Case]
    left_out: list[str]


def cases_of(folder: Path, records: Iterable[Record], machine: str | None = None) -> Cases:
    """The cases of the finished runs of one machine. machine: its identifier, needed if there are several machines. Raises
    HpcgnnError if there are and none was chosen, or no run that the equations cover."""
    groups = by_machine(records)
    if machine is not None and machine not in groups:
        known = ", ".join(sorted(groups)) or "none"
        raise HpcgnnError(f"{folder} has no records of machine {machine}, only of {known}")
    if machine is None and len(groups) > 1:
        known = "; ".join(in_words(found[0].machine) for found in groups.values())
        raise HpcgnnError(f"{folder} has records of {len(groups)} machines ({known}): choose one with --machine ID")
    chosen = groups[machine] if machine is not None else next(iter(groups.values()), [])
    cases, left_out = [], []
    read: dict[Any, Parts] = {}
    for record in chosen:
        try:
            cases.append(_case(folder, record, read))
        except HpcgnnError as problem:
            left_out.append(f"{record.key}: {problem}")
    if not cases:
        reasons = f" ({left_out[0]})" if left_out else ""
        raise HpcgnnError(f"{folder} has no finished run to which a cost model could be fitted{reasons}")
    return Cases(dict(chosen[0].machine), cases, left_out)


def _case(folder: Path, record: Record, read: dict[Any, Parts]) -> Case:
    if not record.is_finished:
        raise HpcgnnError(f"it did not finish ({record.error or record.status})")
    if record.configuration.get("framework", HPCGNN) != HPCGNN:
        raise HpcgnnError("it was trained by PyG")
    if record.configuration.get("isa", NATIVE) != NATIVE:
        raise HpcgnnError(f"it was restricted to the instruction set {record.configuration['isa']}")
    if set(record.summary.get("devices", {"CPU": 1})) != {"CPU"}:
        raise HpcgnnError("it ran on GPUs, which the cost model does not cover")
    counted = _counted(record, "seconds")
    seconds, (low, high) = float(np.median(counted)), np.percentile(counted, (25, 75))
    if seconds <= 0:
        raise HpcgnnError("its record has no seconds of epochs")
    compute = str(record.summary.get("compute", ""))
    setup = setup_of(record.configuration, cores=constants.cores_of(record.machine), compute=compute)
    path = folder / record.parts
    with PartsFile(path) as file:
        is_planned = plan_store.is_stored(file, setup.strategy)
    if not is_planned:  # as of attention, which reads a plan of its own whatever the run was told
        plan_store.store_plans(path, [setup.strategy])
    with PartsFile(path) as file:
        workload = setup.workload(setup.read(file, read))
    phases = {phase: float(np.median(_counted(record, f"{phase}_seconds_mean"))) for phase in PHASES}
    memory_bytes = float(record.summary.get("peak_memory_bytes_per_rank", 0))
    spread = float(high - low) / seconds
    return Case(record.key, setup, workload, NetworkTimes(setup), seconds, phases, memory_bytes, spread)


def _counted(record: Record, name: str) -> list[float]:
    values = record.epochs.get(name, [])
    return values[_FIRST_EPOCHS:] or values or [0.0]


# -- what a run lies within --------------------------------------------------------------------------------------------

# What constants go by: where a run is beyond what they were fitted on, these are extrapolated.
TERMS = {
    "ranks": ("message", "link_imbalance"),
    "ranks_a_core": ("crowding", "turn"),
    "ranks_per_node": ("shared_byte",),
    "hidden": ("entry", "row", "element"),
    "bits": ("encode", "decode", "code"),
    "megabits_per_second": ("rate_share", "latency"),
    "nodes_a_rank": ("entry_missed", "element"),
    "entries_a_rank": ("entry", "entry_missed"),
    "bytes_of_a_rank": ("byte",),
    "messages_of_a_rank": ("message",),
    "layers": ("layer", "aggregation"),
}
KIND_TERMS = {"model": ("layer", "element"), "arithmetic": ("product",), "staleness": ("burst_bytes",)}


def extent_of(setup: Setup, workload: Workload) -> dict[str, float]:
    """The sizes of a run by the names of :data:`TERMS`; those that do not apply are left out."""
    parts, exchanges = workload.parts, workload.exchanges
    found = {
        "ranks": setup.ranks,
        "ranks_a_core": setup.machine.crowd,
        "ranks_per_node": setup.ranks_per_node,
        "hidden": setup.model.hidden,
        "nodes_a_rank": int(parts.nodes.max()),
        "entries_a_rank": int((parts.local + parts.send + parts.receive).max()),
    }
    if (layers := setup.model.flat().get("layers")) is not None:
        found["layers"] = layers
    if setup.ranks > 1:
        found["bits"] = setup.run.messages.bits
        found["bytes_of_a_rank"] = max((int(np.max(each.bytes_of_ranks)) for each in exchanges), default=0)
        found["messages_of_a_rank"] = max((int(each.messages_of_ranks.max()) for each in exchanges), default=0)
    if setup.is_virtual:
        found["megabits_per_second"] = bits_per_second(setup.rate) / 1e6
    return {name: float(value) for name, value in found.items()}


def kinds_of(setup: Setup) -> dict[str, str]:
    """The properties of a run that have no order, by the names of :data:`KIND_TERMS`."""
    return {"model": setup.model.model, "arithmetic": setup.arithmetic, "staleness": setup.run.policy.staleness}


# -- the fit -----------------------------------------------------------------------------------------------------------


def fit(runs: Cases, source: Path | str, advance: Callable[[int], object] = lambda _: None) -> Model:
    """The model of the machine of ``runs``. source: the folder of the runs, for a reader of the file."""
    cases = runs.cases
    fitted, values = _fit_constants(cases, advance)
    extents = [extent_of(case.setup, case.workload) for case in cases]
    kinds = [kinds_of(case.setup) for case in cases]
    autos = Counter(case.setup.arithmetic for case in cases if case.setup.run.compute == "auto")
    return Model(
        machine=runs.machine,
        constants=fitted,
        memory=_fit_memory(cases),
        ranges={name: (min(found), max(found)) for name, found in _by_name(extents).items()},
        kinds={name: sorted(set(found)) for name, found in _by_name(kinds).items()},
        auto_compute=autos.most_common(1)[0][0] if autos else "float32",
        residuals=_residuals(cases, [case.predicted(values) for case in cases]),
        source=str(source),
    )


def _by_name(found: Sequence[dict[str, T]]) -> dict[str, list[T]]:
    names = dict.fromkeys(name for each in found for name in each)
    return {name: [each[name] for each in found if name in each] for name in names}


def used_constants(cases: Sequence[Case]) -> list[Constant]:
    """The constants for which some case has work; the others keep their values."""
    total = np.sum([case.workload.total() for case in cases], axis=0)
    setups = [case.setup for case in cases]
    has_rate = any(each.ranks > 1 and each.rate for each in setups)
    is_crowded = any(each.ranks > 1 and each.machine.crowd > 1 for each in setups)
    others = {
        "shared_byte": any(each.ranks_per_node > 1 for each in setups),
        "message": any(each.ranks > 1 for each in setups),
        "contention": any(each.machine.busy_cores > 1 for each in setups),
        "link_imbalance": any(each.rate and each.ranks > 2 * each.ranks_per_node for each in setups),
    }
    others |= dict.fromkeys(("turn", "crowding"), is_crowded)
    others |= dict.fromkeys(("byte", "rate_share", "latency", "burst_bytes"), has_rate)
    known = {name: total[column] > 0 for name, column in COLUMN.items()} | others
    return [each for each in constants.ALL if known[each.name]]


def residuals_of(epoch: Epoch, case: Case) -> np.ndarray:
    """The errors of an epoch and of its phases, in units of the tolerance for one run's epoch."""
    means, weight = epoch.mean(), _PHASE_WEIGHT if case.setup.machine.crowd == 1 else _CROWDED_WEIGHT
    floor = _LEAST_SHARE * case.seconds
    phases = [weight * np.log((means[name] + floor) / (case.phases[name] + floor)) for name in FITTED_PHASES]
    return np.array([np.log(max(epoch.total, 1e-12) / case.seconds), *phases]) / np.hypot(_NOISE, case.spread)


def _fit_constants(
    cases: Sequence[Case], advance: Callable[[int], object]
) -> tuple[dict[str, Fitted], dict[str, float]]:
    """The constants that ``cases`` use, with 95 % intervals; and the values of all constants."""
    chosen = used_constants(cases)
    # logarithms from 1 on, as differences are taken in steps relative to them
    lowest = np.log([each.low for each in chosen]) - 1
    start = np.log([each.start for each in chosen]) - lowest
    bounds = np.ones(len(chosen)), np.log([each.high for each in chosen]) - lowest

    def values(x: np.ndarray) -> dict[str, float]:
        fitted = zip(chosen, np.exp(x + lowest), strict=True)
        return constants.defaults() | {each.name: float(value) for each, value in fitted}

    def residuals(x: np.ndarray) -> np.ndarray:
        now = values(x)
        advance(1)
        errors = np.concatenate([residuals_of(case.predicted(now), case) for case in cases])
        # large ones count only with their square root, so a disturbed run has little influence
        softened = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([softened, x - start])

    inside = np.clip(start, bounds[0] + 1e-6, bounds[1] - 1e-6)
    found = optimize.least_squares(residuals, inside, bounds=bounds, max_nfev=_MOST_EVALUATIONS, diff_step=1e-3)
    scale = max(1.0, float(np.mean(found.fun[: found.fun.size - len(chosen)] ** 2)))
    deviations = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)) * scale)
    logarithms = zip(chosen, found.x + lowest, deviations, strict=True)
    return {each.name: _fitted(each, *about) for each, *about in logarithms}, values(found.x)


def _fitted(constant: Constant, x: float, deviation: float) -> Fitted:
    low, high = np.exp(x - _INTERVAL * deviation), np.exp(x + _INTERVAL * deviation)
    ends = max(float(low), constant.low), min(float(high), constant.high)
    return Fitted(float(np.exp(x)), *ends, constant.unit, bool(deviation < _DETERMINED))


def _fit_memory(cases: Sequence[Case]) -> dict[str, float]:
    """The factors of :func:`hpcgnn.lab.cost_model.equations.memory_of`, from the peaks of the ranks with the most memory."""
    known = [case for case in cases if case.memory_bytes > 0]
    if not known:
        return dict(zip(MEMORY, (3e8, 0.0, 1.0, 1.0), strict=True))
    held, *gradients_and_messages = np.transpose(
        [case.workload.memory[case.workload.memory.sum(axis=1).argmax()] for case in known]
    )
    rows = np.stack([np.ones(len(known)), [case.workload.num_ranks for case in known], *gradients_and_messages], axis=1)
    peaks = np.array([case.memory_bytes for case in known])
    weights, begin = 1 / peaks, np.array([3e8, 1e4, 1.0, 1.0])
    prior = np.diag(0.02 / begin)  # held to where it begins as weakly as the other constants
    matrix = np.vstack([rows * weights[:, None], prior])
    wanted = np.concatenate([(peaks - held) * weights, prior @ begin])
    found = optimize.lsq_linear(matrix, wanted, bounds=([5e7, 0.0, 0.1, 0.0], [np.inf, 1e7, 20.0, 20.0]))
    return {name: float(value) for name, value in zip(MEMORY, found.x, strict=True)}


def _residuals(cases: Sequence[Case], epochs: Sequence[Epoch]) -> Residuals:
    """The errors of epochs, and those of phases as shares of their epochs."""
    seconds = np.array([case.seconds for case in cases])
    errors = np.abs(np.array([epoch.total for epoch in epochs]) / seconds - 1)
    by_phase = {}
    for phase in FITTED_PHASES:
        differences = [epoch.mean()[phase] - case.phases[phase] for case, epoch in zip(cases, epochs, strict=True)]
        by_phase[phase] = float(np.median(np.abs(differences) / seconds))
    return Residuals(len(cases), float(np.median(errors)), float(errors.max()), by_phase)


def row_of(name: str, fitted: Fitted) -> tuple[str, str, str, str]:
    """Name, value, interval and meaning of a constant, as texts."""
    unit = f" {fitted.unit}" if fitted.unit else ""
    interval = f"{fitted.low:.3g} to {fitted.high:.3g}" if fitted.is_determined else "not determined"
    return name, f"{fitted.value:.3g}{unit}", interval, constants.BY_NAME[name].what
