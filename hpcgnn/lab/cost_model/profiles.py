"""Profiles of machines, each with a node and a network: those of ``profiles.toml``, or of a user's file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import Count, NotNegative
from hpcgnn.lab.cost_model.network import Network

OWN = Path(__file__).with_name("profiles.toml")
ESTIMATE = "estimate"
_UNTOLD = f"{ESTIMATE}: the file does not say where it is from"
_Positive = Annotated[float, Meta(gt=0, le=typed.MOST_FLOAT)]
_Several = Annotated[int, Meta(ge=1, le=typed.MOST_INT)]


@dataclass(frozen=True)
class Profile:
    """A node and its network.

    units_per_node: number of computing units of a node. memory_bytes, memory_bandwidth_bytes_per_second: of a node.
    peak_flops_per_second: of a unit, by precision. ranks_per_node: the usual number. sources: documents. numbers: by name,
    the origin of each number in words; ``estimate: ...`` if no document has it.
    """

    name: str
    description: str
    units: str
    units_per_node: int
    ranks_per_node: int
    memory_bytes: int
    memory_bandwidth_bytes_per_second: float
    peak_flops_per_second: dict[str, float]
    network: Network
    sources: tuple[str, ...]
    numbers: dict[str, str]

    @property
    def estimates(self) -> list[str]:
        """Names of the numbers that no specification has."""
        return [name for name, source in self.numbers.items() if source.startswith(ESTIMATE)]


class _NetworkInFile(msgspec.Struct):
    latency_seconds: NotNegative
    node_bandwidth_bytes_per_second: _Positive
    memory_latency_seconds: NotNegative
    memory_bandwidth_bytes_per_second: _Positive
    message_seconds: NotNegative = 0.0
    peer_seconds: NotNegative = 0.0
    switch_latency_seconds: NotNegative = 0.0
    nodes_per_switch: Count = 0
    uplinks_per_switch: Count = 0
    is_adaptive: bool = True
    burst_bytes: NotNegative = 0.0


class _ProfileInFile(msgspec.Struct):
    units: Literal["cores", "gpus"]
    units_per_node: _Several
    ranks_per_node: _Several
    memory_bytes: _Several
    memory_bandwidth_bytes_per_second: _Positive
    peak_flops_per_second: dict[str, _Positive]
    network: _NetworkInFile
    description: str = ""
    sources: list[str] = []


def profiles() -> dict[str, Profile]:
    """The profiles that ship with this package, by name."""
    return read(OWN)


def find(name: str) -> Profile:
    """The profile called ``name``, or the profile in the file of this name, which ends in ``.toml``.

    Raises:
        HpcgnnError: if there is none, the file holds several, or a value is not allowed.
    """
    if not name.endswith(".toml"):
        known = profiles()
        if name not in known:
            raise HpcgnnError(f"there is no profile {name}: choose one of {', '.join(known)}, or give a file NAME.toml")
        return known[name]
    found = list(read(Path(name)).values())
    if len(found) != 1:
        raise HpcgnnError(f"{name} must hold one profile, which is a table with a name, but it holds {len(found)}")
    return found[0]


def read(path: Path) -> dict[str, Profile]:
    """The profiles in a TOML file, by name.

    Raises:
        HpcgnnError: for a value that is not allowed; it names the file and the profile.
    """
    try:
        tables = tomllib.loads(typed.text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise HpcgnnError(f"{path} is not a TOML file ({error})") from error
    return {name: _profile(name, table, f"{path}, profile {name}") for name, table in tables.items()}


def _profile(name: str, table: Any, where: str) -> Profile:
    numbers: dict[str, str] = {}
    table = _plain(table, where, "", numbers)
    _check_names(table, _ProfileInFile, where)
    if isinstance(table, dict):
        _check_names(table.get("network"), _NetworkInFile, f"{where}, network")
    checked = typed.checked(table, _ProfileInFile, where)
    values, network = msgspec.structs.asdict(checked), msgspec.structs.asdict(checked.network)
    if checked.network.nodes_per_switch and not checked.network.uplinks_per_switch:
        raise HpcgnnError(f"{where}: network.uplinks_per_switch must be at least 1 if nodes_per_switch is given")
    network_of = Network(name, **network)
    return Profile(
        **values | {"name": name, "network": network_of, "sources": tuple(checked.sources), "numbers": numbers}
    )


def _plain(table: Any, where: str, prefix: str, numbers: dict[str, str]) -> Any:
    """``table`` with the values of numbers that come with a source, ``{ value = 48, source = "..." }``, whose sources are noted
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
        elif isinstance(value, dict):
            found[name] = _plain(value, where, f"{path}.", numbers)
        else:
            found[name] = value
            if isinstance(value, int | float):
                numbers[path] = _UNTOLD
    return found


def _check_names(table: Any, kind: type[msgspec.Struct], where: str) -> None:
    """Raise HpcgnnError for an unknown key."""
    known = kind.__struct_fields__
    unknown = [name for name in table if name not in known] if isinstance(table, dict) else []
    if unknown:
        raise HpcgnnError(f"{where}: there is no key {unknown[0]}: the keys are {', '.join(known)}")
