"""What is required of one GPU, measured: kernels, epochs beside PyG's, policies of messages. Writes OUT.json and OUT.md.

    make bench-gpu PYTHON=python3                      on a machine with an H100, within 10 minutes, without a network
    python tools/bench_gpu.py --seconds 580 --out build/bench-gpu

Each part runs in processes of its own, and the documents are written again after each. What does not fit into --seconds, or
cannot be on this machine, is listed as not measured, with the reason. --smaller makes all graphs so many scales smaller, to try
the program. Policies need root, iproute2 and Open MPI (docs/virtual_cluster.md), for links of a known speed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measure

from hpcgnn.bench import figures
from hpcgnn.bench.report import Requirement
from hpcgnn.comm.devices import choose_device
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.errors import HpcgnnError

TOOLS = Path(__file__).parent
EPOCHS = [sys.executable, str(TOOLS / "bench_gpu_epochs.py")]
AGGREGATION = ((19, 128), (17, 256))  # scale and width
DEGREE, FEATURES, CLASSES = 28, 256, 40
ROWS, BITS = 1 << 19, (1, 2, 4, 8, 16)
HEADS = 8  # of products at edges
INT8 = {"gemm": 2.2, "sddmm": 1.6}  # times as fast as ours in float32, which is without TF32
INT8_EPOCHS = {"gcn": 1.2, "gat": 1.5}  # times as fast as our own epoch in float32
EPOCH_SCALE, POLICY_SCALE = 17, 15
MODELS = {"gcn": 2.0, "sage": 2.0, "gat": 1.5}  # times as fast as PyG
MOST_MEMORY = {"gat": 0.5}  # of PyG's peak
RATES = ("1gbit", "10gbit")
LEAST_SCALE = 6  # with nodes for all classes
_CONVERTED_BEFORE = ("product",)  # directions of gemm in which nothing is quantized


class NotMeasured(Exception):
    """Why."""


@dataclass
class Run:
    """What is measured, how small, until when (by :func:`time.monotonic`), and what was found."""

    device: str
    smaller: int
    deadline: float
    folder: Path
    found: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def source(self, scale: int) -> str:
        """An R-MAT graph."""
        return f"rmat:scale={max(scale - self.smaller, LEAST_SCALE)},degree={DEGREE}"

    def output(self, command: list[str]) -> str:
        """What a command prints. Raises :class:`NotMeasured` where it fails, or time is over."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise NotMeasured("no time was left")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
        except subprocess.TimeoutExpired as error:
            raise NotMeasured("the time was over before it had ended") from error
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
            raise NotMeasured(next((line for line in said if line.startswith("hpcgnn:")), said[-1]))
        return done.stdout

    def hpcgnn(self, *words: object) -> Any:
        """What a command of hpcgnn prints as JSON."""
        return json.loads(self.output([*measure.HPCGNN, *map(str, words), "--json"]))

    def epochs(self, *words: object) -> Any:
        """What bench_gpu_epochs.py prints."""
        lines = self.output([*EPOCHS, *map(str, words), "--device", self.device]).splitlines()
        return json.loads(lines[-1])

    @property
    def rows(self) -> int:
        """Of matrices without a graph."""
        return max(ROWS >> self.smaller, 1 << LEAST_SCALE)

    def graphs(self) -> list[object]:
        """Words that ask for the graphs of :data:`AGGREGATION`, which are made once."""
        asked = [word for scale, width in AGGREGATION for word in ("--graph", self.source(scale), "--width", width)]
        return [*asked, "--folder", self.folder / "graphs"]

    def parts(self, scale: int, count: int) -> Path:
        """A graph with features in so many parts, made where it is asked for first."""
        path = self.folder / f"{scale}-{count}.h5"
        if not path.exists():
            graph = self.folder / f"{scale}.h5"
            if not graph.exists():
                self.hpcgnn("convert", f"{self.source(scale)},features={FEATURES},classes={CLASSES}", graph)
            self.hpcgnn("partition", graph, path, "--parts", count, "--method", "block")
        return path


# -- what is measured --------------------------------------------------------------------------------------------------


def aggregation(run: Run) -> dict[str, Any]:
    """Kernels beside other libraries and the device's ceilings, and 8-bit integers, quantization counted."""
    options = ("--parts", 0, "--dtype", "int8", "--rounds", 5, "--device", run.device)
    return run.hpcgnn("bench", "aggregate", *run.graphs(), *options)


def quantization(run: Run) -> dict[str, Any]:
    """Messages beside a copy."""
    bits = [word for number in BITS for word in ("--bits", number)]
    return run.hpcgnn("bench", "quantize", "--rows", run.rows, *bits, "--rounds", 5, "--device", run.device)


def gemm(run: Run) -> dict[str, Any]:
    """A layer's products in float32, TF32, bfloat16 and 8-bit integers, conversions counted."""
    shape = f"{run.rows}x{FEATURES}x{FEATURES}"
    return run.hpcgnn("bench", "gemm", "--shape", shape, "--rounds", 5, "--device", run.device)


def sddmm(run: Run) -> dict[str, Any]:
    """Products at edges in float32 and 8-bit integers, quantization counted."""
    return run.hpcgnn("bench", "sddmm", *run.graphs(), "--heads", HEADS, "--rounds", 5, "--device", run.device)


def epochs(run: Run, model: str) -> dict[str, Any]:
    """Ours, in 8-bit integers too where that is required, and PyG's; a process each, so that each has its own peak of memory."""
    parts = run.parts(EPOCH_SCALE, 1)
    found = {who: run.epochs(who, parts, "--model", model) for who in ("ours", "pyg")}
    if model in INT8_EPOCHS:
        found["ours, int8"] = run.epochs("ours", parts, "--model", model, "--compute", "int8")
    return found


def policies(run: Run, rate: str) -> list[dict[str, Any]]:
    """Two ranks on one GPU, whose messages go over links of this speed."""
    parts = run.parts(POLICY_SCALE, 2)
    cluster = [*measure.HPCGNN, "launch", "--hosts", "2", "--rate", rate, "--name", "bench-gpu", "--"]
    lines = run.output([*cluster, *EPOCHS, "policies", str(parts), "--device", run.device]).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def everything(run: Run) -> dict[str, Callable[[], Any]]:
    """The parts by name, what is required first."""
    found: dict[str, Callable[[], Any]] = {
        "aggregation": lambda: aggregation(run),
        "quantization": lambda: quantization(run),
        "gemm": lambda: gemm(run),
        "sddmm": lambda: sddmm(run),
    }
    found |= {f"epochs {model}": lambda model=model: epochs(run, model) for model in MODELS}
    return found | {f"policies {rate}": lambda rate=rate: policies(run, rate) for rate in RATES}


# -- what is required --------------------------------------------------------------------------------------------------


def requirements(run: Run) -> list[dict[str, Any]]:
    """Each figure that is required: as measured, or why it was not."""
    lines: list[dict[str, Any]] = []
    for part in ("aggregation", "quantization"):
        if part in run.found:
            lines += run.found[part]["requirements"]
        elif part in run.missing:
            lines.append(Requirement(f"all of {part}", "-", "kernel", "-", None, 1, note=run.missing[part]).as_json())
    for part, least in INT8.items():
        lines += [line.as_json() for line in of_int8(run, part, least)]
    for model, least in MODELS.items():
        lines += [line.as_json() for line in of_epochs(run, model, least)]
    return lines


def of_int8(run: Run, part: str, least: float) -> list[Requirement]:
    """Of a part's products of 8-bit integers."""
    what = f"{part}: times float32 by int8, quantization counted"
    if part not in run.found:
        why = run.missing.get(part)
        return [] if why is None else [Requirement(what, "-", "kernel", "-", None, least, note=why)]
    lines = []
    for name, timings in subjects(run.found[part]):
        for direction in (direction for direction in timings if direction not in _CONVERTED_BEFORE):
            times, why = figures.reached(timings[direction], "ours.int8", "times_ours")
            lines.append(Requirement(what, name, "kernel", direction, times, least, note=why))
    return lines


def of_epochs(run: Run, model: str, least: float) -> list[Requirement]:
    """Of one model's epochs."""
    part, graph = f"epochs {model}", run.source(EPOCH_SCALE)
    found, why = run.found.get(part), run.missing.get(part, "")
    faster, share = None, None
    if found:
        faster = found["pyg"]["epoch_seconds"] / found["ours"]["epoch_seconds"]
        peaks = [found[who]["peak_bytes"] for who in ("ours", "pyg")]
        share = peaks[0] / peaks[1] if all(peaks) else None
    lines = [Requirement(f"{model}: times as fast as PyG's epoch", graph, "epoch", "both", faster, least, note=why)]
    if model in MOST_MEMORY:
        what = f"{model}: peak memory over PyG's"
        lines.append(Requirement(what, graph, "epoch", "both", share, MOST_MEMORY[model], at_most=True, note=why))
    if model in INT8_EPOCHS:
        integers = found.get("ours, int8") if found else None
        times = found["ours"]["epoch_seconds"] / integers["epoch_seconds"] if found and integers else None
        what = f"{model}: epoch in float32 over that with --compute int8"
        lines.append(Requirement(what, graph, "epoch", "both", times, INT8_EPOCHS[model], note=why))
    return lines


# -- the documents -----------------------------------------------------------------------------------------------------


def write(run: Run, about: dict[str, Any], out: Path) -> None:
    """Both documents."""
    lines = requirements(run)
    content = about | {"requirements": lines, "found": run.found, "missing": run.missing}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    out.with_suffix(".md").write_text("\n".join(document(run, about, lines)))


def document(run: Run, about: dict[str, Any], lines: list[dict[str, Any]]) -> list[str]:
    """The lines of the Markdown file."""
    text = [f"# {about['device']}", "", f"Made by `{about['command']}`; figures in the JSON file beside this one.", ""]
    text += [
        "## Required",
        "",
        *measure.table(["figure", "graph", "direction", "measured", "required", "answer"], [*map(row, lines)]),
    ]
    timed = [
        [part.removeprefix("epochs "), who, f"{1e3 * line['epoch_seconds']:.1f}", mebibytes(line["peak_bytes"])]
        for part, both in run.found.items() if part.startswith("epochs") for who, line in both.items()
    ]  # fmt: skip
    if timed:
        text += ["", "## Epochs", "", *measure.table(["model", "by", "ms", "peak MiB"], timed)]
    text += ["", "## Policies of messages, 2 ranks on one GPU", "", *of_policies(run)]
    for part in ("aggregation", "quantization", "gemm", "sddmm"):
        if part in run.found:
            text += ["", f"## {part.capitalize()}", "", *kernels(run.found[part])]
    return [*text, ""]


def row(line: dict[str, Any]) -> list[str]:
    """Of the table of what is required."""
    answer = {True: "met", False: "**not met**", None: f"not measured: {line['note'] or 'it has no result'}"}[
        line["reached"]
    ]
    measured = "-" if line["measured"] is None else f"{line['measured']:.2f}"
    required = f"{'≤' if line['at_most'] else '≥'} {line['required']:g}"
    return [line["what"], line["graph"], line["direction"], measured, required, answer]


def of_policies(run: Run) -> list[str]:
    """Their table, and why some are not in it."""
    rows = []
    for part, lines in ((part, lines) for part, lines in run.found.items() if part.startswith("policies")):
        for line in lines:
            times = lines[0]["epoch_seconds"] / line["epoch_seconds"]
            sent = f"{line['bytes_sent'] / 2**20:.2f}"
            rows.append(
                [
                    part.removeprefix("policies "),
                    line["policy"],
                    f"{1e3 * line['epoch_seconds']:.1f}",
                    f"{times:.2f}",
                    sent,
                ]
            )
    reasons = [f"{part}: not measured: {why}" for part, why in run.missing.items() if part.startswith("policies")]
    header = ["links", "messages", "ms an epoch", "times as fast as full precision", "MiB sent an epoch"]
    return [*(measure.table(header, rows) if rows else []), *reasons]


def kernels(found: dict[str, Any]) -> list[str]:
    """All that was timed."""
    if "kernels" in found:
        rows = [
            [name, f"{1e3 * line['seconds']:.3f}", f"{line['gigabytes_per_second']:.0f}", f"{line['of_copy']:.0%}"]
            for name, line in found["kernels"].items()
        ]
        return measure.table(["kernel", "ms", "GB/s", "of a copy"], rows)
    rows = []
    for about, timings in subjects(found):
        for direction, lines in timings.items():
            for name, line in lines.items():
                said = f"{1e3 * line['seconds']:.3f}" if "seconds" in line else line["missing"].replace("|", "/")
                rows.append([about, direction, name, said])
    return measure.table(["graph or shape", "direction", "contender", "ms"], rows)


def subjects(found: dict[str, Any]) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """Each graph or shape, with its contenders' figures by direction."""
    graphs = [(f"{graph['name']}, {graph['width']}", graph) for graph in found.get("graphs", ())]
    return [(name, graph["kernel" if "kernel" in graph else "ops"]) for name, graph in graphs] + [
        (shape["name"], shape["products"]) for shape in found.get("shapes", ())
    ]


def mebibytes(count: int | None) -> str:
    """In a table."""
    return "-" if count is None else f"{count / 2**20:,.0f}"


def main() -> None:
    """Measure, and write after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=TOOLS.parent / "build" / "bench-gpu")
    parser.add_argument("--seconds", type=float, default=570.0, help="for all of it")
    parser.add_argument("--smaller", type=int, default=0, metavar="SCALES")
    parser.add_argument("--parts", nargs="+", help="only these, such as `aggregation` or `epochs gat`")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    try:
        device = choose_device(one_rank(), arguments.device)
    except HpcgnnError as error:
        raise SystemExit(f"bench_gpu.py: {error}") from error
    about = {
        "device": device.name,
        "machine": measure.machine(),
        "command": " ".join(["tools/bench_gpu.py", *sys.argv[1:]]),
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Run(arguments.device, arguments.smaller, deadline, Path(folder))
        parts = everything(run)
        asked = arguments.parts or list(parts)
        run.missing = {name: "it was not asked for" for name in parts if name not in asked}
        for name, part in ((name, part) for name, part in parts.items() if name in asked):
            started = time.monotonic()
            try:
                run.found[name] = part()
            except NotMeasured as error:
                run.missing[name] = str(error)
            print(f"{name}: {time.monotonic() - started:.0f} s {run.missing.get(name, '')}", flush=True)
            write(run, about, arguments.out)
    print(arguments.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
