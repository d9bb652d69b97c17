"""A job whose ranks were measured one after another (:mod:`hpcgnn.lab.bench.ranks`): its epoch on a network, and the errors of
the cost model's predictions of each rank."""

from __future__ import annotations

from typing import Any, Protocol

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


class Predictor(Protocol):
    """Predicts a job, with products in ``compute``. factors: as of :func:`hpcgnn.lab.cost_model.predict.predict`."""

    def __call__(self, *, compute: str, factors: np.ndarray | None = None) -> Prediction:
        """The prediction. Raises HpcgnnError for settings that the equations do not cover."""
        ...


def predictor(model: Model | None, profile: Profile, file: PartsFile, config: RunConfig, threads: int) -> Predictor:
    """The predictor of a job on the network of ``profile``, with one rank on each node. model: the cost model of this machine;
    None: the specifications of ``profile``, which divide measured work among the stretches between exchanges."""
    own, read = model_of_profile(profile) if model is None else model, dict[Any, Any]()
    settings = {name: value for name, value in config.settings().items() if name != "compute"}
    settings |= {"threads": threads, "ranks_per_node": 1}

    def predicted(*, compute: str, factors: np.ndarray | None = None) -> Prediction:
        return predict(own, file, settings | {"compute": compute}, profile=profile, read=read, factors=factors)

    return predicted


def job_of(found: dict[str, Any], predicted: Predictor, *, is_fitted: bool) -> dict[str, Any]:
    """The result of :func:`hpcgnn.lab.bench.ranks.run` as a job.

    is_fitted: whether the predictor has constants of this machine. With them, the result has the errors of its predictions of
    the seconds of the measured ranks, and its prediction of the epoch. The median error is that of all ranks, for which the
    drawn ranks stand; the worst one is that of the measured ranks.
    """
    alone = predicted(compute=found["compute"])
    heaviest, ranks, order = found["heaviest"], found["ranks"], found["measured"]
    told, measured = computed_seconds(alone)[order], np.array(found["seconds_of_ranks"])
    factors = factors_of(measured, told, order, heaviest, ranks)
    epoch = {"epoch_seconds": predicted(compute=found["compute"], factors=factors).epoch.total}
    if is_fitted:
        epoch["predicted_epoch_seconds"] = alone.epoch.total
    phases = {}
    for name, seconds, guess in zip((*COMPUTED, ALL), _with_sum(measured), _with_sum(told), strict=True):
        if seconds.any():  # nothing is quantized in 32 bits
            phases[name] = summary(seconds, heaviest, ranks)
            phases[name] |= _errors(seconds, guess, heaviest, ranks) if is_fitted else {}
    lines = [results.line({"part": name}, **each) for name, each in phases.items()]
    lines += [
        results.line({"part": part}, seconds=epoch[name])
        for part, name in (("epoch", "epoch_seconds"), ("epoch, predicted", "predicted_epoch_seconds"))
        if name in epoch
    ]
    return {"phases": phases, "warnings": alone.warnings, "lines": lines} | epoch


def computed_seconds(prediction: Prediction) -> np.ndarray:
    """(P, 3) predicted seconds of each rank in the phases of :data:`hpcgnn.lab.cost_model.equations.COMPUTED`."""
    return np.stack([prediction.epoch.seconds[phase] for phase in COMPUTED], axis=1)


def factors_of(measured: np.ndarray, told: np.ndarray, order: list[int], heaviest: int, ranks: int) -> np.ndarray:
    """(P, 3) factors of the work of all ranks: (measured ranks, 3) measured seconds over predicted ones. Ranks that were not
    measured have the medians of those that were drawn, which are behind the first ``heaviest`` of ``order``."""
    own = np.divide(measured, told, out=np.ones_like(measured), where=told > 0)
    factors = np.tile(np.median(own[heaviest:], axis=0), (ranks, 1))
    factors[order] = own
    return factors


def _errors(seconds: np.ndarray, told: np.ndarray, heaviest: int, ranks: int) -> dict[str, float]:
    kept = seconds > 0
    errors, weights = np.abs(told[kept] / seconds[kept] - 1), np.ones(len(seconds))
    weights[heaviest:] = (ranks - heaviest) / (len(seconds) - heaviest)
    order = np.argsort(errors)
    shares = np.cumsum(weights[kept][order])
    return {
        "median_error": float(errors[order][np.searchsorted(shares, shares[-1] / 2)]),
        "worst_error": float(errors.max()),
    }


def _with_sum(seconds: np.ndarray) -> np.ndarray:
    """(4, ranks) seconds of each phase, and of all."""
    return np.concatenate((seconds.T, seconds.sum(axis=1)[np.newaxis]))
