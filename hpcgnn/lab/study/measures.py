"""The figures of a run that tables, pictures and targets may name, with their units."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np

from hpcgnn.cli import console
from hpcgnn.exchange import BYTES, PHASES
from hpcgnn.lab.study.axes import plan_of
from hpcgnn.lab.study.records import Record
from hpcgnn.train.summary import mean_bits

RATIO, DIFFERENCE = ENDINGS = ("_ratio", "_difference")
SPEED_UP, EFFICIENCY, SPREAD = SCALING = ("speedup", "efficiency", "spread")
SECONDS = "epoch_seconds_median"
RATE = "gigabytes_per_second"
# Seconds in which most runs reach an evaluation as good as the baseline's mean minus one point.
SECONDS_TO_TARGET, METRIC, TARGET_BELOW = "seconds_to_target", "test_metric_at_best_val", 0.01
# Seconds in which most runs reach the best mean of all configurations on the same graph, minus half a point.
SECONDS_TO_BEST, BEST_BELOW = "seconds_to_best", 0.005
# Axes that lines of benches and preparations may have beside those of a configuration.
LINE_AXES = ("subject", "mode", "direction", "contender", "part", "step", "memory", "integers")
_PHASES = (*PHASES, "other_seconds")
# The tables of phases in a summary, and what their numbers are.
_BREAKDOWNS = {
    "breakdown_seconds_per_epoch": "slowest rank, mean over epochs",
    "breakdown_seconds_mean_per_epoch": "mean over ranks and epochs",
    "breakdown_seconds_median": "slowest rank, median over epochs",
    "breakdown_seconds_mean_median": "mean over ranks, median over epochs",
}
_LABELS = {
    SECONDS: "seconds per epoch (median)",
    "epoch_seconds_mean": "seconds per epoch (mean)",
    "wait_seconds_mean": "communication wait per epoch on the slowest rank, seconds (mean)",
    "policy_share": "share of time for policy decisions",
    "wall_seconds": "seconds of the whole command",
    "bytes_sent_per_epoch": "bytes sent per epoch (mean)",
    "bytes_sent_mean": "bytes sent per epoch (mean)",
    "startup_seconds": "seconds to the first epoch",
    "peak_memory_bytes_per_rank": "peak memory per rank",
    "private_memory_bytes_per_rank": "private memory per rank",
    "peak_device_memory_bytes_per_rank": "peak GPU memory per rank",
    "best_val_metric": "best validation metric",
    SECONDS_TO_TARGET: "seconds of training until most runs reach the baseline's test metric minus 1 percentage point",
    SECONDS_TO_BEST: "training seconds until most runs reach the best test metric of all minus 0.5 percentage points",
    "test_metric_at_best_val": "test metric at the best validation epoch",
    "best_epoch": "best epoch",
    "epochs": "epochs",
    "mean_bits": "mean bit-width of messages",
    "stale_share": "share of epochs with stale rows",
    SPEED_UP: "speed-up",
    EFFICIENCY: "parallel efficiency",
    SPREAD: "spread of epoch times",
    # Figures of benches and preparations.
    "seconds": "seconds",
    RATE: "GB/s",
    "share_of_copy": "share of a copy's bandwidth, %",
    "share_of_peak": "share of the peak, %",
    "hidden_share": "hidden share, %",
    "overhead_share": "overhead, %",
    "thread_scaling": "speed-up over one thread",
    "relative_error": "relative error",
    "bytes": "bytes",
    "python_calls": "calls of Python functions per epoch",
    "peak_memory_bytes": "peak memory of all processes",
    "file_bytes": "size of the file",
    "memory_to_graph_size": "peak memory / size of graph.h5",
    "num_parts": "parts",
    "cut_fraction": "cut edges, %",
    "edge_balance": "in-edges, maximum / mean of parts",
    "train_balance": "training nodes, maximum / mean of parts",
    "work_imbalance": "entries of L, S and R, maximum / mean of ranks",
    "seconds_imbalance": "seconds, maximum / mean of ranks",
    "median_error": "error of the predicted seconds of a rank, median of ranks, %",
    "worst_error": "error of the predicted seconds of a rank, worst of the measured ranks, %",
    "rows": "rows sent",
    "pairs": "pairs that exchange rows",
    "max_rows_sent": "rows sent by the busiest rank",
    "max_rows_received": "rows received by the busiest rank",
}
_OF_PLANS = ("rows", "pairs", "max_rows_sent", "max_rows_received")
_SHARES = ("share_of_copy", "share_of_peak", "hidden_share", "overhead_share", "cut_fraction", "median_error",
           "worst_error")  # fmt: skip
_IN_PERCENT = ("best_val_metric", METRIC, "stale_share", "policy_share", EFFICIENCY, SPREAD, *_SHARES)
_ALL_EPOCHS_ALIKE = ("off", "pipeline")  # values of --staleness with which each epoch sends the same bytes
_COUNTS = ("python_calls", "num_parts", *_OF_PLANS, "epochs", "best_epoch")
# Mean times of all epochs except the first, which is slower. Means, because medians hide work that only few epochs do.
_MEANS = {"epoch_seconds_mean": "seconds", "wait_seconds_mean": "communication_wait_seconds"}


def known() -> list[str]:
    """The names of all figures, without the endings ``_ratio`` and ``_difference``, which compare with a baseline. Names of
    phases' times contain a dot."""
    phases = [f"{table}.{phase}" for table in _BREAKDOWNS for phase in _PHASES]
    return list(dict.fromkeys([*_LABELS, *(f"{name}_per_epoch" for name in BYTES), *phases]))


def split(name: str) -> tuple[str, str]:
    """A figure's name and its ending: ``("bytes_sent_per_epoch", "_ratio")`` for ``bytes_sent_per_epoch_ratio``."""
    ending = next((each for each in ENDINGS if name.endswith(each)), "")
    return name.removesuffix(ending), ending


def is_known(name: str) -> bool:
    """Return whether there is a figure of this name."""
    base, ending = split(name)
    return base in known() and not (ending and base in (*SCALING, SECONDS_TO_TARGET, SECONDS_TO_BEST))


def needs_baseline(name: str) -> bool:
    """Return whether the figure compares with a baseline."""
    return bool(split(name)[1]) or name == SECONDS_TO_TARGET


def lines(record: Record) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """The axes and figures of each result of a finished run; a training has one result, without axes of its own."""
    if "lines" in record.summary:
        return [(line["axes"], line["figures"]) for line in record.summary["lines"]]
    epochs, summary = record.epochs, dict(record.summary)
    found = {name: mean(epochs[column][1:]) for name, column in _MEANS.items() if len(epochs.get(column, ())) > 1}
    if epochs.get("bytes_sent"):
        found["bytes_sent_mean"] = mean(epochs["bytes_sent"])
    if seconds := sum(epochs.get("seconds", ())):
        found["policy_share"] = sum(each or 0.0 for each in epochs.get("policy_seconds", ())) / seconds
    plan = record.preparation.get("plan", {}).get(plan_of(record.configuration), {})
    found |= {name: plan[name] for name in _OF_PLANS if name in plan}
    decides = summary.get("bits_policy", "fixed") != "fixed" or summary.get("staleness", "off") not in _ALL_EPOCHS_ALIKE
    if decides and "epoch_seconds_mean" not in summary:
        # older versions wrote medians of bytes per epoch, which are no means if a policy decides
        for name in BYTES:
            summary.pop(f"{name}_per_epoch", None)
        summary |= {"bytes_sent_per_epoch": found["bytes_sent_mean"]} if "bytes_sent_mean" in found else {}
    found |= summary | {"wall_seconds": record.wall_seconds}
    if shares := summary.get("bits_shares"):
        found["mean_bits"] = sum(int(bits) * share for bits, share in shares.items())
    return [({}, found)]


def value(figures: Mapping[str, Any], name: str) -> float | None:
    """The value of the figure ``name`` of a result; None if it was not measured."""
    found: Any = figures
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def label(name: str) -> str:
    """The label of a figure, in words and with its unit."""
    base, ending = split(name)
    table, _, phase = base.rpartition(".")
    text = _LABELS.get(base) or phase.replace("_", " ")
    text += f" ({_BREAKDOWNS[table]})" if table in _BREAKDOWNS else ""
    text += ", %" if base in _IN_PERCENT and not ending and not text.endswith("%") else ""
    return text + {RATIO: ": ratio to the baseline", DIFFERENCE: ": difference from the baseline", "": ""}[ending]


def unit(name: str) -> str:
    """The unit to write after a number of :func:`shown` that has no label."""
    base, ending = split(name)
    if ending != RATIO and base in _IN_PERCENT:
        return " percentage points" if ending else " %"
    return " s" if "seconds" in base and ending != RATIO else ""


def shown(name: str, number: float) -> str:
    """A number as tables show it."""
    if math.isinf(number):
        return "not reached"
    base, ending = split(name)
    if ending == RATIO or base == SPEED_UP:
        return f"{number:.3g}" if number < 0.1 else f"{number:.2f}"
    sign = "+" if ending and number > 0 else ""
    if base in _IN_PERCENT:
        return f"{sign}{100 * number:.1f}" if base in (*SCALING, *_SHARES) else f"{sign}{100 * number:.2f}"
    if base in _COUNTS:
        return f"{sign}{number:,.0f}"
    if "bytes" in base and base != RATE:
        return sign + console.size(number)
    return f"{sign}{number:.4g}"


# -- curves over the epochs of trainings: medians over the runs of a configuration ----------------------------------------

EPOCH, TRAINING_SECONDS = PLACES = ("epoch", "training_seconds")
FIGURES = {
    "loss": "loss",
    "train_metric": "training metric",
    "val_metric": "validation metric",
    "test_metric": "test metric",
    "seconds": "seconds of the epoch",
    "bytes_sent": "bytes sent in the epoch",
    "bits": "mean bit-width of messages",
    "exchanges": "exchanges that sent rows",
}


Epochs = Mapping[str, list[Any]]  # lists over the lines of `metrics.jsonl` by name; `epoch` has the numbers of epochs


def curve(runs: Iterable[Epochs], place: str, figure: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """x and y of each epoch in which any run has a number for the figure; y is the median over runs. place: one of
    :data:`PLACES`; training seconds are those of all epochs so far, without evaluations. Lines may be missing."""
    values: defaultdict[int, list[float]] = defaultdict(list)
    seconds: defaultdict[int, list[Any]] = defaultdict(list)
    for epochs in runs:
        column, so_far = _column(epochs, figure), _seconds_so_far(epochs)
        for line, (epoch, number) in enumerate(zip(epochs.get("epoch", range(len(column))), column, strict=False)):
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                values[epoch].append(float(number))
                if so_far is not None and so_far[line] is not None:
                    seconds[epoch].append(so_far[line])
    found = sorted(values if place == EPOCH else values.keys() & seconds.keys())
    x = [epoch + 1.0 if place == EPOCH else float(np.median(seconds[epoch])) for epoch in found]
    return tuple(x), tuple(float(np.median(values[epoch])) for epoch in found)


def seconds_to(epochs: Epochs, figure: str, target: float) -> float:
    """Seconds of training until the figure first reached the target; infinite if it never did, or is not in the records."""
    for value, passed in zip(_column(epochs, figure), _seconds_so_far(epochs) or (), strict=False):
        if value is not None and passed is not None and value >= target:
            return passed
    return math.inf


def _column(epochs: Epochs, figure: str) -> list[Any]:
    """The values of a figure; bits and exchanges follow from the number of rows of each exchange with each bit-width."""
    sent = epochs.get("bits", [])
    if figure == "exchanges" and figure not in epochs:
        return [len(each) if isinstance(each, Mapping) else None for each in sent]
    if figure == "bits":
        return [mean_bits(each).get("all rows") if isinstance(each, Mapping) else each for each in sent]
    return epochs.get(figure, [])


def _seconds_so_far(epochs: Epochs) -> Sequence[float | None] | None:
    if "training_seconds" in epochs:
        return epochs["training_seconds"]
    return np.cumsum(epochs["seconds"]).tolist() if "seconds" in epochs else None
