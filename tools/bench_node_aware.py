"""What ranks that share nodes gain: epochs and bytes between hosts, and rows within a host, beside messages of pairs of ranks.

usage: bench_node_aware.py PARTS.h5 [--hosts 4] [--ranks-per-host 4] [--rate 100mbit --rate 1gbit] [--rounds 3]
       bench_node_aware.py --within RANKS [--megabytes 64]      rows within a host alone, on so many ranks (needs no root)

Trains on virtual hosts (root; docs/virtual_cluster.md) with --node-aware on and off by turns, and writes docs/node-aware.json and
.md: medians over rounds of the median epoch, and the bytes that hosts' network interfaces have counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure

OUT = measure.DOCS / "node-aware.json"
NEVER = 1 << 30  # epochs between evaluations and checkpoints


def main() -> None:
    """Measure and write."""
    arguments = parse()
    if arguments.worker:
        print(json.dumps(within(arguments.megabytes)), flush=True)
        return
    shared = measured_within(arguments.within or arguments.ranks_per_host, arguments.megabytes)
    if arguments.within:
        print(said_of(shared))
        return
    runs = json.loads(OUT.read_text())["runs"] if arguments.add else []
    runs += [
        {"round": number, "bits": arguments.bits, "rate": rate, "node_aware": asked} | train(arguments, rate, asked)
        for number in range(arguments.rounds)
        for rate in arguments.rate
        for asked in ("off", "on")
    ]
    write(arguments, shared, runs)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", type=Path)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=4)
    parser.add_argument("--rate", action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5, help="of each run; the first one is not counted")
    parser.add_argument("--bits", default="32")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--within", type=int, metavar="RANKS")
    parser.add_argument("--megabytes", type=int, default=64, help="of all rows within a host")
    parser.add_argument("--add", action="store_true", help="to what docs/node-aware.json has")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.rate = arguments.rate or ["100mbit", "1gbit"]
    if arguments.parts is None and not arguments.within and not arguments.worker:
        parser.error("which parts?")
    return arguments


# -- epochs ------------------------------------------------------------------------------------------------------------


def train(arguments: argparse.Namespace, rate: str, asked: str) -> dict[str, Any]:
    """Train once; the epochs' seconds, the bytes that the run counts and those that hosts have sent."""
    options = {
        "epochs": arguments.epochs, "bits": arguments.bits, "hidden": arguments.hidden, "layers": arguments.layers,
        "node-aware": asked, "compute": "float32", "eval-every": NEVER, "checkpoint-every": NEVER,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        flags = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        hosts = ["--hosts", str(arguments.hosts), "--ranks-per-host", str(arguments.ranks_per_host), "--rate", rate]
        cluster = [*measure.HPCGNN, "launch", *hosts, "-t", "1", "--bytes", f"{folder}/bytes.json", "--"]
        command = [*measure.HPCGNN, "train", str(arguments.parts), *flags, "--out", f"{folder}/run", "--json"]
        measure.run([*cluster, *command])
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        hosts_sent = [host["tx_payload_bytes"] for host in json.loads(Path(folder, "bytes.json").read_text()).values()]
    names = ("bytes_sent", "bytes_between_nodes", "bytes_shared_on_nodes", "communication_wait_seconds")
    return {
        "epoch_seconds": [line["seconds"] for line in lines[1:]],
        "host_bytes": sum(hosts_sent),
    } | {name: lines[-1][name] for name in names}


# -- within a host -----------------------------------------------------------------------------------------------------


def measured_within(ranks: int, megabytes: int) -> dict[str, Any]:
    """What :func:`within` finds on so many ranks of this host."""
    worker = [sys.executable, __file__, "--worker", "--megabytes", str(megabytes)]
    found = measure.run([*measure.HPCGNN, "launch", "-n", str(ranks), "-t", "1", *worker])
    return {name: value for name, value in found.items() if name not in ("wall_seconds", "peak_memory_bytes")}


def within(megabytes: int, width: int = 256, rounds: int = 9) -> dict[str, Any]:
    """Seconds, medians by turns, until all ranks have added up rows that all others have for them: by ``Ialltoallv``, and in
    memory that they share. The rows have been written in both cases, and both sum them with the same matrix."""
    import time

    import numpy as np
    import torch

    from hpcgnn.comm import MpiWorld
    from hpcgnn.comm.buffer import Buffer
    from hpcgnn.comm.node_memory import NodeMemory
    from hpcgnn.comm.segments import Segments
    from hpcgnn.kernels import Csr, spmm

    world = MpiWorld()
    each = (megabytes << 20) // (world.size * world.size * width * 4)  # rows of a pair of ranks
    rows = each * world.size
    counts = np.full(world.size, each)
    sent, received = torch.ones(rows, width), torch.zeros(rows, width)
    memory = NodeMemory(world, world, np.full(world.size, rows), np.zeros(world.size, np.int64))
    memory.prepare(width * 4)
    memory.written.own(width, torch.float32).fill_(1.0)
    mine = (
        torch.arange(world.size).repeat_interleave(each) * rows
        + world.rank * each
        + torch.arange(each).repeat(world.size)
    )
    from_all = Csr(torch.arange(rows + 1), mine.to(torch.int32), rows * world.size, check=False)
    from_received = Csr(torch.arange(rows + 1), torch.arange(rows, dtype=torch.int32), rows, check=False)
    z, token = torch.zeros(rows, width), np.zeros(1)

    def send() -> None:
        segments = Segments(Buffer.of(sent), counts), Segments(Buffer.of(received), counts)
        world.wait(world.start_alltoallv(*segments, "rows"))

    def add_received() -> None:
        spmm(from_received, received, out=z)

    def add_shared() -> None:
        spmm(from_all, memory.written.all(width, torch.float32), out=z)

    ways = {"message": (send, add_received), "shared": (memory.meet, add_shared)}
    seconds: dict[str, list[float]] = {f"{name}{what}_seconds": [] for name in ways for what in ("_exchange", "")}
    for number in range(rounds + 1):
        for name, (exchange, add) in ways.items():
            world.allreduce(token)
            started = time.perf_counter()
            exchange()
            there = time.perf_counter() - started
            add()
            spent = world.allreduce(np.array([there, time.perf_counter() - started]), "max")
            if number:
                seconds[f"{name}_exchange_seconds"].append(float(spent[0]))
                seconds[f"{name}_seconds"].append(float(spent[1]))
    if float((z - 2.0 * (rounds + 1)).abs().max()) > 0:
        raise SystemExit("the two ways add up different rows")
    found = {name: statistics.median(values) for name, values in seconds.items()}
    if world.rank:
        raise SystemExit
    return found | {"ranks": world.size, "megabytes": megabytes}


def said_of(shared: dict[str, Any]) -> str:
    """A sentence."""
    ms = {name: 1e3 * value for name, value in shared.items() if name.endswith("_seconds")}
    return (
        f"Within a host: {shared['megabytes']} MiB of rows, {shared['ranks']} ranks that each have rows for all. Until the rows "
        f"can be read: {ms['message_exchange_seconds']:.2f} ms by `Ialltoallv`, {ms['shared_exchange_seconds']:.2f} ms in shared "
        f"memory ({ms['message_exchange_seconds'] / ms['shared_exchange_seconds']:.1f} times faster). Until they are added up: "
        f"{ms['message_seconds']:.1f} and {ms['shared_seconds']:.1f} ms ({ms['message_seconds'] / ms['shared_seconds']:.2f})."
    )


# -- the document ------------------------------------------------------------------------------------------------------


def write(arguments: argparse.Namespace, shared: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """``docs/node-aware.md`` and its figures."""
    rows = []
    for bits, rate in dict.fromkeys((run["bits"], run["rate"]) for run in runs):
        chosen_runs = [run for run in runs if (run["bits"], run["rate"]) == (bits, rate)]
        of = {asked: [run for run in chosen_runs if run["node_aware"] == asked] for asked in ("off", "on")}
        seconds = {
            asked: statistics.median(s for run in chosen for s in run["epoch_seconds"]) for asked, chosen in of.items()
        }
        between = {asked: chosen[0]["bytes_between_nodes"] for asked, chosen in of.items()}
        hosts = {asked: statistics.median(run["host_bytes"] for run in chosen) for asked, chosen in of.items()}
        rows.append([
            bits, rate, f"{seconds['off']:.2f}", f"{seconds['on']:.2f}", f"{seconds['off'] / seconds['on']:.2f}",
            f"{between['off'] / 1e6:,.1f}", f"{between['on'] / 1e6:,.1f}", f"{between['off'] / between['on']:.2f}",
            f"{hosts['off'] / hosts['on']:.2f}",
        ])  # fmt: skip
    header = ["bits", "rate of a host", "off: s an epoch", "on: s", "off / on", "off: MB between hosts", "on: MB", "off / on",
              "whole runs, by interfaces: off / on"]  # fmt: skip
    about = (
        f"{arguments.parts.name} on {arguments.hosts} virtual hosts of {arguments.ranks_per_host} ranks, one thread each, SAGE "
        f"of {arguments.layers} layers, {arguments.hidden} wide; medians of all epochs but the first of runs by turns.\n\n"
        f"{said_of(shared)}"
    )
    command = f"python tools/bench_node_aware.py {arguments.parts.name}"
    measure.write(
        "node-aware", "Ranks that share nodes", command, about, header, rows, {"within": shared, "runs": runs}
    )


if __name__ == "__main__":
    main()
