"""The measurement of ``hpcgnn bench sddmm``: products at the edges of graphs, beside other libraries and a gather of their rows.

Each graph has one process, in which all contenders take turns with warm memory; ours runs without its pool of buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.lab.bench import figures, graphs, lines, studies
from hpcgnn.lab.bench.ceilings import last_level_cache_bytes
from hpcgnn.lab.bench.measure import Entry, Place, interleave, steps
from hpcgnn.lab.bench.names import EDGE_DTYPES
from hpcgnn.lab.bench.run import Progress, machine, versions
from hpcgnn.lab.bench.sddmm_contenders import by_name


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement. sources: pairs of a graph's source and its width. ops: *dot*, *add*. dtypes: types beside
    float32, which is always measured."""

    sources: tuple[tuple[str, int], ...]
    heads: int
    threads: int
    rounds: int
    ops: tuple[str, ...] = ("dot",)
    dtypes: tuple[str, ...] = EDGE_DTYPES
    device: Device = CPU


def run(settings: Settings, folder: Path, progress: Progress) -> dict[str, Any]:
    """Measure all graphs, which are kept in ``folder`` and found there again. Raises :class:`HpcgnnError` if one cannot be
    made."""
    for source, width in settings.sources:
        if width % settings.heads:
            raise HpcgnnError(
                f"{settings.heads} heads do not divide the {width} columns of {source}: choose other --heads"
            )
    store = graphs.Graphs(folder)
    with progress("making the graphs", len(settings.sources)) as advance:
        stored = []
        for source, width in settings.sources:
            stored.append((store.whole(source), width))
            advance(1)
    found: dict[str, Any] = {
        "machine": machine(settings.device),
        "versions": versions(),
        "threads": settings.threads,
        "rounds": settings.rounds,
        "device": str(settings.device.torch_device),
        "dtypes": list(settings.dtypes),
        "dot_products": dot_products(torch_device=settings.device.torch_device),
    }
    found["graphs"] = [_measure(path, width, settings, progress) for path, width in stored]
    found["lines"] = [line for graph in found["graphs"] for line in _lines(graph, found["dot_products"])]
    return found


def _measure(path: Path, width: int, settings: Settings, progress: Progress) -> dict[str, Any]:
    device, facts = str(settings.device.torch_device), graphs.facts(path)
    contenders = by_name(device)
    place = Place(studies.sddmm(path, width, settings.heads), settings.threads, warm=True, device=device)
    names = [name for name, each in contenders.items() if each.dtype in ("float32", *settings.dtypes)]
    entries = [Entry(name, name, place) for name in names]
    with progress(facts["name"], steps(entries, settings.rounds, len(settings.ops))) as advance:
        outcomes = interleave(entries, settings.rounds, advance, settings.ops)
    multiply_adds = facts["entries"] * width
    counts = {"dot": multiply_adds, "add": multiply_adds / 2}
    ops = {op: figures.lines(outcome, contenders, counts[op]) for op, outcome in outcomes.items()}
    feature_bytes = facts["nodes"] * width * 4
    return facts | {
        "width": width,
        "heads": settings.heads,
        "feature_bytes": feature_bytes,
        "beyond_caches": feature_bytes > last_level_cache_bytes(device),
        "multiply_adds": multiply_adds,
        "ops": ops,
    }


def _lines(graph: dict[str, Any], has_dot_products: bool) -> list[lines.Line]:
    axes = {"subject": f"{graph['name']}, width {graph['width']}, {graph['heads']} heads"}
    axes |= {"memory": lines.memory(graph["beyond_caches"]), "integers": lines.integers(has_dot_products)}
    return [
        line
        for op, timings in graph["ops"].items()
        for line in lines.of_timings(timings, "contender", axes | {"direction": op})
    ]
