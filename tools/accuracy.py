"""Accuracy on the public splits: the README's training command on 4 ranks, mean of 5 seeds for each graph.

usage: accuracy.py NAME=SOURCE [NAME=SOURCE ...]      such as cora=pyg:Cora?root=data pubmed=npz:pubmed.npz
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import measure

TRAIN = (
    "--model gcn --layers 2 --hidden 64 --norm none --dropout 0.5 --input-dropout 0.5 --weight-decay 5e-4 --epochs 200"
)
PUBLISHED = {"cora": 81.5, "citeseer": 70.3, "pubmed": 79.0}  # Kipf & Welling 2017, table 2


def main() -> None:
    """Train and write docs/accuracy.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", metavar="NAME=SOURCE")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    sources = dict(graph.split("=", 1) for graph in arguments.graphs)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            results[name] = _train(name, source, Path(folder), arguments.ranks, arguments.seeds)
    _write(arguments, results)


def _train(name: str, source: str, folder: Path, ranks: int, seeds: int) -> list[float]:
    graph, parts = str(folder / f"{name}.h5"), str(folder / f"{name}-parts.h5")
    measure.run([*measure.HPCGNN, "convert", source, graph, "--row-normalise", "--json"])
    measure.run([*measure.HPCGNN, "partition", graph, parts, "--parts", str(ranks), "--json"])
    launcher = str(Path(__file__).with_name("mpiexec.sh"))
    launch = [launcher, "-n", str(ranks), *measure.HPCGNN, "train", parts, *TRAIN.split(), "--json"]
    found = []
    for seed in range(seeds):
        summary = measure.run([*launch, "--out", str(folder / f"{name}-{seed}"), "--seed", str(seed)])
        found.append(100 * summary["test_metric_at_best_val"])
        print(f"{name} seed {seed}: {found[-1]:.2f} %", flush=True)
    return found


def _write(arguments: argparse.Namespace, results: dict[str, list[float]]) -> None:
    rows = [
        [
            name,
            f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f}",
            f"{PUBLISHED[name]:.1f}" if name in PUBLISHED else "",
            ", ".join(f"{value:.1f}" for value in found),
        ]
        for name, found in results.items()
    ]
    about = (
        f"Test accuracy in % at the best validation epoch, public split, {arguments.ranks} MPI ranks, seeds 0 to "
        f"{arguments.seeds - 1}: `hpcgnn train parts.h5 {TRAIN} --seed S`. Features are row-normalised by "
        "`hpcgnn convert --row-normalise`."
    )
    header = ["graph", "mean ± standard deviation", "published (Kipf & Welling 2017)", "each seed"]
    command = "python tools/accuracy.py " + " ".join(f"{name}=..." for name in results)
    measure.write("accuracy", "Accuracy", command, about, header, rows, results)


if __name__ == "__main__":
    main()
