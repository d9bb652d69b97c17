"""What ``hpcgnn bench gemm`` measures: a dense layer's products, beside other libraries and the CPU's peak of arithmetic.

One process for a shape, in which all contenders take turns with warm memory; ours without its pool of buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcgnn.devices import CPU, Device
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.study import figures, studies
from hpcgnn.study.gemm_contenders import DIRECTIONS, DTYPES, by_name
from hpcgnn.study.measure import Entry, Place, interleave, steps
from hpcgnn.study.report import Requirement
from hpcgnn.study.run import Progress, machine

LEAST_TIMES_FLOAT32 = (
    1.8  # of products with at least so many multiply-adds, on CPUs with dot products of 8-bit integers
)
LEAST_OF_PEAK = 0.85
LARGE = 32768 * 256 * 256


@dataclass(frozen=True)
class Settings:
    """What to measure, and where. shapes: rows, depth and width of each. dtypes: beside float32, which is always measured."""

    shapes: tuple[tuple[int, int, int], ...]
    threads: int
    rounds: int
    dtypes: tuple[str, ...] = DTYPES
    device: Device = CPU


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measure everything. Raises :class:`HpcgnnError`."""
    found: dict[str, Any] = {
        "machine": machine(settings.device),
        "threads": settings.threads,
        "rounds": settings.rounds,
        "device": str(settings.device.where),
        "dtypes": list(settings.dtypes),
        "dot_products": dot_products(where=settings.device.where),
    }
    found["shapes"] = [_measure(shape, settings, progress) for shape in settings.shapes]
    chosen = settings.device is CPU and "int8" in settings.dtypes
    found["requirements"] = [
        line.as_json() for shape in found["shapes"] if chosen for line in requirements(shape, found["dot_products"])
    ]
    return found


def _measure(shape: tuple[int, int, int], settings: Settings, progress: Progress) -> dict[str, Any]:
    device, (rows, depth, width) = str(settings.device.where), shape
    contenders, multiply_adds = by_name(device), rows * depth * width
    place = Place(studies.gemm(*shape), settings.threads, warm=True, device=device)
    names = [name for name, each in contenders.items() if each.dtype in ("float32", *settings.dtypes)]
    entries = [Entry(name, name, place) for name in names]
    result = {"rows": rows, "depth": depth, "width": width, "multiply_adds": multiply_adds}
    title = " x ".join(f"{size:,}" for size in shape)
    with progress(title, steps(entries, settings.rounds, len(DIRECTIONS))) as advance:
        outcomes = interleave(entries, settings.rounds, advance)
    products = {
        direction: figures.lines(outcome, contenders, multiply_adds * (3 if direction == "layer" else 1))
        for direction, outcome in outcomes.items()
    }
    return result | {"name": title, "products": products}


def requirements(shape: dict[str, Any], has_dot_products: bool) -> list[Requirement]:
    """Those that the measurements of one shape (see :func:`run`) answer: none of small ones, and of CPUs without dot products."""
    if not has_dot_products or shape["multiply_adds"] < LARGE:
        return []
    found = []
    for direction in ("y", "dx", "dW", "layer"):
        measured, note = figures.reached(shape["products"][direction], "ours.int8", "times_ours")
        what = "times ours float32 by int8, quantization counted"
        found.append(Requirement(what, shape["name"], "kernel", direction, measured, LEAST_TIMES_FLOAT32, note=note))
    measured, note = figures.reached(shape["products"]["product"], "ours.int8", "of_ceiling")
    what = "of the peak of 8-bit multiply-adds"
    found.append(Requirement(what, shape["name"], "kernel", "product", measured, LEAST_OF_PEAK, note=note))
    return found
