"""Fitting the constants to records: bounded least squares on logarithms of epochs and of their phases.

Constants are fitted as logarithms, so that all are positive and errors are relative. Each is held, weakly, to where the fit
begins (a factor of e counts as much as an error of 10 % in one epoch): what records do not determine stays there and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import optimize

from hpcgnn.lab.cost_model.cases import Case, Cases, extent_of, kinds_of
from hpcgnn.lab.cost_model.constants import ALL, BY_NAME, COLUMN, Constant, defaults
from hpcgnn.lab.cost_model.equations import Epoch
from hpcgnn.lab.cost_model.model_file import MEMORY, Fitted, Model, Residuals

FITTED_PHASES = ("aggregation", "communication_wait", "quantization", "synchronisation", "other")
_NOISE = 0.1  # of an epoch's logarithm
_PHASE_WEIGHT = 0.4
_CROWDED_WEIGHT = 0.05  # of phases where ranks share cores: who computes and who waits is then the scheduler's choice
_LEAST_SHARE = 0.05  # of an epoch, below which a phase's error does not count fully
_PRIOR_WIDTH = 1.0  # of a constant's logarithm
_DETERMINED = 0.6  # of that width
_INTERVAL = 1.96
_MOST_EVALUATIONS = 60
_START_BYTES, _LEAST_FIXED = 3e8, 5e7


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a fit. model: the fitted model. predicted: a prediction for each case, in their order."""

    model: Model
    predicted: list[Epoch]


def used_constants(cases: Sequence[Case]) -> list[Constant]:
    """The constants for which some case has work; the others keep their values."""
    total = np.zeros(len(COLUMN))
    for case in cases:
        work = case.workload
        total += sum(stretch.sum(axis=0) for stretch in (*work.before, *work.beside, work.optimiser))
    is_parallel = any(case.setup.ranks > 1 for case in cases)
    has_rate = any(case.setup.ranks > 1 and case.setup.rate for case in cases)
    is_shared = any(case.setup.ranks_per_node > 1 for case in cases)
    is_crowded = any(case.setup.ranks > 1 and case.setup.machine.crowd > 1 for case in cases)
    is_busy = any(case.setup.machine.busy_cores > 1 for case in cases)
    others = {
        "byte": has_rate,
        "shared_byte": is_shared,
        "message": is_parallel,
        "turn": is_crowded,
        "contention": is_busy,
        "crowding": is_crowded,
        "rate_share": has_rate,
        "link_imbalance": any(case.setup.rate and case.setup.ranks > 2 * case.setup.ranks_per_node for case in cases),
        "latency": has_rate,
        "burst_bytes": has_rate,
    }
    return [each for each in ALL if others.get(each.name, each.name in COLUMN and total[COLUMN[each.name]] > 0)]


def residuals_of(epoch: Epoch, case: Case) -> np.ndarray:
    """The errors of an epoch and of its phases, in units of the tolerance for one run's epoch."""
    found = [np.log(max(epoch.total, 1e-12) / case.seconds)]
    floor = _LEAST_SHARE * case.seconds
    means, weight = epoch.mean(), _PHASE_WEIGHT if case.setup.machine.crowd == 1 else _CROWDED_WEIGHT
    for phase in FITTED_PHASES:
        found.append(weight * np.log((means[phase] + floor) / (case.phases.get(phase, 0.0) + floor)))
    return np.array(found) / np.hypot(_NOISE, case.spread)


def fit_constants(
    cases: Sequence[Case], advance: Callable[[int], object] = lambda _: None
) -> tuple[dict[str, Fitted], dict[str, float]]:
    """The constants that ``cases`` use, with 95 % intervals; and the values of all constants."""
    chosen = used_constants(cases)
    # logarithms from 1 on, as differences are taken in steps relative to them
    lowest = np.log([each.low for each in chosen]) - 1
    start = np.log([each.start for each in chosen]) - lowest
    bounds = np.ones(len(chosen)), np.log([each.high for each in chosen]) - lowest

    def values(x: np.ndarray) -> dict[str, float]:
        return defaults() | {each.name: float(value) for each, value in zip(chosen, np.exp(x + lowest), strict=True)}

    def residuals(x: np.ndarray) -> np.ndarray:
        now = values(x)
        advance(1)
        of_cases = [_softened(residuals_of(case.predicted(now), case)) for case in cases]
        return np.concatenate([*of_cases, (x - start) / _PRIOR_WIDTH])

    inside = np.clip(start, bounds[0] + 1e-6, bounds[1] - 1e-6)
    found = optimize.least_squares(residuals, inside, bounds=bounds, max_nfev=_MOST_EVALUATIONS, diff_step=1e-3)
    data = found.fun[: found.fun.size - len(chosen)]
    scale = max(1.0, float(np.mean(data**2)))
    deviations = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)) * scale)
    fitted = {
        each.name: _fitted(each, x, deviation)
        for each, x, deviation in zip(chosen, found.x + lowest, deviations, strict=True)
    }
    return fitted, values(found.x)


def _softened(residuals: np.ndarray) -> np.ndarray:
    """The errors, of which large ones count only with their square root, so a disturbed run has little influence."""
    return np.sign(residuals) * np.sqrt(2 * (np.sqrt(1 + residuals**2) - 1))


def _fitted(constant: Constant, x: float, deviation: float) -> Fitted:
    low, high = np.exp(x - _INTERVAL * deviation), np.exp(x + _INTERVAL * deviation)
    return Fitted(
        value=float(np.exp(x)),
        low=max(float(low), constant.low),
        high=min(float(high), constant.high),
        unit=constant.unit,
        is_determined=bool(deviation < _DETERMINED * _PRIOR_WIDTH),
    )


def fit_memory(cases: Sequence[Case]) -> dict[str, float]:
    """The factors of :func:`hpcgnn.lab.cost_model.equations.memory_of`, from the peaks of the ranks with the most memory."""
    known = [case for case in cases if case.memory_bytes > 0]
    if not known:
        return dict(zip(MEMORY, (_START_BYTES, 0.0, 1.0, 1.0), strict=True))
    rows, targets = [], []
    for case in known:
        held, kept, travelling = case.workload.memory[case.workload.memory.sum(axis=1).argmax()]
        rows.append((1.0, case.workload.num_ranks, kept, travelling))
        targets.append(case.memory_bytes - held)
    weights = np.array([1 / case.memory_bytes for case in known])
    # held to where it begins as weakly as the other constants
    begin = np.array([_START_BYTES, 1e4, 1.0, 1.0])
    prior = np.diag(0.02 / begin)
    matrix = np.vstack([np.array(rows) * weights[:, None], prior])
    wanted = np.concatenate([np.array(targets) * weights, prior @ begin])
    bounds = np.array([_LEAST_FIXED, 0.0, 0.1, 0.0]), np.array([np.inf, 1e7, 20.0, 20.0])
    found = optimize.lsq_linear(matrix, wanted, bounds=bounds)
    return {name: float(value) for name, value in zip(MEMORY, found.x, strict=True)}


def fit(runs: Cases, source: Path | str, advance: Callable[[int], object] = lambda _: None) -> Fit:
    """The model of the machine of ``runs``. source: the folder of the runs, for a reader of the file."""
    fitted, values = fit_constants(runs.cases, advance)
    predicted = [case.predicted(values) for case in runs.cases]
    model = Model(
        machine=runs.machine,
        constants=fitted,
        memory=fit_memory(runs.cases),
        ranges=_ranges(runs.cases),
        kinds=_kinds(runs.cases),
        auto_compute=_auto_compute(runs.cases),
        residuals=residuals_summary(runs.cases, predicted),
        source=str(source),
    )
    return Fit(model, predicted)


def residuals_summary(cases: Sequence[Case], predicted: Sequence[Epoch]) -> Residuals:
    """The errors of epochs, and those of phases as shares of their epochs."""
    errors = np.array([abs(epoch.total / case.seconds - 1) for case, epoch in zip(cases, predicted, strict=True)])
    by_phase = {
        phase: float(
            np.median([
                abs(epoch.mean()[phase] - case.phases.get(phase, 0.0)) / case.seconds
                for case, epoch in zip(cases, predicted, strict=True)
            ])
        )
        for phase in FITTED_PHASES
    }  # fmt: skip
    return Residuals(len(cases), float(np.median(errors)), float(errors.max()), by_phase)


def _ranges(cases: Sequence[Case]) -> dict[str, tuple[float, float]]:
    found: dict[str, list[float]] = {}
    for case in cases:
        for name, value in extent_of(case.setup, case.workload).items():
            found.setdefault(name, []).append(value)
    return {name: (min(values), max(values)) for name, values in found.items()}


def _kinds(cases: Sequence[Case]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for case in cases:
        for name, value in kinds_of(case.setup).items():
            found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}


def _auto_compute(cases: Sequence[Case]) -> str:
    chosen = Counter(case.setup.arithmetic for case in cases if case.setup.run.compute == "auto")
    return chosen.most_common(1)[0][0] if chosen else "float32"


def in_words(name: str, fitted: Fitted) -> tuple[str, str, str, str]:
    """Name, value, interval and meaning of a constant, as texts."""
    constant = BY_NAME[name]
    unit = f" {fitted.unit}" if fitted.unit else ""
    interval = f"{fitted.low:.3g} to {fitted.high:.3g}"
    return name, f"{fitted.value:.3g}{unit}", interval if fitted.is_determined else "not determined", constant.what
