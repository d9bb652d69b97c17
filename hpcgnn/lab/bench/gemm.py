"""The measurement of ``hpcgnn bench gemm``: a dense layer's products, beside other libraries and the CPU's peak of arithmetic.

Each shape has one process, in which all contenders take turns with warm memory; ours runs without its pool of buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn.devices import CPU, Device
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.lab.bench import figures, lines, studies
from hpcgnn.lab.bench.gemm_contenders import by_name
from hpcgnn.lab.bench.measure import Entry, Place, interleave, steps
from hpcgnn.lab.bench.names import PRODUCT_DTYPES, PRODUCTS
from hpcgnn.lab.bench.run import Progress, machine, versions
from hpcgnn.nn import int8 as training

AS_TRAINED = (
    "--compute int8"  # the contender that is ours in integers where training takes them, and ours in float32 elsewhere
)


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement. shapes: rows, depth and width of each. dtypes: types beside float32, which is always
    measured."""

    shapes: tuple[tuple[int, int, int], ...]
    threads: int
    rounds: int
    dtypes: tuple[str, ...] = PRODUCT_DTYPES
    device: Device = CPU


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measure all shapes. Raises :class:`HpcgnnError` if a shape cannot be measured."""
    found: dict[str, Any] = {
        "machine": machine(settings.device),
        "versions": versions(),
        "threads": settings.threads,
        "rounds": settings.rounds,
        "device": str(settings.device.torch_device),
        "dtypes": list(settings.dtypes),
        "dot_products": dot_products(torch_device=settings.device.torch_device),
    }
    found["shapes"] = [_measure(shape, settings, progress) for shape in settings.shapes]
    if settings.device is CPU and "int8" in settings.dtypes:
        found["training_takes_int8"] = _training_takes_int8(settings.threads)
    found["lines"] = [line for shape in found["shapes"] for line in _lines(shape, found)]
    return found


def _training_takes_int8(threads: int) -> bool:
    """Return whether ``--compute int8`` multiplies large matrices as integers on this CPU; training measures it."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return training.measured().uses.products
    finally:
        torch.set_num_threads(usual)


def _measure(shape: tuple[int, int, int], settings: Settings, progress: Progress) -> dict[str, Any]:
    device, (rows, depth, width) = str(settings.device.torch_device), shape
    contenders, multiply_adds = by_name(device), rows * depth * width
    place = Place(studies.gemm(*shape), settings.threads, warm=True, device=device)
    names = [name for name, each in contenders.items() if each.dtype in ("float32", *settings.dtypes)]
    entries = [Entry(name, name, place) for name in names]
    result = {"rows": rows, "depth": depth, "width": width, "multiply_adds": multiply_adds}
    title = " x ".join(f"{size:,}" for size in shape)
    with progress(title, steps(entries, settings.rounds, len(PRODUCTS))) as advance:
        outcomes = interleave(entries, settings.rounds, advance)
    products = {
        direction: figures.lines(outcome, contenders, multiply_adds * (3 if direction == "layer" else 1))
        for direction, outcome in outcomes.items()
    }
    return result | {"name": title, "products": products}


def _lines(shape: dict[str, Any], found: dict[str, Any]) -> list[lines.Line]:
    """The lines of one shape. found: the result of :func:`run` so far, with the facts about the CPU."""
    sizes = shape["rows"], shape["depth"], shape["width"]
    axes = {"subject": "x".join(map(str, sizes)), "integers": lines.integers(found["dot_products"])}
    products = shape["products"]
    if "training_takes_int8" in found:
        limits = training.LIMITS[found["dot_products"]]
        is_taken = found["training_takes_int8"] and training.multiplies(*sizes, limits)
        layer = products["layer"]
        products = products | {"layer": layer | {AS_TRAINED: layer["ours.int8" if is_taken else "ours"]}}
    return [
        line
        for direction, timings in products.items()
        for line in lines.of_timings(timings, "contender", axes | {"direction": direction})
    ]
