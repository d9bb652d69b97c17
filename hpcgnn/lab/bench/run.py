"""A whole ``hpcgnn bench aggregate``: graphs, modes, and the JSON object that holds everything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.base.process import processor
from hpcgnn.base.version import __version__
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import library, resolve
from hpcgnn.lab.bench import aggregate, graphs, report
from hpcgnn.lab.bench.aggregate import PLANS, Workload
from hpcgnn.lab.bench.ceilings import last_level_cache_bytes
from hpcgnn.lab.bench.measure import Advance
from hpcgnn.lab.bench.names import ABLATION, DIRECTIONS

Progress = Callable[[str, int], AbstractContextManager[Advance]]
_LIBRARIES = ("torch", "numba", "triton", "torch-geometric", "torch_sparse", "dgl")


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement. sources: pairs of a graph's source and its width. parts: 0 for no METIS part. dtypes: types
    beside float32."""

    sources: tuple[tuple[str, int], ...]
    threads: int
    rounds: int
    modes: tuple[str, ...] = ("kernel", "user")
    parts: int = 2
    ablation: bool = False
    device: Device = CPU
    dtypes: tuple[str, ...] = ()


def run(settings: Settings, folder: Path, progress: Progress) -> dict[str, Any]:
    """Measure all graphs, which are kept in ``folder`` and found there again. Raises :class:`HpcgnnError` if one cannot be
    made."""
    store = graphs.Graphs(folder)
    with progress("making the graphs", len(settings.sources)) as advance:
        works = []
        for source, width in settings.sources:
            paths = [store.whole(source), *([store.part(source, settings.parts)] if settings.parts else [])]
            common = (
                source,
                width,
                settings.threads,
                settings.rounds,
                str(settings.device.torch_device),
                settings.dtypes,
            )
            works += [Workload(path, *common) for path in paths]
            advance(1)
    results = [_measure(work, settings, progress) for work in works]
    found: dict[str, Any] = {
        "machine": machine(settings.device),
        "versions": versions(),
        "threads": settings.threads,
        "rounds": settings.rounds,
    }
    found["graphs"] = results
    if settings.ablation:
        found["ablation"] = _ablation(works[0], store, progress)
        directions = {name: found["ablation"][name] for name in DIRECTIONS}
        results = [*results, aggregate.describe(works[0]) | {ABLATION: directions}]
    found["lines"] = [line for graph in results for line in report.lines_of(graph)]
    return found


def _measure(work: Workload, settings: Settings, progress: Progress) -> dict[str, Any]:
    result = aggregate.describe(work)
    for mode in settings.modes:
        entries = PLANS[mode](work)
        with progress(f"{result['name']}, {mode}", aggregate.steps(entries, work.rounds)) as advance:
            outcomes = aggregate.measure(work, entries, advance)
        result[mode] = {direction: outcome.as_json() for direction, outcome in outcomes.items()}
    return result


def _ablation(work: Workload, store: graphs.Graphs, progress: Progress) -> dict[str, Any]:
    orders = {order: store.whole(work.source, order) for order in graphs.ORDERS if order != "original"}
    entries = aggregate.ablation_entries(work, orders)
    with progress("ablation", aggregate.steps(entries, work.rounds)) as advance:
        outcomes = aggregate.measure(work, entries, advance)
    timings = {direction: outcome.as_json() for direction, outcome in outcomes.items()}
    return {"graph": aggregate.describe(work)["name"], **timings}


def machine(device: Device = CPU) -> dict[str, Any]:
    """The facts about the machine on which figures depend."""
    return {
        "device": device.name,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "last_level_cache_bytes": last_level_cache_bytes(),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "kernels": resolve(),
        "instruction_set": library.isa() if library.load() else "",
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "versions": {name: _version(name) for name in _LIBRARIES},
    }


def versions(**others: str) -> dict[str, str]:
    """The versions of hpcgnn and of the installed libraries, and ``others``."""
    found = {name: _version(name) for name in _LIBRARIES}
    return {"hpcgnn": __version__} | {name: value for name, value in found.items() if value is not None} | others


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
