"""What each way of sending fewer bytes gives: all of them on one graph, at one or several speeds of the network.

usage: ablation.py PARTS.h5|GRAPH.h5 [--ranks 4] [--rate 100mbit --rate 1gbit --rate unlimited] [--out docs/ablation]
       ablation.py PARTS.h5 --benchmark --rate 100mbit --rate 1gbit --rate unlimited     what figures are required of
       ablation.py --report [--out docs/ablation]                                        write the documents again

Trains every combination of --messages, --label-propagation, --overlap and --compute for a few epochs, on virtual hosts with
--rate (root; docs/virtual_cluster.md), else here. All combinations take turns in --rounds rounds, so that what else the
machine does befalls all alike. Writes OUT.json after each run, and at the end OUT.md and OUT.svg with the tables of
SuperGCN's §5.5 to §5.7; runs that are in OUT.json are not repeated. Plans that PARTS.h5 does not hold yet are stored in it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import ablation_report as report
import h5py
import measure
from ablation_plot import breakdown

MESSAGES = ("post fp32", "pre fp32", "hybrid fp32", "post int2", *(f"hybrid int{bits}" for bits in (8, 4, 2, 1)))
BENCHMARK = {
    "messages": ["post fp32", "hybrid fp32", "hybrid int2"],
    "label_propagation": [0.0],
    "overlap": ["on"],
    "compute": ["float32", "bf16", "int8"],
}
NEVER = 1 << 30  # epochs between evaluations and checkpoints: there is one of each at the end


def main() -> None:
    """Measure what is missing and write the documents."""
    arguments = parse()
    out = arguments.out.with_suffix("")
    if arguments.report:
        content = json.loads(out.with_suffix(".json").read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            content = measured(arguments, out.with_suffix(".json"), Path(folder))
    breakdown(content, out.with_suffix(".svg"))
    report.write(content, out)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", nargs="?", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--benchmark", action="store_true", help=f"short for {BENCHMARK}")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--rate", action="append", help="of each virtual host's link, such as 100mbit, or unlimited")
    parser.add_argument(
        "--messages", nargs="+", default=list(MESSAGES), help="STRATEGY fp32 or STRATEGY intBITS, quoted"
    )
    parser.add_argument("--label-propagation", nargs="+", type=float, default=[0.0, 0.62], metavar="RATE")
    parser.add_argument("--overlap", nargs="+", choices=["on", "off"], default=["on", "off"])
    parser.add_argument("--compute", nargs="+", choices=["float32", "bf16", "int8"], default=["float32"])
    parser.add_argument("--model", default="sage")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4, help="of each run; the first one is not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.DOCS / "ablation")
    arguments = parser.parse_args()
    if arguments.benchmark:
        vars(arguments).update(BENCHMARK)
    if not arguments.report and arguments.graph is None:
        parser.error("which graph?")
    if arguments.epochs < 2:
        parser.error("--epochs must be at least 2, as the first one is not counted")
    return arguments


# -- running -----------------------------------------------------------------------------------------------------------


def measured(arguments: argparse.Namespace, path: Path, folder: Path) -> dict[str, Any]:
    """Measure what ``path`` lacks; returns its content."""
    parts = in_parts(arguments.graph, arguments.ranks, folder)
    records = measure.Records(path, settings(arguments, parts))
    missing = [key for key in wanted(arguments) if not records.has(report.KEYS, key)]
    started = time.perf_counter()
    for done, key in enumerate(missing):
        show_progress(done, len(missing), time.perf_counter() - started, key)
        records.add(dict(zip(report.KEYS, key, strict=True)) | run(arguments, parts, key, folder))
    show_progress(len(missing), len(missing), time.perf_counter() - started, ())
    return records.content


def in_parts(graph: Path, ranks: int, folder: Path) -> Path:
    """``graph`` if it is in parts, else the parts of it."""
    with h5py.File(graph) as file:
        if file.attrs["format"] == "hpcgnn-parts":
            return graph
    parts = folder / "parts.h5"
    measure.run([*measure.HPCGNN, "partition", str(graph), str(parts), "--parts", str(ranks), "--json"])
    return parts


def settings(arguments: argparse.Namespace, parts: Path) -> dict[str, Any]:
    """What all runs have in common, and what the plans send; stores plans that ``parts`` lacks."""
    names = ("ranks", "threads", "model", "layers", "hidden", "epochs")
    plan = ["plan", str(parts), "--strategy", "all", "--width", str(arguments.hidden), "--json"]
    volume = measure.run([*measure.HPCGNN, *plan])["strategies"]
    with h5py.File(parts) as file:
        made = json.loads(file.attrs["provenance"]) | {name: str(file.attrs[name]) for name in ("method", "objective")}
    given = {name: getattr(arguments, name) for name in names}
    return given | {"machine": measure.machine(), "graph": made, "volume": volume}


def wanted(arguments: argparse.Namespace) -> list[tuple[Any, ...]]:
    """Keys of all runs in their order: a round has each combination once."""
    rates = arguments.rate or [report.NO_CLUSTER]
    axes = (arguments.messages, arguments.label_propagation, arguments.overlap, arguments.compute)
    keys = list(itertools.product(range(1, arguments.rounds + 1), rates, *axes))
    if not arguments.rate:
        return keys
    # Round 0 has one epoch: what longer runs send beyond it is what their other epochs send.
    counted = [key for key in keys if key[0] == 1 and key[2].endswith("fp32") and key[3:5] == (0.0, "on")]
    return [(0, report.UNLIMITED, *key[2:]) for key in counted if key[1] == rates[0]] + keys


def run(arguments: argparse.Namespace, parts: Path, key: tuple[Any, ...], folder: Path) -> dict[str, Any]:
    """Train once; returns the epochs' seconds and bytes, and what each host sent if there are hosts."""
    number, rate, messages, labels, overlap, compute = key
    strategy, precision = messages.split()
    bits = precision.removeprefix("int").replace("fp", "")
    epochs = arguments.epochs if number else 1
    options = {
        "model": arguments.model, "layers": arguments.layers, "hidden": arguments.hidden, "epochs": epochs,
        "strategy": strategy, "bits": bits, "label-propagation": labels, "compute": compute,
        "eval-every": NEVER, "checkpoint-every": NEVER,
    } | ({} if overlap == "on" else {"overlap": overlap})  # fmt: skip
    counters = folder / "bytes.json"
    flags = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        train = [*measure.HPCGNN, "train", str(parts), *flags, "--out", f"{fresh}/run", "--json"]
        summary = measure.run([*launcher(arguments, rate, counters), *train])
        lines = Path(fresh, "run", "metrics.jsonl").read_text().splitlines()
    found = {"epochs": [{name: json.loads(line)[name] for name in report.KEPT} for line in lines]}
    found["metric"] = json.loads(lines[-1])["test_metric"]
    found["peak_memory_bytes"] = summary["peak_memory_bytes_per_rank"]
    if rate != report.NO_CLUSTER:
        found["host_bytes"] = [host["tx_payload_bytes"] for host in json.loads(counters.read_text()).values()]
    return found


def launcher(arguments: argparse.Namespace, rate: str, counters: Path) -> list[str]:
    """What starts the ranks."""
    ranks, threads = str(arguments.ranks), str(arguments.threads)
    if rate == report.NO_CLUSTER:
        return [*measure.HPCGNN, "launch", "-n", ranks, "-t", threads]
    hosts = ["--hosts", ranks, "--rate", rate, "-t", threads, "--bytes", str(counters)]
    return [*measure.HPCGNN, "launch", *hosts, "--"]


def show_progress(done: int, count: int, seconds: float, key: tuple[Any, ...]) -> None:
    """A line for each run."""
    left = f", {seconds / done * (count - done) / 60:.0f} min left" if done else ""
    doing = f": round {key[0]}, {report.name_of(key)}" if key else ""
    print(f"{done}/{count} runs in {seconds / 60:.1f} min{left}{doing}", flush=True)


if __name__ == "__main__":
    main()
