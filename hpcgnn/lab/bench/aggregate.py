"""The measurement of ``hpcgnn bench aggregate``, forward and backward, in three modes:

- *kernel*: all contenders in one process, under the same allocator with warm memory, ours without its pool of buffers. The
  machine's ceilings, narrow storage, and one thread beside several are measured as well. It is the only mode on a GPU, because
  torch allocates memory there for all contenders.
- *user*: every contender in a process of its own, as users start it; ours reuses buffers.
- *ablation*: ours with each optimisation switched off in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU
from hpcgnn.kernels import library
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.lab.bench import graphs, results
from hpcgnn.lab.bench.contenders import by_name
from hpcgnn.lab.bench.measure import Entry, Place, measured
from hpcgnn.lab.bench.names import ABLATION, DIRECTIONS, HOST_NAME, MODES, How
from hpcgnn.lab.bench.studies import Subject

_COMPARED = ("ours", "ceiling.gather")  # contenders to which tables give the ratio of each
_ONE_THREAD = "@1"  # the end of keys of contenders that ran on one thread
_VALUE_BYTES = {"ours.bf16": 2, "torch.bf16": 2, "ours.int8": 1, "ours.int8.counted": 1}
_OURS, _THEIRS = ("o", "D", "^", "v", "s"), ("x", "+", "1", "2", "3", "4", "*", "p", "h", "d")


@dataclass(frozen=True)
class Workload:
    """One graph, stored in the folder ``graph``, and the way to measure it. source: the source of the graph."""

    graph: Path
    source: str
    width: int
    how: How

    def place(self, warm: bool, graph: Path | None = None, **changes: Any) -> Place:
        """The process in which to measure it. graph: another graph in place of its own."""
        subject = Subject.of("aggregate", graph or self.graph, self.width)
        return Place(subject, self.how.threads, warm, device=self.how.place, **changes)

    def entries(self, mode: str, place: Place) -> list[Entry]:
        """The contenders of a mode, in its order; in user mode, each has a process for itself."""
        types, chosen = ("float32", *self.how.dtypes), by_name(self.how.place)
        names = [name for name, each in chosen.items() if mode in each.modes and each.dtype in types]
        return [Entry(name, name, place, alone=mode == "user") for name in names]


def run(
    sources: tuple[tuple[str, int], ...],
    modes: tuple[str, ...],
    parts: int,
    with_ablation: bool,
    how: How,
    folder: Path,
) -> dict[str, Any]:
    """Measure all graphs, which are kept in ``folder`` and found there again. sources: pairs of a graph's source and its width.
    parts: 0 for no METIS part. Raises :class:`HpcgnnError` if a graph cannot be made."""
    store, works = graphs.Graphs(folder), []
    with how.progress("making the graphs", len(sources)) as advance:
        for source, width in sources:
            paths = [store.whole(source), *([store.part(source, parts)] if parts else [])]
            works += [Workload(path, source, width, how) for path in paths]
            advance(1)
    found = results.about(how.device, how.threads, how.rounds)
    found["graphs"] = [_measure(work, modes) for work in works]
    lines = [line for graph in found["graphs"] for line in lines_of(graph)]
    if with_ablation:
        orders = {order: store.whole(works[0].source, order) for order in graphs.ORDERS if order != "original"}
        about, timings = _describe(works[0]), measured(ABLATION, ablation_entries(works[0], orders), how)
        found[ABLATION] = {"graph": about["name"], **timings}
        lines += lines_of(about | {ABLATION: timings})
    return found | {"lines": lines}


def _measure(work: Workload, modes: tuple[str, ...]) -> dict[str, Any]:
    found = _describe(work)
    for mode in modes:
        entries = kernel_entries(work) if mode == "kernel" else work.entries(mode, work.place(warm=False))
        found[mode] = measured(f"{found['name']}, {mode}", entries, work.how)
    return found


def kernel_entries(work: Workload) -> list[Entry]:
    """One process for all contenders; on the host, a second one with one thread."""
    together = work.place(warm=True)
    entries = work.entries("kernel", together)
    if work.how.device is CPU and work.how.threads > 1:
        single = replace(together, threads=1)
        entries += [Entry(name + _ONE_THREAD, name, single) for name in ("ours", "ceiling.gather", "ceiling.copy")]
    return entries


def ablation_entries(work: Workload, orders: dict[str, Path]) -> list[Entry]:
    """Ours, and ours without each optimisation. ``orders``: the same graph with its nodes in other orders."""
    warm = work.place(warm=True)
    places = {f"isa {name}": work.place(warm=True, environment=(("HPCGNN_ISA", name),)) for name in library.isas()}
    places |= {f"order {name}": work.place(warm=True, graph=path) for name, path in orders.items()}
    places |= {
        "pool": work.place(warm=False),
        "pool, no huge pages": work.place(warm=False, huge_pages=False),
        "no pool": work.place(warm=False, environment=(("HPCGNN_BUFFER_POOL", "off"),)),
    }
    return work.entries(ABLATION, warm) + [Entry(key, "ours", place) for key, place in places.items()]


def _describe(work: Workload) -> dict[str, Any]:
    """The facts of the graph, and the bytes and operations of one product."""
    facts = graphs.facts(work.graph, work.width, work.how.place)
    if work.how.dtypes:
        facts |= {"dtypes": list(work.how.dtypes), "dot_products": dot_products(torch_device=work.how.place)}
    return facts | {
        "source": work.source,
        "device": work.how.place,
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


def timing_rows(timings: dict[str, Any], device: str = HOST_NAME) -> Iterator[tuple[str, ...]]:
    """A row for each contender: its label, then forward and backward: milliseconds, spread, and ratios to ours and to the
    row-gather ceiling, if that was measured."""
    known = by_name(device)
    for key in timings[DIRECTIONS[0]]:
        name, at, threads = key.partition("@")
        label = (known[name].label if name in known else name) + (f", {threads} thread" if at else "")
        cells = []
        for direction in DIRECTIONS:
            timing, others = timings[direction][key], [timings[direction].get(name, {}) for name in _COMPARED]
            if "seconds" in timing:
                times = [f"{timing['seconds'] / each['seconds']:.2f}" if "seconds" in each else "" for each in others]
                cells += [f"{timing['seconds'] * 1e3:.2f}", f"{timing['spread']:.0%}", *times]
            else:
                cells += ["-", "", "", ""]
        yield label, *cells


def roofline(result: dict[str, Any], path: Path) -> None:
    """Draw the speed of every graph's forward kernels in the result of :func:`run`, beside the measured bandwidths of a copy and
    of a row gather. Raises :class:`HpcgnnError` if the picture cannot be written."""
    from matplotlib import rc_context  # imported late because the import takes longer than all others
    from matplotlib.figure import Figure

    drawn = [graph for graph in result["graphs"] if "kernel" in graph]
    columns = min(2, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    kind = path.suffix.removeprefix(".") or "png"
    with rc_context({"svg.hashsalt": "hpcgnn", "font.size": 8}):
        figure = Figure(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
        for number, graph in enumerate(drawn):
            _draw(figure.add_subplot(rows, columns, number + 1), graph)
        try:
            with whole_file.replacing(path) as temporary:
                figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)
        except ValueError as error:
            raise HpcgnnError(f"{path} cannot be written as a picture: {error}") from error


def points(graph: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Additions for each gathered byte, and additions a second, of each contender of one graph's forward kernels. Weights and
    results do not count as bytes, so contenders that store features in the same type gather as many."""
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
    known = by_name(graph["device"])
    marks = {True: iter(_OURS * 2), False: iter(_THEIRS * 2)}
    for name, (intensity, rate) in points(graph).items():
        ours = name.startswith("ours")
        label = f"{known[name].label}: {rate / 1e9:.2f}"
        axes.plot([intensity], [rate / 1e9], next(marks[ours]), color="C3" if ours else "C0", label=label)
    axes.set(xscale="log", yscale="log", xlabel="additions / gathered byte", ylabel="10⁹ additions / s")
    axes.set_title(f"{graph['name']}, width {graph['width']}, forward", fontsize=8)
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
