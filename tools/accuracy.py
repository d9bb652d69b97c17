"""Accuracy on the public splits: the README's training commands on 4 ranks, mean of 5 seeds for each graph.

usage: accuracy.py NAME=SOURCE [NAME=SOURCE ...] [--presets PRESET ...]

such as cora=pyg:Cora?root=data pubmed=npz:pubmed.npz. With presets it trains these, and writes docs/accuracy-models.md.
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
PUBLISHED = {
    "cora": 81.5,  # Kipf & Welling 2017, table 2, and so the next two
    "citeseer": 70.3,
    "pubmed": 79.0,
    "cora gat": 83.0,  # Veličković et al. 2018, table 2
    "cora gcnii": 85.5,  # Chen et al. 2020, table 2
    "cora appnp": 83.3,  # Chen et al. 2020, table 2, for the public split
    "cora dagnn": 84.4,  # Liu et al. 2020, table 2
    "cora sgc": 81.0,  # Wu et al. 2019, table 2
}


def main() -> None:
    """Train and write docs/accuracy.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", metavar="NAME=SOURCE")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--presets", nargs="+", default=[], metavar="PRESET")
    arguments = parser.parse_args()
    sources = dict(graph.split("=", 1) for graph in arguments.graphs)
    flags = {f" {preset}": f"--preset {preset}" for preset in arguments.presets} or {"": TRAIN}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for graph, source in sources.items():
            parts = _cut(graph, source, Path(folder), arguments.ranks)
            for name, chosen in flags.items():
                results[graph + name] = _train(graph + name, parts, chosen, arguments)
    _write(arguments, results)


def _cut(name: str, source: str, folder: Path, ranks: int) -> Path:
    graph, parts = folder / f"{name}.h5", folder / f"{name}-parts.h5"
    measure.run([*measure.HPCGNN, "convert", source, str(graph), "--row-normalise", "--json"])
    measure.run([*measure.HPCGNN, "partition", str(graph), str(parts), "--parts", str(ranks), "--json"])
    return parts


def _train(name: str, parts: Path, flags: str, arguments: argparse.Namespace) -> list[float]:
    train = [*measure.HPCGNN, "train", str(parts), *flags.split(), "--json"]
    launch = [*measure.HPCGNN, "launch", "-n", str(arguments.ranks), *train]
    found = []
    for seed in range(arguments.seeds):
        out = str(parts.with_name(f"{name}-{seed}".replace(" ", "-")))
        summary = measure.run([*launch, "--out", out, "--seed", str(seed)])
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
    command = f"hpcgnn train parts.h5 {'--preset PRESET' if arguments.presets else TRAIN} --seed S"
    about = (
        f"Test accuracy in % at the best validation epoch, public split, {arguments.ranks} MPI ranks, seeds 0 to "
        f"{arguments.seeds - 1}: `{command}`. Features are row-normalised by `hpcgnn convert --row-normalise`."
    )
    header = [
        "graph and preset" if arguments.presets else "graph",
        "mean ± standard deviation",
        "published",
        "each seed",
    ]
    made_by = "python tools/accuracy.py " + " ".join(f"{graph.split('=')[0]}=..." for graph in arguments.graphs)
    name, title = "accuracy", "Accuracy"
    if arguments.presets:
        name, title, made_by = (
            "accuracy-models",
            "Accuracy of presets",
            f"{made_by} --presets {' '.join(arguments.presets)}",
        )
    measure.write(name, title, made_by, about, header, rows, results)


if __name__ == "__main__":
    main()
