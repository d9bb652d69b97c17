"""A job whose ranks were measured one after another (:mod:`hpcgnn.lab.bench.ranks`): its epoch on a network, and the errors of
the cost model's predictions of each rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.plan_work import summary
from hpcgnn.lab.cost_model.constants import Model
from hpcgnn.lab.cost_model.equations import COMPUTED
from hpcgnn.lab.cost_model.predict import Prediction, predict
from hpcgnn.lab.cost_model.profiles import Profile, model_of_profile
from hpcgnn.train.run_config import RunConfig

ALL = "all"


def job_of(
    found: dict[str, Any], file: PartsFile, config: RunConfig, model: Model | None, profile: Profile
) -> dict[str, Any]:
    """The result of :func:`hpcgnn.lab.bench.ranks.run` as a job on the network of ``profile``, with one rank on each node.

    model: the cost model of this machine, or None. With it, the result has the errors of its predictions of the seconds of the
    measured ranks, by phase, and its prediction of the epoch. Without it, the work of each phase is divided among the stretches
    between exchanges as the specifications of ``profile`` say.
    """
    own = model_of_profile(profile) if model is None else model
    settings = config.settings() | {"threads": found["threads"], "compute": found["compute"], "ranks_per_node": 1}
    predicted = predict(own, file, settings, profile=profile)
    told, measured = computed_seconds(predicted)[found["measured"]], np.array(found["seconds_of_ranks"])
    factors = factors_of(measured, told, found["measured"], found["ranks"])
    epoch = {"epoch_seconds": predict(own, file, settings, profile=profile, factors=factors).epoch.total}
    if model is not None:
        epoch["predicted_epoch_seconds"] = predicted.epoch.total
    phases = {}
    for name, seconds, guess in zip((*COMPUTED, ALL), _with_sum(measured), _with_sum(told), strict=True):
        if not seconds.all():  # nothing is quantized in 32 bits
            continue
        phases[name] = summary(seconds, found["heaviest"], found["ranks"])
        if model is not None and guess.all():
            errors = np.abs(guess / seconds - 1)
            phases[name] |= {"median_error": float(np.median(errors)), "worst_error": float(errors.max())}
    lines = [results.line({"part": name}, **each) for name, each in phases.items()]
    lines.append(results.line({"part": "epoch"}, seconds=epoch["epoch_seconds"]))
    if model is not None:
        lines.append(results.line({"part": "epoch, predicted"}, seconds=epoch["predicted_epoch_seconds"]))
    return {"phases": phases, "network": profile.name, "lines": lines} | epoch


def computed_seconds(prediction: Prediction) -> np.ndarray:
    """(P, 3) predicted seconds of each rank in the phases of :data:`hpcgnn.lab.cost_model.equations.COMPUTED`."""
    return np.stack([prediction.epoch.seconds[phase] for phase in COMPUTED], axis=1)


def factors_of(measured: np.ndarray, told: np.ndarray, ranks: list[int], size: int) -> np.ndarray:
    """(P, 3) factors of the work of all ``size`` ranks: (ranks, 3) measured seconds over predicted ones, and for the others the
    medians of these."""
    own = np.divide(measured, told, out=np.ones_like(measured), where=told > 0)
    factors = np.tile(np.median(own, axis=0), (size, 1))
    factors[ranks] = own
    return factors


def _with_sum(seconds: np.ndarray) -> np.ndarray:
    """(4, ranks) seconds of each phase, and of all."""
    return np.concatenate((seconds.T, seconds.sum(axis=1)[np.newaxis]))
