"""``MODEL.toml``: fitted constants with their intervals, the machine of the runs, and the ranges of the fitted runs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from hpcgnn.base import typed, whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import Finite, NotNegative
from hpcgnn.lab.cost_model.constants import BY_NAME, defaults

FORMAT = "hpcgnn-cost-model"
VERSION = 1
MEMORY = ("fixed_bytes", "bytes_a_rank", "kept", "travelling")


class Fitted(msgspec.Struct, frozen=True):
    """A fitted constant. value: in its unit. low, high: 95 % interval. is_determined: whether the records determine it better
    than the start values of the fit."""

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
    """A cost model. constants: by name. memory: factors of :func:`hpcgnn.lab.cost_model.equations.memory_of`, by :data:`MEMORY`.
    ranges: smallest and largest value in the records, by name. kinds: values without an order (``model``, ``arithmetic``,
    ``staleness``). auto_compute: the arithmetic that ``--compute auto`` chose in the records."""

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

    def memory_factors(self) -> tuple[float, float, float, float]:
        """The factors in the order of :data:`MEMORY`."""
        fixed, per_rank, kept, travelling = (self.memory[name] for name in MEMORY)
        return fixed, per_rank, kept, travelling

    @property
    def cores(self) -> int:
        """The number of cores that the ranks shared."""
        return int(self.machine.get("usable_cores") or self.machine.get("cores") or 1)


def write(model: Model, path: Path) -> None:
    """Write the model to a file, completely or not at all.

    Raises:
        HpcgnnError: if the file cannot be written.
    """
    content = {name: value for name, value in msgspec.to_builtins(model).items() if value is not None}
    content["machine"] = {name: value for name, value in model.machine.items() if value is not None}
    try:
        with whole_file.replacing(path) as temporary:
            temporary.write_text(tomli_w.dumps(content), encoding="utf-8")
    except OSError as error:
        raise HpcgnnError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path) -> Model:
    """The model in a file of :func:`write`.

    Raises:
        HpcgnnError: if the file holds no cost model.
    """
    try:
        content = tomllib.loads(typed.text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise HpcgnnError(f"{path} is not a TOML file ({error})") from error
    if content.get("format") != FORMAT:
        raise HpcgnnError(f"{path} is not a cost model: make one with `hpcgnn model fit DIR --out {path}`")
    if content.get("version") != VERSION:
        raise HpcgnnError(
            f"{path} is a cost model of version {content.get('version')}, not {VERSION}: fit it again with `hpcgnn model fit`"
        )
    model = typed.checked(content, Model, str(path))
    missing = [name for name in MEMORY if name not in model.memory]
    if missing:
        raise HpcgnnError(f"{path}: memory.{missing[0]} is missing: fit it again with `hpcgnn model fit`")
    return model
