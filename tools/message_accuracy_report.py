"""Paired differences of accuracies, their intervals, and docs/messages.md; no training happens here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np
from scipy import stats

KEYS = ("graph", "model", "configuration", "seed")
KEPT = ("test_metric_at_best_val", "best_val_metric", "best_epoch", "epochs", "bytes_sent_per_epoch")
# What is required of int2, with and without label propagation, and of bf16, in percentage points of 10 pairs.
MEAN_AT_LEAST = -0.3
INTERVAL_ABOVE = -0.5
PAIRS = 10

Runs = list[dict[str, Any]]
Accuracies = dict[int, float]  # seed -> percent


class Comparison(NamedTuple):
    """What is paired with what; ``required``: whether a figure is required of it, or it is reported only."""

    baseline: str
    other: str
    required: bool


COMPARISONS = (
    Comparison("fp32", "int2", True),
    Comparison("fp32, LP", "int2, LP", True),
    Comparison("float32", "bf16", True),
    Comparison("fp32", "int1", False),
    Comparison("fp32, no dropout", "int2, no dropout", False),
    Comparison("fp32, no dropout", "delta 1 bit", False),
    Comparison("fp32, no dropout", "delta 2 bits", False),
    Comparison("int2, no dropout", "delta 1 bit", False),
    Comparison("int2, no dropout", "delta 2 bits", False),
)
EXPECTATION = Comparison("int2, no dropout", "delta 1 bit", False)


@dataclass(frozen=True)
class Difference:
    """Of pairs, in percentage points: their number, mean, and 95 % t-interval (NaN with fewer than two)."""

    pairs: int
    mean: float
    low: float
    high: float

    @property
    def is_within(self) -> bool:
        """Whether it is as small as required."""
        return self.mean >= MEAN_AT_LEAST and self.low > INTERVAL_ABOVE

    @property
    def is_worse(self) -> bool:
        """Whether it is larger than required beyond doubt."""
        return self.high < MEAN_AT_LEAST

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def difference(baseline: Accuracies, other: Accuracies) -> Difference | None:
    """``other`` minus ``baseline`` over the seeds that both have; None without any."""
    seeds = sorted(baseline.keys() & other.keys())
    if not seeds:
        return None
    values = np.array([other[seed] - baseline[seed] for seed in seeds])
    mean, error = float(values.mean()), float(stats.sem(values)) if len(seeds) > 1 else float("nan")
    margin = float(stats.t.ppf(0.975, len(seeds) - 1)) * error
    return Difference(len(seeds), mean, mean - margin, mean + margin)


def accuracies(runs: Runs, graph: str, model: str, configuration: str) -> Accuracies:
    """Test accuracy in percent of each seed."""
    wanted = [graph, model, configuration]
    return {
        run["seed"]: 100 * run["test_metric_at_best_val"]
        for run in runs
        if [run[key] for key in KEYS[:3]] == wanted
    }  # fmt: skip


def graphs_and_models(runs: Runs) -> list[tuple[str, str]]:
    """Pairs in the order in which they were measured first."""
    return list(dict.fromkeys((run["graph"], run["model"]) for run in runs))


def differences(runs: Runs, comparison: Comparison) -> dict[tuple[str, str], Difference]:
    """By graph and model."""
    found = {}
    for graph, model in graphs_and_models(runs):
        baseline, other = (accuracies(runs, graph, model, name) for name in comparison[:2])
        if result := difference(baseline, other):
            found[graph, model] = result
    return found


def verdict(comparison: Comparison, result: Difference) -> str:
    """What the table says of a requirement."""
    if not comparison.required:
        return "not required"
    if result.pairs < PAIRS:
        return f"not yet known ({result.pairs} of {PAIRS} pairs)"
    return "yes" if result.is_within else "**no**"


def expectation(runs: Runs) -> str:
    """Whether delta coding at 1 bit matches plain 2 bits, as a paragraph."""
    found = differences(runs, EXPECTATION)
    if not found:
        return "Whether delta coding at 1 bit matches plain 2 bits has not been measured yet."
    missed = {name: result for name, result in found.items() if not result.is_within}
    pairs = min(result.pairs for result in found.values())
    count = (
        f"{len(found) - len(missed)} of {len(found)} cases (graph and model; at least {pairs} pairs each, no dropout)"
    )
    start = (
        f"It was expected that delta coding at 1 bit matches plain 2 bits. By the criterion above it does in {count}"
    )
    if pairs < PAIRS:
        return f"{start}, with fewer pairs than the {PAIRS} that would tell."
    if not missed:
        return f"{start}: the expectation holds here."
    worse = {name: result for name, result in missed.items() if result.is_worse}
    said = "the expectation is refuted" if worse else "the expectation is not shown"
    listed = "; ".join(f"{graph} {model} {result}" for (graph, model), result in missed.items())
    return f"{start}: **{said}**. It falls short in {listed}."


# -- the document ------------------------------------------------------------------------------------------------------


def write(content: dict[str, Any], folder: Path) -> None:
    """Write ``messages.md`` from what :class:`measure.Records` keeps."""
    runs = content["runs"]
    names = " ".join(f"{name}=..." for name in dict.fromkeys(run["graph"] for run in runs))
    lines = ["# Accuracy with few bits", ""]
    lines += [f"Made by `python tools/message_accuracy.py {names}`; figures in `messages.json`.", ""]
    lines += [*_about(content["settings"]), "", *_means(runs), "", *_differences(runs), ""]
    lines += ["## Delta coding at 1 bit", "", expectation(runs), ""]
    (folder / "messages.md").write_text("\n".join(lines))


def _about(about: dict[str, Any]) -> list[str]:
    model, train = about["model"], about["train"]
    return [
        f"Test accuracy in % at the best validation epoch on {about['ranks']} MPI ranks. A pair of trainings has the same seed "
        f"of split (`--split {about['split']},SEED`), weights and dropout, and differs in nothing but what is compared; each "
        "pair has another seed. Evaluations send float32, which is the default, so the differences are of what was learnt.",
        "",
        f"{model['layers']} layers of width {model['hidden']}, `--norm {model['norm']} --dropout {model['dropout']} --epochs "
        f"{train['epochs']} --lr {train['lr']} --schedule {about['schedule']['schedule']} --eval-every {train['eval_every']}`. "
        f"*LP*: `--label-propagation {about['label_rate']}`. *no dropout*, and both lines of delta coding, which refuses it: "
        "`--dropout 0`. *float32* and *bf16* are `--compute`, at width 128: small products are done in float32 whatever it "
        "says.",
        "",
        f"Required of int2 with and without LP, and of bf16: a mean difference of at least {MEAN_AT_LEAST} points over {PAIRS} "
        f"pairs, with a 95 % interval (Student's t) above {INTERVAL_ABOVE}.",
    ]


def _means(runs: Runs) -> list[str]:
    names = list(dict.fromkeys(run["configuration"] for run in runs))
    rows = []
    for graph, model in graphs_and_models(runs):
        cells = [graph, model]
        for name in names:
            values = np.array(list(accuracies(runs, graph, model, name).values()))
            spread = f" ± {values.std(ddof=1):.2f}" if values.size > 1 else ""
            cells.append(f"{values.mean():.2f}{spread}" if values.size else "")
        rows.append(cells)
    return [
        "## Accuracy",
        "",
        "Mean ± standard deviation over seeds.",
        "",
        *measure.table(["graph", "model", *names], rows),
    ]


def _differences(runs: Runs) -> list[str]:
    rows = []
    for comparison in COMPARISONS:
        for (graph, model), result in differences(runs, comparison).items():
            against = f"{comparison.other} - {comparison.baseline}"
            rows.append([against, graph, model, str(result.pairs), str(result), verdict(comparison, result)])
    header = ["difference", "graph", "model", "pairs", "mean [95 % interval], points", "as required"]
    return ["## Differences", "", *measure.table(header, rows)]
