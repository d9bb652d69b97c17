"""What `--compute auto` costs in accuracy where it takes bfloat16: pairs of trainings with the command's defaults.

usage: compute_accuracy.py NAME=SOURCE [...] [--epochs N [N ...]] [--emulated]     writes docs/compute-accuracy.md, .json
       compute_accuracy.py --report                            writes the document again from its JSON

A pair has the same seed of split, weights and dropout, and differs in nothing but `--compute`: float32, or auto on a CPU
where it takes bfloat16 (with --emulated bf16-emulated, on one where it does not). Every training is written as it ends, and
one that is there is not repeated. `--epochs` is one number for all graphs, or one for each.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import measure
import message_accuracy as pairs
from message_accuracy_report import KEPT, KEYS, accuracies, difference, graphs_and_models

from hpcgnn.nn.compute import EMULATED

CONFIGURATIONS = {"float32": "float32", "bf16": "auto"}
LEAST_DIFFERENCE = -0.2  # points: a mean below it is a loss
PAIRS = 5  # fewer do not judge


def main() -> None:
    """Train what is missing and write the documents."""
    arguments = parse()
    settings = {"ranks": arguments.ranks, "split": pairs.SPLIT}
    study = measure.Records(measure.DOCS / "compute-accuracy.json", settings)
    if not arguments.report:
        train_missing(study, arguments)
    write(study.content)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", metavar="NAME=SOURCE")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["sage"], choices=pairs.MODELS)
    parser.add_argument("--epochs", type=int, nargs="+", default=[100])
    parser.add_argument("--emulated", action="store_true")
    return parser.parse_args()


def train_missing(study: measure.Records, arguments: argparse.Namespace) -> None:
    """Train what the study lacks, all in one MPI job, seed by seed."""
    sources = dict(graph.split("=", 1) for graph in arguments.graphs)
    counts = arguments.epochs * (len(sources) if len(arguments.epochs) == 1 else 1)
    epochs = dict(zip(sources, counts, strict=True))
    missing = [
        name
        for seed in range(arguments.seeds)
        for graph in sources
        for model in arguments.models
        for configuration in CONFIGURATIONS
        if not study.has(KEYS, name := [graph, model, configuration, seed])
    ]
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            name: str(pairs.prepare(name, source, arguments.ranks, Path(folder))) for name, source in sources.items()
        }
        chosen = CONFIGURATIONS | ({"bf16": EMULATED} if arguments.emulated else {})
        trainings = [training(name, epochs[name[0]], chosen) | {"parts": parts[name[0]]} for name in missing]
        launcher = [*measure.HPCGNN, "launch", "-n", str(arguments.ranks), "-t", "1"]
        for done, summary in enumerate(pairs.run_ranks(trainings, launcher, Path(folder)), 1):
            graph, model, configuration, seed = summary["name"]
            if summary["compute"] not in (configuration, chosen[configuration]):
                raise SystemExit(f"auto took {summary['compute']} on this CPU: measure where it takes bfloat16")
            found = {key: summary[key] for key in KEPT}
            study.add(dict(zip(KEYS, (graph, model, configuration, seed), strict=True)) | found)
            accuracy = f"{100 * summary['test_metric_at_best_val']:.2f} %"
            print(f"{done}/{len(missing)}", *summary["name"], accuracy, flush=True)


def training(name: list[Any], epochs: int, computes: dict[str, str]) -> dict[str, Any]:
    """The training (graph, model, configuration, seed) with the command's defaults, as :mod:`train_many` takes it."""
    _, model, configuration, seed = name
    chosen = {"compute": computes[configuration], "split": f"{pairs.SPLIT},{seed}"}
    return {
        "name": name,
        "seed": seed,
        "model": {"model": model},
        "train": {"epochs": epochs, "eval_every": 5},
    } | chosen


def write(content: dict[str, Any]) -> None:
    """Write the table of pairs."""
    runs, about = content["runs"], content["settings"]
    names = " ".join(f"{name}=..." for name in dict.fromkeys(run["graph"] for run in runs))
    rows = []
    for graph, model in graphs_and_models(runs):
        plain, rounded = (accuracies(runs, graph, model, name) for name in CONFIGURATIONS)
        epochs = next(run["epochs"] for run in runs if (run["graph"], run["model"]) == (graph, model))
        if (found := difference(plain, rounded)) is not None:
            both = plain.keys() & rounded.keys()
            means = [f"{sum(each[seed] for seed in both) / len(both):.2f}" for each in (plain, rounded)]
            holds = "yes" if found.mean >= LEAST_DIFFERENCE else "**no**"
            holds = holds if found.pairs >= PAIRS else f"not judged: only {found.pairs} of {PAIRS} pairs"
            rows.append([graph, model, str(epochs), str(found.pairs), *means, str(found), holds])
    header = ["graph", "model", "epochs", "pairs", "float32", "bf16", "difference [95 % interval], points", "holds"]
    lines = ["# Accuracy of `--compute auto`", ""]
    lines += [f"Made by `python tools/compute_accuracy.py {names}`; figures in `compute-accuracy.json`.", ""]
    lines += [
        f"Test accuracy in % at the best validation epoch with the defaults of `hpcgnn train`, ranks: {about['ranks']}, "
        f"`--split {about['split']},SEED`. *bf16* is what `--compute auto` takes on a CPU that is faster at it, or the same "
        "roundings by `--emulated` on another. A pair has one "
        f"seed of split, weights and dropout. *holds*: the mean difference of {PAIRS} pairs is at least "
        f"{LEAST_DIFFERENCE} points.",
        "",
        *measure.table(header, rows),
        "",
    ]
    (measure.DOCS / "compute-accuracy.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
