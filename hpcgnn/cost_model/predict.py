"""Predictions: seconds, bytes and memory of a run that was not made, with a warning for each term that is extrapolated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.cost_model.cases import KIND_TERMS, TERMS, extent_of, kinds_of
from hpcgnn.cost_model.constants import COLUMN, FACTORS, WORK, defaults
from hpcgnn.cost_model.equations import PHASES, Epoch, epoch_of, memory_of
from hpcgnn.cost_model.model_file import MEMORY, Fitted, Model, Residuals
from hpcgnn.cost_model.profiles import Profile
from hpcgnn.cost_model.rows import Parts, read_parts
from hpcgnn.cost_model.setup import NetworkTimes, Setup, setup_of
from hpcgnn.cost_model.workload import Workload
from hpcgnn.data.parts_file import PartsFile

_SLACK = 1.02  # within so much of a range's end nothing is extrapolated
_NETWORKS_OWN = ("byte", "shared_byte", "message", "turn")  # what a real network has in place of these constants


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of one run. memory_bytes: (P,) of each rank. warnings: sentences."""

    setup: Setup
    workload: Workload
    epoch: Epoch
    memory_bytes: np.ndarray
    warnings: list[str]

    def as_dict(self, *, by_rank: bool = True) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them. by_rank: with a list of bytes, rows and memory of each rank."""
        epoch, sent = self.epoch, self.workload.bytes_sent()
        largest, mean = epoch.largest(), epoch.mean()
        memory = np.rint(self.memory_bytes).astype(np.int64)
        found: dict[str, Any] = {
            "parts": self.workload.parts.name,
            "strategy": self.setup.strategy,
            "bits": self.setup.run.messages.bits,
            "ranks": self.setup.ranks,
            "epoch_seconds": epoch.total,
            "phases_seconds": {phase: largest[phase] for phase in PHASES},
            "phases_seconds_mean": {phase: mean[phase] for phase in PHASES},
            "bytes_sent": int(sent.sum()),
            "rows_sent": int(self.workload.rows_sent().sum()),
            "largest_bytes_sent_of_a_rank": int(sent.max()),
            "largest_memory_bytes_of_a_rank": int(memory.max()),
            "warnings": self.warnings,
        }
        if by_rank:
            found["bytes_sent_of_ranks"] = sent.tolist()
            found["rows_sent_of_ranks"] = self.workload.rows_sent().tolist()
            found["memory_bytes_of_ranks"] = memory.tolist()
        return found


def predict(
    model: Model,
    file: PartsFile,
    configuration: Mapping[str, Any],
    *,
    profile: Profile | None = None,
    parts: Parts | None = None,
) -> Prediction:
    """Of a run with these settings on an open parts file. profile: whose network is between nodes; None: the virtual hosts or the
    one machine of ``model``. parts: what was read of the file before, for the same strategy and placement.

    Raises:
        HpcgnnError: for settings that cannot be, or that the equations do not know.
    """
    configuration = {"ranks": file.num_parts, **configuration}
    network = None if profile is None else profile.network
    if profile is not None and not configuration.get("ranks_per_node"):
        configuration["ranks_per_node"] = profile.ranks_per_node
    compute = str(configuration.get("compute") or "auto")
    setup = setup_of(
        configuration, cores=model.cores, compute=model.auto_compute if compute == "auto" else compute, network=network
    )
    if parts is None:
        parts = read_parts(file, setup.strategy, setup.placement)
    workload, values = setup.workload(parts), model.values()
    if profile is not None:
        values |= dict.fromkeys(_NETWORKS_OWN, 0.0)
    messages = NetworkTimes(setup, workload).messages(values)
    epoch = epoch_of(workload, values, setup.machine, messages, is_pipelined=setup.is_pipelined)
    memory = memory_of(workload, model.memory_factors())
    return Prediction(setup, workload, epoch, memory, warnings_of(model, setup, workload))


def warnings_of(model: Model, setup: Setup, workload: Workload) -> list[str]:
    """A sentence for each term that is extrapolated, or of which the model knows nothing."""
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
    """Kinds of work that take part here and that the records did not tell of."""
    if not model.constants:
        return []
    total = workload.optimiser.sum(axis=0) + sum(each.sum(axis=0) for each in (*workload.before, *workload.beside))
    unknown = [each.name for each in WORK if total[COLUMN[each.name]] > 0 and each.name not in model.constants]
    return [f"no run of the fit had work of {name}: the term is where fits begin" for name in unknown]


def _said(name: str) -> str:
    return name.replace("_", " ")


def _terms(names: tuple[str, ...]) -> str:
    return f"the term{'s' if len(names) > 1 else ''} {' and '.join(names)} {'are' if len(names) > 1 else 'is'}"


# -- machines that nobody has measured ------------------------------------------------------------------------------------

_BANDWIDTH_SHARE, _FLOPS_SHARE = 0.6, 0.5  # of a specification's numbers, what programs get: estimates
_CACHE_SPEED = 4.0  # of a core's cache over its share of the memory: an estimate
_GPU_CALLS = 0.1  # of the seconds of calls, as launches go ahead of what they launch: an estimate
_BYTES = {"entry_missed": 4.0, "row": 8.0, "code": 1.5, "encode": 5.0, "decode": 5.0, "element": 16.0, "feature": 4.0,
          "attention": 16.0, "parameter": 40.0}  # fmt: skip


def model_of_profile(profile: Profile) -> Model:
    """A model from specifications alone: bytes over bandwidth and multiplications over peak, at the shares above.

    Work is that of one unit, and a rank has all units of its share of the node.
    """
    bandwidth = _BANDWIDTH_SHARE * profile.memory_bandwidth_bytes_per_second / profile.units_per_node
    values = defaults() | {name: moved / bandwidth for name, moved in _BYTES.items()}
    values["entry"] = 4.0 / (bandwidth * _CACHE_SPEED)
    single = profile.peak_flops_per_second["float32"]
    for name, precisions in (("float32", ("float32",)), ("bf16", ("bfloat16", "float16")), ("int8", ("int8",))):
        peak = next(
            (profile.peak_flops_per_second[each] for each in precisions if each in profile.peak_flops_per_second),
            single,
        )
        values[f"product_{name}"] = 2 / (_FLOPS_SHARE * peak)
    calls = _GPU_CALLS if profile.units == "gpus" else 1.0
    values |= {name: values[name] * calls for name in ("aggregation", "quantization", "layer", "epoch")}
    values["contention"] = 1.0  # a core's share of the memory is what it has while all are busy
    constants = {name: Fitted(value, value, value, is_determined=False) for name, value in values.items()}
    return Model(
        machine={"processor": profile.description, "usable_cores": profile.units_per_node, "id": profile.name},
        constants={name: constants[name] for name in (each.name for each in (*WORK, *FACTORS))},
        memory=dict(zip(MEMORY, (3e8, 1e4, 1.0, 1.0), strict=True)),
        ranges={},
        kinds={},
        residuals=Residuals(0, 0.0, 0.0),
        source="specifications",
    )
