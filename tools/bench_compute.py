"""Dense products in float32 and in bfloat16, by turns: speeds and errors. Writes docs/compute.json and docs/compute.md.

    python tools/bench_compute.py --threads 1 2

A line is one product with a weight and its two gradients: alone, in float32 by torch.mm and by the native kernels, which
also do bfloat16 where the CPU does; and as a layer does them in float32 and in bfloat16, conversions included. The rules in
hpcgnn/kernels/native/dense.py and hpcgnn/nn/compute.py (both `pays`) follow from it; the last columns say what they choose.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest import mock

import measure
import numpy as np
import torch

from hpcgnn.kernels.dense import has_bf16
from hpcgnn.kernels.native import dense
from hpcgnn.nn import compute
from hpcgnn.nn.linear import matmul, operand

ROWS = (256, 4096, 32768)
WIDTHS = ((8, 256), (16, 16), (32, 32), (64, 64), (256, 40), (128, 256), (256, 256), (602, 256))
_LEAST_ROUNDS, _MOST_ROUNDS, _MULTIPLICATIONS = 7, 100, 3 * 10**9


def products(name: str, x: torch.Tensor, weight: torch.Tensor, upstream: torch.Tensor) -> tuple[Callable, Callable]:
    """Functions for ``y`` and, from it, for ``(dx, dW)``."""

    def backward(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y, (x, weight), upstream)

    return lambda: matmul(operand(x, name), weight), backward


def single_products(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> dict[str, dict[str, Callable]]:
    """Each product alone, into memory that is there: by torch.mm and by the native kernels whatever the size."""
    y, dx, dweight = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(weight)
    ways: dict[str, dict[str, Callable]] = {
        "y": {"torch": lambda: torch.mm(x, weight, out=y)},
        "dx": {"torch": lambda: torch.mm(dy, weight.T, out=dx)},
        "dweight": {"torch": lambda: torch.mm(x.T, dy, out=dweight)},
    }
    for name in ("float32", "bf16") if has_bf16() else ("float32",):
        ways["y"][name] = lambda name=name: dense.multiply(x, weight, None, False, y, name)
        ways["dx"][name] = lambda name=name: dense.multiply(dy, weight.T, None, False, dx, name)
        ways["dweight"][name] = lambda name=name: dense.contract(x, dy, dweight, None, name)
    return ways


def rates(rows: int, in_width: int, out_width: int) -> dict[str, dict[str, float]]:
    """Medians of the products alone, by turns, in 10^9 additions and multiplications a second."""
    torch.manual_seed(0)
    operands = torch.randn(rows, in_width), torch.randn(in_width, out_width), torch.randn(rows, out_width)
    multiplications = rows * in_width * out_width
    rounds = min(_MOST_ROUNDS, max(_LEAST_ROUNDS, _MULTIPLICATIONS // multiplications))
    found: dict[str, dict[str, float]] = {}
    for product, ways in single_products(*operands).items():
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(1 + rounds):
            for way, call in ways.items():
                started = time.perf_counter()
                call()
                seconds[way].append(time.perf_counter() - started)
        found[product] = {way: 2e-9 * multiplications / np.median(times[1:]) for way, times in seconds.items()}
    return found


def compare(rows: int, in_width: int, out_width: int) -> dict[str, object]:
    """Medians in milliseconds for ``y`` and for both gradients, and errors relative to float64 (root mean square)."""
    torch.manual_seed(0)
    x, weight = torch.randn(rows, in_width), torch.randn(in_width, out_width) / in_width**0.5
    upstream = torch.randn(rows, out_width)
    wanted = x.double() @ weight.double(), upstream.double() @ weight.double().T, x.double().T @ upstream.double()
    x, weight = x.requires_grad_(), weight.requires_grad_()
    rounds = min(_MOST_ROUNDS, max(_LEAST_ROUNDS, _MULTIPLICATIONS // (rows * in_width * out_width)))
    times = {name: np.empty((1 + rounds, 2)) for name in compute.COMPUTES}
    facts: dict[str, object] = {"rows": rows, "in_width": in_width, "out_width": out_width}
    for turn in range(1 + rounds):
        for name in compute.COMPUTES:
            forward, backward = products(name, x, weight, upstream)
            started = time.perf_counter()
            y = forward()
            between = time.perf_counter()
            found = y.detach(), *backward(y)
            times[name][turn] = between - started, time.perf_counter() - between
            if turn == 0:
                facts[f"{name}_errors"] = [
                    float((one - exact).norm() / exact.norm()) for one, exact in zip(found, wanted, strict=True)
                ]
    for name, seconds in times.items():
        facts[f"{name}_ms"] = (1e3 * np.median(seconds[1:], axis=0)).tolist()
    return facts


def line(case: dict) -> list[str]:
    """One row of the table."""
    shape = case["rows"], case["in_width"], case["out_width"]
    plain, rounded = case["float32_ms"], case["bf16_ms"]
    return [
        str(case["threads"]),
        "{} x {} x {}".format(*shape),
        *(" / ".join(f"{rate:.0f}" for rate in case["gflops"][product].values()) for product in ("y", "dx", "dweight")),
        *(f"{a:.3f} / {b:.3f}" for a, b in zip(plain, rounded, strict=True)),
        f"{sum(plain) / sum(rounded):.2f}",
        ", ".join(f"{100 * error:.2f}" for error in case["bf16_errors"]),
        "native" if dense.pays(*shape) else "torch",
        "bf16" if compute.pays(*shape) else "float32",
    ]


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    cases = []
    with mock.patch.object(compute, "pays", return_value=True):
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            for shape in ((rows, *widths) for rows in ROWS for widths in WIDTHS):
                cases.append({"threads": threads, "gflops": rates(*shape)} | compare(*shape))
    header = ["threads", "rows x in x out", *(f"{product}: GFLOPS" for product in ("y", "dx", "dW"))]
    header += ["y: float32 / bf16 ms", "dx and dW: float32 / bf16 ms", "speedup"]
    header += ["errors of y, dx, dW in %", "float32 is by", "`--compute bf16` takes"]
    about = (
        "Medians of turns. GFLOPS are those of single products: by torch.mm in float32, by native kernels in float32, and by "
        "those in bfloat16 where the CPU has AVX512_BF16. Milliseconds and errors are those of a layer's products, conversions "
        "of operands and results included; errors are root mean squares relative to float64. "
        f"The CPU multiplies bfloat16 {'in hardware' if compute.is_native() else 'by emulation only'}."
    )
    command = f"python tools/bench_compute.py --threads {' '.join(map(str, arguments.threads))}"
    measure.write("compute", "Dense products", command, about, header, [line(case) for case in cases], cases)


if __name__ == "__main__":
    main()
