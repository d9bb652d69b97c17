"""The measurement of ``hpcgnn bench aggregate``: graphs, modes, the JSON object that holds everything, and its picture.

Three comparisons, each forward and backward:

- *kernel*: all contenders in one process, under the same allocator with warm memory
  (:func:`hpcgnn.base.process.disable_malloc_trimming`), ours without its pool. The machine's ceilings, narrow storage, and one
  thread beside several are measured as well.
- *user*: every contender in a process of its own, as users start it; ours reuses buffers.
- *ablation*: ours with each optimisation switched off in turn.

On a GPU only the first is measured, because torch allocates memory there for all contenders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import library
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.lab.bench import graphs, results
from hpcgnn.lab.bench.ceilings import last_level_cache_bytes
from hpcgnn.lab.bench.contenders import line_up
from hpcgnn.lab.bench.measure import Entry, Place, Progress, measured
from hpcgnn.lab.bench.names import ABLATION, DIRECTIONS, HOST_NAME, MODES
from hpcgnn.lab.bench.studies import Subject

_ONE_THREAD = "@1"  # the end of keys of contenders that ran on one thread
_VALUE_BYTES = {"ours.bf16": 2, "ours.int8": 1, "ours.int8.counted": 1}
_OURS, _THEIRS = ("o", "D", "^", "v", "s"), ("x", "+", "1", "2", "3", "4", "*", "p", "h", "d")


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement. sources: pairs of a graph's source and its width. parts: 0 for no METIS part. dtypes: types
    beside float32, which are measured with their conversions."""

    sources: tuple[tuple[str, int], ...]
    threads: int
    rounds: int
    modes: tuple[str, ...] = MODES
    parts: int = 2
    ablation: bool = False
    device: Device = CPU
    dtypes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Torch's name of the device."""
        return str(self.device.torch_device)


@dataclass(frozen=True)
class Workload:
    """One graph, stored in the folder ``graph``, and the way to measure it. source: the source of the graph."""

    graph: Path
    source: str
    width: int
    settings: Settings

    def place(self, warm: bool, graph: Path | None = None, **changes: Any) -> Place:
        """The process in which to measure it. graph: another graph in place of its own."""
        subject = Subject.of("aggregate", graph or self.graph, self.width)
        return Place(subject, self.settings.threads, warm, device=self.settings.where, **changes)


def run(settings: Settings, folder: Path, progress: Progress) -> dict[str, Any]:
    """Measure all graphs, which are kept in ``folder`` and found there again. Raises :class:`HpcgnnError` if one cannot be
    made."""
    store = graphs.Graphs(folder)
    with progress("making the graphs", len(settings.sources)) as advance:
        works = []
        for source, width in settings.sources:
            paths = [store.whole(source), *([store.part(source, settings.parts)] if settings.parts else [])]
            works += [Workload(path, source, width, settings) for path in paths]
            advance(1)
    found = results.about(settings.device, settings.threads, settings.rounds)
    found["graphs"] = [_measure(work, progress) for work in works]
    lines = [line for graph in found["graphs"] for line in lines_of(graph)]
    if settings.ablation:
        orders = {order: store.whole(works[0].source, order) for order in graphs.ORDERS if order != "original"}
        about = _describe(works[0])
        timings = measured("ablation", ablation_entries(works[0], orders), settings.rounds, progress)
        found[ABLATION] = {"graph": about["name"], **timings}
        lines += lines_of(about | {ABLATION: timings})
    return found | {"lines": lines}


def _measure(work: Workload, progress: Progress) -> dict[str, Any]:
    found = _describe(work)
    for mode in work.settings.modes:
        entries = kernel_entries(work) if mode == "kernel" else user_entries(work)
        found[mode] = measured(f"{found['name']}, {mode}", entries, work.settings.rounds, progress)
    return found


def kernel_entries(work: Workload) -> list[Entry]:
    """One process for all contenders; on the host, a second one with one thread.

    PyG's contenders come last. They need memory for messages, a row for each edge, and memory that later contenders keep would
    divide it.
    """
    settings, together, chosen = work.settings, work.place(warm=True), line_up(work.settings.where)
    large = [contender for contender in chosen.rivals if contender.family == "pyg"]
    beside = [each for each in (*chosen.beside, *chosen.converted) if each.dtype in ("float32", *settings.dtypes)]
    others = [contender for contender in (*chosen.ours, *chosen.rivals) if contender not in large]
    entries = [Entry(each.name, each.name, together) for each in (*others, *beside, *large)]
    if settings.device is CPU and settings.threads > 1:
        single = replace(together, threads=1)
        entries += [Entry(name + _ONE_THREAD, name, single) for name in ("ours", "ceiling.gather", "ceiling.copy")]
    return entries


def user_entries(work: Workload) -> list[Entry]:
    """A process for each contender that most people use; only for these, as all processes are in memory at the same time."""
    chosen = line_up(work.settings.where)
    contenders = (*chosen.ours, *(rival for rival in chosen.rivals if rival.family in chosen.apart))
    return [Entry(contender.name, contender.name, work.place(warm=False), alone=True) for contender in contenders]


def ablation_entries(work: Workload, orders: dict[str, Path]) -> list[Entry]:
    """Ours, and ours without each optimisation. ``orders``: the same graph with its nodes in other orders."""
    warm = work.place(warm=True)
    tuned = [each.name for each in line_up(HOST_NAME).variants if each.family == "ours.tuning"]
    names = ["ours", *tuned, "ours.huge", "ceiling.gather", "ceiling.gather.huge"]
    entries = [Entry(name, name, warm) for name in names]
    places = {f"isa {name}": work.place(warm=True, environment=(("HPCGNN_ISA", name),)) for name in library.isas()}
    places |= {f"order {name}": work.place(warm=True, graph=path) for name, path in orders.items()}
    places |= {
        "pool": work.place(warm=False),
        "pool, no huge pages": work.place(warm=False, huge_pages=False),
        "no pool": work.place(warm=False, environment=(("HPCGNN_BUFFER_POOL", "off"),)),
    }
    return entries + [Entry(key, "ours", place) for key, place in places.items()]


def _describe(work: Workload) -> dict[str, Any]:
    """The facts of the graph, and the bytes and operations of one product."""
    settings, facts = work.settings, graphs.facts(work.graph)
    if settings.dtypes:
        has_dot_products = dot_products(torch_device=settings.where)
        facts |= {"dtypes": list(settings.dtypes), "dot_products": has_dot_products}
    feature_bytes = facts["nodes"] * work.width * 4
    return facts | {
        "source": work.source,
        "device": settings.where,
        "width": work.width,
        "feature_bytes": feature_bytes,
        "beyond_caches": feature_bytes > last_level_cache_bytes(settings.where),
        "flop": facts["entries"] * work.width,
        "gathered_bytes": _gathered_bytes(facts["entries"], work.width, 4),
    }


def _gathered_bytes(entries: int, width: int, value_bytes: int) -> int:
    """The bytes that a product gathers: a row of features and an index for each entry."""
    return entries * (width * value_bytes + 4)


# -- lines, tables and the picture -------------------------------------------------------------------------------------


def lines_of(graph: dict[str, Any]) -> list[results.Line]:
    """A line for each contender, mode and direction of one graph in the result of :func:`run`. It has ``thread_scaling`` for the
    contenders that ran on one thread as well: how many times as fast they are on all threads."""
    found = []
    about = results.subject(graph) | (results.integers(graph["dot_products"]) if "dot_products" in graph else {})
    for mode in (mode for mode in (*MODES, ABLATION) if mode in graph):
        for direction, timings in graph[mode].items():
            scaled = {
                name: timing | {"thread_scaling": results.ratio(timings, name + _ONE_THREAD, name)}
                for name, timing in timings.items()
            }
            axes = {"subject": about["subject"], "mode": mode, "direction": direction} | about
            found += results.lines(scaled, "contender", axes)
    return found


def device_of(graph: dict[str, Any]) -> str:
    """The device on which one graph was measured; older results have none, and are all of the host."""
    return graph.get("device", HOST_NAME)


def timing_rows(timings: dict[str, Any], device: str = HOST_NAME) -> Iterator[tuple[str, list[str]]]:
    """A label and six cells for each contender: milliseconds, spread, and ratio to ours, for forward and backward."""
    known = line_up(device).by_name
    for key in timings[DIRECTIONS[0]]:
        name, at, threads = key.partition("@")
        label = (known[name].label if name in known else name) + (f", {threads} thread" if at else "")
        cells = []
        for direction in DIRECTIONS:
            timing, ours = timings[direction][key], timings[direction]["ours"]
            if "seconds" in timing:
                times = timing["seconds"] / ours["seconds"] if "seconds" in ours else float("nan")
                cells += [f"{timing['seconds'] * 1e3:.2f}", f"{timing['spread']:.0%}", f"{times:.2f}"]
            else:
                cells += ["-", "", ""]
        yield label, cells


def roofline(result: dict[str, Any], path: Path) -> None:
    """Draw the forward kernels of every graph in the result of :func:`run` to ``path``: the speed of contenders beside the
    measured bandwidths of a copy and of a row gather.

    The intensity of a contender is the number of its additions over the bytes that its entries gather. Weights and results do not
    count, so contenders that store features in the same type have the same intensity.

    Raises:
        HpcgnnError: if ``result`` has no kernels, or the picture cannot be written.
    """
    from matplotlib import rc_context  # imported late because the import takes longer than all others
    from matplotlib.figure import Figure

    drawn = [graph for graph in result["graphs"] if "kernel" in graph]
    if not drawn:
        raise HpcgnnError("the plot needs the measurements of --mode kernel: give --mode kernel or both")
    columns = min(2, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    with rc_context({"svg.hashsalt": "hpcgnn", "font.size": 8}):
        figure = Figure(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
        for number, graph in enumerate(drawn):
            _draw(figure.add_subplot(rows, columns, number + 1), graph)
        try:
            with whole_file.replacing(path) as temporary:
                kind = path.suffix.removeprefix(".") or "png"
                figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)
        except ValueError as error:
            raise HpcgnnError(f"{path} cannot be written as a picture: {error}") from error


def points(graph: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Additions for each gathered byte, and additions a second, of each contender of one graph's forward kernels."""
    found = {}
    for name, timing in graph["kernel"]["forward"].items():
        if "seconds" in timing and not name.startswith("ceiling") and "@" not in name:
            count = _gathered_bytes(graph["entries"], graph["width"], _VALUE_BYTES.get(name, 4))
            found[name] = graph["flop"] / count, graph["flop"] / timing["seconds"]
    return found


def _draw(axes: Any, graph: dict[str, Any]) -> None:
    intensities, timings = [0.1, 2.0], graph["kernel"]["forward"]
    for name, label, line, moved in (
        ("ceiling.copy", "copy", "--", 2 * graph["feature_bytes"]),
        ("ceiling.gather", "row gather", "-", graph["gathered_bytes"]),
    ):
        if "seconds" in timings[name]:
            bandwidth = moved / timings[name]["seconds"] / 1e9
            values = [intensity * bandwidth for intensity in intensities]
            axes.plot(intensities, values, line, color="0.4", label=f"{label}: {bandwidth:.1f} GB/s")
    known = line_up(device_of(graph)).by_name
    marks = {True: iter(_OURS * 2), False: iter(_THEIRS * 2)}
    for name, (intensity, rate) in points(graph).items():
        ours = name.startswith("ours")
        label = f"{known[name].label}: {rate / 1e9:.2f}"
        axes.plot([intensity], [rate / 1e9], next(marks[ours]), color="C3" if ours else "C0", label=label)
    axes.set(xscale="log", yscale="log", xlabel="additions / gathered byte", ylabel="10⁹ additions / s")
    axes.set_title(f"{graph['name']}, width {graph['width']}, forward", fontsize=8)
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
