"""Differences, speed-ups and requirements of policies, and their document; no training happens here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np
from ablation_report import NO_CLUSTER, UNLIMITED
from message_accuracy_report import PAIRS, Accuracies, Difference, difference

KEYS = ("graph", "rate", "model", "method", "seed")
VANILLA, UNIFORM, ADAQP = "vanilla", "uniform", "adaqp"
TARGET_BELOW_VANILLA = 1.0  # percentage points
TARGET = f"{VANILLA}'s mean test accuracy less {TARGET_BELOW_VANILLA:g} point"

# What is required, against vanilla on the same graph and model, and at the same rate.
SPEED_UP_AT_LEAST = {"adaqp": 2.2, "sylvie": 8.7, "pipeqs": 5.0}
POLICY_SHARE_BELOW = {"adaqp": 0.06}
DIFFERENCE_AT_LEAST = (("adaqp", -0.3), ("adaqp", -0.5), ("sylvie", -0.5), ("pipeqs", -0.5))  # percentage points
# Of stale rows, on as many pairs; what their correction may cost; and what PipeQS is to save over all rows in 8 bits.
STALE_DIFFERENCE_AT_LEAST, STALE_PAIRS = -0.5, 5
UNCORRECTED, CORRECTED, STALE_8_BITS, PIPEQS = "pipeline-uncorrected", "pipeline", "pipeline8", "pipeqs"
CORRECTION_COSTS_AT_MOST = 1.10
PIPEQS_SAVES_AT_LEAST, PIPEQS_LOSES_AT_MOST = 1.3, 0.3

Run = dict[str, Any]
Runs = list[Run]
Methods = dict[str, dict[int, Run]]  # method -> seed -> run


class Case(NamedTuple):
    """Where methods are compared with each other."""

    graph: str
    model: str
    rate: str

    @property
    def is_limited(self) -> bool:
        """Whether messages travelled at a given speed: a speed-up without one says nothing about a network."""
        return self.rate not in (NO_CLUSTER, UNLIMITED)

    def __str__(self) -> str:
        return ", ".join(self)


class Requirement(NamedTuple):
    """A line of what is required; ``reached`` is the answer as it is written."""

    case: Case
    what: str
    measured: str
    required: str
    reached: str


# -- figures -----------------------------------------------------------------------------------------------------------


def cases(runs: Runs) -> dict[Case, Methods]:
    """Runs by case, method and seed, in the order in which they were measured first."""
    found: dict[Case, Methods] = {}
    for run in runs:
        methods = found.setdefault(Case(run["graph"], run["model"], run["rate"]), {})
        methods.setdefault(run["method"], {})[run["seed"]] = run
    return found


def accuracies(methods: Methods, method: str) -> Accuracies:
    """Test accuracy in percent of each seed."""
    return {seed: 100 * run["test_metric_at_best_val"] for seed, run in methods.get(method, {}).items()}


def to_vanilla(methods: Methods, method: str) -> Difference | None:
    """Paired difference of accuracies; None without a pair."""
    return difference(accuracies(methods, VANILLA), accuracies(methods, method))


def ratios(methods: Methods, method: str, to: str, name: str) -> list[float]:
    """Of the value ``name`` of ``method`` to that of the same seed of ``to``."""
    mine, others = methods.get(method, {}), methods.get(to, {})
    return [mine[seed][name] / others[seed][name] for seed in mine if seed in others]


def speed_up(methods: Methods, method: str) -> float | None:
    """Median over seeds of how many epochs are trained while vanilla trains one; None without a pair."""
    pairs = ratios(methods, method, VANILLA, "epoch_seconds_mean")
    return float(np.median(1 / np.array(pairs))) if pairs else None


def mean(methods: Methods, method: str, name: str) -> float:
    """Of a value over seeds."""
    return float(np.mean([run[name] for run in methods[method].values()]))


def bit_shares(methods: Methods, method: str) -> dict[int, float]:
    """Shares of rows by bits, mean over seeds."""
    runs = methods[method].values()
    widths = sorted({int(bits) for run in runs for bits in run["bits"]})
    return {bits: sum(run["bits"].get(str(bits), 0.0) for run in runs) / len(runs) for bits in widths}


def target_of(methods: Methods, given: float | None) -> float | None:
    """The accuracy in percent that is to be reached; None where there is none to go by."""
    if given is not None or VANILLA not in methods:
        return given
    return float(np.mean(list(accuracies(methods, VANILLA).values()))) - TARGET_BELOW_VANILLA


def seconds_to(target: float, run: Run) -> float | None:
    """Seconds of training until an evaluation reached ``target`` percent; None if none did."""
    return next((seconds for _, seconds, metric in run["curve"] if 100 * metric >= target), None)


# -- requirements ------------------------------------------------------------------------------------------------------


def requirements(runs: Runs) -> list[Requirement]:
    """Everything that is required and was measured, case by case."""
    return [
        requirement
        for case, methods in cases(runs).items()
        for of in (_speed, _policy_share, _accuracy, _against_uniform, _stale_rows, _correction, _pipeqs)
        for requirement in of(case, methods)
    ]


def _answer(is_reached: bool, not_judged: str = "") -> str:
    return not_judged or ("yes" if is_reached else "**no**")


def _without_limit(case: Case) -> str:
    return "" if case.is_limited else "not judged: no limit on the network"


def _with_few_pairs(pairs: int, wanted: int = PAIRS) -> str:
    return f"only {pairs} pair{'s' if pairs != 1 else ''}" if pairs < wanted else ""


def _speed(case: Case, methods: Methods) -> Iterator[Requirement]:
    for method, least in SPEED_UP_AT_LEAST.items():
        factor = speed_up(methods, method)
        if factor is not None:
            answer = _answer(factor >= least, _without_limit(case))
            yield Requirement(case, f"{method}: speed-up over {VANILLA}", f"{factor:.3f}", f"≥ {least:g}", answer)


def _policy_share(case: Case, methods: Methods) -> Iterator[Requirement]:
    for method, most in POLICY_SHARE_BELOW.items():
        if method in methods:
            share = mean(methods, method, "policy_share")
            answer = _answer(share < most, _without_limit(case))
            what = f"{method}: share of time for its decisions"
            yield Requirement(case, what, f"{100 * share:.2f} %", f"< {100 * most:g} %", answer)


def _accuracy(case: Case, methods: Methods) -> Iterator[Requirement]:
    for method, least in DIFFERENCE_AT_LEAST:
        if result := to_vanilla(methods, method):
            answer = _answer(result.mean >= least, _with_few_pairs(result.pairs))
            what = f"{method}: accuracy less {VANILLA}'s, points"
            yield Requirement(case, what, points(result), f"mean ≥ {least:g}", answer)


def _against_uniform(case: Case, methods: Methods) -> Iterator[Requirement]:
    """Whether AdaQP's choice of bits is worth more than bits dealt out at random, or costs less."""
    result = difference(accuracies(methods, UNIFORM), accuracies(methods, ADAQP))
    if result is None:
        return
    share = float(np.mean(ratios(methods, ADAQP, UNIFORM, "bytes_sent_mean")))
    gains = [
        *(["better accuracy"] if result.mean > 0 and share <= 1 else []),
        *(["fewer bytes"] if result.mean >= 0 and share < 1 else []),
    ]
    answer = _answer(bool(gains), _with_few_pairs(result.pairs))
    if answer == "yes":
        doubt = ", but the interval holds 0" if result.low <= 0 <= result.high else ""
        answer = f"yes: {' and '.join(gains)}{doubt}"
    measured = f"{points(result)} points, {share:.3f} of the bytes"
    required = "better at no more bytes, or fewer bytes and no worse"
    yield Requirement(case, f"{ADAQP} against {UNIFORM}", measured, required, answer)


def _stale_rows(case: Case, methods: Methods) -> Iterator[Requirement]:
    """Whether stale training is as good as synchronous training."""
    for method in (CORRECTED, STALE_8_BITS):
        if result := to_vanilla(methods, method):
            answer = _answer(result.mean >= STALE_DIFFERENCE_AT_LEAST, _with_few_pairs(result.pairs, STALE_PAIRS))
            required = f"mean ≥ {STALE_DIFFERENCE_AT_LEAST:g}"
            yield Requirement(case, f"{method}: accuracy less {VANILLA}'s, points", points(result), required, answer)


def _correction(case: Case, methods: Methods) -> Iterator[Requirement]:
    """What the correction of stale rows costs: paired ratios, which another load of the machine befalls alike."""
    for what, name in (("time", "epoch_seconds_median"), ("bytes", "bytes_sent_mean")):
        if found := ratios(methods, CORRECTED, UNCORRECTED, name):
            ratio = float(np.median(found))
            answer = _answer(ratio <= CORRECTION_COSTS_AT_MOST)
            required = f"≤ {CORRECTION_COSTS_AT_MOST:g}"
            yield Requirement(case, f"{CORRECTED}: {what} over {UNCORRECTED}'s", f"{ratio:.3f}", required, answer)


def _pipeqs(case: Case, methods: Methods) -> Iterator[Requirement]:
    """What PipeQS' rules are worth, beside stale rows of 8 bits in every epoch."""
    result = difference(accuracies(methods, STALE_8_BITS), accuracies(methods, PIPEQS))
    if result is None:
        return
    saved = float(np.mean(ratios(methods, STALE_8_BITS, PIPEQS, "bytes_sent_mean")))
    is_reached = saved >= PIPEQS_SAVES_AT_LEAST and result.mean >= -PIPEQS_LOSES_AT_MOST
    answer = _answer(is_reached, _with_few_pairs(result.pairs, STALE_PAIRS))
    measured = f"{saved:.2f} times fewer bytes, {points(result)} points"
    required = f"≥ {PIPEQS_SAVES_AT_LEAST:g} times, mean ≥ -{PIPEQS_LOSES_AT_MOST:g}"
    yield Requirement(case, f"{PIPEQS} against {STALE_8_BITS}", measured, required, answer)


# -- the document ------------------------------------------------------------------------------------------------------


def write(content: dict[str, Any], out: Path, target: float | None = None) -> None:
    """Write ``OUT.md`` from what :class:`measure.Records` keeps; ``target`` is in percent."""
    runs = content["runs"]
    lines = ["# Policies of bits and staleness", "", *_about(content["settings"], runs, out.name, target), ""]
    lines += _required(requirements(runs))
    for case, methods in cases(runs).items():
        lines += [f"## {case}", "", *table_of(methods, target), ""]
        lines += [f"![Test accuracy]({picture(out, case).name})", ""]
        if adapts(methods):
            lines += [f"![Exchanges and bits over epochs]({picture(out, case, 'messages').name})", ""]
    out.with_suffix(".md").write_text("\n".join(lines))


def picture(out: Path, case: Case, *what: str) -> Path:
    """The file of a case's curves, or of ``what`` else is drawn of it."""
    rate = [] if case.rate == NO_CLUSTER else [case.rate]
    return out.with_name("-".join([out.name, case.graph, case.model, *rate, *what]) + ".svg")


def adapts(methods: Methods) -> list[str]:
    """Methods that choose in each epoch what is sent."""
    return [method for method, runs in methods.items() if all(run.get("messages") for run in runs.values())]


def command(about: dict[str, Any], runs: Runs, name: str, target: float | None) -> str:
    """What measures this again."""

    def distinct(key: str) -> list[Any]:
        return list(dict.fromkeys(run[key] for run in runs))

    rates = [f"--rate {rate}" for rate in distinct("rate") if rate != NO_CLUSTER]
    model, train = about["model"], about["train"]
    chosen = {
        "ranks": about["ranks"],
        "threads": about["threads"],
        "seeds": len(distinct("seed")),
        "models": " ".join(distinct("model")),
        "methods": " ".join(distinct("method")),
        "split": about["split"],
        "compute": about["compute"],
        **({"settings": about["settings"]} if "settings" in about else {}),
    }
    options = {key.replace("_", "-"): value for key, value in (chosen | model | train).items()}
    options |= {} if target is None else {"target": f"{target:g}"}
    words = [*(f"{graph}=..." for graph in distinct("graph")), *rates, *(f"--{key} {options[key]}" for key in options)]
    return " ".join(["python tools/compare_policies.py", *words, f"--out docs/{name}"])


def _about(about: dict[str, Any], runs: Runs, name: str, target: float | None) -> list[str]:
    sources = dict.fromkeys((run["graph"], run["source"]) for run in runs)
    definitions = dict.fromkeys((run["method"], run["definition"]) for run in runs)
    own = "the split of the file" if about["split"] == "parts" else f"`--split {about['split']},SEED`"
    goal = TARGET if target is None else f"{target:g} %"
    return [
        f"Made on {about['machine']} by the command below; figures in `{name}.json`.",
        "",
        f"    {command(about, runs, name, target)}",
        "",
        *(f"- {graph}: `{source}`" for graph, source in sources),
        "",
        "Runs of one seed have the same split, weights and dropout and differ in nothing but the method; their seeds "
        f"are paired. Each seed has {own}. `--schedule {about['schedule']['schedule']}`. Evaluations send float32 and "
        "are not part of any time.",
        "",
        *measure.table(["method", "what it is"], [list(row) for row in definitions]),
        "",
        "- *test %*: test accuracy at the best validation epoch, mean ± standard deviation over seeds. *less "
        "vanilla*: paired difference in percentage points, mean and 95 % interval (Student's t).",
        "- *epochs/s*: all epochs but the first over their seconds, on the slowest rank, mean over seeds. *speed-up*: "
        "median over seeds of paired ratios.",
        "- *MB/epoch*: all ranks, without evaluations. *bits*: share of rows that travelled with so many bits a value. "
        "*stale*: share of epochs that used rows of an earlier one. *policy*: share of the time that decisions took. "
        "*wait*: seconds of an epoch that the slowest rank waited for messages.",
        f"- *seconds to target*: of training, until an evaluation reached the target ({goal}); median over the seeds "
        "that reached it.",
    ]


def _required(lines: list[Requirement]) -> list[str]:
    if not lines:
        return []
    note = (
        "Speeds and shares of time are judged where the network had a limit (`--rate`), accuracies where there are at "
        f"least {PAIRS} pairs ({STALE_PAIRS} for stale rows and their correction); intervals are shown and the means are judged."
    )
    rows = [[*line.case, *line[1:]] for line in lines]
    header = [*Case._fields, "what", "measured", "required", "reached"]
    return ["## What is required", "", note, "", *measure.table(header, rows), ""]


def table_of(methods: Methods, target: float | None) -> list[str]:
    """A row for each method."""
    goal = target_of(methods, target)
    header = ["method", "seeds", "test %", "less vanilla", "epochs/s", "speed-up", "MB/epoch", "bits", "stale",
              "policy", "wait s", "seconds to target" + ("" if goal is None else f" ({goal:.2f} %)")]  # fmt: skip
    return measure.table(header, [_row(methods, method, goal) for method in methods])


def _row(methods: Methods, method: str, goal: float | None) -> list[str]:
    runs, values = methods[method], np.array(list(accuracies(methods, method).values()))
    result, factor = (None if method == VANILLA else to_vanilla(methods, method)), speed_up(methods, method)
    bits = ", ".join(f"{width}: {100 * share:.0f} %" for width, share in bit_shares(methods, method).items())
    return [
        method,
        str(len(runs)),
        f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if values.size > 1 else ""),
        points(result) if result else "",
        f"{np.mean([1 / run['epoch_seconds_mean'] for run in runs.values()]):.3g}",
        f"{factor:.2f}" if factor is not None else "",
        f"{mean(methods, method, 'bytes_sent_mean') / 1e6:.3f}",
        bits,
        f"{100 * mean(methods, method, 'stale_share'):.0f} %",
        f"{100 * mean(methods, method, 'policy_share'):.1f} %",
        f"{mean(methods, method, 'wait_seconds_mean'):.3g}",
        "" if goal is None else _reaching(goal, list(runs.values())),
    ]


def _reaching(goal: float, runs: Runs) -> str:
    found = [seconds for run in runs if (seconds := seconds_to(goal, run)) is not None]
    return (f"{np.median(found):.3g}, " if found else "") + f"{len(found)} of {len(runs)}"


def points(result: Difference) -> str:
    """A difference with its interval, if it has one."""
    return str(result) if result.pairs > 1 else f"{result.mean:+.2f}"
