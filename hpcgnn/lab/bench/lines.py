"""The ``lines`` of a bench's JSON: all its measurements, each with axes that identify it, so that a study can tabulate them and
compare them with targets (hpcgnn/lab/study).

A line is ``{"axes": {name: text}, "figures": {name: number}}``. Axes are ``subject`` (a graph or a shape), ``mode``,
``direction``, ``contender``, ``step`` and ``part``; ``memory`` tells whether caches hold the gathered rows, and ``integers``
which instructions multiply 8-bit integers on the CPU or the GPU. Measurements that were not possible have no line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Line = dict[str, dict[str, Any]]
DOT_PRODUCTS, MULTIPLY_ADDS = "dot products", "multiply-adds"
CACHED, BEYOND_CACHES = "caches", "beyond caches"
# Names of figures in a timing, and in lines.
_FIGURES = {
    "seconds": "seconds",
    "spread": "spread",
    "bytes": "bytes",
    "gigabytes_per_second": "gigabytes_per_second",
    "of_copy": "share_of_copy",
    "of_ceiling": "share_of_peak",
    "relative_error": "relative_error",
    "thread_scaling": "thread_scaling",
    "python_calls": "python_calls",
}


def line(axes: Mapping[str, str], **figures: float | None) -> Line:
    """A line, without the figures that are None."""
    return {"axes": dict(axes), "figures": {name: value for name, value in figures.items() if value is not None}}


def of_timings(timings: Mapping[str, Mapping[str, Any]], name: str, axes: Mapping[str, str]) -> list[Line]:
    """A line for each timing that is not missing; ``name`` is the axis whose values are the timings' keys."""
    return [
        line({**axes, name: key}, **{new: timing.get(old) for old, new in _FIGURES.items()})
        for key, timing in timings.items()
        if "seconds" in timing
    ]


def integers(has_dot_products: bool) -> str:
    """The value of the axis ``integers``."""
    return DOT_PRODUCTS if has_dot_products else MULTIPLY_ADDS


def memory(beyond_caches: bool) -> str:
    """The value of the axis ``memory``."""
    return BEYOND_CACHES if beyond_caches else CACHED
