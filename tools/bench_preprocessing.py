"""Cost of preprocessing: convert, partition and plan R-MAT graphs, with seconds and peak memory of each step.

usage: bench_preprocessing.py [CASE ...] [--folder DIR]      measure these, or all, and write the document
       bench_preprocessing.py --report                       write docs/preprocessing.md again from its figures

Memory is of a command and all processes that it starts, together: pages that they share count once (the sum of proportional set
sizes, asked twenty times a second).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure

OUT = measure.DOCS / "preprocessing.json"
STEPS = ("convert", "partition", "plan")


@dataclass(frozen=True)
class Case:
    """An R-MAT graph and what is done with it. flags: of ``hpcgnn partition``."""

    scale: int
    edges: int
    features: int
    parts: int
    flags: tuple[str, ...] = ()


CASES = {
    "metis": Case(20, 30_000_000, 64, 64, ("--method", "metis")),
    "default": Case(20, 30_000_000, 64, 64),
    "1024-parts": Case(22, 120_000_000, 64, 1024),
    "streaming": Case(24, 400_000_000, 8, 256, ("--method", "fennel")),
}
# Of papers100M and UK-2007-05, as their authors give them: nodes, edges, bytes of features.
LARGE = {
    "ogbn-papers100M": (111_059_956, 1_615_685_872, 111_059_956 * 128 * 4),
    "UK-2007-05": (105_896_555, 3_738_733_648, 0),
}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    found = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in () if arguments.report else arguments.cases or CASES:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            found[name] = measured(CASES[name], Path(folder))
        OUT.write_text(json.dumps(found, indent=2) + "\n")
    write(found)


# -- measuring ---------------------------------------------------------------------------------------------------------


def measured(case: Case, folder: Path) -> dict[str, Any]:
    """Seconds, memory and sizes of one case."""
    graph, parts = folder / "graph.h5", folder / "parts.h5"
    degree = case.edges / 2**case.scale
    source = f"rmat:scale={case.scale},degree={degree},features={case.features},classes=40"
    commands = {
        "convert": ["convert", source, graph],
        "partition": ["partition", graph, parts, "--parts", case.parts, "--plan", "none", *case.flags],
        "plan": ["plan", parts, "--strategy", "hybrid"],
    }
    steps = {}
    for name in STEPS:
        steps[name] = run([*measure.HPCGNN, *map(str, commands[name]), "--json"])
        print(f"{name}: {steps[name]['wall_seconds']:.1f} s, {steps[name]['tree_bytes'] / 2**20:.0f} MiB", flush=True)
    sizes = {"graph_bytes": graph.stat().st_size, "parts_bytes": parts.stat().st_size}
    return sizes | {"steps": steps, "machine": measure.machine()}


def run(command: list[str]) -> dict[str, Any]:
    """What ``command`` prints, without what is long, and its cost: ``wall_seconds`` and ``tree_bytes``."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watch = Watch(process.pid)
    output, _ = process.communicate()
    tree_bytes = watch.stop()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    told = {name: value for name, value in json.loads(output).items() if name not in ("pairs", "path", "parts")}
    return told | {"wall_seconds": time.perf_counter() - started, "tree_bytes": tree_bytes}


class Watch:
    """The largest memory that a process and its descendants have had together."""

    def __init__(self, pid: int, every_seconds: float = 0.05) -> None:
        self._pid, self._every, self._most, self._over = pid, every_seconds, 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(self._every):
            self._most = max(self._most, sum(_resident_bytes(pid) for pid in _family(self._pid)))

    def stop(self) -> int:
        """In bytes."""
        self._over.set()
        self._thread.join()
        return self._most


def _family(pid: int) -> list[int]:
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _family(int(child))
    except OSError:  # it has ended
        pass
    return found


def _resident_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


# -- the document ------------------------------------------------------------------------------------------------------


def write(found: dict[str, Any]) -> None:
    """``docs/preprocessing.md``."""
    rows, about = [], []
    for name, case in CASES.items():
        if name not in found:
            continue
        result = found[name]
        partition, plan = (result["steps"][step] for step in ("partition", "plan"))
        sent = plan["strategies"]["hybrid"]["rows"]
        about.append(
            f"- **{name}**: R-MAT scale {case.scale}, {case.edges:,} edges, {case.features} features, {case.parts:,} parts, "
            f"{partition['method']}; `graph.h5` has {result['graph_bytes'] / 2**20:,.0f} MiB, `parts.h5` with its plan "
            f"{result['parts_bytes'] / 2**20:,.0f} MiB. {100 * partition['cut_fraction']:.1f} % of edges are cut, max/mean "
            f"in-edges {partition['edge_balance']:.3f}, training nodes {partition['train_balance']:.3f}; the hybrid plan sends "
            f"{sent:,} rows. {result['machine']}."
        )
        for step in STEPS:
            cost = result["steps"][step]
            rows.append([
                name, step, f"{cost['wall_seconds']:.1f}", f"{cost['tree_bytes'] / 2**20:,.0f}",
                f"{cost['tree_bytes'] / result['graph_bytes']:.2f}",
            ])  # fmt: skip
    text = "\n".join(about) + (
        "\n\nSeconds are of whole commands, Python's start included. Memory is that of a command and all processes that it "
        "starts, together. `python tools/bench_preprocessing.py CASE` measures one case again."
    )
    header = ["case", "step", "seconds", "peak memory (MiB)", "peak memory / size of graph.h5"]
    command = "python tools/bench_preprocessing.py"
    measure.write("preprocessing", "Preprocessing", command, text, header, rows, found)
    path = measure.DOCS / "preprocessing.md"
    path.write_text(path.read_text() + on_paper(found))


def on_paper(found: dict[str, Any]) -> str:
    """What larger graphs would take, in proportion to their edges (seconds), and to edges or nodes (memory)."""
    if "streaming" not in found or "1024-parts" not in found:
        return ""
    lines = ["", "## On paper: graphs of 10^8 nodes on nodes of 96 GB", ""]
    lines.append(
        "Seconds in proportion to edges, from those above on 2 cores; memory in proportion to edges or nodes, whichever is more. "
        "These are estimates, not measurements: other graphs compress otherwise, and nodes have more cores."
    )
    header = ["graph", "graph.h5 (GB)", "method", "hours, all steps", "peak memory (GB)", "fits into 96 GB"]
    rows = []
    for graph, (nodes, edges, features) in LARGE.items():
        size = edges * 8 + nodes * 8 + features
        for name in ("1024-parts", "streaming"):
            case, result = CASES[name], found[name]
            seconds = sum(step["wall_seconds"] for step in result["steps"].values()) * edges / case.edges
            peak = max(step["tree_bytes"] for step in result["steps"].values())
            memory = peak * max(nodes / 2**case.scale, edges / case.edges)
            method = result["steps"]["partition"]["method"]
            fits = "yes" if memory < 96e9 else "no"
            rows.append([graph, f"{size / 1e9:,.0f}", method, f"{seconds / 3600:.1f}", f"{memory / 1e9:,.0f}", fits])
    return "\n".join([*lines, "", *measure.table(header, rows), ""])


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("memory of processes is read in /proc, which only Linux has")
    main()
