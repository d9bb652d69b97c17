"""What was measured against what is required."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hpcgnn.bench.aggregate import ONE_THREAD
from hpcgnn.bench.line_up import HOST_NAME, line_up
from hpcgnn.bench.problem import DIRECTIONS

MOST_OF_NUMBA = 2.0
LEAST_SCALING = 0.95
LEAST_INT8 = 1.8  # of 8-bit rows that are there, and of those that are quantized in the time
LEAST_INT8_COUNTED = 1.5
LEAST_INT8_WITHOUT_DOT_PRODUCTS = 1.0


@dataclass(frozen=True)
class Requirement:
    """One figure that must be reached. ``measured`` is None where it could not be measured, and ``note`` says why."""

    what: str
    graph: str
    mode: str
    direction: str
    measured: float | None
    required: float
    at_most: bool = False
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether it is met; None if nobody knows."""
        if self.measured is None:
            return None
        return self.measured <= self.required if self.at_most else self.measured >= self.required

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self) | {"reached": self.reached}


def requirements(graph: dict[str, Any]) -> list[Requirement]:
    """Those that the measurements of one graph (see :func:`hpcgnn.bench.run.run`) answer."""
    found: list[Requirement] = []
    device = device_of(graph)
    chosen = line_up(device)
    for mode, factors in chosen.faster.items():
        for direction in DIRECTIONS if mode in graph else ():
            timings = graph[mode][direction]
            for family, factor in factors.items():
                rival, note = fastest(timings, family, device)
                what = f"times as fast as {chosen.names[family]}"
                measured = ratio(timings, rival, "ours")
                note = note or reason(timings, "ours")
                found.append(Requirement(what, graph["name"], mode, direction, measured, factor, note=note))
    for direction in DIRECTIONS if "kernel" in graph else ():
        found += _of_the_kernel(graph, direction)
    return found


def _of_the_kernel(graph: dict[str, Any], direction: str) -> list[Requirement]:
    timings = graph["kernel"][direction]

    def made(what: str, measured: float | None, required: float, at_most: bool = False) -> Requirement:
        note = reason(timings, "ours", "ceiling.gather")
        return Requirement(what, graph["name"], "kernel", direction, measured, required, at_most, note)

    device = device_of(graph)
    of_ceiling = ratio(timings, "ceiling.gather", "ours")
    found = [made("of the row-gather ceiling", of_ceiling, line_up(device).least_of_ceiling)]
    if device != HOST_NAME:
        return found
    found.append(made("numba's time over native's", ratio(timings, "ours.jit", "ours"), MOST_OF_NUMBA, at_most=True))
    ours = ratio(timings, "ours" + ONE_THREAD, "ours")
    ceiling = ratio(timings, "ceiling.gather" + ONE_THREAD, "ceiling.gather")
    if ours and ceiling:
        found.append(made("of the gather ceiling's thread scaling", ours / ceiling, LEAST_SCALING))
    if graph["beyond_caches"]:
        found.append(made("times float32 with int8 storage", ratio(timings, "ours", "ours.int8"), LEAST_INT8))
        if "int8" in graph.get("dtypes", ()):
            least = LEAST_INT8_COUNTED if graph["dot_products"] else LEAST_INT8_WITHOUT_DOT_PRODUCTS
            measured, note = ratio(timings, "ours", "ours.int8.counted"), reason(timings, "ours", "ours.int8.counted")
            what = "times float32 by int8, quantization counted"
            found.append(Requirement(what, graph["name"], "kernel", direction, measured, least, note=note))
    return found


def device_of(graph: dict[str, Any]) -> str:
    """What one graph was measured on; older results, all of the host, do not say."""
    return graph.get("device", HOST_NAME)


def fastest(timings: dict[str, Any], family: str, device: str = HOST_NAME) -> tuple[str, str]:
    """The fastest rival of ``family`` and, if none was measured, why."""
    members = [rival.name for rival in line_up(device).rivals if rival.family == family]
    measured = [name for name in members if "seconds" in timings.get(name, {})]
    if measured:
        return min(measured, key=lambda name: timings[name]["seconds"]), ""
    reasons = [timings[name]["missing"] for name in members if "missing" in timings.get(name, {})]
    return members[0], reasons[0] if reasons else "not measured"


def reason(timings: dict[str, Any], *names: str) -> str:
    """Why the first of ``names`` that is missing was not measured; nothing where none is."""
    return next((timings[name]["missing"] for name in names if "missing" in timings.get(name, {})), "")


def ratio(timings: dict[str, Any], slow: str, fast: str) -> float | None:
    """Seconds of ``slow`` over those of ``fast``; None if one is missing."""
    values = [timings.get(name, {}).get("seconds") for name in (slow, fast)]
    return None if None in values else values[0] / values[1]


def timing_rows(timings: dict[str, Any], device: str = HOST_NAME) -> Iterator[tuple[str, list[str]]]:
    """A label and six cells for each contender: milliseconds, spread and times ours, forward and backward."""
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
