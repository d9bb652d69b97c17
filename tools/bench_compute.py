"""Dense products in float32 and in bfloat16, and epochs under `--compute`, by turns. Writes docs/compute.json and .md.

    python tools/bench_compute.py --threads 1 2         all of it: about 10 minutes on a quiet machine of two cores
    python tools/bench_compute.py --only epochs         this part anew (products, gradients, integers, epochs); the others stay
    python tools/bench_compute.py --only                the document again from its JSON

A line of `products` is one product with a weight and its two gradients: alone, in float32 by torch.mm and by the native
kernels, and in bfloat16 by either where the CPU does it; and as a layer does them in float32 and in bfloat16, conversions
included. The rules in hpcgnn/kernels/native/dense.py and hpcgnn/nn/compute.py (both `pays`) follow from it; the last columns
say what they choose. `gradients`: the native weight gradient beside torch's on AVX2, best of 30. `integers`: 8-bit ones beside
float32, by tools/bench_compute_int8.py. `epochs`: a training on 2 ranks under each choice. The last two on this CPU as it is and
kept to AVX2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import bench_compute_report as report
import measure
import numpy as np
import torch

from hpcgnn.kernels.dense import has_bf16
from hpcgnn.kernels.native import dense
from hpcgnn.nn import bfloat16, compute
from hpcgnn.nn.linear import matmul, operand

PARTS = ("products", "gradients", "integers", "epochs")
ROWS = (256, 4096, 32768)
WIDTHS = ((8, 256), (16, 16), (32, 32), (64, 64), (256, 40), (128, 256), (256, 256), (602, 256))
GRADIENTS = ((4096, 64, 64), (32768, 64, 64), (4096, 256, 256), (32768, 256, 256), (32768, 128, 256), (32768, 256, 40))
_LEAST_ROUNDS, _MOST_ROUNDS, _MULTIPLICATIONS = 7, 100, 3 * 10**9
_BEST_OF = 30
# What keeps our kernels, torch's own, oneDNN and MKL to AVX2.
AVX2 = {
    "HPCGNN_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
GRAPH = "rmat:scale=14,degree=16,features=256,classes=40"
RANKS, EPOCHS, EPOCH_WIDTHS = 2, 15, (64, 256)


ARITHMETICS = (compute.FLOAT32, compute.BF16)


def timed(call: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


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
    if bfloat16.torch_has_it():
        a, b, c = x.bfloat16(), weight.bfloat16(), dy.bfloat16()
        ways["y"]["torch, bf16"] = lambda: torch.mm(a, b)
        ways["dx"]["torch, bf16"] = lambda: torch.mm(c, b.T)
        ways["dweight"]["torch, bf16"] = lambda: torch.mm(a.T, c)
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
                seconds[way].append(timed(call))
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
    times = {name: np.empty((1 + rounds, 2)) for name in ARITHMETICS}
    facts: dict[str, object] = {"rows": rows, "in_width": in_width, "out_width": out_width}
    for turn in range(1 + rounds):
        for name in ARITHMETICS:
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


def measure_products(threads: list[int]) -> dict[str, Any]:
    """All shapes, and what this CPU is."""
    cases = []
    for count in threads:
        torch.set_num_threads(count)
        for shape in ((rows, *widths) for rows in ROWS for widths in WIDTHS):
            with mock.patch.object(compute, "pays", return_value=True):
                case = {"threads": count, "gflops": rates(*shape)} | compare(*shape)
            chosen = {"native": dense.pays(*shape), "bf16": compute.pays(*shape)}
            cases.append(case | {"chosen": chosen})
    torch.set_num_threads(threads[0])
    worth = bfloat16.bfloat16()
    return {"machine": measure.machine(), "way": worth.way, "speedup": worth.speedup, "cases": cases}


def weight_gradients(threads: list[int]) -> list[dict[str, Any]]:
    """GFLOPS of the weight gradient by torch and by the native kernel in this process, best of many, by turns."""
    found = []
    for count in threads:
        torch.set_num_threads(count)
        for rows, depth, width in GRADIENTS:
            torch.manual_seed(0)
            x, dy, dweight = torch.randn(rows, depth), torch.randn(rows, width), torch.empty(depth, width)
            ways: dict[str, Callable[[], object]] = {
                "torch": lambda x=x, dy=dy, out=dweight: torch.mm(x.T, dy, out=out),
                "native": lambda x=x, dy=dy, out=dweight: dense.contract(x, dy, out, None),
            }
            least = dict.fromkeys(ways, float("inf"))
            for _ in range(1 + _BEST_OF):
                for way, call in ways.items():
                    least[way] = min(least[way], timed(call))
            gflops = {way: 2e-9 * rows * depth * width / seconds for way, seconds in least.items()}
            found.append({"threads": count, "rows": rows, "in_width": depth, "out_width": width, "gflops": gflops})
    return found


def measure_gradients(threads: list[int]) -> dict[str, Any]:
    """:func:`weight_gradients` in a process that is kept to AVX2."""
    command = ["env", *settings(AVX2), sys.executable, __file__, "--weight-gradients", "--threads", *map(str, threads)]
    return {"machine": measure.machine(), "cases": measure.run(command)["cases"]}


def measure_integers(threads: list[int]) -> dict[str, Any]:
    """Products and aggregations of 8-bit integers, in processes with fewer and fewer instructions."""
    program = [sys.executable, str(Path(__file__).parent / "bench_compute_int8.py"), "--threads", *map(str, threads)]
    kinds = {"as it is": {}, "without VNNI": {"HPCGNN_DOT_PRODUCTS": "off"}, "AVX2": AVX2}
    cases = {name: measure.run(["env", *settings(variables), *program]) for name, variables in kinds.items()}
    return {"machine": measure.machine(), "cases": cases}


def measure_epochs() -> dict[str, Any]:
    """Epochs under each choice, on this CPU as it is and kept to AVX2."""
    tools, cases = Path(__file__).parent, []
    with tempfile.TemporaryDirectory() as folder:
        graph, parts = f"{folder}/graph.h5", f"{folder}/parts.h5"
        measure.run([*measure.HPCGNN, "convert", GRAPH, graph, "--json"])
        measure.run([*measure.HPCGNN, "partition", graph, parts, "--parts", str(RANKS), "--json"])
        for name, variables in (("as it is", {}), ("AVX2", AVX2)):
            launch = [*measure.HPCGNN, "launch", "-n", str(RANKS), "-t", "1", sys.executable]
            program = [str(tools / "compute_epochs.py"), parts, str(EPOCHS), *map(str, EPOCH_WIDTHS)]
            found = measure.run(["env", *settings(variables), *launch, *program])
            cases += [{"cpu": name} | case for case in found["cases"]]
    return {"machine": measure.machine(), "ranks": RANKS, "graph": GRAPH, "cases": cases}


def settings(variables: dict[str, str]) -> list[str]:
    """As `env` takes them."""
    return [f"{name}={value}" for name, value in variables.items()]


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--weight-gradients", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.weight_gradients:
        print(json.dumps({"cases": weight_gradients(arguments.threads)}))
        return
    path = measure.DOCS / "compute.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    content = content if isinstance(content, dict) else {}
    measures = {
        "products": lambda: measure_products(arguments.threads),
        "gradients": lambda: measure_gradients(arguments.threads),
        "integers": lambda: measure_integers(arguments.threads),
        "epochs": measure_epochs,
    }
    for part in arguments.only:
        content[part] = measures[part]()
        path.write_text(json.dumps(content, indent=1) + os.linesep)
    (measure.DOCS / "compute.md").write_text(report.document(content))


if __name__ == "__main__":
    main()
