"""Profiles of machines, each with a node and a network: those of ``profiles.toml``, or of a user's file; and models of machines
that were not measured, from a profile alone, whose seconds are estimates."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model.constants import MEMORY, Fitted, Model, Residuals, defaults, read_toml
from hpcgnn.lab.cost_model.network import Network, Positive

OWN = Path(__file__).with_name("profiles.toml")
ESTIMATE = "estimate"
SPECIFICATIONS = "specifications"  # a model's source
BANDWIDTH_SHARE, FLOPS_SHARE = 0.6, 0.5  # of a specification's numbers, what programs get: estimates
_CACHE_SPEED = 4.0  # of a core's cache over its share of the memory: an estimate
_GPU_CALLS = 0.1  # of the seconds of calls, as launches go ahead of what they launch: an estimate
_BYTES = {"entry_missed": 4.0, "row": 8.0, "code": 1.5, "encode": 5.0, "decode": 5.0, "element_missed": 16.0, "feature": 4.0,
          "attention": 16.0, "weighted": 4.0, "parameter": 40.0}  # fmt: skip
_CACHED_BYTES = {"entry": 4.0, "element": 16.0}
_Several = Annotated[int, Meta(ge=1, le=typed.MOST_INT)]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A node and its network. memory_bytes, memory_bandwidth_bytes_per_second: of a node. peak_flops_per_second: of a unit, by
    precision. ranks_per_node: the usual number. sources: documents. numbers: the origin of each number, by name;
    ``estimate: ...`` if no document has it."""

    units: Literal["cores", "gpus"]
    units_per_node: _Several
    ranks_per_node: _Several
    memory_bytes: _Several
    memory_bandwidth_bytes_per_second: Positive
    peak_flops_per_second: dict[str, Positive]
    network: Network
    description: str = ""
    sources: tuple[str, ...] = ()
    name: str
    numbers: dict[str, str]

    @property
    def estimates(self) -> list[str]:
        """Names of the numbers that no specification has."""
        return [name for name, source in self.numbers.items() if source.startswith(ESTIMATE)]


def find(name: str) -> Profile:
    """The profile of the package called ``name``, or the profile in the file of this name, which ends in ``.toml``. Raises
    HpcgnnError if there is none, the file holds several, or a value is not allowed."""
    if not name.endswith(".toml"):
        known = profiles()
        if name not in known:
            raise HpcgnnError(f"there is no profile {name}: choose one of {', '.join(known)}, or give a file NAME.toml")
        return known[name]
    found = list(profiles(Path(name)).values())
    if len(found) != 1:
        raise HpcgnnError(f"{name} must hold one profile, which is a table with a name, but it holds {len(found)}")
    return found[0]


def profiles(path: Path = OWN) -> dict[str, Profile]:
    """The profiles in a TOML file, by name. Raises HpcgnnError for a value that is not allowed."""
    return {name: _profile(name, table, f"{path}, profile {name}") for name, table in read_toml(path).items()}


def _profile(name: str, table: Any, where: str) -> Profile:
    numbers: dict[str, str] = {}
    table = _plain(table, where, "", numbers)
    if isinstance(table, dict):
        _check_names(table, Profile, where)
        if isinstance(network := table.get("network"), dict):
            _check_names(network, Network, f"{where}, network")
            network["name"] = name
        table |= {"name": name, "numbers": numbers}
    found = typed.validated(table, Profile, where)
    if found.network.nodes_per_switch and not found.network.uplinks_per_switch:
        raise HpcgnnError(f"{where}: network.uplinks_per_switch must be at least 1 if nodes_per_switch is given")
    return found


def _plain(table: Any, where: str, prefix: str, numbers: dict[str, str]) -> Any:
    """A new ``table`` without the sources of numbers, such as ``{ value = 48, source = "..." }``, which are noted in ``numbers``
    under their names; numbers alone are estimates."""
    if not isinstance(table, dict):
        return table
    found = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and "value" in value:
            if value.keys() != {"value", "source"} or not isinstance(value["source"], str) or not value["source"]:
                raise HpcgnnError(f'{where}: {path} must be a number, or {{ value = ..., source = "..." }}')
            found[name], numbers[path] = value["value"], value["source"]
        else:
            found[name] = _plain(value, where, f"{path}.", numbers)
            if isinstance(value, int | float):
                numbers[path] = f"{ESTIMATE}: the file does not say where it is from"
    return found


def _check_names(table: dict[str, Any], kind: type, where: str) -> None:
    """Raise HpcgnnError for a key that a file must not have."""
    known = [each.name for each in fields(kind) if each.name not in ("name", "numbers")]
    if unknown := [name for name in table if name not in known]:
        raise HpcgnnError(f"{where}: there is no key {unknown[0]}: the keys are {', '.join(known)}")


def model_of_profile(profile: Profile) -> Model:
    """A model from specifications alone: bytes divided by bandwidth and multiplications divided by peak, at the shares above.
    Work is that of one unit, and a rank has all units of its share of the node."""
    bandwidth = BANDWIDTH_SHARE * profile.memory_bandwidth_bytes_per_second / profile.units_per_node
    values = defaults() | {name: moved / bandwidth for name, moved in _BYTES.items()}
    values |= {name: moved / (bandwidth * _CACHE_SPEED) for name, moved in _CACHED_BYTES.items()}
    peaks = profile.peak_flops_per_second
    for name, precisions in (("float32", ()), ("bf16", ("bfloat16", "float16")), ("int8", ("int8",))):
        known = [each for each in (*precisions, "float32") if each in peaks]
        values[f"product_{name}"] = 2 / (FLOPS_SHARE * peaks[known[0]])
    for name in ("aggregation", "quantization", "layer", "epoch"):
        values[name] *= _GPU_CALLS if profile.units == "gpus" else 1.0
    values["contention"] = 1.0  # a core's share of the memory is what it has while all are busy
    return Model(
        machine={"processor": profile.description, "usable_cores": profile.units_per_node, "id": profile.name},
        constants={name: Fitted(value, value, value, is_determined=False) for name, value in values.items()},
        memory=dict(zip(MEMORY, (3e8, 1e4, 1.0, 1.0), strict=True)),
        ranges={},
        kinds={},
        residuals=Residuals(0, 0.0, 0.0),
        source=SPECIFICATIONS,
    )
