"""Policies of message bits and staleness beside each other: accuracy, speed, bytes, and time to an accuracy.

usage: compare_policies.py NAME=SOURCE|GRAPH.h5|PARTS.h5 [...] [--rate 100mbit --rate unlimited] [--out docs/policies]
       compare_policies.py --report [--target PERCENT] [--out docs/policies]       write the documents again

--settings says what all methods have in common: `defaults` are those of `hpcgnn train`, `study` those under which the other
studies of accuracy were made (cosine rate, batch normalisation, narrow layers). Options that are given come on top.
Trains every method for each graph, model and seed: with --rate (root; docs/virtual_cluster.md) on one virtual host a
rank, else with `hpcgnn launch` here. Runs of one seed have the same split, weights and dropout; the split is made anew for
each seed, or with `--split parts` it is that of the file. All methods of a seed follow each other, so that what else
the machine does befalls all alike, and all trainings of a graph and rate are one MPI job, which begins with two epochs
of each method that do not count. Writes OUT.json after each run, and at the end OUT.md and OUT-*.svg; runs that are in
OUT.json are not repeated. Plans that PARTS.h5 does not hold yet are stored in it.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import compare_policies_report as report
import h5py
import measure
import numpy as np
from ablation import in_parts, launcher
from compare_policies_plot import curves, messages
from message_accuracy import MODEL, MODELS, SCHEDULE, SPLIT, TRAIN, prepare, run_ranks

import hpcgnn
from hpcgnn.nn.config import MODELS as ALL_MODELS
from hpcgnn.train import summary as run_summary
from hpcgnn.train.schedule import ScheduleConfig

# As train_many takes them.
METHODS: dict[str, dict[str, Any]] = {
    report.VANILLA: {"strategy": "post", "messages": {"bits": 32}},
    "int8": {"strategy": "hybrid", "messages": {"bits": 8}},
    "int2": {"strategy": "hybrid", "messages": {"bits": 2}},
    "uniform": {"strategy": "hybrid", "messages": {"bits": 8}, "policy": {"bits": "uniform"}},
    "adaqp": {"strategy": "hybrid", "messages": {"bits": 8}, "policy": {"bits": "adaqp"}},
    "sylvie": {"strategy": "hybrid", "messages": {"bits": 8}, "policy": {"bits": "sylvie", "staleness": "sylvie"}},
    "sylvie-printed": {
        "strategy": "hybrid",
        "messages": {"bits": 8},
        "policy": {"bits": "sylvie", "staleness": "sylvie", "descent_rule": "printed"},
    },
    "pipeline": {"strategy": "hybrid", "messages": {"bits": 32}, "policy": {"staleness": "pipeline"}},
    "pipeline8": {"strategy": "hybrid", "messages": {"bits": 8}, "policy": {"staleness": "pipeline"}},
    "pipeline-uncorrected": {
        "strategy": "hybrid",
        "messages": {"bits": 32},
        "policy": {"staleness": "pipeline", "stale_correction": "none"},
    },
    "pipeqs": {"strategy": "hybrid", "messages": {"bits": 8}, "policy": {"bits": "pipeqs", "staleness": "pipeqs"}},
}
OWN_SPLIT = "parts"
SETTINGS = ("study", "defaults")


def main() -> None:
    """Train what is missing and write the documents."""
    arguments = parse()
    out = arguments.out.with_suffix("")
    if arguments.report:
        content = json.loads(out.with_suffix(".json").read_text())
    else:
        out.parent.mkdir(parents=True, exist_ok=True)  # before hours of training, not after the first run
        study = measure.Records(out.with_suffix(".json"), settings(arguments))
        sources = {name: described(source) for name, source in arguments.graphs.items()}
        refuse_mixing(study.runs, sources)
        for graph in arguments.graphs:
            train_missing(study, arguments, graph, sources[graph])
        content = study.content
    curves(content["runs"], out)
    messages(content["runs"], out)
    report.write(content, out, arguments.target)


def parse() -> argparse.Namespace:
    """The command line; ``graphs`` is a dictionary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", metavar="NAME=SOURCE|FILE.h5")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--rate", action="append", help="of each virtual host's link, such as 100mbit, or unlimited")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--models", nargs="+", choices=list(ALL_MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--split", default=SPLIT, help=f"as `hpcgnn convert` takes it, without a seed, or {OWN_SPLIT}")
    parser.add_argument("--settings", choices=SETTINGS, default=SETTINGS[0])
    for name, value in MODEL.items():
        parser.add_argument(f"--{name}", type=type(value))
    parser.add_argument("--compute", default="float32", help="arithmetic of products, in all methods: float32 or bf16")
    parser.add_argument("--epochs", type=int, help="the first one is not counted as time")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--eval-every", type=int, help="epochs between points of the curves")
    parser.add_argument("--target", type=float, metavar="PERCENT", help=f"accuracy to reach; default: {report.TARGET}")
    parser.add_argument("--out", type=Path, default=measure.DOCS / "policies")
    arguments = parser.parse_args()
    for name, value in common_settings(arguments.settings).items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
    if wrong := [graph for graph in arguments.graphs if not re.match(r"[\w.-]+=.", graph)]:
        parser.error(f"{wrong[0]} is no NAME=SOURCE, with a name of letters, digits, dots, hyphens and underscores")
    arguments.graphs = dict(graph.split("=", 1) for graph in arguments.graphs)
    if not arguments.report and not arguments.graphs:
        parser.error("which graphs?")
    if arguments.epochs < 2:
        parser.error("--epochs must be at least 2, as the first one is not counted")
    if arguments.split == OWN_SPLIT and not all(source.endswith(".h5") for source in arguments.graphs.values()):
        parser.error(f"--split {OWN_SPLIT} is for graphs in .h5 files, which may hold a split")
    return arguments


def common_settings(which: str) -> dict[str, Any]:
    """Those of the model, of training and of the rate: of the studies, or what the command's defaults are."""
    if which == "study":
        return {**MODEL, **TRAIN, **SCHEDULE}
    model, train = hpcgnn.ModelConfig(), hpcgnn.TrainConfig()
    found = {name: getattr(model, name) for name in MODEL} | {name: getattr(train, name) for name in TRAIN}
    return found | {"schedule": ScheduleConfig().schedule}


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What all runs have in common."""
    names = ("ranks", "threads", "split", "compute")
    model = {name: getattr(arguments, name) for name in MODEL}
    train = {name: getattr(arguments, name) for name in TRAIN}
    common = {"model": model, "train": train, "schedule": {"schedule": arguments.schedule}}
    chosen = (
        {} if arguments.settings == SETTINGS[0] else {"settings": arguments.settings}
    )  # older studies say nothing of it
    return {name: getattr(arguments, name) for name in names} | chosen | common | {"machine": measure.machine()}


# -- what a name stands for --------------------------------------------------------------------------------------------


def described(source: str) -> str:
    """A graph's source, for the report: without the folders of files, which tell nothing to others."""
    made_by = ""
    if source.endswith(".h5"):
        with h5py.File(source) as file:
            source = json.loads(file.attrs["provenance"])["source"]
            if "method" in file.attrs:
                made_by = f", parts by {file.attrs['method']} for {file.attrs['objective']}"
    return re.sub(r"(?<=[:=])[^:=,?&]*/", "", source) + made_by


def definition(method: str) -> str:
    """A method in words."""
    what = METHODS[method]
    policy = [f"{name.replace('_', ' ')} {value}" for name, value in what.get("policy", {}).items()]
    return ", ".join([what["strategy"], f"{what['messages']['bits']} bits", *policy])


def refuse_mixing(runs: report.Runs, sources: dict[str, str]) -> None:
    """End where a name of graph or method stood for something else when it was measured."""
    definitions = {method: definition(method) for method in METHODS}
    for run in runs:
        for name, was, meant in (
            (run["graph"], run["source"], sources),
            (run["method"], run["definition"], definitions),
        ):
            if meant.get(name, was) != was:
                raise SystemExit(f"{name} was measured as {was} and is now {meant[name]}: choose another --out")


# -- running -----------------------------------------------------------------------------------------------------------


def train_missing(study: measure.Records, arguments: argparse.Namespace, graph: str, source: str) -> None:
    """Train what the study lacks of one graph, one MPI job a rate: starting takes longer than training once."""
    names = [name for name in wanted(arguments, graph) if not study.has(report.KEYS, name)]
    if not names:
        return
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_with_plans(arguments, graph, Path(folder))
        for rate in dict.fromkeys(name[1] for name in names):
            missing = [name for name in names if name[1] == rate]
            trainings = [training(arguments, name) | {"parts": str(parts)} for name in missing]
            start = launcher(arguments, rate, Path(folder) / "bytes.json")
            ended = run_ranks([*warm_up(trainings), *trainings], start, Path(folder))
            for done, summary in enumerate((one for one in ended if one["name"]), 1):
                key = dict(zip(report.KEYS, summary["name"], strict=True))
                study.add(key | {"source": source, "definition": definition(key["method"])} | reduced(summary))
                accuracy = f"{100 * summary['test_metric_at_best_val']:.2f} %"
                print(f"{done}/{len(missing)}", *summary["name"], accuracy, flush=True)


def wanted(arguments: argparse.Namespace, graph: str) -> list[list[Any]]:
    """The runs of a graph in their order, as values of ``report.KEYS``."""
    return [
        [graph, rate, model, method, seed]
        for rate in arguments.rate or [report.NO_CLUSTER]
        for seed in range(arguments.seeds)
        for model in arguments.models
        for method in arguments.methods
    ]


def training(arguments: argparse.Namespace, name: list[Any]) -> dict[str, Any]:
    """The run of this name, as :mod:`train_many` takes it, but for the graph's file."""
    *_, model, method, seed = name
    common = settings(arguments)
    split = {} if arguments.split == OWN_SPLIT else {"split": f"{arguments.split},{seed}"}
    what = {name: common[name] for name in ("train", "schedule", "compute")} | {
        "model": common["model"] | {"model": model}
    }
    return {"name": name, "seed": seed, "records": True} | split | what | METHODS[method]


def warm_up(trainings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two epochs of each model and method, without a name: what a process does once is not to be any method's time."""
    different = {tuple(training["name"][2:4]): training for training in trainings}
    return [training | {"name": None, "train": training["train"] | {"epochs": 2}} for training in different.values()]


def parts_with_plans(arguments: argparse.Namespace, graph: str, folder: Path) -> Path:
    """The graph in parts, with the plans of all methods, which ranks would otherwise make anew for each training."""
    source = arguments.graphs[graph]
    if source.endswith(".h5"):
        parts = in_parts(Path(source), arguments.ranks, folder)
    else:
        parts = prepare(graph, source, arguments.ranks, folder)
    for strategy in dict.fromkeys(METHODS[method]["strategy"] for method in arguments.methods):
        measure.run([*measure.HPCGNN, "plan", str(parts), "--strategy", strategy, "--json"])
    return parts


# -- what is kept of a run ---------------------------------------------------------------------------------------------


def reduced(summary: dict[str, Any]) -> dict[str, Any]:
    """Of a run's summary and records, what the report takes.

    Means of seconds and of waiting are without the first epoch, all else is with it. ``policy_seconds`` are part of an
    epoch's ``seconds``, so that speeds are with what decisions take.
    """
    records = summary["records"]
    seconds = np.array(records["seconds"])
    if summary["test_metric_at_best_val"] is None:
        raise SystemExit("nothing to compare: there are no test nodes")
    stale = records.get("stale", [False])
    return {
        **{name: summary[name] for name in ("test_metric_at_best_val", "best_val_metric", "epochs")},
        "epoch_seconds_median": float(np.median(seconds[1:])),
        "epoch_seconds_mean": float(seconds[1:].mean()),
        "policy_share": sum(value or 0.0 for value in records.get("policy_seconds", [])) / float(seconds.sum()),
        "wait_seconds_mean": float(np.mean(records["communication_wait_seconds"][1:])),
        "wire_seconds_mean": float(np.mean(records["wire_seconds"][1:])),
        "bytes_sent_mean": float(np.mean(records["bytes_sent"])),
        "bits": bit_shares(records["bits"]),
        "stale_share": sum(map(bool, stale)) / len(stale),
        "curve": curve(records["seconds"], records["test_metric"]),
        "messages": messages_over_epochs(records["bits"]),
    }


def bit_shares(epochs: list[int | dict[str, dict[str, int]]]) -> dict[str, float]:
    """As a run's summary has them, in few digits."""
    return {bits: _brief(share) for bits, share in run_summary.bit_shares(epochs).items()}


def messages_over_epochs(epochs: list[int | dict[str, dict[str, int]]]) -> dict[str, list[float]]:
    """Of each epoch how many exchanges sent anything, and the mean bits of the rows sent; nothing where bits are fixed."""
    if not all(isinstance(epoch, dict) for epoch in epochs):
        return {}
    found: dict[str, list[float]] = {"exchanges": [], "bits": []}
    for epoch in epochs:
        assert isinstance(epoch, dict)
        rows = np.array([(int(bits), count) for each in epoch.values() for bits, count in each.items()]).reshape(-1, 2)
        found["exchanges"].append(len(epoch))
        found["bits"].append(_brief(np.average(rows[:, 0], weights=rows[:, 1])) if rows[:, 1].sum() else 0.0)
    return found


def curve(seconds: list[float], metrics: list[float | None]) -> list[list[float]]:
    """[epochs trained, seconds of training so far, test metric] at each evaluation."""
    so_far = np.cumsum(seconds)
    return [
        [epoch + 1, _brief(so_far[epoch]), _brief(metric)] for epoch, metric in enumerate(metrics) if metric is not None
    ]


def _brief(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
