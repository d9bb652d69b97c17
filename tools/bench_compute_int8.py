"""What 8-bit integers give in place of float32, quantization counted: products with their gradients, and aggregations.

usage: python bench_compute_int8.py --threads 1 2          one JSON object on stdout; for tools/bench_compute.py

It measures with the instructions that the environment leaves it. The rules in hpcgnn/nn/int8.py follow from what it finds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.bench.graphs import Graphs, read_graph
from hpcgnn.kernels import Csr, dense, int8
from hpcgnn.kernels.edges import sddmm
from hpcgnn.kernels.spmm import spmm
from hpcgnn.nn import int8 as training

ROWS = (512, 4096, 32768)
WIDTHS = ((32, 32), (64, 64), (96, 96), (64, 256), (256, 40), (128, 128), (128, 256), (256, 256), (602, 256))
GRAPHS = (("rmat:scale=13,degree=28", 256), ("rmat:scale=15,degree=28", 64), ("rmat:scale=15,degree=28", 256),
          ("rmat:scale=17,degree=28", 256), ("rmat:scale=17,degree=4", 256))  # fmt: skip
HEADS = 8
_ROUNDS = 7
_KEY = 1


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    threads = parser.parse_args().threads
    products = [product(count, rows, *widths) for count in threads for rows in ROWS for widths in WIDTHS]
    with tempfile.TemporaryDirectory() as folder:
        sums = [aggregation(Path(folder), source, width, max(threads)) for source, width in GRAPHS]
    worth = training.measured()
    uses = training.usable()
    for cases, pays in ((products, uses.products), (sums, uses.sums)):
        for case in cases:
            case["takes"] = case["takes"] and pays
    print(json.dumps({"dot_products": int8.dot_products(), "products": products, "sums": sums,
                      "worth": {"products": worth.products, "sums": worth.sums}}))  # fmt: skip


def product(threads: int, rows: int, depth: int, width: int) -> dict[str, Any]:
    """Milliseconds of y, and of dx and dW together, and the errors of the three relative to float64 (root mean square)."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, weight, dy = torch.randn(rows, depth), torch.randn(depth, width), torch.randn(rows, width)
    kept: dict[str, Any] = {}

    def forward() -> torch.Tensor:
        y, kept["x"] = int8.product(x, weight, key=_KEY, weight_key=_KEY + 1)
        return y

    def backward() -> tuple[torch.Tensor, torch.Tensor]:
        dx, _ = int8.product(dy, weight.T, key=_KEY + 2, weight_key=_KEY + 3)
        return dx, int8.weight_gradient(kept["x"], dy, key=_KEY + 4)[0]

    milliseconds = by_turns({
        "float32 y": lambda: dense.product(x, weight),
        "float32 gradients": lambda: (dense.product(dy, weight.T), dense.weight_gradient(x, dy)),
        "int8 y": forward,
        "int8 gradients": backward,
    })  # fmt: skip
    wanted = x.double() @ weight.double(), dy.double() @ weight.double().T, x.double().T @ dy.double()
    found = forward(), *backward()
    errors = [float((one - exact).norm() / exact.norm()) for one, exact in zip(found, wanted, strict=True)]
    limits = training.limits_of()
    takes = training.multiplies(rows, depth, width, limits)
    return {"threads": threads, "shape": [rows, depth, width], "ms": milliseconds, "errors": errors, "takes": takes}


def aggregation(folder: Path, source: str, width: int, threads: int) -> dict[str, Any]:
    """Milliseconds of sums, of weighted sums of several heads, and of products of an edge's ends."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    csr: Csr = read_graph(Graphs(folder).whole(source))
    a, b = torch.randn(csr.num_rows, width), torch.randn(csr.num_rows, width)
    weight = torch.rand(csr.num_entries, HEADS)

    def quantized(values: torch.Tensor | None) -> torch.Tensor:
        rows = int8.quantize_rows(b, key=_KEY)
        return spmm(csr, rows.codes, values, scale=rows.scale)

    def edges() -> torch.Tensor:
        return int8.sddmm(csr, int8.quantize_rows(a, key=_KEY), int8.quantize_rows(b, key=_KEY), "dot", HEADS)

    milliseconds = by_turns({
        "float32 sums": lambda: spmm(csr, b),
        "int8 sums": lambda: quantized(None),
        "float32 weighted": lambda: spmm(csr, b, weight),
        "int8 weighted": lambda: quantized(weight),
        "float32 edges": lambda: sddmm(csr, a, b, "dot", HEADS),
        "int8 edges": edges,
    })  # fmt: skip
    return {"graph": source, "width": width, "threads": threads, "ms": milliseconds,
            "takes": training.aggregates(csr, width)}  # fmt: skip


def by_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median of each, in milliseconds."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(1 + _ROUNDS):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: 1e3 * float(np.median(times)) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
