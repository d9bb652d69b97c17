"""docs/compute.md from docs/compute.json; nothing is measured here."""

from __future__ import annotations

from typing import Any

import measure
import numpy as np

LIMIT = 1.05  # of an epoch under auto beside the fastest of those that were asked for
COMMAND = "python tools/bench_compute.py --threads 1 2"


def document(content: dict[str, Any]) -> str:
    """Those parts that have been measured."""
    lines = ["# Dense products", "", f"Made by `{COMMAND}`; figures in `compute.json`.", ""]
    for part, write in (("epochs", epochs), ("integers", integers), ("gradients", gradients), ("products", products)):
        if part in content:
            lines += [*write(content[part]), ""]
    return "\n".join(lines)


def epochs(found: dict[str, Any]) -> list[str]:
    """Medians of epochs under each choice."""
    rows = []
    for case in found["cases"]:
        medians = {choice: float(np.median(seconds)) for choice, seconds in case["seconds"].items()}
        ratio = overhead(medians)
        least, most = np.percentile(case["seconds"]["float32"], (25, 75))
        rows.append(
            [
                case["cpu"],
                case["model"],
                str(case["width"]),
                f"{medians['float32']:.4f} ({least:.4f} to {most:.4f})",
                f"{medians['bf16']:.4f}" if "bf16" in medians else "refused",
                f"{medians['auto']:.4f}",
                case["chosen"],
                f"{ratio:.2f}",
                "yes" if ratio <= LIMIT else "**no**",
                *integer_cells(medians),
            ]
        )
    header = ["CPU", "model", "width", "float32, s (quartiles)", "bf16, s", "auto, s", "auto took", "auto / fastest",
              f"at most {LIMIT:g}", "int8, s", "float32 / int8"]  # fmt: skip
    about = (
        f"Medians of {len(found['cases'][0]['seconds']['auto'])} by turns on {found['ranks']} ranks of 1 thread, 3 layers, "
        f"the other settings as in `hpcgnn train`, `{found['graph']}`, on {found['machine']}. *AVX2*: `HPCGNN_ISA`, "
        "`ATEN_CPU_CAPABILITY`, `ONEDNN_MAX_CPU_ISA` and `MKL_ENABLE_INSTRUCTIONS` keep everything to it."
    )
    return ["## Epochs under `--compute`", "", about, "", *measure.table(header, rows)]


def overhead(medians: dict[str, float]) -> float:
    """The epoch under auto beside the fastest of the explicit choices."""
    return medians["auto"] / min(seconds for choice, seconds in medians.items() if choice not in ("auto", "int8"))


def integer_cells(medians: dict[str, float]) -> list[str]:
    """The epoch under int8, and how many times as fast as float32 it is."""
    if "int8" not in medians:
        return ["-", "-"]
    return [f"{medians['int8']:.4f}", f"{medians['float32'] / medians['int8']:.2f}"]


def integers(found: dict[str, Any]) -> list[str]:
    """8-bit integers beside float32, on this CPU and with fewer instructions."""
    products, sums = [], []
    for cpu, measured in found["cases"].items():
        for case in measured["products"]:
            ms, (rows, depth, width) = case["ms"], case["shape"]
            whole = [ms[f"{kind} y"] + ms[f"{kind} gradients"] for kind in ("float32", "int8")]
            products.append(
                [
                    cpu,
                    str(case["threads"]),
                    f"{rows} x {depth} x {width}",
                    f"{ms['float32 y']:.3f} / {ms['int8 y']:.3f}",
                    f"{ms['float32 gradients']:.3f} / {ms['int8 gradients']:.3f}",
                    f"{whole[0] / whole[1]:.2f}",
                    ", ".join(f"{100 * error:.2f}" for error in case["errors"]),
                    "int8" if case["takes"] else "float32",
                ]
            )
        for case in measured["sums"]:
            ms = case["ms"]
            ratios = [f"{ms[f'float32 {what}'] / ms[f'int8 {what}']:.2f}" for what in ("sums", "weighted", "edges")]
            about = [cpu, f"`{case['graph']}`", str(case["width"]), f"{ms['float32 sums']:.1f} / {ms['int8 sums']:.1f}"]
            sums.append([*about, *ratios, "int8" if case["takes"] else "float32"])
    threads = dict.fromkeys(row[1] for row in products)
    lines = [
        "## 8-bit integers",
        "",
        f"Made by `python tools/bench_compute.py --only integers --threads {' '.join(threads)}`. "
        f"Medians of turns beside float32, quantization with noise counted, on {found['machine']}; errors are root mean squares "
        "relative to float64, of random matrices. *without VNNI*: `HPCGNN_DOT_PRODUCTS=off`. *takes*: what `--compute int8` does "
        "in such a shape, by the sizes and by what a run measures when it starts.",
        "",
        *(
            f"- {cpu}: by that measurement products are {measured['worth']['products']:.2f} and aggregations "
            f"{measured['worth']['sums']:.2f} times as fast as in float32."
            for cpu, measured in found["cases"].items()
        ),
        "",
    ]
    header = ["CPU", "threads", "rows x in x out", "y: float32 / int8 ms", "dx and dW: float32 / int8 ms", "speedup",
              "errors of y, dx, dW in %", "takes"]  # fmt: skip
    lines += [*measure.table(header, products), ""]
    header = [
        "CPU",
        "graph",
        "width",
        "sums: float32 / int8 ms",
        "sums",
        "weighted, 8 heads",
        "SDDMM, 8 heads",
        "takes",
    ]
    return [*lines, *measure.table(header, sums)]


def gradients(found: dict[str, Any]) -> list[str]:
    """The native weight gradient beside torch's on AVX2."""
    rows = []
    for case in found["cases"]:
        native, torch = (case["gflops"][way] for way in ("native", "torch"))
        shape = f"{case['rows']} x {case['in_width']} x {case['out_width']}"
        rows.append([str(case["threads"]), shape, f"{torch:.0f}", f"{native:.0f}", f"{native / torch:.2f}"])
    about = f"dW = xT dy in float32, best of 30 by turns, everything kept to AVX2, on {found['machine']}."
    header = ["threads", "rows x in x out", "torch: GFLOPS", "native: GFLOPS", "native / torch"]
    return ["## Weight gradients on AVX2", "", about, "", *measure.table(header, rows)]


def products(found: dict[str, Any]) -> list[str]:
    """All products, alone and as a layer does them."""
    ways = list(found["cases"][0]["gflops"]["y"])
    header = ["threads", "rows x in x out", *(f"{product}: GFLOPS" for product in ("y", "dx", "dW"))]
    header += ["y: float32 / bf16 ms", "dx and dW: float32 / bf16 ms", "speedup"]
    header += ["errors of y, dx, dW in %", "float32 is by", "`bf16` takes"]
    worth = (
        f"bfloat16 by {'our kernels' if found['way'] == 'kernels' else 'torch'} is {found['speedup']:.2f} times as fast as "
        "float32 by what a run measures when it starts."
        if found["speedup"]
        else "The CPU multiplies bfloat16 by emulation only."
    )
    named = {"torch": "torch in float32", "torch, bf16": "torch in bfloat16", "float32": "native in float32",
             "bf16": "native in bfloat16"}  # fmt: skip
    about = (
        f"Medians of turns, on {found['machine']}. GFLOPS are those of single products: {', '.join(named[way] for way in ways)}. "
        "Milliseconds and errors are those of a layer's products, conversions of operands and results included; errors are root "
        f"mean squares relative to float64. {worth}"
    )
    return ["## Products", "", about, "", *measure.table(header, [line(case) for case in found["cases"]])]


def line(case: dict[str, Any]) -> list[str]:
    """One row of the table."""
    plain, rounded = case["float32_ms"], case["bf16_ms"]
    return [
        str(case["threads"]),
        f"{case['rows']} x {case['in_width']} x {case['out_width']}",
        *(" / ".join(f"{rate:.0f}" for rate in case["gflops"][product].values()) for product in ("y", "dx", "dweight")),
        *(f"{a:.3f} / {b:.3f}" for a, b in zip(plain, rounded, strict=True)),
        f"{sum(plain) / sum(rounded):.2f}",
        ", ".join(f"{100 * error:.2f}" for error in case["bf16_errors"]),
        "native" if case["chosen"]["native"] else "torch",
        "bf16" if case["chosen"]["bf16"] else "float32",
    ]
