"""The constants of :mod:`hpcgnn.lab.cost_model.equations`, under whose names :mod:`hpcgnn.lab.cost_model.workload` counts work,
and ``MODEL.toml``, the file with their fitted values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from hpcgnn.base import typed, whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import Finite, NotNegative

AGGREGATION, QUANTIZATION, OTHER, MESSAGES = "aggregation", "quantization", "other", "messages"
Values = Mapping[str, float]


@dataclass(frozen=True)
class Constant:
    """A constant. start, low, high: start and bounds of a fit. phase: the phase to whose seconds it belongs. is_memory_bound:
    whether its work takes longer while other cores use the memory."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    what: str
    phase: str = ""
    is_memory_bound: bool = False


def _work(name: str, start: float, phase: str, what: str, *, bound: bool = False) -> Constant:
    return Constant(name, "s", start, start / 10.0, start * 10.0, what, phase, bound)


# Work of one core, in core-seconds per unit of what is counted: one column of a workload each, in this order.
WORK = (
    _work("entry", 6.5e-11, AGGREGATION, "adding one value of a row for one entry of L, S or R", bound=True),
    _work("entry_missed", 1.2e-10, AGGREGATION, "the same if the row is not in a core's cache", bound=True),
    _work("row", 3e-10, AGGREGATION, "writing one value of an aggregated row", bound=True),
    _work("code", 1e-10, AGGREGATION, "adding one value of a row directly from its codes", bound=True),
    _work("aggregation", 8e-5, AGGREGATION, "the calls of one aggregation in one direction"),
    _work("encode", 4e-10, QUANTIZATION, "encoding one value that is sent", bound=True),
    _work("decode", 2e-10, QUANTIZATION, "decoding one received value", bound=True),
    _work("quantization", 8e-5, QUANTIZATION, "the calls for one quantized exchange in one direction"),
    _work("product_float32", 1.4e-11, OTHER, "one multiplication and addition of a dense product in float32"),
    _work("product_bf16", 7e-12, OTHER, "the same in bf16"),
    _work("product_int8", 7e-12, OTHER, "the same in 8-bit integers"),
    _work("element", 4e-10, OTHER, "one value of an elementwise operation", bound=True),
    _work("element_missed", 6e-10, OTHER, "the same if the matrix is not in a core's cache", bound=True),
    _work("feature", 1e-10, OTHER, "one stored sparse feature times one column of a weight", bound=True),
    _work("attention", 3e-9, OTHER, "one edge's score for one head", bound=True),
    _work("weighted", 3e-10, OTHER, "adding one value of a neighbour's row times its attention", bound=True),
    _work("parameter", 4e-09, OTHER, "one parameter in the gradient bucket and the optimiser", bound=True),
    _work("layer", 3e-4, OTHER, "the calls of one layer in one direction"),
    _work("epoch", 2e-3, OTHER, "the calls of one epoch outside its layers"),
    _work("byte", 4e-10, MESSAGES, "one byte sent to or received from another node: copies and the network's protocol"),
    _work("shared_byte", 2e-10, MESSAGES, "one byte sent to or received from a rank of the same node"),
    _work("message", 2e-5, MESSAGES, "one message to or from another rank, with the calls that wait for it"),
)
COLUMN = {constant.name: column for column, constant in enumerate(WORK)}

# Of the machine and its virtual links; none multiplies work.
FACTORS = (
    Constant("contention", "", 1.2, 1.0, 3.0, "factor of memory-bound work while all cores compute"),
    Constant("crowding", "", 0.5, 0.05, 2.0,
             "share of other ranks' time on the same core that delays a rank for which others wait"),
    Constant("rate_share", "", 0.95, 0.7, 1.0, "share of a link's rate that messages reach"),
    Constant("link_imbalance", "", 0.08, 0.005, 1.0,
             "relative delay of exchanges among many nodes, whose messages share links unevenly"),
    Constant("latency", "s", 5e-5, 5e-6, 5e-3, "latency of a message between nodes"),
    Constant("turn", "s", 3e-3, 3e-4, 3e-2, "longest time that a rank keeps a core for which other ranks wait"),
    Constant("burst_bytes", "B", 512 * 1024, 1e3, 4e6, "bytes that pass a virtual link at once after a pause"),
)  # fmt: skip
ALL = WORK + FACTORS
BY_NAME = {constant.name: constant for constant in ALL}


def defaults() -> dict[str, float]:
    """The start values of a fit, by name."""
    return {constant.name: constant.start for constant in ALL}


FORMAT, VERSION = "hpcgnn-cost-model", 1
MEMORY = ("fixed_bytes", "bytes_a_rank", "kept", "travelling")


class Fitted(msgspec.Struct, frozen=True):
    """A fitted constant, with its 95 % interval. is_determined: whether the records determine it better than the start values."""

    value: NotNegative
    low: NotNegative
    high: NotNegative
    unit: str = ""
    is_determined: bool = True


class Residuals(msgspec.Struct, frozen=True):
    """The relative errors of the equations for the epochs of the records."""

    runs: int
    median: Finite
    worst: Finite
    median_by_phase: dict[str, Finite] = {}


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A cost model. memory: factors of :func:`hpcgnn.lab.cost_model.equations.memory_of`. ranges: smallest and largest value in
    the records, by name. kinds: values without an order. auto_compute: the arithmetic that ``auto`` chose in the records."""

    format: str = FORMAT
    version: int = VERSION
    machine: dict[str, Any]
    constants: dict[str, Fitted]
    memory: dict[str, NotNegative]
    ranges: dict[str, tuple[Finite, Finite]]
    kinds: dict[str, list[str]]
    auto_compute: str = "float32"
    residuals: Residuals
    source: str = ""

    def values(self) -> dict[str, float]:
        """Values by name, for the equations. Constants that an older fit does not have get their start values."""
        return defaults() | {name: fitted.value for name, fitted in self.constants.items() if name in BY_NAME}


def cores_of(machine: Mapping[str, Any]) -> int:
    """The number of cores that the ranks on a machine share, from the facts of a record."""
    return int(machine.get("usable_cores") or machine.get("cores") or 1)


def write_model(model: Model, path: Path) -> None:
    """Write the model to a file, completely or not at all. Raises :class:`HpcgnnError` if the file cannot be written."""
    machine = {name: value for name, value in model.machine.items() if value is not None}
    with whole_file.replacing(path) as temporary:
        temporary.write_text(tomli_w.dumps(msgspec.to_builtins(model) | {"machine": machine}), encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises :class:`HpcgnnError` if it is none."""
    try:
        return tomllib.loads(typed.text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise HpcgnnError(f"{path} is not a TOML file ({error})") from error


def read_model(path: Path) -> Model:
    """The model in a file of :func:`write_model`. Raises :class:`HpcgnnError` if the file holds no cost model."""
    content = read_toml(path)
    if content.get("format") != FORMAT:
        raise HpcgnnError(f"{path} is not a cost model: make one with `hpcgnn model fit DIR --out {path}`")
    if content.get("version") != VERSION:
        raise HpcgnnError(
            f"{path} is a cost model of version {content.get('version')}, not {VERSION}: fit it again with `hpcgnn model fit`"
        )
    model = typed.validated(content, Model, str(path))
    if missing := [name for name in MEMORY if name not in model.memory]:
        raise HpcgnnError(f"{path}: memory.{missing[0]} is missing: fit it again with `hpcgnn model fit`")
    return model
