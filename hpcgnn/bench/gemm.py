"""What ``hpcgnn bench gemm`` measures: a dense layer's products, beside other libraries and the CPU's peak of arithmetic.

One process for a shape, in which all contenders take turns with warm memory; ours without its pool of buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn.bench import figures, studies
from hpcgnn.bench.gemm_contenders import DIRECTIONS, DTYPES, by_name
from hpcgnn.bench.measure import Entry, Place, interleave, steps
from hpcgnn.bench.report import Requirement
from hpcgnn.bench.run import Progress, machine
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.nn import int8 as training

# On CPUs with dot products of 8-bit integers, of products with at least so many multiply-adds.
LEAST_TIMES_FLOAT32, LEAST_OF_PEAK = 1.8, 0.85
LARGE = 32768 * 256 * 256
# On others, of a layer: where training takes integers, they are not slower.
LEAST_WHERE_TAKEN = 1.0


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
    if settings.device is not CPU or "int8" not in settings.dtypes:
        return found | {"requirements": []}
    if not found["dot_products"]:
        found["training_takes_int8"] = _training_takes_int8(settings.threads)
    lines = [line for shape in found["shapes"] for line in requirements(shape, found)]
    return found | {"requirements": [line.as_json() for line in lines]}


def _training_takes_int8(threads: int) -> bool:
    """Whether ``--compute int8`` multiplies large matrices in integers on this CPU, by the measurement that it makes."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return training.measured().uses.products
    finally:
        torch.set_num_threads(usual)


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


def requirements(shape: dict[str, Any], found: dict[str, Any]) -> list[Requirement]:
    """Those that the measurements of one shape answer. found: of :func:`run`, what it knows of the CPU."""

    def line(what: str, direction: str, figure: str, least: float) -> Requirement:
        measured, note = figures.reached(shape["products"][direction], "ours.int8", figure)
        return Requirement(what, shape["name"], "kernel", direction, measured, least, note=note)

    what = "times ours float32 by int8, quantization counted"
    if not found["dot_products"]:
        sizes = shape["rows"], shape["depth"], shape["width"]
        is_taken = found["training_takes_int8"] and training.multiplies(*sizes, training.LIMITS[False])
        return [line(what, "layer", "times_ours", LEAST_WHERE_TAKEN)] if is_taken else []
    if shape["multiply_adds"] < LARGE:
        return []
    lines = [line(what, direction, "times_ours", LEAST_TIMES_FLOAT32) for direction in ("y", "dx", "dW", "layer")]
    return [*lines, line("of the peak of 8-bit multiply-adds", "product", "of_ceiling", LEAST_OF_PEAK)]
