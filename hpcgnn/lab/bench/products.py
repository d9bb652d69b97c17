"""The measurements of ``hpcgnn bench gemm``, a dense layer's products beside the CPU's peak of arithmetic, and of ``hpcgnn bench
sddmm``, products at the edges of graphs beside a gather of their rows; both beside other libraries.

Each problem has one process, in which all contenders take turns with warm memory; ours runs without its pool of buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.lab.bench import graphs, results
from hpcgnn.lab.bench.ceilings import last_level_cache_bytes
from hpcgnn.lab.bench.measure import Entry, Place, Progress, measured
from hpcgnn.lab.bench.names import EDGE_DTYPES, PRODUCTS
from hpcgnn.lab.bench.studies import Subject
from hpcgnn.nn import int8 as training

# The contender that is ours in integers where training takes them, and ours in float32 elsewhere.
AS_TRAINED = "--compute int8"


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement. dtypes: types beside float32, which is always measured."""

    threads: int
    rounds: int
    dtypes: tuple[str, ...] = EDGE_DTYPES
    device: Device = CPU

    def about(self) -> dict[str, Any]:
        """The head of the result."""
        where = self.device.torch_device
        has_dot_products = dot_products(torch_device=where)
        beside = {"device": str(where), "dtypes": list(self.dtypes), "dot_products": has_dot_products}
        return results.about(self.device, self.threads, self.rounds, **beside)

    def timings(
        self,
        title: str,
        subject: Subject,
        multiply_adds: Mapping[str, float],
        progress: Progress,
        directions: tuple[str, ...] = (),
    ) -> dict[str, dict[str, Any]]:
        """The timings of all contenders with their speeds, by direction. multiply_adds: by direction."""
        device = str(self.device.torch_device)
        contenders = subject.of_study.contenders(device)
        place = Place(subject, self.threads, warm=True, device=device)
        names = [name for name, each in contenders.items() if each.dtype in ("float32", *self.dtypes)]
        found = measured(title, [Entry(name, name, place) for name in names], self.rounds, progress, directions)
        return {way: results.with_speeds(each, contenders, multiply_adds[way]) for way, each in found.items()}


def _lines(timings: Mapping[str, Mapping[str, Any]], axes: Mapping[str, str]) -> list[results.Line]:
    by_way = (results.lines(each, "contender", {**axes, "direction": way}) for way, each in timings.items())
    return [line for lines in by_way for line in lines]


def gemm(shapes: tuple[tuple[int, int, int], ...], settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measure all shapes (rows, depth, width). Raises :class:`HpcgnnError` if a shape cannot be measured."""
    found = settings.about() | {"shapes": []}
    for rows, depth, width in shapes:
        count, title = rows * depth * width, f"{rows:,} x {depth:,} x {width:,}"
        subject = Subject.of("gemm", rows, depth, width)
        counts = dict.fromkeys(PRODUCTS, count) | {"layer": 3 * count}
        products = settings.timings(title, subject, counts, progress)
        about = {"rows": rows, "depth": depth, "width": width, "multiply_adds": count}
        found["shapes"].append(about | {"name": title, "products": products})
    if settings.device is CPU and "int8" in settings.dtypes:
        found["training_takes_int8"] = _training_takes_int8(settings.threads)
    return found | {"lines": [line for shape in found["shapes"] for line in lines_of_shape(shape, found)]}


def _training_takes_int8(threads: int) -> bool:
    """Return whether ``--compute int8`` multiplies large matrices as integers on this CPU; training measures it."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return training.measured().uses.products
    finally:
        torch.set_num_threads(usual)


def lines_of_shape(shape: dict[str, Any], found: dict[str, Any]) -> list[results.Line]:
    """The lines of one shape. found: the result of :func:`gemm` so far, with the facts about the CPU."""
    sizes, products = (shape["rows"], shape["depth"], shape["width"]), shape["products"]
    if "training_takes_int8" in found:
        limits = training.LIMITS[found["dot_products"]]
        is_taken = found["training_takes_int8"] and training.multiplies(*sizes, limits)
        layer = products["layer"]
        products = products | {"layer": layer | {AS_TRAINED: layer["ours.int8" if is_taken else "ours"]}}
    return _lines(products, {"subject": "x".join(map(str, sizes))} | results.integers(found["dot_products"]))


def sddmm(
    sources: tuple[tuple[str, int], ...], heads: int, ops: tuple[str, ...], settings: Settings, folder: Path,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Measure all graphs, which are kept in ``folder`` and found there again. sources: pairs of a graph's source and its width.
    Raises :class:`HpcgnnError` if a graph cannot be made."""
    for source, width in sources:
        if width % heads:
            raise HpcgnnError(f"{heads} heads do not divide the {width} columns of {source}: choose other --heads")
    store, stored = graphs.Graphs(folder), []
    with progress("making the graphs", len(sources)) as advance:
        for source, width in sources:
            stored.append((store.whole(source), width))
            advance(1)
    found = settings.about() | {"graphs": []}
    cache_bytes = last_level_cache_bytes(str(settings.device.torch_device))
    for path, width in stored:
        facts, subject = graphs.facts(path), Subject.of("sddmm", path, width, heads)
        feature_bytes, counts = facts["nodes"] * width * 4, {"dot": facts["entries"] * width}
        counts["add"] = counts["dot"] / 2
        timings = settings.timings(facts["name"], subject, counts, progress, ops)
        about = {"width": width, "heads": heads, "feature_bytes": feature_bytes}
        about |= {"beyond_caches": feature_bytes > cache_bytes, "multiply_adds": counts["dot"]}
        found["graphs"].append(facts | about | {"ops": timings})
    return found | {"lines": [line for graph in found["graphs"] for line in lines_of_graph(graph, found)]}


def lines_of_graph(graph: dict[str, Any], found: dict[str, Any]) -> list[results.Line]:
    """The lines of one graph. found: the result of :func:`sddmm` so far, with the facts about the device."""
    axes = results.subject(graph, f", {graph['heads']} heads") | results.integers(found["dot_products"])
    return _lines(graph["ops"], axes)
