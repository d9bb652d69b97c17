"""Rows of hybrid plans before and after ``--objective rows``, on the real graphs with the most edges.

usage: bench_rows.py [--parts 8 16 64] [--seed 0] [--graphs 8] [--limit 20] [--data DIR]

The graphs are chosen by size alone: those with the most stored edges, each structure once. Each is partitioned by METIS with
objective ``cut`` and ``volume``, and the latter is refined within the processor time that METIS took for it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import measure
import numpy as np

from hpcgnn.partition.methods import TOLERANCE, stdout_to_stderr
from hpcgnn.partition.native_metis import load_metis
from hpcgnn.partition.rows import limits_of, minimise_rows
from hpcgnn.partition.rows_cover import minimum_cover, roles_of


def main() -> None:
    """Measure every graph and number of parts, and write docs/partition-rows.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graphs", type=int, default=8, help="how many")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds after which METIS is ended (default 20)")
    parser.add_argument("--data", type=Path, default=measure.DOCS.parents[1] / "shared" / "data")
    arguments = parser.parse_args()
    _warm_up()
    runs = []
    for num_parts in arguments.parts:
        for path in _largest(arguments.data, arguments.graphs):
            runs.append(_measure(path, num_parts, arguments.seed, arguments.limit))
            print(runs[-1], flush=True)
    _write(arguments, runs)


def _largest(folder: Path, count: int) -> list[Path]:
    found, structures = [], set()
    for path in sorted(folder.glob("*.npz"), key=lambda path: -_edges(path)[1].size):
        _, edges = _edges(path)
        structure = (edges.shape[1], hash(edges.tobytes()))
        if structure not in structures:
            found.append(path)
            structures.add(structure)
    return found[:count]


def _edges(path: Path) -> tuple[int, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return int(file["num_nodes"]), file["edge_index"]


class _Graph:
    """In-edges, and the weights that ``hpcgnn partition`` balances: in-edges plus one, training nodes where there are any."""

    def __init__(self, path: Path) -> None:
        self.nodes, (sources, destinations) = _edges(path)
        order = np.lexsort((sources, destinations))
        self.sources, degrees = sources[order], np.bincount(destinations, minlength=self.nodes)
        self.indptr = np.concatenate(([0], np.cumsum(degrees)))
        with np.load(path, allow_pickle=False) as file:
            train = [file["train_mask"]] if "train_mask" in file.files else []
        self.weights = np.stack([degrees + 1, *train], axis=1).astype(np.int64)
        self.roles = roles_of(self.indptr, self.sources)

    def symmetric(self) -> tuple[np.ndarray, np.ndarray]:
        """What METIS takes; a directed graph's two roles are joined."""
        if self.roles.roles == 1:
            return self.roles.begin, self.roles.other
        rows = np.repeat(np.arange(2 * self.nodes), np.diff(self.roles.begin)) % self.nodes
        pairs = np.unique(rows * self.nodes + self.roles.other % self.nodes)
        return np.searchsorted(pairs, np.arange(self.nodes + 1) * self.nodes), pairs % self.nodes

    def rows(self, parts: np.ndarray, num_parts: int) -> int:
        """What a hybrid plan sends."""
        return minimum_cover(self.roles, np.tile(parts.astype(np.int32), self.roles.roles), num_parts)[1]

    def balance(self, parts: np.ndarray, num_parts: int) -> list[float]:
        """Maximum over mean of in-edges plus one, training nodes if any, and in-edges."""
        loads = (np.bincount(parts, weights=column, minlength=num_parts) for column in self.bounded.T)
        return [float(load.max() / load.mean()) for load in loads]

    @property
    def bounded(self) -> np.ndarray:
        """What may not become less even: the weights, and in-edges alone."""
        return np.column_stack((self.weights, np.diff(self.indptr)))


def _warm_up() -> None:
    """Load what is compiled, so that the first graph does not pay for it."""
    for edges in ([1], [0]), ([1, 2, 0], [0, 1, 2]):
        indptr = np.searchsorted(edges[1], np.arange(4))
        parts, ones = np.array([0, 1, 1]), np.ones((3, 1), dtype=np.int64)
        minimise_rows(indptr, np.array(edges[0], dtype=np.int32), parts, 2, ones, np.array([3]))


def _metis(graph: _Graph, num_parts: int, objective: str, seed: int, target: Path) -> None:
    """Write the parts and METIS' seconds, of the processor and of the wall clock."""
    metis = load_metis(1 << 30)
    assert metis is not None, "pymetis is not installed"
    symmetric = graph.symmetric()
    cpu, wall = time.process_time(), time.perf_counter()
    with stdout_to_stderr():
        parts = metis.partition(
            symmetric, graph.weights, num_parts, objective=objective, tolerance=TOLERANCE, seed=seed
        )
    np.savez(target, parts=parts, seconds=[time.process_time() - cpu, time.perf_counter() - wall])


def _within(limit: float, graph: _Graph, num_parts: int, objective: str, seed: int) -> tuple | None:
    """``(parts, [processor, wall seconds])`` of METIS in a process of its own, or None where it failed or was ended."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "parts.npz"
        arguments = (graph, num_parts, objective, seed, target)
        process = multiprocessing.get_context("fork").Process(target=_metis, args=arguments)
        process.start()
        process.join(limit)
        if process.is_alive():
            process.kill()
        process.join()
        if process.exitcode:
            print(f"no parts: exit code {process.exitcode}", flush=True)
            return None
        with np.load(target) as file:
            return file["parts"], file["seconds"].tolist()


def _measure(path: Path, num_parts: int, seed: int, limit: float) -> dict:
    graph = _Graph(path)
    run = {"graph": path.stem, "parts": num_parts, "nodes": graph.nodes, "edges": int(graph.indptr[-1])}
    cut = _within(limit, graph, num_parts, "cut", seed)
    run["cut_rows"] = cut and graph.rows(cut[0], num_parts)
    volume = _within(limit, graph, num_parts, "volume", seed)
    if volume is None:
        return run
    before, (cpu_seconds, wall_seconds) = volume
    limits = limits_of(before, num_parts, graph.bounded, TOLERANCE)
    cpu, wall = time.process_time(), time.perf_counter()
    result = minimise_rows(
        graph.indptr, graph.sources, before, num_parts, graph.bounded, limits, seed=seed, seconds=wall_seconds
    )
    assert result.rows_after == graph.rows(result.parts, num_parts)
    return run | {
        "refinement_cpu_seconds": time.process_time() - cpu,
        "refinement_seconds": time.perf_counter() - wall,
        "volume_rows": result.rows_before,
        "refined_rows": result.rows_after,
        "ratio": result.rows_after / max(result.rows_before, 1),
        "metis_cpu_seconds": cpu_seconds,
        "metis_seconds": wall_seconds,
        "batches": result.batches,
        "all_passes": result.complete,
        "balance_before": graph.balance(before, num_parts),
        "balance_after": graph.balance(result.parts, num_parts),
    }


def _write(arguments: argparse.Namespace, runs: list[dict]) -> None:
    header = ["graph", "parts", "METIS cut", "METIS volume", "refined", "refined / volume", "balance before", "after"]
    header += ["METIS volume (s)", "refinement (s)"]
    table = [[run["graph"], str(run["parts"]), _count(run["cut_rows"]), *_refined(run)] for run in runs]
    counted = []
    for num_parts in arguments.parts:
        ratios = [run["ratio"] for run in runs if run["parts"] == num_parts and "ratio" in run]
        fewer = sum(ratio <= 0.9 for ratio in ratios)
        counted.append(f"{fewer} of {len(ratios)} graphs with {num_parts} parts")
    about = (
        "Rows that hybrid plans send, for the graphs with the most stored edges (each structure once), from parts of METIS "
        "with objectives `cut` and `volume`, and from the latter refined as by `--objective rows`. At least 10 % fewer than "
        f"those of `volume`: {', '.join(counted)}. Balance is the largest part over the mean: in-edges plus one (what is "
        "balanced), training nodes where the graph has them, in-edges. Seconds are of the processor, one thread each; the "
        "refinement was allowed the wall time that METIS took, and `*` marks where that left it less than its "
        f"9 passes (18 from 32 parts). A gap: METIS failed or took longer than {arguments.limit:.0f} s."
    )
    command = f"python tools/bench_rows.py --parts {' '.join(map(str, arguments.parts))} --seed {arguments.seed}"
    command += f" --limit {arguments.limit:.0f}"
    data = {"seed": arguments.seed, "limit_seconds": arguments.limit, "runs": runs}
    measure.write("partition-rows", "Rows of refined partitions", command, about, header, table, data)


def _count(rows: int | None) -> str:
    return "" if rows is None else f"{rows:,}"


def _refined(run: dict) -> list[str]:
    if "ratio" not in run:
        return [""] * 7
    return [
        _count(run["volume_rows"]),
        _count(run["refined_rows"]),
        f"{run['ratio']:.3f}",
        ", ".join(f"{value:.3f}" for value in run["balance_before"]),
        ", ".join(f"{value:.3f}" for value in run["balance_after"]),
        f"{run['metis_cpu_seconds']:.2f}",
        f"{run['refinement_cpu_seconds']:.2f}" + ("" if run["all_passes"] else " *"),
    ]


if __name__ == "__main__":
    main()
