"""The results of a bench: facts about the machine, and *lines*, all its measurements, which a study can tabulate and compare with
targets. A line is ``{"axes": {name: text}, "figures": {name: number}}``. Axes are ``subject`` (a graph or a shape), ``mode``,
``direction``, ``contender``, ``step`` and ``part``; ``memory`` tells whether caches hold the gathered rows, and ``integers``
which instructions multiply 8-bit integers. Measurements that were not possible have no line."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcgnn.base.process import processor
from hpcgnn.base.version import __version__
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import library, resolve
from hpcgnn.lab.bench.ceilings import last_level_cache_bytes
from hpcgnn.lab.bench.problem import Contender

Line = dict[str, dict[str, Any]]
_LIBRARIES = ("torch", "numba", "triton", "torch-geometric", "torch_sparse", "dgl", "mkl")
# Names of figures in lines that have another name in a timing, and the others.
_RENAMED = {"of_copy": "share_of_copy", "of_ceiling": "share_of_peak"}
_FIGURES = (
    "seconds",
    "spread",
    "bytes",
    "gigabytes_per_second",
    *_RENAMED,
    "relative_error",
    "thread_scaling",
    "python_calls",
)


def about(device: Device, /, threads: int, rounds: int, **others: Any) -> dict[str, Any]:
    """The head of a bench's result."""
    return {"machine": machine(device), "versions": versions(), "threads": threads, "rounds": rounds} | others


def machine(device: Device = CPU) -> dict[str, Any]:
    """The facts about the machine on which figures depend."""
    huge_pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "device": device.name,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "last_level_cache_bytes": last_level_cache_bytes(),
        "huge_pages": huge_pages.read_text().strip() if huge_pages.exists() else "",
        "kernels": resolve(),
        "instruction_set": library.isa() if library.load() else "",
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "versions": _versions(),
    }


def versions(**others: str) -> dict[str, str]:
    """The versions of hpcgnn and of the installed libraries, and ``others``."""
    found = {name: value for name, value in _versions().items() if value is not None}
    return {"hpcgnn": __version__} | found | others


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(_LIBRARIES)
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def line(axes: Mapping[str, str], **figures: float | None) -> Line:
    """A line, without the figures that are None."""
    return {"axes": dict(axes), "figures": {name: value for name, value in figures.items() if value is not None}}


def lines(timings: Mapping[str, Mapping[str, Any]], name: str, axes: Mapping[str, str]) -> list[Line]:
    """A line for each timing that is not missing; ``name`` is the axis whose values are the timings' keys."""
    return [
        line({**axes, name: key}, **{_RENAMED.get(figure, figure): timing.get(figure) for figure in _FIGURES})
        for key, timing in timings.items()
        if "seconds" in timing
    ]


def subject(graph: Mapping[str, Any], beside: str = "") -> dict[str, str]:
    """The axes of a measured graph."""
    memory = "beyond caches" if graph["beyond_caches"] else "caches"
    return {"subject": f"{graph['name']}, width {graph['width']}{beside}", "memory": memory}


def integers(has_dot_products: bool) -> dict[str, str]:
    """The axis of instructions for 8-bit integers."""
    return {"integers": "dot products" if has_dot_products else "multiply-adds"}


def ratio(timings: Mapping[str, Any], slow: str, fast: str) -> float | None:
    """The seconds of ``slow`` over those of ``fast``; None if one is missing."""
    values = [timings.get(name, {}).get("seconds") for name in (slow, fast)]
    return None if None in values else values[0] / values[1]


def with_speeds(
    timings: dict[str, Any], contenders: Mapping[str, Contender], multiply_adds: float
) -> dict[str, dict[str, Any]]:
    """Each timing by name, with ``giga_ops`` (10^9 operations a second; a multiply-add counts as two), ``times_ours`` (speed
    relative to ours in float32) and ``of_ceiling``; None if it is unknown. multiply_adds: number of multiply-adds of each
    contender, except for those that count their own."""
    found = {}
    for name, timing in timings.items():
        found[name] = timing
        if "seconds" in timing:
            contender, seconds = contenders[name], timing["seconds"]
            computes, least = contender.tolerance is not None, ratio(timings, contender.ceiling, name)
            count = timing.get("multiply_adds", multiply_adds if computes else None)
            of_ceiling = timings.get(contender.ceiling, {}).get("multiply_adds", multiply_adds)
            found[name] = timing | {
                "giga_ops": None if count is None else 2e-9 * count / seconds,
                "times_ours": ratio(timings, "ours", name) if computes else None,
                "of_ceiling": None if least is None else least * multiply_adds / of_ceiling,
            }
    return found
