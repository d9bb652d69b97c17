"""Kernels beside other libraries and the machine's limits: docs/performance.md, .json and docs/roofline.svg.

usage: performance.py                                   measure with this Python, which should have the other libraries
       performance.py --from AGGREGATE.json [...] QUANTIZE.json    write from what `hpcgnn bench ... --json` printed
       performance.py --exchange 1gbit=EXCHANGE.json [...]         replace the part about exchanges; the rest stays
       performance.py --breakdown BREAKDOWN.json [...]             and that about the time breakdown (bench_breakdown.py)

An exchange is measured where ranks and links are, such as
  hpcgnn launch --hosts 4 --rate 1gbit -t 1 -- hpcgnn bench exchange parts.h5 --json > EXCHANGE.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import measure

from hpcgnn.bench.plot import roofline
from hpcgnn.bench.report import timing_rows

ABOUT = """\
What is compared is `z = A x` for a graph's matrix of ones, and its backward pass; every result is checked against
ours. Contenders take turns, each figure is the median of {rounds} rounds, on {threads} threads; *spread* is the
slowest round minus the fastest, over the median. Libraries are used as well as they allow: formats, transposes and
32-bit indices are made in advance (for ours: the transpose, and the list of rows that are used most). Backward is the
library's autograd; where that makes the transpose anew in each call, a line *kept transpose* stands beside it, and a
requirement counts the fastest line of a library (for PyG's default: its layer's gather and scatter, or gather and
`index_add`).

*kernel*: one process, all contenders with the same allocator that keeps its memory (`mallopt`: no `mmap`, no
trimming), our buffer pool off. *user*: a process each with default settings, ours with its buffer pool, for the
contenders that a requirement names; a result is dropped before the next call, and dropping is not timed. The
row-gather ceiling reads the same rows where they lie, in the order of the indices, into registers and writes nothing,
at the best of several prefetch distances; ours may pass it, because it reads rows that are used often from a dense
copy. A *METIS part* is what a rank aggregates locally: the inner edges of the largest of the parts.

DGL is its wheel of PyPI, 1.1.3, which has the libxsmm kernel. It loads beside a newer torch only with
`setuptools<70`, `packaging` and `psutil`, so it is no extra of this package: install it into an environment of its
own, with hpcgnn."""

ABLATION = """\
Each line is ours with one thing changed; above 1.00 the change costs time (`kernel` setting, but for the *pool*
lines). *order*: the whole graph with its nodes in another order (METIS: sorted by 64 parts; the original ids are
scrambled). The three *pool* lines run with default allocators: with the buffer pool, with it but without huge pages,
and without it; compare them with each other."""

_TIMED = {"aggregation": "aggregate", "exchange": "exchange", "both": "both", "in turn": "in_turn"}
EXCHANGE = """\
`hpcgnn launch --hosts P --rate RATE -t 1 -- hpcgnn bench exchange PARTS --bits B --json`.
[ablation.md](ablation.md) has whole epochs, and [messages.md](messages.md) what few bits do to accuracy. Local aggregation
alone, the exchange alone, both as in training and one after the other take turns; medians of the slowest rank. *hidden* is
(aggregation + exchange - both) / min(aggregation, exchange): what runs beside the other of what could. Ranks share two cores
here, and what moves bytes between the virtual hosts computes on them too."""

BREAKDOWN = """\
`hpcgnn launch -n P -t 1 python tools/bench_breakdown.py PARTS`. Epochs with and without the clocks of the phases and the
reduction of their times over ranks take turns; medians, and the mean difference of neighbours over the median, with its 95 %
interval."""


def main() -> None:
    """Measure, or read measurements, and write the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="files", nargs="+", type=Path, metavar="JSON")
    parser.add_argument("--exchange", dest="exchanges", nargs="+", metavar="RATE=JSON")
    parser.add_argument("--breakdown", dest="breakdowns", nargs="+", type=Path, metavar="JSON")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    found = json.loads((measure.DOCS / "performance.json").read_text())
    if arguments.exchanges:
        found["exchange"] = [_named(*name.split("=", 1)) for name in arguments.exchanges]
    if arguments.breakdowns:
        found["breakdown"] = [_of_ranks(path) for path in arguments.breakdowns]
    if arguments.files:
        *runs, quantization = (json.loads(path.read_text()) for path in arguments.files)
        found |= {"aggregate": joined(runs), "quantize": quantization}
    elif not (arguments.exchanges or arguments.breakdowns):
        found |= measured(arguments.rounds)
    write(found, measure.DOCS)


def measured(rounds: int) -> dict[str, Any]:
    """What the two commands about kernels find on this machine."""
    options = ["--rounds", str(rounds), "--json"]
    bits = [word for number in (1, 2, 4, 8) for word in ("--bits", str(number))]
    return {
        "aggregate": measure.run([*measure.HPCGNN, "bench", "aggregate", "--ablation", *options]),
        "quantize": measure.run([*measure.HPCGNN, "bench", "quantize", *bits, *options]),
    }


def _named(rate: str, path: str) -> dict[str, Any]:
    return _of_ranks(Path(path)) | {"rate": rate}


def _of_ranks(path: Path) -> dict[str, Any]:
    """What a program on ranks printed; its graph by name alone, because the folder means nothing elsewhere."""
    text = path.read_text()
    graph = json.loads(text)["graph"]
    return json.loads(text.replace(json.dumps(graph), json.dumps(Path(graph).name)))


def joined(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Runs of several graphs as one; machine, rounds and ablation are the first one's."""
    lists = {name: [line for run in runs for line in run[name]] for name in ("graphs", "requirements")}
    return runs[0] | lists


def write(found: dict[str, Any], folder: Path) -> None:
    """Write everything that ``folder`` holds about performance."""
    aggregation, quantization = found["aggregate"], found["quantize"]
    (folder / "performance.json").write_text(json.dumps(found, indent=1) + "\n")
    roofline(aggregation, folder / "roofline.svg")
    lines = ["# Performance", "", *_machine(aggregation["machine"]), "", ABOUT.format(**aggregation), ""]
    lines += _requirements(aggregation["requirements"] + quantization["requirements"])
    lines += ["![Roofline](roofline.svg)", ""]
    for graph in aggregation["graphs"]:
        lines += _graph(graph)
    lines += _quantization(quantization)
    if "exchange" in found:
        lines += _exchanges(found["exchange"])
    if "breakdown" in found:
        lines += _breakdowns(found["breakdown"])
    if "ablation" in aggregation:
        one = aggregation["ablation"]
        lines += ["## What each optimisation gives", "", f"{one['graph']}. {ABLATION}", "", *_timings(one), ""]
    (folder / "performance.md").write_text("\n".join(lines))


def _machine(machine: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    cache = machine["last_level_cache_bytes"] >> 20
    return [
        f"Made by `python tools/performance.py` on {machine['processor']}, {machine['cores']} cores, {cache} MiB of last-level "
        f"cache, {machine['instruction_set']}, transparent huge pages `{machine['huge_pages']}`, {machine['system']}; "
        f"{versions}. Figures in `performance.json`."
    ]


def _requirements(lines: list[dict[str, Any]]) -> list[str]:
    missed = sum(line["reached"] is False for line in lines)
    unknown = sum(line["reached"] is None for line in lines)
    said = f"{sum(bool(line['reached']) for line in lines)} of {len(lines)} are reached, {missed} are missed"
    said += f", {unknown} could not be measured here." if unknown else "."
    answers = {True: "yes", False: "**no**", None: "not measured"}
    table = _table(["graph", "comparison", "direction", "figure", "measured", "required", "reached"])
    for line in sorted(lines, key=lambda line: line["reached"] is True):
        measured = line["note"] if line["measured"] is None else f"{line['measured']:.2f}"
        required = f"{'≤' if line['at_most'] else '≥'} {line['required']:g}"
        table.append(_row([line["graph"], line["mode"], line["direction"], line["what"], measured, required,
                           answers[line["reached"]]]))  # fmt: skip
    return ["## What is required", "", said, "", *table, ""]


def _graph(graph: dict[str, Any]) -> list[str]:
    beyond = "more than" if graph["beyond_caches"] else "less than"
    lines = [f"## {graph['name']}, width {graph['width']}", ""]
    lines += [
        f"{graph['nodes']:,} nodes, {graph['entries']:,} edges, the longest row has {graph['largest_row']:,}. The features "
        f"take {graph['feature_bytes'] / 2**20:,.0f} MiB, {beyond} the last-level cache.{_ceilings(graph)}",
        "",
    ]
    for mode in ("kernel", "user"):
        if mode in graph:
            lines += [f"### {mode}", "", *_timings(graph[mode]), ""]
    return lines


def _ceilings(graph: dict[str, Any]) -> str:
    if "kernel" not in graph:
        return ""
    timings = graph["kernel"]["forward"]
    said = []
    for name, label, moved in (
        ("ceiling.copy", "a copy of them moves", 2 * graph["feature_bytes"]),
        ("ceiling.gather", "the row gather reads", graph["gathered_bytes"]),
    ):
        for at, threads in (("", "all threads"), ("@1", "one")):
            if "seconds" in timings.get(name + at, {}):
                said.append(f"{label} {moved / timings[name + at]['seconds'] / 1e9:.1f} GB/s on {threads}")
    return f" Forward, {', '.join(said)}." if said else ""


def _timings(timings: dict[str, Any]) -> list[str]:
    table = _table(["", "forward ms", "spread", "times ours", "backward ms", "spread", "times ours"])
    return [*table, *(_row([label, *cells]) for label, cells in timing_rows(timings))]


def _quantization(found: dict[str, Any]) -> list[str]:
    table = _table(["kernel", "ms", "spread", "GB/s", "of a copy"])
    for name, line in found["kernels"].items():
        rate, share = f"{line['gigabytes_per_second']:.1f}", f"{line['of_copy']:.0%}"
        table.append(_row([name, f"{line['seconds'] * 1e3:.2f}", f"{line['spread']:.0%}", rate, share]))
    about = (
        f"{found['rows']:,} rows of {found['width']} float32, buffers made in advance. Bytes that must be read or written count "
        "once: the rows on one side, payload and parameters on the other; a copy reads and writes. The number is the bits. "
        "`encode`, `decode` and `aggregate` are the kernels of messages. What was measured before the command timed those has "
        "lines `quantize` and `dequantize` instead: of whole matrices, by kernels that training never ran and that are gone."
    )
    return ["## Quantization", "", about, "", *table, ""]


def _exchanges(exchanges: list[dict[str, Any]]) -> list[str]:
    table = _table(
        [
            "parts",
            "ranks",
            "rate",
            "bits",
            "strategy",
            "direction",
            *(f"{what} ms" for what in _TIMED),
            "hidden",
            "required",
        ]
    )
    for found in exchanges:
        required = {line["direction"]: line["required"] for line in found["requirements"]}
        for direction, line in found["directions"].items():
            seconds = [f"{line[f'{what}_seconds'] * 1e3:.1f}" for what in _TIMED.values()]
            hidden = f"{line['hidden_of_shorter']:.0%}"
            about = [
                found["graph"],
                str(found["ranks"]),
                found["rate"],
                str(found["bits"]),
                found["strategy"],
                direction,
            ]
            table.append(_row([*about, *seconds, hidden, f"≥ {required[direction]:.0%}"]))
    return ["## Exchanges behind local aggregation", "", EXCHANGE, "", *table, ""]


def _breakdowns(breakdowns: list[dict[str, Any]]) -> list[str]:
    table = _table(["parts", "ranks", "epochs", "with ms", "without ms", "cost", "required"])
    for found in breakdowns:
        seconds = [found[f"{way}_seconds"] for way in ("with", "without")]
        about = [found["graph"], str(found["ranks"]), str(found["epochs"])]
        cost = f"{found['cost']:+.2%} ± {found['cost_interval']:.2%}"
        table.append(_row([*about, *(f"{1e3 * one:.2f}" for one in seconds), cost, "< 1 %"]))
    return ["## What the time breakdown costs", "", BREAKDOWN, "", *table, ""]


def _table(header: list[str]) -> list[str]:
    return [_row(header), _row(["---"] * len(header))]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
