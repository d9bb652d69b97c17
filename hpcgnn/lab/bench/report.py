"""The measurements of one graph as lines, ratios and rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcgnn.lab.bench import lines
from hpcgnn.lab.bench.aggregate import ONE_THREAD
from hpcgnn.lab.bench.line_up import line_up
from hpcgnn.lab.bench.names import ABLATION, DIRECTIONS, HOST_NAME, MODES


def lines_of(graph: dict[str, Any]) -> list[lines.Line]:
    """A line for each contender, mode and direction of one graph (see :func:`hpcgnn.lab.bench.run.run`)."""
    found = []
    for mode in (mode for mode in (*MODES, ABLATION) if mode in graph):
        for direction, timings in graph[mode].items():
            axes = {"subject": f"{graph['name']}, width {graph['width']}", "mode": mode, "direction": direction}
            axes["memory"] = lines.memory(graph["beyond_caches"])
            if "dot_products" in graph:
                axes["integers"] = lines.integers(graph["dot_products"])
            found += lines.of_timings(_with_scaling(timings), "contender", axes)
    return found


def _with_scaling(timings: dict[str, Any]) -> dict[str, Any]:
    """Add ``thread_scaling`` to the contenders that ran on one thread as well: how many times as fast they are on all threads."""
    scaling = {name: ratio(timings, name + ONE_THREAD, name) for name in timings}
    return {name: {**line, "thread_scaling": scaling[name]} for name, line in timings.items()}


def device_of(graph: dict[str, Any]) -> str:
    """The device on which one graph was measured; older results have none, and are all of the host."""
    return graph.get("device", HOST_NAME)


def ratio(timings: dict[str, Any], slow: str, fast: str) -> float | None:
    """The seconds of ``slow`` over those of ``fast``; None if one is missing."""
    values = [timings.get(name, {}).get("seconds") for name in (slow, fast)]
    return None if None in values else values[0] / values[1]


def timing_rows(timings: dict[str, Any], device: str = HOST_NAME) -> Iterator[tuple[str, list[str]]]:
    """A label and six cells for each contender: milliseconds, spread, and ratio to ours, for forward and backward."""
    known = line_up(device).by_name
    for key in timings[DIRECTIONS[0]]:
        name, at, threads = key.partition("@")
        label = (known[name].label if name in known else name) + (f", {threads} thread" if at else "")
        cells = []
        for direction in DIRECTIONS:
            line, ours = timings[direction][key], timings[direction]["ours"]
            if "seconds" in line:
                times = line["seconds"] / ours["seconds"] if "seconds" in ours else float("nan")
                cells += [f"{line['seconds'] * 1e3:.2f}", f"{line['spread']:.0%}", f"{times:.2f}"]
            else:
                cells += ["-", "", ""]
        yield label, cells
