"""Models of machines that were not measured, from their specifications alone. Their seconds are estimates."""

from __future__ import annotations

from hpcgnn.lab.cost_model.constants import FACTORS, WORK, defaults
from hpcgnn.lab.cost_model.model_file import MEMORY, Fitted, Model, Residuals
from hpcgnn.lab.cost_model.profiles import Profile

SPECIFICATIONS = "specifications"  # a model's source
BANDWIDTH_SHARE, FLOPS_SHARE = 0.6, 0.5  # of a specification's numbers, what programs get: estimates
_CACHE_SPEED = 4.0  # of a core's cache over its share of the memory: an estimate
_GPU_CALLS = 0.1  # of the seconds of calls, as launches go ahead of what they launch: an estimate
_BYTES = {"entry_missed": 4.0, "row": 8.0, "code": 1.5, "encode": 5.0, "decode": 5.0, "element_missed": 16.0, "feature": 4.0,
          "attention": 16.0, "weighted": 4.0, "parameter": 40.0}  # fmt: skip


def model_of_profile(profile: Profile) -> Model:
    """A model from specifications alone: bytes divided by bandwidth and multiplications divided by peak, at the shares above.

    Work is that of one unit, and a rank has all units of its share of the node.
    """
    bandwidth = BANDWIDTH_SHARE * profile.memory_bandwidth_bytes_per_second / profile.units_per_node
    values = defaults() | {name: moved / bandwidth for name, moved in _BYTES.items()}
    values |= {name: moved / (bandwidth * _CACHE_SPEED) for name, moved in (("entry", 4.0), ("element", 16.0))}
    single = profile.peak_flops_per_second["float32"]
    for name, precisions in (("float32", ("float32",)), ("bf16", ("bfloat16", "float16")), ("int8", ("int8",))):
        peak = next(
            (profile.peak_flops_per_second[each] for each in precisions if each in profile.peak_flops_per_second),
            single,
        )
        values[f"product_{name}"] = 2 / (FLOPS_SHARE * peak)
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
        source=SPECIFICATIONS,
    )
