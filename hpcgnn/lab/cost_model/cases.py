"""The runs of a study as input of a fit: their measurements, and the workload from which the equations predict them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model.constants import Values
from hpcgnn.lab.cost_model.equations import PHASES, Epoch, epoch_of
from hpcgnn.lab.cost_model.rows import Parts, read_parts
from hpcgnn.lab.cost_model.setup import NetworkTimes, Setup, bits_per_second, setup_of
from hpcgnn.lab.cost_model.workload import Workload, largest_bytes
from hpcgnn.lab.study.axes import HPCGNN, NATIVE
from hpcgnn.lab.study.records import Record, by_machine, in_words

_FIRST_EPOCHS = 2  # that are not counted: memory is taken and links are opened in them


@dataclass(frozen=True, eq=False)
class Case:
    """A run. seconds: median of an epoch. phases: by name, the median over epochs of the mean over ranks. memory_bytes:
    largest peak of a rank; 0 if it is unknown. spread: interquartile range of the seconds of its epochs, divided by their
    median."""

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
        how = self.setup.machine, self.times.messages(values)
        return epoch_of(self.workload, values, *how, is_pipelined=self.setup.is_pipelined)


@dataclass(frozen=True, eq=False)
class Cases:
    """The cases of one machine. machine: facts about it. left_out: a sentence for each run that the equations do not cover,
    or that did not finish."""

    machine: dict[str, Any]
    cases: list[Case]
    left_out: list[str]


def make_case(
    name: str,
    setup: Setup,
    parts: Parts,
    seconds: float,
    phases: Mapping[str, float],
    *,
    memory: float = 0.0,
    spread: float = 0.0,
) -> Case:
    """The case of a setup on its parts, with its measurements."""
    workload = setup.workload(parts)
    return Case(name, setup, workload, NetworkTimes(setup, workload), seconds, dict(phases), memory, spread)


def cases_of(folder: Path, records: Iterable[Record], machine: str | None = None) -> Cases:
    """The cases of the finished runs of one machine. machine: its identifier, needed if there are several machines.

    Raises:
        HpcgnnError: if there are records of several machines and none was chosen, or no run that the equations cover.
    """
    groups = by_machine(records)
    if machine is not None and machine not in groups:
        raise HpcgnnError(
            f"{folder} has no records of machine {machine}, only of {', '.join(sorted(groups)) or 'none'}"
        )
    if machine is None and len(groups) > 1:
        known = "; ".join(in_words(found[0].machine) for found in groups.values())
        raise HpcgnnError(f"{folder} has records of {len(groups)} machines ({known}): choose one with --machine ID")
    chosen = groups[machine] if machine is not None else next(iter(groups.values()), [])
    reader, cases, left_out = _PartsReader(folder), [], []
    for record in chosen:
        try:
            cases.append(_case(record, reader))
        except HpcgnnError as problem:
            left_out.append(f"{record.key}: {problem}")
    if not cases:
        reasons = f" ({left_out[0]})" if left_out else ""
        raise HpcgnnError(f"{folder} has no finished run to which a cost model could be fitted{reasons}")
    return Cases(dict(chosen[0].machine), cases, left_out)


class _PartsReader:
    """Parts files, each of which is read once for each strategy and placement."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read = folder, dict[tuple[str, str, int], Parts]()

    def parts(self, name: str, setup: Setup) -> Parts:
        placement = setup.placement
        key = name, setup.strategy, 0 if placement is None else setup.ranks_per_node
        if key not in self._read:
            path = self._folder / name
            with PartsFile(path) as file:
                is_planned = plan_store.is_stored(file, setup.strategy)
            if not is_planned:  # as of attention, which reads a plan of its own whatever the run was told
                plan_store.store_plans(path, [setup.strategy])
            with PartsFile(path) as file:
                self._read[key] = read_parts(file, setup.strategy, placement)
        return self._read[key]


def _case(record: Record, reader: _PartsReader) -> Case:
    if not record.is_finished:
        raise HpcgnnError(f"it did not finish ({record.error or record.status})")
    if record.configuration.get("framework", HPCGNN) != HPCGNN:
        raise HpcgnnError("it was trained by PyG")
    if record.configuration.get("isa", NATIVE) != NATIVE:
        raise HpcgnnError(f"it was restricted to the instruction set {record.configuration['isa']}")
    if set(record.summary.get("devices", {"CPU": 1})) != {"CPU"}:
        raise HpcgnnError("it ran on GPUs, which the cost model does not cover")
    cores = int(record.machine.get("usable_cores") or record.machine.get("cores") or 1)
    setup = setup_of(record.configuration, cores=cores, compute=str(record.summary.get("compute", "")))
    seconds = _median(record, "seconds")
    if seconds <= 0:
        raise HpcgnnError("its record has no seconds of epochs")
    phases = {phase: _median(record, f"{phase}_seconds_mean") for phase in PHASES}
    memory = float(record.summary.get("peak_memory_bytes_per_rank", 0))
    low, high = np.percentile(_counted(record, "seconds"), (25, 75))
    parts, spread = reader.parts(record.parts, setup), float(high - low) / seconds
    return make_case(record.key, setup, parts, seconds, phases, memory=memory, spread=spread)


def _counted(record: Record, name: str) -> list[float]:
    values = record.epochs.get(name, [])
    return values[_FIRST_EPOCHS:] or values


def _median(record: Record, name: str) -> float:
    counted = _counted(record, name)
    return float(np.median(counted)) if counted else 0.0


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
    """The sizes of a run by the names of :data:`TERMS`, which tell whether a prediction is an extrapolation. Sizes that do
    not apply are left out."""
    parts, exchanges = workload.parts, workload.exchanges
    found = {
        "ranks": setup.ranks,
        "ranks_a_core": setup.machine.crowd,
        "ranks_per_node": setup.ranks_per_node,
        "hidden": setup.model.hidden,
        "nodes_a_rank": int(parts.nodes.max()),
        "entries_a_rank": int((parts.local + parts.send + parts.receive).max()),
    }
    layers = setup.model.flat().get("layers")
    found |= {} if layers is None else {"layers": layers}
    if setup.ranks > 1:
        found["bits"] = setup.run.messages.bits
        found["bytes_of_a_rank"] = largest_bytes(exchanges)
        found["messages_of_a_rank"] = max((int(each.messages_of_ranks.max()) for each in exchanges), default=0)
    if setup.network is None and np.isfinite(speed := bits_per_second(setup.rate)):
        found["megabits_per_second"] = speed / 1e6
    return {name: float(value) for name, value in found.items()}


def kinds_of(setup: Setup) -> dict[str, str]:
    """The properties of a run that have no order, by the names of :data:`KIND_TERMS`."""
    policy = setup.run.policy
    return {"model": setup.model.model, "arithmetic": setup.arithmetic, "staleness": policy.staleness}
