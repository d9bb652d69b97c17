"""What training in 8-bit integers costs in accuracy, with Tango's rules and without: pairs that differ in nothing else.

usage: int8_accuracy.py NAME=SOURCE [NAME=SOURCE ...]     writes docs/int8-accuracy.md, .json
       int8_accuracy.py --report                          writes the document again from its JSON

SOURCE is as `hpcgnn convert` takes it, or dense:FILE.npz: an npz file whose sparse features are written out, so that their
products are done in 8-bit integers too (those of sparse ones are always float32). A pair has the same seed of split, weights
and dropout. 8-bit integers are used wherever they can be (`--compute int8-always`), also where these small graphs are not
faster for it. Every training is written as it ends, and one that is there is not repeated; seeds follow each other, so that
a part of a study is a balanced one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import int8_accuracy_report as report
import measure
import message_accuracy as pairs
import numpy as np
import scipy.sparse as sp

from hpcgnn.devices import CPU
from hpcgnn.nn.bfloat16 import is_native
from hpcgnn.nn.compute import BF16, EMULATED, INT8_ALWAYS

MODEL = {"layers": 2, "hidden": 128, "norm": "none", "dropout": 0.3}
SCHEDULE = {"schedule": "cosine"}
EVAL_EVERY = 5
# What a training of each task has beside the above; of links, the embeddings are those of a GCN.
TASKS: dict[str, dict[str, Any]] = {
    "gcn": {"model": {"model": "gcn"}, "lr": 0.02},
    "gat": {"model": {"model": "gat", "heads": 4}, "lr": 0.02},
    "links": {"model": {"model": "gcn", "decoder": "dot"}, "lr": 0.01},
}
# Without it, this graph's features, which are no longer small, take some hundred epochs.
OF_GRAPHS: dict[str, dict[str, Any]] = {"amazon-computers": {"norm": "batch"}}
# By graph, of each task: so few that 600 trainings fit into an hour on one thread.
EPOCHS = {
    "pubmed": {"gcn": 20, "gat": 15, "links": 10},
    "amazon-computers": {"gcn": 40, "gat": 25, "links": 25},
    "coauthor-physics": {"gcn": 10, "gat": 8, "links": 8},
}
EPOCHS_OF_OTHERS = {"gcn": 20, "gat": 20, "links": 20}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"compute": BF16},
    "int8": {"compute": INT8_ALWAYS},
    report.TEST1: {"compute": INT8_ALWAYS, "int8": {"before_softmax": True}},
    report.TEST2: {"compute": INT8_ALWAYS, "int8": {"rounding": "nearest"}},
}


def main() -> None:
    """Train what is missing and write the documents."""
    arguments = parse()
    settings: dict[str, Any] = {
        "split": pairs.SPLIT,
        "model": MODEL,
        "schedule": SCHEDULE,
        "eval_every": EVAL_EVERY,
        "tasks": TASKS,
    }
    settings["of_graphs"] = OF_GRAPHS
    study = measure.Records(measure.DOCS / "int8-accuracy.json", settings)
    if not arguments.report:
        train_missing(study, arguments)
    report.write(study.content, measure.DOCS)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", metavar="NAME=SOURCE")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--seeds", type=int, default=report.PAIRS)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    return parser.parse_args()


def train_missing(study: measure.Records, arguments: argparse.Namespace) -> None:
    """Train what the study lacks, all in one process."""
    sources = dict(graph.split("=", 1) for graph in arguments.graphs)
    missing = [
        name
        for name in wanted(list(sources), arguments.tasks, arguments.seeds)
        if not study.has(report.KEYS, name)
    ]  # fmt: skip
    machine = measure.machine()
    with tempfile.TemporaryDirectory() as folder:
        parts = {name: prepare(name, source, Path(folder)) for name, source in sources.items()}
        trainings = [training(name) | {"parts": str(parts[name[0]])} for name in missing]
        launcher = [*measure.HPCGNN, "launch", "-n", "1", "-t", "1"]
        for done, summary in enumerate(pairs.run_ranks(trainings, launcher, Path(folder)), 1):
            found = {key: summary[key] for key in report.KEPT} | {"source": without_folder(sources[summary["name"][0]])}
            study.add(dict(zip(report.KEYS, summary["name"], strict=True)) | found | {"machine": machine})
            reached = f"{100 * summary['test_metric_at_best_val']:.2f} %"
            print(f"{done}/{len(missing)}", *summary["name"], reached, summary["compute"], flush=True)


def wanted(graphs: list[str], tasks: list[str], seeds: int) -> list[list[Any]]:
    """The trainings (graph, task, configuration, seed) of a study in their order."""
    return [
        [graph, task, configuration, seed]
        for seed in range(seeds)
        for graph in graphs
        for task in tasks
        for configuration in CONFIGURATIONS
    ]


def training(name: list[Any]) -> dict[str, Any]:
    """The training (graph, task, configuration, seed), as :mod:`train_many` takes it, but for the graph's file."""
    graph, task, configuration, seed = name
    about, epochs = TASKS[task], EPOCHS.get(graph, EPOCHS_OF_OTHERS)[task]
    chosen = dict(CONFIGURATIONS[configuration])
    if chosen.get("compute") == BF16 and not is_native(CPU.where):
        chosen["compute"] = EMULATED
    held_out = {"links": {"link_seed": seed}} if task == "links" else {"split": f"{pairs.SPLIT},{seed}"}
    return {
        "name": name,
        "seed": seed,
        "model": MODEL | OF_GRAPHS.get(graph, {}) | about["model"],
        "train": {"epochs": epochs, "eval_every": EVAL_EVERY, "lr": about["lr"]},
        "schedule": SCHEDULE,
    } | chosen | held_out  # fmt: skip


def without_folder(source: str) -> str:
    """A source as a reader may know it: where its file was is of no matter."""
    kind, _, file = source.partition(":")
    return f"{kind}:{Path(file).name}"


def prepare(name: str, source: str, folder: Path) -> Path:
    """A graph in one part."""
    kind, _, file = source.partition(":")
    if kind == "dense":
        source = f"npz:{with_dense_features(Path(file), folder / f'{name}.npz')}"
    return pairs.prepare(name, source, 1, folder)


def with_dense_features(file: Path, into: Path) -> Path:
    """A copy of a graph whose sparse features are a matrix of float32."""
    with np.load(file) as given:
        arrays = dict(given)
    values, shape = [arrays.pop(f"x_{each}") for each in ("data", "indices", "indptr")], arrays.pop("x_shape")
    x = sp.csr_matrix(tuple(values), shape=tuple(shape)).toarray().astype(np.float32)
    np.savez(into, x=x, **arrays)
    return into


if __name__ == "__main__":
    main()
