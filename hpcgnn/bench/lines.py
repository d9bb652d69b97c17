"""The ``lines`` of a bench's JSON: everything that it measured, each with names that say of what, so that a study can tabulate
them and hold them against targets (hpcgnn/study).

A line is ``{"axes": {name: text}, "figures": {name: number}}``. Axes: ``subject`` (a graph or a shape), ``mode``, ``direction``,
``contender``, ``step``, ``part``; ``memory`` says whether caches hold what is gathered, and ``integers`` by what the CPU or the
device multiplies those of 8 bits. What could not be measured has no line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Line = dict[str, dict[str, Any]]
DOT_PRODUCTS, MULTIPLY_ADDS = "dot products", "multiply-adds"
CACHED, BEYOND_CACHES = "caches", "beyond caches"
# What a timing calls them, and what lines do.
_FIGURES = {
    "seconds": "seconds",
    "spread": "spread",
    "bytes": "bytes",
    "gigabytes_per_second": "gigabytes_per_second",
    "of_copy": "share_of_copy",
    "of_ceiling": "share_of_peak",
    "relative_error": "relative_error",
    "thread_scaling": "thread_scaling",
}


def line(axes: Mapping[str, str], **figures: float | None) -> Line:
    """One, without the figures that are not known."""
    return {"axes": dict(axes), "figures": {name: value for name, value in figures.items() if value is not None}}


def of_timings(timings: Mapping[str, Mapping[str, Any]], name: str, axes: Mapping[str, str]) -> list[Line]:
    """A line for each timing that is not missing; ``name`` is the axis that their keys are values of."""
    return [
        line({**axes, name: key}, **{new: timing.get(old) for old, new in _FIGURES.items()})
        for key, timing in timings.items()
        if "seconds" in timing
    ]


def integers(has_dot_products: bool) -> str:
    """The value of that axis."""
    return DOT_PRODUCTS if has_dot_products else MULTIPLY_ADDS


def memory(beyond_caches: bool) -> str:
    """The value of that axis."""
    return BEYOND_CACHES if beyond_caches else CACHED
