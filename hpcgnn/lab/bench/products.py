"""The measurements of ``hpcgnn bench gemm``, a dense layer's products, and of ``hpcgnn bench sddmm``, products at the edges of
graphs, beside ceilings and other libraries. Contenders of a problem take turns in one process with warm memory; ours has no
pool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.lab.bench import graphs, results
from hpcgnn.lab.bench.measure import Entry, Place, measured
from hpcgnn.lab.bench.names import PRODUCTS, How
from hpcgnn.lab.bench.studies import Subject
from hpcgnn.nn import int8 as training

# The contender that is ours in integers where training takes them, and ours in float32 elsewhere.
AS_TRAINED = "--compute int8"


def _about(how: How) -> dict[str, Any]:
    """The head of the result."""
    beside = {"dtypes": list(how.dtypes), "dot_products": dot_products(torch_device=how.place)}
    return results.about(how.device, how.threads, how.rounds, device=how.place, **beside)


def _timings(
    title: str, subject: Subject, multiply_adds: Mapping[str, float], how: How, directions: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    """The timings of all contenders with their speeds, by direction. multiply_adds: by direction."""
    contenders = subject.of_study.contenders(how.place)
    place = Place(subject, how.threads, warm=True, device=how.place)
    names = [name for name, each in contenders.items() if each.dtype in ("float32", *how.dtypes)]
    found = measured(title, [Entry(name, name, place) for name in names], how, directions)
    return {way: results.with_speeds(each, contenders, multiply_adds[way]) for way, each in found.items()}


def _lines(timings: Mapping[str, Mapping[str, Any]], axes: Mapping[str, str]) -> list[results.Line]:
    by_way = (results.lines(each, "contender", {**axes, "direction": way}) for way, each in timings.items())
    return [line for lines in by_way for line in lines]


def gemm(shapes: tuple[tuple[int, int, int], ...], how: How) -> dict[str, Any]:
    """Measure all shapes (rows, depth, width)."""
    found = _about(how) | {"shapes": []}
    for rows, depth, width in shapes:
        count, title = rows * depth * width, f"{rows:,} x {depth:,} x {width:,}"
        counts = dict.fromkeys(PRODUCTS, count) | {"layer": 3 * count}
        products = _timings(title, Subject.of("gemm", rows, depth, width), counts, how)
        about = {"rows": rows, "depth": depth, "width": width, "multiply_adds": count}
        found["shapes"].append(about | {"name": title, "products": products})
    if how.device is CPU and "int8" in how.dtypes:
        found["training_takes_int8"] = _training_takes_int8(how.threads)
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
    sources: tuple[tuple[str, int], ...], heads: int, ops: tuple[str, ...], how: How, folder: Path
) -> dict[str, Any]:
    """Measure all graphs, which are kept in ``folder`` and found there again. sources: pairs of a graph's source and its width.
    Raises :class:`HpcgnnError` if a graph cannot be made."""
    for source, width in sources:
        if width % heads:
            raise HpcgnnError(f"{heads} heads do not divide the {width} columns of {source}: choose other --heads")
    store, stored = graphs.Graphs(folder), []
    with how.progress("making the graphs", len(sources)) as advance:
        for source, width in sources:
            stored.append((store.whole(source), width))
            advance(1)
    found = _about(how) | {"graphs": []}
    for path, width in stored:
        facts = graphs.facts(path, width, how.place)
        count = facts["entries"] * width
        subject, counts = Subject.of("sddmm", path, width, heads), {"dot": count, "add": count / 2}
        timings = _timings(facts["name"], subject, counts, how, ops)
        found["graphs"].append(facts | {"heads": heads, "multiply_adds": count, "ops": timings})
    return found | {"lines": [line for graph in found["graphs"] for line in lines_of_graph(graph, found)]}


def lines_of_graph(graph: dict[str, Any], found: dict[str, Any]) -> list[results.Line]:
    """The lines of one graph. found: the result of :func:`sddmm` so far, with the facts about the device."""
    axes = results.subject(graph, f", {graph['heads']} heads") | results.integers(found["dot_products"])
    return _lines(graph["ops"], axes)
