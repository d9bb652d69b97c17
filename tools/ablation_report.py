"""Medians, speedups and requirements of an ablation's runs, and its document; nothing is run here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np

KEYS = ("round", "rate", "messages", "label_propagation", "overlap", "compute")
NO_CLUSTER, UNLIMITED = "no cluster", "unlimited"
# SuperGCN's §5.5; what overlaps with the others (wire) is no part of the sum.
PHASES = {
    "aggregation": "aggregation_seconds_mean",
    "waiting": "communication_wait_seconds_mean",
    "quantization": "quantization_seconds_mean",
    "synchronisation": "synchronisation_seconds_mean",
    "other": "other_seconds_mean",
}
KEPT = ("seconds", "wire_seconds", "bytes_sent", *PHASES.values())
PARAMETER_BYTES = 4  # of a quantized row: zero-point and scale in bfloat16

# What is required of GraphSAGE 3x256 on this graph, in 4 parts on 4 virtual hosts, per epoch and with overlap.
GRAPH = "rmat:scale=17,degree=28,features=128,classes=40"
REQUIRED_OF = {"model": "sage", "layers": 3, "hidden": 256, "ranks": 4}
INT2_FASTER_THAN_POST_FP32 = {"100mbit": 10.0, "1gbit": 2.3}
INT2_TO_FP32_UNLIMITED = 1.10
# Of hybrid int2 at this rate: an epoch in the arithmetic named first over one in 8-bit integers, where the first is native.
INT8_RATE = "1gbit"
INT8_FASTER_THAN = {"bf16": 1.15, "float32": 1.5}
FP32_TO_ITS_BOUND = 1.15

Runs = list[dict[str, Any]]


class Configuration(NamedTuple):
    """What was run, at which rate."""

    rate: str
    messages: str
    label_propagation: float
    overlap: str
    compute: str


class Timing(NamedTuple):
    """Of a configuration, over all counted epochs of all rounds.

    seconds: median epoch of the slowest rank. spread: slowest round's median minus the fastest's, over ``seconds``. phases:
    medians of means over ranks, in seconds. wire_seconds: median. bytes_sent: an epoch, all ranks. metric: median after the last
    epoch.
    """

    seconds: float
    spread: float
    phases: dict[str, float]
    wire_seconds: float
    bytes_sent: float
    metric: float


Timings = dict[Configuration, Timing]


class Requirement(NamedTuple):
    """A figure and what is required of it."""

    rate: str
    compute: str
    what: str
    measured: float
    required: float
    at_most: bool

    @property
    def reached(self) -> bool:
        """Whether the figure is as required."""
        return self.measured <= self.required if self.at_most else self.measured >= self.required


def name_of(key: tuple[Any, ...]) -> str:
    """A run's key in words."""
    _, rate, messages, labels, overlap, compute = key
    return f"{rate}, {messages}, label propagation {labels:g}, overlap {overlap}, {compute}"


# -- figures -----------------------------------------------------------------------------------------------------------


def timings(runs: Runs) -> Timings:
    """Of each configuration, in the order of the runs; the first epoch of a run is not counted, nor is round 0."""
    grouped: dict[Configuration, Runs] = {}
    for run in runs:
        if run["round"]:
            grouped.setdefault(Configuration(*(run[key] for key in KEYS[1:])), []).append(run)
    return {configuration: timing(found) for configuration, found in grouped.items()}


def timing(rounds: Runs) -> Timing:
    """Of one configuration's runs."""
    epochs = [epoch for run in rounds for epoch in run["epochs"][1:]]

    def median(name: str, of: Runs = epochs) -> float:
        return float(np.median([epoch[name] for epoch in of]))

    seconds = median("seconds")
    medians = [median("seconds", run["epochs"][1:]) for run in rounds]
    return Timing(
        seconds,
        (max(medians) - min(medians)) / seconds,
        {label: median(name) for label, name in PHASES.items()},
        median("wire_seconds"),
        median("bytes_sent"),
        float(np.median([math.nan if run["metric"] is None else run["metric"] for run in rounds])),
    )


def speedup(found: Timings, before: Configuration, after: Configuration) -> float | None:
    """How many epochs ``after`` trains while ``before`` trains one; None where either was not run."""
    return found[before].seconds / found[after].seconds if before in found and after in found else None


def bits_per_second(rate: str) -> float:
    """Of a link, as ``tc`` writes it."""
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return float(rate[:-4]) * units[rate[-4:]]


def largest_bytes(runs: Runs, messages: str) -> float | None:
    """Bytes that the host which sends most sends an epoch, all traffic of the job included; None if not counted."""
    sent = {
        bool(run["round"]): (len(run["epochs"]), np.array(run["host_bytes"]))
        for run in runs
        if run["messages"] == messages and run["label_propagation"] == 0 and run["overlap"] == "on" and "host_bytes" in run
    }  # fmt: skip
    if len(sent) < 2:
        return None
    (one, before), (all_epochs, after) = sent[False], sent[True]
    return float(((after - before) / (all_epochs - one)).max())


def requirements(runs: Runs) -> list[Requirement]:
    """Everything that is required and was measured."""
    found = timings(runs)
    computes = dict.fromkeys(configuration.compute for configuration in found)
    lines: list[Requirement] = []
    for compute, rate in itertools.product(computes, dict.fromkeys(configuration.rate for configuration in found)):
        alike = {messages: found.get(Configuration(rate, messages, 0.0, "on", compute))
                 for messages in ("post fp32", "hybrid fp32", "hybrid int2")}  # fmt: skip
        seconds = {messages: timing.seconds for messages, timing in alike.items() if timing}
        if rate in INT2_FASTER_THAN_POST_FP32 and {"post fp32", "hybrid int2"} <= seconds.keys():
            ratio = seconds["post fp32"] / seconds["hybrid int2"]
            needed = INT2_FASTER_THAN_POST_FP32[rate]
            lines.append(Requirement(rate, compute, "post fp32 / hybrid int2", ratio, needed, at_most=False))
        if rate == UNLIMITED and len(seconds) == 3:
            ratio = seconds["hybrid int2"] / min(seconds["post fp32"], seconds["hybrid fp32"])
            what = "hybrid int2 / faster of both fp32"
            lines.append(Requirement(rate, compute, what, ratio, INT2_TO_FP32_UNLIMITED, at_most=True))
        lines += bounds(runs, found, rate, compute)
    return lines + of_integers(found)


def of_integers(found: Timings) -> list[Requirement]:
    """8-bit integers beside bfloat16 where the CPU has that, else beside float32."""
    int8, bf16, float32 = (found.get(Configuration(INT8_RATE, "hybrid int2", 0.0, "on", compute))
                           for compute in ("int8", "bf16", "float32"))  # fmt: skip
    other, name = (bf16, "bf16") if bf16 else (float32, "float32")
    if int8 is None or other is None:
        return []
    ratio = other.seconds / int8.seconds
    return [Requirement(INT8_RATE, "int8", f"hybrid int2: {name} / int8", ratio, INT8_FASTER_THAN[name], at_most=False)]


def bounds(runs: Runs, found: Timings, rate: str, compute: str) -> Iterator[Requirement]:
    """fp32 with overlap beside the larger of its bytes' time and its computation."""
    if rate in (UNLIMITED, NO_CLUSTER):
        return
    for messages in ("post fp32", "hybrid fp32"):
        at_rate, freely = (found.get(Configuration(r, messages, 0.0, "on", compute)) for r in (rate, UNLIMITED))
        sent = largest_bytes(runs, messages)
        if at_rate and freely and sent:
            sending, computing = 8 * sent / bits_per_second(rate), freely.seconds - freely.phases["waiting"]
            what = f"{messages} / max(bytes / rate = {sending:.3f} s, compute = {computing:.3f} s)"
            yield Requirement(
                rate, compute, what, at_rate.seconds / max(sending, computing), FP32_TO_ITS_BOUND, at_most=True
            )


# -- the document ------------------------------------------------------------------------------------------------------


def write(content: dict[str, Any], out: Path) -> None:
    """Write ``OUT.md``."""
    found = timings(content["runs"])
    lines = [
        "# What each way of sending fewer bytes gives",
        "",
        *_about(content["settings"], content["runs"], out.name),
        "",
    ]
    lines += _requirements(content["settings"], requirements(content["runs"]))
    lines += [f"![Where the time goes]({out.name}.svg)", "", *_steps(found), *_volume(content["settings"], found)]
    for rate, compute in dict.fromkeys((each.rate, each.compute) for each in found):
        lines += _all(rate, compute, found)
    out.with_suffix(".md").write_text("\n".join(lines))


def _about(about: dict[str, Any], runs: Runs, name: str) -> list[str]:
    rounds = max(run["round"] for run in runs)
    return [
        f"Made by `python tools/ablation.py` on {about['machine']}; figures in `{name}.json`. {about['model']}, "
        f"{about['layers']} layers of width {about['hidden']}, {about['ranks']} ranks of {about['threads']} threads, on parts "
        "that these commands make:",
        "",
        *(f"    {line}" for line in commands(about["graph"], about["ranks"])),
        "",
        f"Configurations take turns, {rounds} rounds of {about['epochs']} epochs, of which the first is not counted. *epoch*: "
        "median seconds of the slowest rank; *spread*: slowest round minus the fastest, over the median. The parts of an epoch "
        "are means over ranks. A *rate* is that of each virtual host's link (`hpcgnn launch --hosts`).",
    ]


def commands(graph: dict[str, Any], ranks: int) -> list[str]:
    """What makes the parts again, from what the file tells of its making."""
    options = graph["options"]
    split = f" --split {options['split']}" if options.get("split") else ""
    if split and split.count(",") == (2 if "random:" in split else 1):
        split += f",{graph['seed']['split']}"
    features = f" --features {options['features']}" if options.get("features") else ""
    flags = "".join(f" --{name.replace('_', '-')}" for name, value in options.items() if value is True)
    how = f"--parts {ranks} --method {graph['method']} --objective {graph['objective']}"
    return [
        f"hpcgnn convert {graph['source']} graph.h5{split}{features}{flags}",
        f"hpcgnn partition graph.h5 parts.h5 {how}",
    ]


def _requirements(about: dict[str, Any], lines: list[Requirement]) -> list[str]:
    if not lines:
        return []
    is_meant = about["graph"]["source"] == GRAPH and all(about[name] == value for name, value in REQUIRED_OF.items())
    answers = {True: "yes", False: "**no**"} if is_meant else {True: "", False: ""}
    rows = [
        [line.rate, line.compute, line.what, f"{line.measured:.2f}", f"{'≤' if line.at_most else '≥'} {line.required:g}",
         answers[line.reached]]
        for line in lines
    ]  # fmt: skip
    note = (
        f"Of GraphSAGE with 3 layers of width 256 on `{GRAPH}` in 4 parts on 4 hosts, without label propagation and with "
        "overlap. *bytes*: the most that a host sent an epoch; *compute*: an unlimited epoch less its waiting."
    )
    if not is_meant:
        note += (
            " This is another model or graph, of which nothing is required; the figures stand beside for comparison."
        )
    header = ["rate", "compute", "ratio of epochs", "measured", "required", "reached"]
    return ["## What is required", "", note, "", *measure.table(header, rows), ""]


STEPS = (  # SuperGCN's figure 10
    ("pre-post-aggregation", "post fp32", "hybrid fp32"),
    ("int2 alone", "post fp32", "post int2"),
    ("int2 after pre-post", "hybrid fp32", "hybrid int2"),
    ("both", "post fp32", "hybrid int2"),
)


def _steps(found: Timings) -> list[str]:
    places = dict.fromkeys((each.rate, each.compute) for each in found)
    labels = max((each.label_propagation for each in found), default=0.0)
    rows = []
    for overlap in dict.fromkeys(each.overlap for each in found):
        for label, *pair in STEPS:
            rows.append([f"{label} (overlap {overlap})", " to ".join(pair), *_speedups(found, places, [
                (messages, 0.0, overlap) for messages in pair])])  # fmt: skip
    for messages in ("hybrid fp32", "hybrid int2"):
        rows.append(["overlap", messages, *_speedups(found, places, [(messages, 0.0, "off"), (messages, 0.0, "on")])])
        if labels:
            steps = [(messages, 0.0, "on"), (messages, labels, "on")]
            rows.append(["label propagation", messages, *_speedups(found, places, steps)])
    header = ["step", "of", *(f"{rate}, {compute}" for rate, compute in places)]
    about = "Epochs in the time of one without the step (SuperGCN §5.6, figure 10)."
    return ["## Step by step", "", about, "", *measure.table(header, [row for row in rows if any(row[2:])]), ""]


def _speedups(found: Timings, places: dict[tuple[str, str], None], steps: list[tuple[str, float, str]]) -> list[str]:
    values = [
        speedup(found, *(Configuration(rate, *step, compute) for step in steps))  # type: ignore[call-arg]
        for rate, compute in places
    ]
    return ["" if value is None else f"{value:.2f}" for value in values]


def _volume(about: dict[str, Any], found: Timings) -> list[str]:
    """SuperGCN's table 4: volume of one aggregation by the plans, time by measurement."""
    width, rates = about["hidden"], dict.fromkeys(each.rate for each in found)
    rows = []
    for messages in dict.fromkeys(each.messages for each in found):
        strategy, precision = messages.split()
        bits = int(precision.removeprefix("int").replace("fp", ""))
        count = about["volume"][strategy]["rows"]
        data = count * math.ceil(width * bits / 8)
        parameters = count * PARAMETER_BYTES if bits < 16 else 0
        waits = [_waiting(found, rate, messages) for rate in rates]
        rows.append([messages, f"{count:,}", f"{data / 1e6:.3f}", f"{parameters / 1e6:.3f}", *waits])
    header = ["messages", "rows", "data MB", "parameters MB", *(f"{rate}: wire / waiting s" for rate in rates)]
    note = (
        f"Rows, data and parameters (zero-point and scale) of one aggregation of width {width}, all ranks; seconds an epoch that "
        "rows were under way on the slowest rank, and that ranks waited for them (SuperGCN §5.7, table 4), without overlap where "
        "that was run."
    )
    return ["## Volume and time of communication", "", note, "", *measure.table(header, rows), ""]


def _waiting(found: Timings, rate: str, messages: str) -> str:
    for overlap in ("off", "on"):
        for each, timing in found.items():
            if (each.rate, each.messages, each.label_propagation, each.overlap) == (rate, messages, 0.0, overlap):
                return f"{timing.wire_seconds:.3f} / {timing.phases['waiting']:.3f}"
    return ""


def _all(rate: str, compute: str, found: Timings) -> list[str]:
    rows = []
    for each, timing in found.items():
        if (each.rate, each.compute) == (rate, compute):
            factor = speedup(found, each._replace(messages="post fp32"), each)
            rows.append([
                each.messages, f"{each.label_propagation:g}", each.overlap, f"{timing.seconds:.3f}", f"{timing.spread:.0%}",
                "" if factor is None else f"{factor:.2f}", *(f"{value:.3f}" for value in timing.phases.values()),
                f"{timing.bytes_sent / 1e6:.3f}", f"{100 * timing.metric:.2f}",
            ])  # fmt: skip
    header = ["messages", "label propagation", "overlap", "epoch s", "spread", "speedup over post fp32", *PHASES, "MB sent",
              "test %"]  # fmt: skip
    return [f"## {rate}, {compute}", "", *measure.table(header, rows), ""]
