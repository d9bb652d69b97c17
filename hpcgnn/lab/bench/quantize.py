"""The measurement of ``hpcgnn bench quantize``: bytes a second beside the copy bandwidth of the host or a GPU, in one process.

It runs training's kernels on one message of all rows, in warm buffers. A byte counts each time that the work must read or write
it: *encode* reads float32 rows and writes the message, *decode* does the reverse, and *aggregate* reads the message, and reads
and writes the rows to which it adds (two rows of the message to each).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import Csr
from hpcgnn.kernels.messages import decode_rows, encode_rows, spmm_rows
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.lab.bench import results
from hpcgnn.lab.bench.measure import Timing
from hpcgnn.lab.bench.names import Advance
from hpcgnn.lab.bench.problem import calls_together, seconds_of

_CALLS = 3
_ENTRIES_A_ROW = 2


def _kernels(bits: int, x: torch.Tensor, out: torch.Tensor, sums: Csr) -> tuple[dict[str, Callable[[], object]], int]:
    """The kernels by name, and the bytes of a message of all rows of ``x``: first their payloads, then their parameters, as in
    messages of one bit-width. ``encode`` must run first. ``sums`` is the matrix that adds rows of the message to those of
    ``out``."""
    (rows, width), device = x.shape, x.device
    numbers, row_bytes = torch.arange(rows, device=device), payload_bytes(width, bits)
    payloads, params = rows * row_bytes, rows * PARAMS_BYTES if bits in QUANTIZED_BITS else 0
    buffer = torch.zeros(payloads + params, dtype=torch.uint8, device=device)
    places = numbers * row_bytes, payloads + numbers * PARAMS_BYTES
    kernels: dict[str, Callable[[], object]] = {
        f"encode {bits}": lambda: encode_rows(x, numbers, bits, 1, buffer, *places, check=False),
        f"decode {bits}": lambda: decode_rows(buffer, *places, bits, out, numbers, check=False),
        f"aggregate {bits}": lambda: spmm_rows(sums, buffer, *places, bits, width, out, check=False),
    }
    return kernels, buffer.nbytes


def run(
    rows: int, width: int, bits: tuple[int, ...], threads: int, rounds: int, advance: Advance, device: Device = CPU
) -> dict[str, Any]:
    """Measure (rows, width) float32 at each bit-width in ``bits``; ``advance`` counts rounds."""
    torch.set_num_threads(threads)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=draw).to(device.torch_device)
    entries = torch.randint(rows, (_ENTRIES_A_ROW * rows,), generator=draw)
    sums = Csr(torch.arange(0, entries.numel() + 1, _ENTRIES_A_ROW), entries, rows).to(device.torch_device)
    copied, restored = torch.zeros_like(x), torch.zeros_like(x)
    calls: dict[str, Callable[[], object]] = {"copy": lambda: copied.copy_(x)}
    moved = {"copy": 2 * x.nbytes}
    for number in bits:
        new, message_bytes = _kernels(number, x, restored, sums)
        calls |= new
        moved |= {name: message_bytes + x.nbytes * (1 + name.startswith("aggregate")) for name in new}
    timings = {name: Timing() for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            together = calls_together(device, seconds_of(device, call)) if device is not CPU else 1
            timings[name].rounds.append(statistics.median(seconds_of(device, call, together) for _ in range(_CALLS)))
        advance(1)
    gigabytes = {name: moved[name] / timing.seconds / 1e9 for name, timing in timings.items()}
    kernels = {
        name: timing.as_json() | {"bytes": moved[name], "gigabytes_per_second": gigabytes[name],
                                  "of_copy": gigabytes[name] / gigabytes["copy"]}
        for name, timing in timings.items()
    }  # fmt: skip
    lines = results.lines(kernels, "step", {"subject": f"{rows}x{width}"})
    found = results.about(device, threads, rounds, rows=rows, width=width, device=str(device.torch_device))
    return found | {"kernels": kernels, "lines": lines}
