"""GAT over ranks against PyG's GATConv in one process with as many cores. Writes docs/attention.json and docs/attention.md.

    python tools/bench_attention.py --graph rmat:scale=16,degree=24,features=64,classes=16 --rounds 3

Both train the same model (layers of --heads heads, ELU, Adam) on the same graph, by turns. Memory is the resident set's peak, of
all ranks together, with whatever the programs themselves need.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure

ONE_PROCESS = Path(__file__).with_name("bench_attention_pyg.py")


def main() -> None:
    """Measure by turns, and write."""
    arguments = parse()
    with tempfile.TemporaryDirectory() as folder:
        graph, parts = Path(folder) / "graph.h5", Path(folder) / "parts.h5"
        measure.run([*measure.HPCGNN, "convert", arguments.graph, str(graph), "--json"])
        measure.run([*measure.HPCGNN, "partition", str(graph), str(parts), "--parts", str(arguments.ranks), "--json"])
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("PyG", *arguments.attention)}
        for _ in range(arguments.rounds):
            for name, done in runs.items():
                done.append(with_pyg(arguments, graph) if name == "PyG" else with_ranks(arguments, parts, name))
                print(name, done[-1], flush=True)
    write(arguments, runs)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="rmat:scale=16,degree=24,features=64,classes=16", help="as for convert")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of a rank; PyG has as many as all ranks together")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attention", nargs="+", choices=("halo", "partial"), default=["halo", "partial"])
    return parser.parse_args()


def with_pyg(arguments: argparse.Namespace, graph: Path) -> dict[str, float]:
    """Seconds an epoch and bytes, in one process."""
    flags = [f"--{name}={getattr(arguments, name)}" for name in ("layers", "hidden", "heads", "epochs")]
    threads = arguments.ranks * arguments.threads
    found = measure.run([sys.executable, str(ONE_PROCESS), str(graph), f"--threads={threads}", *flags])
    return {"epoch_seconds": found["epoch_seconds_median"], "peak_memory_bytes": found["peak_memory_bytes"]}


def with_ranks(arguments: argparse.Namespace, parts: Path, attention: str) -> dict[str, float]:
    """The same of all ranks together; the most that one had counts for each."""
    flags = [f"--{name}={getattr(arguments, name)}" for name in ("layers", "hidden", "heads", "epochs")]
    model = ["--model=gat", "--activation=elu", "--norm=none", "--dropout=0", f"--attention={attention}"]
    with tempfile.TemporaryDirectory() as out:
        start = [*measure.HPCGNN, "launch", "-n", str(arguments.ranks), "-t", str(arguments.threads), *measure.HPCGNN]
        fixed = ["--eval-every=1000000", "--out", f"{out}/run", "--json"]
        found = measure.run([*start, "train", str(parts), *flags, *model, *fixed])
    peak = found["peak_memory_bytes_per_rank"] * arguments.ranks
    return {"epoch_seconds": found["epoch_seconds_median"], "peak_memory_bytes": peak}


def write(arguments: argparse.Namespace, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Both documents."""
    median = {
        name: {key: statistics.median(run[key] for run in done) for key in done[0]} for name, done in runs.items()
    }
    pyg, rows = median["PyG"], []
    for name, found in median.items():
        ratios = [a["epoch_seconds"] / b["epoch_seconds"] for a, b in zip(runs["PyG"], runs[name], strict=True)]
        label = "PyG's GATConv, 1 process" if name == "PyG" else f"--attention {name}, {arguments.ranks} ranks"
        share = found["peak_memory_bytes"] / pyg["peak_memory_bytes"]
        rows.append(
            [
                label,
                f"{found['epoch_seconds']:.3f}",
                f"{statistics.median(ratios):.2f}",
                f"{found['peak_memory_bytes'] / 2**20:.0f}",
                f"{share:.2f}",
            ]
        )
    settings = {name: value for name, value in vars(arguments).items() if name != "attention"}
    command = "python tools/bench_attention.py " + " ".join(f"--{name} {value}" for name, value in settings.items())
    about = "Medians of rounds by turns. *speed-up*: of the rounds' ratios. *MiB*: peak resident set, of all ranks."
    header = ["what", "seconds an epoch", "speed-up", "MiB", "of PyG's"]
    data = {"settings": settings, "runs": runs}
    measure.write("attention", "GAT against PyG", command, about, header, rows, data)


if __name__ == "__main__":
    main()
