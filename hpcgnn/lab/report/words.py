"""Numbers in the form in which reports show them."""

from __future__ import annotations

import math
from functools import partial

from hpcgnn.cli import console
from hpcgnn.train import run_files

MISSING = "-"


def seconds(value: float | None) -> str:
    """Seconds with a unit that fits: ``seconds(0.0123) == '12.3 ms'``."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{_three_digits(value / 1e-6)} µs"


def _three_digits(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(2 - math.floor(math.log10(abs(value))), 0) if value else 0
    return f"{value:.{min(digits, 3)}f}"


def size(value: float | None) -> str:
    """Bytes with a unit that fits: ``size(3 << 20) == '3.0 MiB'``."""
    return MISSING if value is None or not math.isfinite(value) else console.size(value)


def second_unit(most: float) -> tuple[float, str]:
    """The factor by which seconds are multiplied to be shown on an axis, and the unit."""
    return (1.0, "s") if most >= 1 else (1e3, "ms") if most >= 1e-3 else (1e6, "µs")


def byte_unit(most: float) -> tuple[int, str]:
    """The number of bytes by which bytes are divided to be shown on an axis, and the unit."""
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    return next((unit for unit in units if most >= unit[0]), (1, "B"))


def count(value: float | None) -> str:
    """A number with thousands separators; one that is not whole, such as a mean, gets one digit after the point."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def percent(value: float | None) -> str:
    """A share of 1 as a percentage."""
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.2f} %"


def ratio(value: float | None, base: float | None) -> str:
    """The ratio of a value to its base, such as ``x0.82``; an empty text if there is no ratio."""
    if value is None or base is None or not base or not math.isfinite(value / base):
        return ""
    found = value / base
    return f"x{found:.2f}" if 0.1 <= abs(found) < 1000 else f"x{found:.2g}"


plain = partial(run_files.plain, missing=MISSING)


def shortened(name: str, most: int = 28) -> str:
    """A name of at most ``most`` characters for a legend; its end is kept, as it tells more than its beginning."""
    return name if len(name) <= most else "…" + name[1 - most :]
