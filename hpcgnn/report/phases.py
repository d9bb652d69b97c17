"""The phases of an epoch: their names, colours and hatches, in all pictures alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpcgnn.report.drawing import Part
from hpcgnn.train.rank_report import BREAKDOWN

WIRE = "wire_seconds"  # runs beside the others, and is not part of their sum
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
    """Of stacked bars: the phases that take any time, times ``scale``. values: of a phase, one for each bar."""
    found = [(name, [scale * max(value, 0.0) for value in values(name)]) for name in ADDING]
    return [Part(NAMES[name], each, *look(name)) for name, each in found if any(each)]


def look(name: str) -> tuple[str, str]:
    """Colour and hatch; those of a new phase are those of the rest."""
    return _LOOKS.get(name, _LOOKS["other_seconds"])


def unit(most_seconds: float) -> tuple[float, str]:
    """What seconds are multiplied by to be shown, and the unit."""
    return (1.0, "s") if most_seconds >= 1 else (1e3, "ms") if most_seconds >= 1e-3 else (1e6, "µs")


def waiting(breakdown: Mapping[str, float]) -> float:
    """Seconds in which a rank waits for others."""
    return sum(breakdown.get(name, 0.0) for name in WAITING)
