"""docs/int8-accuracy.md: how much of float32's accuracy is left in 8-bit integers; no training happens here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np
from message_accuracy_report import KEYS, Difference, Runs, accuracies, difference, graphs_and_models

KEPT = (
    "metric_name",
    "test_metric_at_best_val",
    "best_val_metric",
    "best_epoch",
    "epochs",
    "epoch_seconds_median",
    "compute",
)
TEST1, TEST2 = "int8, Test1", "int8, Test2"
PAIRS = 10
LEAST_SHARE = 99.0  # percent of float32's
BY_CHANCE = 0.55  # ROC-AUC of a model that learned next to nothing


class Compared(NamedTuple):
    """Of the seeds that both have: means in percent, of float32 and of another arithmetic, and the paired difference."""

    plain: float
    other: float
    difference: Difference

    @property
    def share(self) -> float:
        """Of float32's mean, in percent."""
        return 100 * self.other / self.plain


def compared(runs: Runs, graph: str, task: str, configuration: str) -> Compared | None:
    """An arithmetic beside float32; None without a pair."""
    plain, other = (accuracies(runs, graph, task, name) for name in ("float32", configuration))
    found = difference(plain, other)
    if found is None:
        return None
    seeds = plain.keys() & other.keys()
    first, second = (float(np.mean([each[seed] for seed in seeds])) for each in (plain, other))
    return Compared(first, second, found)


def verdict(found: Compared) -> str:
    """What the table says of the requirement."""
    said = "yes" if found.share >= LEAST_SHARE else "**no**"
    return said if found.difference.pairs >= PAIRS else f"{said}, of {found.difference.pairs} pairs only"


def write(content: dict[str, Any], folder: Path) -> None:
    """Write ``int8-accuracy.md`` from what :class:`measure.Records` keeps."""
    runs = content["runs"]
    sources = {run["graph"]: run["source"] for run in runs}
    names = " ".join(f"{name}={source}" for name, source in sources.items())
    machines = "; ".join(dict.fromkeys(run["machine"] for run in runs))
    lines = ["# Accuracy of training in 8-bit integers", ""]
    lines += [
        f"Made by `python tools/int8_accuracy.py {names}` on {machines}; one thread. Figures in `int8-accuracy.json`.",
        "",
    ]
    lines += [
        *_about(content["settings"], sources),
        "",
        *_with_rules(runs),
        "",
        *_said(runs),
        "",
        *_fallen_back(runs),
        "",
    ]
    lines += [*_without_rules(runs), "", *_seconds(runs), ""]
    (folder / "int8-accuracy.md").write_text("\n".join(lines))


def is_dense(source: str) -> bool:
    """Whether a graph's features were written out."""
    return source.startswith("dense:")


def _about(about: dict[str, Any], sources: dict[str, str]) -> list[str]:
    model, tasks = about["model"], about["tasks"]
    rates = ", ".join(f"{task} {each['lr']}" for task, each in tasks.items())
    others = "; ".join(
        f"{graph}: " + " ".join(f"`--{name} {value}`" for name, value in changes.items())
        for graph, changes in about["of_graphs"].items()
    )
    dense = ", ".join(name for name, source in sources.items() if is_dense(source)) or "none"
    return [
        "In % at the best validation epoch: test accuracy of node classification with GCN and with GAT "
        f"({tasks['gat']['model']['heads']} heads), and test ROC-AUC of link prediction (*links*: embeddings of a GCN, whose "
        f"products are the scores). {model['layers']} layers of width {model['hidden']} as in Tango, `--norm {model['norm']} "
        f"--dropout {model['dropout']} --schedule {about['schedule']['schedule']} --eval-every {about['eval_every']}`; "
        f"`--lr`: {rates}; {others}. A pair of trainings has the same seed of split (`--split {about['split']},SEED`, "
        "`--link-seed SEED`), weights and dropout, and as many epochs, and differs in nothing but the arithmetic. Epochs are "
        "fewer than one would take for the best result, so that 600 trainings fit into the time that there was.",
        "",
        "- *bf16*: `--compute bf16`, emulated on CPUs without it.",
        "- *int8*: `--compute int8-always`, 8-bit integers wherever they can be used: the worst case. `--compute int8` leaves "
        "what is too small to be faster in float32, which most of these graphs are.",
        "- *Test1*: with `--int8-before-softmax`: the last layer, and attention's scores, in 8-bit integers too. *Test2*: with "
        "`--int8-rounding nearest`. The names are Tango's (§4.2, Fig. 7).",
        "",
        f"Features were written out as dense matrices, whose products are in 8-bit integers too, for: {dense}. With sparse ones, "
        "as those of the other graphs, the first layer's product is float32 in every arithmetic, and its aggregation alone is in "
        "8-bit integers; as the last of two layers is float32 by the rules, nothing else is.",
        "",
        f"Required of int8 with the rules: at least {LEAST_SHARE:g} % of float32's mean over {PAIRS} pairs.",
    ]


def _head(runs: Runs, graph: str, task: str) -> list[str]:
    """Graph, task, metric and epochs."""
    run = next(run for run in runs if (run["graph"], run["model"]) == (graph, task))
    return [graph, task, run["metric_name"], str(run["epochs"])]


def _with_rules(runs: Runs) -> list[str]:
    rows = []
    for graph, task in graphs_and_models(runs):
        found, bf16 = (compared(runs, graph, task, name) for name in ("int8", "bf16"))
        if found is None:
            continue
        cells = [str(found.difference.pairs), f"{found.plain:.2f}"]
        cells += [f"{bf16.other:.2f}", f"{found.other:.2f}"] if bf16 else ["", f"{found.other:.2f}"]
        cells += [str(bf16.difference) if bf16 else "", str(found.difference), f"{found.share:.2f}", verdict(found)]
        rows.append([*_head(runs, graph, task), *cells])
    header = ["graph", "task", "metric", "epochs", "pairs", "float32", "bf16", "int8"]
    header += ["bf16 - float32 [95 % interval], points", "int8 - float32", "int8 / float32, %", ">= 99 %"]
    return ["## With the rules", "", *measure.table(header, rows)]


def _said(runs: Runs) -> list[str]:
    """What the table comes to."""
    found = {name: each for name in graphs_and_models(runs) if (each := compared(runs, *name, "int8"))}
    if not found:
        return ["No pair has been trained yet."]
    short = {name: each for name, each in found.items() if each.share < LEAST_SHARE}
    pairs = min(each.difference.pairs for each in found.values())
    (graph, task), least = min(found.items(), key=lambda item: item[1].share)
    said = (
        f"at least {LEAST_SHARE:g} % in {len(found) - len(short)} of {len(found)} cases, of {pairs} pairs each or more"
    )
    listed = "; ".join(f"{graph} {task}: {each.share:.2f} %" for (graph, task), each in short.items())
    return [
        f"Of float32's mean, int8 with the rules has {said}; the least is {least.share:.2f} % ({graph}, {task})."
        + (f" **It falls short** in {listed}." if short else "")
        + " Where *bf16* is float32's to the last digit, nothing in that model is large enough to be multiplied in bfloat16.",
        *_limits(runs),
    ]


def _limits(runs: Runs) -> list[str]:
    """Where float32 itself was far from its best, so that a case shows less than it seems to."""
    improving, failed = [], []
    for graph, task in graphs_and_models(runs):
        plain = [run for run in runs if [run[key] for key in KEYS[:3]] == [graph, task, "float32"]]
        if 2 * sum(run["best_epoch"] == run["epochs"] - 1 for run in plain) > len(plain):
            improving.append(f"{graph} {task}")
        chance = [
            run for run in plain if run["metric_name"] == "roc-auc" and run["test_metric_at_best_val"] < BY_CHANCE
        ]
        if chance:
            failed.append(f"{graph} {task} ({len(chance)} of {len(plain)} seeds)")
    lines = []
    if improving:
        lines += [
            "",
            f"In float32 most trainings were best in their last epoch, and more may help: {', '.join(improving)}.",
        ]
    if failed:
        lines += ["", f"In float32 some trainings learned next to nothing (ROC-AUC below 55 %): {', '.join(failed)}."]
    return lines


def _fallen_back(runs: Runs) -> list[str]:
    """Whether the rule of Eq. 4 made a training go on in float32: it would prove nothing."""
    integers = [run for run in runs if run["configuration"].startswith("int8")]
    back = [run for run in integers if not run["compute"].startswith("int8")]
    if not back:
        return [
            f"None of the {len(integers)} trainings in 8-bit integers went on in float32 for the rule of Eq. 4 "
            "(`--int8-most-error 0.3`)."
        ]
    where: dict[str, int] = {}
    for run in back:
        name = f"{run['graph']} {run['model']} {run['configuration']}"
        where[name] = where.get(name, 0) + 1
    listed = "; ".join(f"{name}: {count}" for name, count in where.items())
    return [
        f"Of {len(integers)} trainings in 8-bit integers, {len(back)} went on in float32 by the rule of Eq. 4: {listed}."
    ]


def _without_rules(runs: Runs) -> list[str]:
    rows = []
    for graph, task in graphs_and_models(runs):
        cells = _head(runs, graph, task)[:2]
        for name in ("int8", TEST1, TEST2):
            found = compared(runs, graph, task, name)
            if found is None:
                cells += ["", "", ""]
                continue
            cells += [f"{found.other:.2f}", str(found.difference), f"{found.share:.2f}"]
        rows.append(cells)
    header = ["graph", "task"]
    for name in ("int8", "Test1", "Test2"):
        header += [name, f"{name} - float32 [95 % interval], points", "of float32's, %"]
    lines = [
        "## Without them",
        "",
        "Not required; measured and shown. Tango found losses of 9.7 % on average with Test1.",
        "",
    ]
    lines += [*measure.table(header, rows), ""]
    lines += [
        "Where these losses are smaller than Tango's, a likely reason, which was not measured, is that every row has a scale of "
        "its own here, and a whole matrix has one there: a few large values do not make all others coarse."
    ]
    return lines


def _seconds(runs: Runs) -> list[str]:
    names = list(dict.fromkeys(run["configuration"] for run in runs))
    rows = []
    for graph, task in graphs_and_models(runs):
        cells = [graph, task]
        for name in names:
            seconds = [
                run["epoch_seconds_median"]
                for run in runs
                if [run[key] for key in KEYS[:3]] == [graph, task, name]
            ]  # fmt: skip
            cells.append(f"{1000 * np.median(seconds):.0f}" if seconds else "")
        rows.append(cells)
    return [
        "## Milliseconds of an epoch",
        "",
        "The median over seeds of each training's median, on one thread of a machine that others used at the same time: a rough "
        "figure. These are small graphs, and 8-bit integers were used where they are slower, too; what they are worth on large "
        "ones is in `compute.md`.",
        "",
        *measure.table(["graph", "task", *names], rows),
    ]
