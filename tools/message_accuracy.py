"""What quantized messages, and bfloat16 products, cost in accuracy: pairs of trainings that differ in nothing else.

usage: message_accuracy.py NAME=SOURCE [NAME=SOURCE ...]      such as pubmed=npz:pubmed.npz; writes docs/messages.md, .json
       message_accuracy.py --report                           writes docs/messages.md again from docs/messages.json

A pair has the same seed of split, weights and dropout. Every training is written to docs/messages.json as it ends, and one that
is there is not repeated: the command may be stopped and started again. Groups follow each other as they are given, and within
a group seeds, so that a part of a study is a balanced one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import message_accuracy_report as report

TOOLS = Path(__file__).parent
MODELS = ("gcn", "sage")
SPLIT = "random:0.6,0.2,0.2"
LABEL_RATE = 0.62  # SuperGCN's code
MODEL = {"layers": 3, "hidden": 64, "norm": "batch", "dropout": 0.3}
TRAIN = {"epochs": 50, "lr": 0.02, "eval_every": 5}
SCHEDULE = {"schedule": "cosine"}
_LABELS = {"labels": {"rate": LABEL_RATE}}
_KEPT = {"model": {"dropout": 0.0}}  # differences would be mostly dropout's masks
_WIDE = {"model": {"hidden": 128}}  # without AVX512_BF16, narrower products of these graphs stay in float32
# Group -> name -> what differs from the above; message_accuracy_report.COMPARISONS says what is paired.
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "bits": {
        "fp32": {},
        "int2": {"messages": {"bits": 2}},
    },
    "one bit": {
        "int1": {"messages": {"bits": 1}},
    },
    "labels": {
        "fp32, LP": _LABELS,
        "int2, LP": _LABELS | {"messages": {"bits": 2}},
    },
    "coding": {
        "fp32, no dropout": _KEPT,
        "int2, no dropout": _KEPT | {"messages": {"bits": 2}},
        "delta 1 bit": _KEPT | {"messages": {"bits": 1, "message_coding": "delta"}},
        "delta 2 bits": _KEPT | {"messages": {"bits": 2, "message_coding": "delta"}},
    },
    "compute": {
        "float32": _WIDE,
        "bf16": _WIDE | {"compute": "bf16"},
    },
}


def main() -> None:
    """Train what is missing and write the documents."""
    arguments = parse()
    study = measure.Records(measure.DOCS / "messages.json", {"ranks": arguments.ranks, "split": SPLIT, **settings()})
    if not arguments.report:
        train_missing(study, arguments)
    report.write(study.content, measure.DOCS)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", metavar="NAME=SOURCE")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=10)
    groups = f"of {', '.join(GROUPS)}; those joined by + are done seed by seed (default: %(default)s)"
    default = ["bits+labels", "compute+one bit+coding"]
    parser.add_argument("--groups", nargs="+", default=default, metavar="GROUP[+GROUP]", help=groups)
    return parser.parse_args()


def settings() -> dict[str, Any]:
    """What all trainings have in common, as :mod:`train_many` takes it."""
    return {"model": MODEL, "train": TRAIN, "schedule": SCHEDULE, "label_rate": LABEL_RATE}


def train_missing(study: measure.Records, arguments: argparse.Namespace) -> None:
    """Train what the study lacks, all in one MPI job: to start one takes longer than to train once."""
    sources = dict(graph.split("=", 1) for graph in arguments.graphs)
    missing = [
        name for name in wanted(list(sources), arguments.groups, arguments.seeds) if not study.has(report.KEYS, name)
    ]
    with tempfile.TemporaryDirectory() as folder:
        parts = {name: prepare(name, source, arguments.ranks, Path(folder)) for name, source in sources.items()}
        trainings = [training(name) | {"parts": str(parts[name[0]])} for name in missing]
        launcher = [*measure.HPCGNN, "launch", "-n", str(arguments.ranks), "-t", "1"]
        for done, summary in enumerate(run_ranks(trainings, launcher, Path(folder)), 1):
            study.add(dict(zip(report.KEYS, summary["name"], strict=True)) | {key: summary[key] for key in report.KEPT})
            accuracy = f"{100 * summary['test_metric_at_best_val']:.2f} %"
            print(f"{done}/{len(missing)}", *summary["name"], accuracy, flush=True)


def wanted(graphs: list[str], groups: list[str], seeds: int) -> list[list[Any]]:
    """The trainings (graph, model, configuration, seed) of a study in their order."""
    return [
        [graph, model, configuration, seed]
        for together in groups
        for seed in range(seeds)
        for graph in graphs
        for group in together.split("+")
        for model in MODELS
        for configuration in GROUPS[group]
    ]


def training(name: list[Any]) -> dict[str, Any]:
    """The training (graph, model, configuration, seed), as :mod:`train_many` takes it, but for the graph's file."""
    _, model, configuration, seed = name
    changes = next(group[configuration] for group in GROUPS.values() if configuration in group)
    common = {"name": name, "seed": seed, "split": f"{SPLIT},{seed}", "train": TRAIN, "schedule": SCHEDULE}
    return common | changes | {"model": MODEL | {"model": model} | changes.get("model", {})}


def prepare(name: str, source: str, ranks: int, folder: Path) -> Path:
    """A graph in parts, without a split: each training has its own."""
    graph, parts = folder / f"{name}.h5", folder / f"{name}-parts.h5"
    measure.run([*measure.HPCGNN, "convert", source, str(graph), "--json"])
    split_up = ["partition", str(graph), str(parts), "--parts", str(ranks), "--plan", "hybrid", "--json"]
    measure.run([*measure.HPCGNN, *split_up])
    return parts


def run_ranks(trainings: list[dict[str, Any]], launcher: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Summaries of ``trainings``, each as it ends, on ranks that ``launcher`` starts."""
    if not trainings:
        return
    asked = folder / "trainings.json"
    asked.write_text(json.dumps(trainings))
    command = [*launcher, sys.executable, str(TOOLS / "train_many.py"), str(asked)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise SystemExit(f"train_many.py failed with exit code {process.returncode}")


if __name__ == "__main__":
    main()
