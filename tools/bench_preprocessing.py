"""Cost of preprocessing: convert, partition and plan an R-MAT graph, with seconds and peak memory of each step.

usage: bench_preprocessing.py [--scale 20] [--edges 30000000] [--parts 64] [--folder DIR]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import measure


def main() -> None:
    """Measure the three steps and write docs/preprocessing.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=20)
    parser.add_argument("--edges", type=int, default=30_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        steps, sizes = _measure(arguments, Path(folder))
    _write(arguments, steps, sizes)


def _measure(arguments: argparse.Namespace, folder: Path) -> tuple[dict, dict]:
    graph, parts = folder / "graph.h5", folder / "parts.h5"
    degree = arguments.edges / 2**arguments.scale
    source = f"rmat:scale={arguments.scale},degree={degree},features={arguments.features},classes=40"
    commands = {
        "convert": ["convert", source, graph],
        "partition": ["partition", graph, parts, "--parts", arguments.parts, "--plan", "none"],
        "plan": ["plan", parts, "--strategy", "hybrid"],
    }
    steps = {}
    for name, command in commands.items():
        steps[name] = measure.run([*measure.HPCGNN, *map(str, command), "--json"])
        for noise in ("pairs", "path", "parts"):  # thousands of rows, and names of temporary files
            steps[name].pop(noise, None)
        print(f"{name}: {steps[name]['wall_seconds']:.1f} s, {steps[name]['peak_memory_bytes'] / 2**20:.0f} MiB")
    return steps, {"graph_bytes": graph.stat().st_size, "parts_bytes": parts.stat().st_size}


def _write(arguments: argparse.Namespace, steps: dict, sizes: dict) -> None:
    rows = [
        [
            name,
            f"{step['wall_seconds']:.1f}",
            f"{step['peak_memory_bytes'] / 2**20:,.0f}",
            f"{step['peak_memory_bytes'] / sizes['graph_bytes']:.2f}",
        ]
        for name, step in steps.items()
    ]
    plan = steps["plan"]["strategies"]["hybrid"]
    about = (
        f"R-MAT scale {arguments.scale}, {arguments.edges:,} edges, {arguments.features} features: `graph.h5` takes "
        f"{sizes['graph_bytes'] / 2**20:,.0f} MiB, `parts.h5` with its plan {sizes['parts_bytes'] / 2**20:,.0f} MiB. "
        f"Partitioned into {arguments.parts} with {steps['partition']['method']}; the hybrid plan sends {plan['rows']:,} "
        f"rows ({plan['post_rows']:,} post, {plan['pre_rows']:,} pre). Seconds are of the whole command, Python's start "
        "included; peak memory is the resident set's."
    )
    header = ["step", "seconds", "peak memory (MiB)", "peak memory / size of graph.h5"]
    command = f"python tools/bench_preprocessing.py --scale {arguments.scale} --edges {arguments.edges}"
    command += f" --features {arguments.features} --parts {arguments.parts}"
    measure.write("preprocessing", "Preprocessing", command, about, header, rows, sizes | {"steps": steps})


if __name__ == "__main__":
    main()
