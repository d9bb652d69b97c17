"""What ``hpcgnn bench quantize`` measures: bytes a second beside the machine's copy bandwidth, in one process.

A byte counts once if the work must read or write it: ``quantize`` reads float32 rows and writes payload and parameters,
``dequantize`` does the reverse, a copy reads and writes. All buffers are made in advance and warm.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from hpcgnn import kernels
from hpcgnn.study.measure import Advance, Timing
from hpcgnn.study.report import LEAST_OF_COPY, Requirement
from hpcgnn.study.run import machine

_CALLS = 3
_REQUIRED_BITS = 2


def run(rows: int, width: int, bits: tuple[int, ...], threads: int, rounds: int, advance: Advance) -> dict[str, Any]:
    """Measure (rows, width) float32 at each of ``bits``; ``advance`` counts rounds. Raises :class:`HpcgnnError`."""
    torch.set_num_threads(threads)
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    copied, restored = torch.zeros_like(x), torch.zeros_like(x)
    calls: dict[str, Callable[[], object]] = {"copy": lambda: copied.copy_(x)}
    moved = {"copy": 2 * x.nbytes}
    for number in bits:
        payload, params = kernels.quantize(x, number, 1)
        moved[f"quantize {number}"] = moved[f"dequantize {number}"] = x.nbytes + payload.nbytes + params.nbytes
        calls[f"quantize {number}"] = _quantize(x, number, payload, params)
        calls[f"dequantize {number}"] = _dequantize(payload, params, number, restored)
    timings = _interleave(calls, rounds, advance)
    gigabytes = {name: moved[name] / timing.seconds / 1e9 for name, timing in timings.items()}
    lines = {
        name: timing.as_json() | {"bytes": moved[name], "gigabytes_per_second": gigabytes[name],
                                  "of_copy": gigabytes[name] / gigabytes["copy"]}
        for name, timing in timings.items()
    }  # fmt: skip
    found = {"machine": machine(), "threads": threads, "rounds": rounds, "rows": rows, "width": width, "kernels": lines}
    return found | {"requirements": [line.as_json() for line in _requirements(lines, rows, width)]}


def _quantize(x: torch.Tensor, bits: int, payload: torch.Tensor, params: torch.Tensor) -> Callable[[], object]:
    return lambda: kernels.quantize(x, bits, 1, payload=payload, params=params)


def _dequantize(payload: torch.Tensor, params: torch.Tensor, bits: int, out: torch.Tensor) -> Callable[[], object]:
    width = out.shape[1]
    return lambda: kernels.dequantize(payload, params, bits, width, out=out)


def _interleave(calls: dict[str, Callable[[], object]], rounds: int, advance: Advance) -> dict[str, Timing]:
    timings = {name: Timing() for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            timings[name].rounds.append(statistics.median(_seconds(call) for _ in range(_CALLS)))
        advance(1)
    return timings


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _requirements(lines: dict[str, Any], rows: int, width: int) -> list[Requirement]:
    names = [name for name in lines if name.endswith(f"quantize {_REQUIRED_BITS}")]
    return [
        Requirement(f"of copy bandwidth, {name} bits", f"{rows} rows of {width}", "kernel", "forward",
                    lines[name]["of_copy"], LEAST_OF_COPY)
        for name in names
    ]  # fmt: skip
