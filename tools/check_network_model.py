"""Compares the cost model's exchanges with SimGrid's flow-level simulation of the same messages on a fat tree.

usage: check_network_model.py [--quick]        (needs libsimgrid-dev and a C++ compiler: make deps-debian)

It compiles simgrid_exchange.cpp, runs both on uniform messages, on skewed sparse messages, and on the rows that plans of an
R-MAT graph send, and writes docs/network-model.json and .md. It exits with 1 if they differ by 15 % or more. With --quick it
uses 16 ranks and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.cost_model.network import MOST_MESSAGES, Network, exchange_seconds

TOOLS = Path(__file__).resolve().parent
BUILD, DOCS = TOOLS.parent / "build" / "simgrid", TOOLS.parent / "docs"
LIMIT = 0.15
# Settings of each link: half of a latency. SimGrid's own corrections for TCP are off, so that both solve the same problem.
LINK_LATENCY_SECONDS, MEMORY_LATENCY_SECONDS = 1e-6, 0.4e-6
LINK_BANDWIDTH, MEMORY_BANDWIDTH = 24.6e9, 10e9
OPTIONS = {
    "network/model": "CM02",
    "network/optim": "Full",
    # bytes/s; at the default, the rounding error that is left of a link would count as a share
    "maxmin/precision": "1e-3",
    "network/latency-factor": "1",
    "network/bandwidth-factor": "1",
    "network/weight-S": "0",
    "network/TCP-gamma": "0",
    "network/crosstraffic": "0",
}
# Of the table of results: titles, and the form of a cell.
COLUMNS = {
    "ranks": "{ranks}",
    "ranks per node": "{ranks_per_node}",
    "nodes : uplinks": "{oversubscription}:1",
    "pattern": "{pattern}",
    "messages": "{messages:,}",
    "mean bytes": "{mean_bytes:,.0f}",
    "SimGrid (s)": "{simgrid_seconds:.4g}",
    "model (s)": "{model_seconds:.4g}",
    "difference": "{difference:+.1%}",
    "difference, grouped": "{grouped_difference:+.1%}",
}


@dataclass(frozen=True)
class Case:
    """One comparison. pattern: uniform, skewed or plan. num_bytes: mean size of a message. peers: of a rank, for skewed
    messages. oversubscription: nodes of a switch divided by its uplinks.
    """

    ranks: int
    ranks_per_node: int
    pattern: str
    num_bytes: int
    oversubscription: int = 2
    peers: int = 8

    def shape(self) -> tuple[int, int, int]:
        """The number of switches, of nodes at each switch, and of uplinks of each switch."""
        nodes = self.ranks // self.ranks_per_node
        per_switch = 1 << ((nodes.bit_length() - 1) // 2)
        return nodes // per_switch, per_switch, max(1, per_switch // self.oversubscription)


_SMALL, _LARGE = 1 << 10, 1 << 20
FULL = [
    *(Case(16, rpn, pattern, size) for pattern in ("uniform", "skewed", "plan") for rpn in (4, 8) for size in (_SMALL, _LARGE)),
    *(Case(256, rpn, "skewed", size, over) for rpn in (4, 16) for size in (_SMALL, _LARGE) for over in (1, 2)),
    *(Case(1024, rpn, "skewed", size) for rpn in (4, 16) for size in (_SMALL, _LARGE)),
    *(Case(256, rpn, "uniform", size) for rpn in (4, 16) for size in (_SMALL, 1 << 15, _LARGE)),
    *(Case(256, rpn, "plan", size) for rpn in (4, 16) for size in (_SMALL, 1 << 15)),
    Case(1024, 16, "uniform", _LARGE),
]  # fmt: skip
QUICK = [case for case in FULL if case.ranks == 16]


def main() -> None:
    """Run the comparisons and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    program = compiled(BUILD)
    found = []
    for case in QUICK if quick else FULL:
        found.append(compared(program, case))
        print(found[-1], flush=True)
    if not quick:
        write(found)
    worst = worst_of(found)
    print(f"largest difference {worst:.1%}")
    sys.exit(worst >= LIMIT)


def worst_of(found: list[dict[str, Any]]) -> float:
    """The largest difference of all cases, between any two of the results."""
    return max(abs(one[way]) for one in found for way in ("difference", "grouped_difference"))


def compiled(folder: Path) -> Path:
    """Compile the simulation's program into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "simgrid_exchange"
    command = ["g++", "-O2", "-std=c++17", "-o", program, TOOLS / "simgrid_exchange.cpp", "-lsimgrid"]
    subprocess.run(command, check=True)
    return program


def compared(program: Path, case: Case) -> dict[str, Any]:
    """The results of the model and of SimGrid for a case."""
    sent = traffic(case)
    started = time.perf_counter()
    simulated = simulate(program, case, sent)
    middle = time.perf_counter()
    modelled = exchange_seconds(sent, case.ranks_per_node, network(case))
    ended = time.perf_counter()
    grouped = exchange_seconds(sent, case.ranks_per_node, network(case), most_messages=0)
    rows = {name: getattr(case, name) for name in ("ranks", "ranks_per_node", "pattern", "oversubscription")}
    return rows | {
        "messages": int(sent.nnz),
        "mean_bytes": float(sent.data.mean()),
        "simgrid_seconds": float(simulated.max()),
        "model_seconds": float(modelled.max()),
        "difference": float(modelled.max() / simulated.max() - 1),
        "grouped_difference": float(grouped.max() / simulated.max() - 1),
        "difference_of_ranks_median": float(np.median(np.abs(modelled / simulated - 1))),
        "simgrid_took_seconds": middle - started,
        "model_took_seconds": ended - middle,
    }


def network(case: Case) -> Network:
    """The network of the simulation, as the cost model describes it. Messages take no processor time in either."""
    _, per_switch, uplinks = case.shape()
    return Network(
        name="SimGrid",
        latency_seconds=LINK_LATENCY_SECONDS + MEMORY_LATENCY_SECONDS,
        node_bandwidth_bytes_per_second=LINK_BANDWIDTH,
        memory_latency_seconds=MEMORY_LATENCY_SECONDS,
        memory_bandwidth_bytes_per_second=MEMORY_BANDWIDTH,
        switch_latency_seconds=LINK_LATENCY_SECONDS,
        nodes_per_switch=per_switch,
        uplinks_per_switch=uplinks,
        is_adaptive=False,
    )


def simulate(program: Path, case: Case, sent: sparse.csr_array) -> np.ndarray:
    """(P,) seconds of each rank in the simulation."""
    switches, per_switch, uplinks = case.shape()
    lines = [
        f"{case.ranks_per_node} {per_switch} {switches} {uplinks} {LINK_BANDWIDTH} {LINK_LATENCY_SECONDS} "
        f"{MEMORY_BANDWIDTH} {MEMORY_LATENCY_SECONDS}",
        str(sent.nnz),
        *_messages(sent),
    ]
    options = [f"--cfg={name}:{value}" for name, value in OPTIONS.items()]
    command = [program, *options, "--log=root.thresh:warning"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"SimGrid failed: {done.stderr.strip()}")
    return np.array(done.stdout.split(), np.float64)


def _messages(sent: sparse.csr_array) -> Iterator[str]:
    table = sent.tocoo()
    for sender, receiver, size in zip(table.row.tolist(), table.col.tolist(), table.data.tolist(), strict=True):
        yield f"{sender} {receiver} {size}"


def traffic(case: Case) -> sparse.csr_array:
    """(P, P) int64 bytes from each rank to each rank."""
    if case.pattern == "uniform":
        sender, receiver = np.nonzero(~np.eye(case.ranks, dtype=bool))
        weights = np.ones(len(sender))
    elif case.pattern == "skewed":
        generator = np.random.default_rng(case.ranks + case.peers)
        fame = generator.pareto(1.5, case.ranks) + 0.1
        chosen = [
            generator.choice(case.ranks, case.peers, replace=False, p=fame / fame.sum()) for _ in range(case.ranks)
        ]
        sender, receiver = np.repeat(np.arange(case.ranks), case.peers), np.concatenate(chosen)
        weights = generator.pareto(1.5, len(sender)) + 0.05
        apart = sender != receiver
        sender, receiver, weights = sender[apart], receiver[apart], weights[apart]
    else:
        sender, receiver, weights = plan_rows(case.ranks)
    sizes = np.maximum(np.rint(weights * case.num_bytes / weights.mean()), 1).astype(np.int64)
    return sparse.coo_array((sizes, (sender, receiver)), (case.ranks, case.ranks)).tocsr()


def plan_rows(parts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Senders, receivers and numbers of rows of the hybrid plan of an R-MAT graph in this many parts."""
    with tempfile.TemporaryDirectory() as folder:
        graph, out = Path(folder) / "graph.h5", Path(folder) / "parts.h5"
        source = "rmat:scale=13,degree=8,features=4,classes=4"
        for command in (
            ["convert", source, graph],
            ["partition", graph, out, "--parts", str(parts), "--method", "block"],
        ):
            subprocess.run([sys.executable, "-m", "hpcgnn", *command], check=True, capture_output=True)
        plan_store.store_plans(out, ["hybrid"])
        with PartsFile(out) as file:
            sender, receiver, post, pre = plan_store.StoredPlan(file, "hybrid").pairs()
    return sender, receiver, (post + pre).astype(np.float64)


def write(found: list[dict[str, Any]]) -> None:
    """Write the document and its figures."""
    (DOCS / "network-model.md").write_text(document(found))
    (DOCS / "network-model.json").write_text(json.dumps(found, indent=2) + "\n")


def document(found: list[dict[str, Any]]) -> str:
    """The text of docs/network-model.md."""
    rows = [[cell.format(**one) for cell in COLUMNS.values()] for one in found]
    table = ["| " + " | ".join(cells) + " |" for cells in ([*COLUMNS], ["---"] * len(COLUMNS), *rows)]
    options = ", ".join(f"`{name}` {value}" for name, value in OPTIONS.items())
    worst, tool = 100 * worst_of(found), "`tools/check_network_model.py`"
    text = f"""\
# The network model, compared with a simulator

In an exchange, every rank sends messages to other ranks at the same time. The [cost model](cost-model.md) predicts its duration
from a description of the nodes, links and switches of a cluster. Read this page to judge these predictions: it compares them
with SimGrid, a flow-level network simulator, for {len(found)} exchanges of 16 to {max(one["ranks"] for one in found):,} ranks
on a fat tree.

**Result:** the largest difference is {worst:.1f} %, and the limit is {100 * LIMIT:.0f} %. {tool} makes this page and
[its figures](network-model.json).

## What is compared

Both programs compute the seconds until the last rank has sent and received all of its messages, if all ranks begin at once.

| parameter | value |
| --- | --- |
| bandwidth of a link between a node and its switch, and of the links above | {LINK_BANDWIDTH / 1e9:g} GB/s each |
| latency between nodes of one switch | {LINK_LATENCY_SECONDS * 1e6:g} us |
| latency between nodes of different switches | {LINK_LATENCY_SECONDS * 2e6:g} us |
| bandwidth of copies into and out of the memory of a rank | {MEMORY_BANDWIDTH / 1e9:g} GB/s in each direction |
| routing | by receiver (d-mod-k) |
| SimGrid's options | {options} |

These options switch off SimGrid's corrections for TCP. One difference remains: SimGrid gives flows with a higher latency a
smaller share of a link, whereas the model gives all flows equal shares. Neither program counts the processor's work on messages:
the model's parameters `message_seconds` and `peer_seconds` come from measurements, and this page does not check them.

There are three patterns of messages:

- `uniform`: each rank sends the same number of bytes to every other rank.
- `skewed`: each rank sends to some random ranks, and a few ranks receive much more than others; the sizes have a Pareto
  distribution.
- `plan`: ranks send the rows of the [hybrid plan](explanation/algebra.md#hybrid) of an R-MAT graph of 8,192 nodes, of which
  each rank owns one block; sizes are scaled to the mean size.

If an exchange has more than {MOST_MESSAGES:,} messages, the model does not follow them one by one, but groups the messages
between the same two nodes by size. The column "difference, grouped" shows the difference if the model groups the messages of
that line. A difference of -10 % means that the model predicts 10 % less time than SimGrid. The column "nodes : uplinks" is the
number of nodes of a switch for each of its uplinks.

## Results

"""
    return "\n".join([text.rstrip(), "", *table, ""])


if __name__ == "__main__":
    main()
