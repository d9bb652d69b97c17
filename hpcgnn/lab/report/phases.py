"""The phases of an epoch: their names, colours and hatches, which are the same in all pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpcgnn.lab.report.drawing import Part
from hpcgnn.train.rank_report import BREAKDOWN

WIRE = "wire_seconds"  # overlaps with the other phases, and is not part of their sum
WAITING = ("communication_wait_seconds", "synchronisation_seconds")
NAMES = {name: name.removesuffix("_seconds").replace("_", " ") for name in BREAKDOWN[1:]}
ADDING = tuple(name for name in NAMES if name != WIRE)
_LOOKS = {
    "aggregation_seconds": ("#0072b2", ""),
    "communication_wait_seconds": ("#d55e00", "//"),
    "quantization_seconds": ("#56b4e9", ".."),
    "synchronisation_seconds": ("#f0e442", "xx"),
    "policy_seconds": ("#cc79a7", "\\\\"),
    "other_seconds": ("#d9d9d9", ""),
}


def parts(values: Callable[[str], Sequence[float]], scale: float) -> list[Part]:
    """The parts of stacked bars: the phases that take time, times ``scale``. values: returns the seconds of a phase in each
    bar."""
    found = [(name, [scale * max(value, 0.0) for value in values(name)]) for name in ADDING]
    return [Part(NAMES[name], each, *look(name)) for name, each in found if any(each)]


def look(name: str) -> tuple[str, str]:
    """The colour and hatch of a phase; an unknown phase looks like ``other_seconds``."""
    return _LOOKS.get(name, _LOOKS["other_seconds"])


def unit(most_seconds: float) -> tuple[float, str]:
    """The factor by which seconds are multiplied to be shown, and the unit."""
    return (1.0, "s") if most_seconds >= 1 else (1e3, "ms") if most_seconds >= 1e-3 else (1e6, "µs")


def waiting(breakdown: Mapping[str, float]) -> float:
    """Seconds in which a rank waits for others."""
    return sum(breakdown.get(name, 0.0) for name in WAITING)
