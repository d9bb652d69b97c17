"""``hpcgnn partition``: division of a graph into parts."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import click

from hpcgnn.cli import console
from hpcgnn.cli.options import AS_JSON, NumberRange
from hpcgnn.partition.options import METHODS, OBJECTIVES, QUANTITIES, PartitionOptions
from hpcgnn.plan import STRATEGIES

if TYPE_CHECKING:
    from hpcgnn.partition import PartitionReport

EXAMPLES = """\b
Examples:
  hpcgnn partition graph.h5 parts.h5 --parts 4
  hpcgnn partition graph.h5 parts.h5 --parts 64 --ranks-per-node 8 --objective rows
  mpirun -n 8 hpcgnn partition graph.h5 parts.h5 --parts 64 --method parmetis
"""


@click.command(epilog=EXAMPLES)
@click.argument("graph", metavar="graph.h5")
@click.argument("parts_file", metavar="parts.h5")
@click.option("--parts", "num_parts", metavar="P", type=click.IntRange(min=1), required=True, help="Number of parts.")
@click.option("--method", type=click.Choice(METHODS), default="auto", show_default=True,
              help="Partitioning method. auto chooses one, and the printed table names it and the reason.")  # fmt: skip
@click.option("--objective", type=click.Choice(OBJECTIVES), default="cut", show_default=True,
              help="Quantity to minimise. cut: edges between parts; volume: rows that a halo exchange sends (metis and "
                   "mtkahypar only); rows: rows that the hybrid plan sends, by moving nodes after any method.")  # fmt: skip
@click.option("--ranks-per-node", metavar="K", type=click.IntRange(min=1), default=1, show_default=True,
              help="Number of ranks that will share a node; it must divide P. Parts 0 to K-1 are for the first node, the next "
                   "K for the second, and so on. Parts with many edges between them are put on the same node.")  # fmt: skip
@click.option("--jobs", metavar="N", type=click.IntRange(min=0), default=0,
              help="Number of processes that write the parts and their plans; 0 starts one for each core that this process "
                   "may use.  [default: 0]")  # fmt: skip
@click.option("--balance", metavar="LIST", default="auto,train,types", show_default=True,
              help=f"Quantities that are balanced among the parts, separated by commas: {', '.join(QUANTITIES)}. train stands "
                   "for the training nodes, types for the nodes of each type with 20 or more for each part, work for the "
                   "additions of a hybrid plan, and auto for edges or, where hubs have many more than a part, work.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the partitioner's random choices. The same seed gives the same parts, except with kaminpar on "
                   "more than 8 million undirected edges, which also needs --jobs 1 for this.")  # fmt: skip
@click.option("--plan", "strategy", type=click.Choice([*STRATEGIES, "none"]), default="hybrid", show_default=True,
              help="Communication plan to compute and store in parts.h5. Training with another --strategy computes its plan "
                   "at the start.")  # fmt: skip
@click.option("--timeout", type=NumberRange(0, min_open=True), default=36000.0, show_default=True,
              help="Seconds that a rank waits for another rank before the job is aborted.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite parts.h5 if it exists.")
@AS_JSON
@click.option("--quiet", is_flag=True, help="Print neither a progress bar nor a table.")
def partition(
    graph: str,
    parts_file: str,
    balance: str,
    strategy: str,
    timeout: float,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Divide graph.h5 into P parts and write parts.h5, with one part for each rank of the training.

    One process is enough for most graphs. Under mpirun, all ranks read the graph in slabs, and ParMETIS or PT-Scotch divides it
    in parallel; the number of these ranks need not be P.
    """
    names = tuple(name.strip() for name in balance.split(","))
    options = PartitionOptions(balance=names, plan=strategy, **settings)
    from hpcgnn.partition import partition as make_parts
    from hpcgnn.world import MpiWorld, check_alike

    world = check_alike(MpiWorld(timeout_seconds=timeout))
    bar = functools.partial(console.progress, quiet=quiet or as_json or world.rank > 0)
    report = make_parts(world, graph, parts_file, options, bar)
    world.close()
    if world.rank > 0:
        return
    if as_json:
        click.echo(json.dumps(report.as_dict() | {"plan": strategy}))
    elif not quiet:
        title = f"{graph} in {options.num_parts:,} parts: {parts_file}"
        console.table(title, [*_rows(report), ("plan stored", strategy)])


def _rows(report: PartitionReport) -> list[tuple[str, object]]:
    from hpcgnn.base.compiled import compile_seconds

    quality = report.quality
    rows: list[tuple[str, object]] = [
        ("method", f"{report.method} ({report.reason})"),
        ("balanced", ", ".join(report.balance)),
        ("nodes", quality.num_nodes),
        ("edges", quality.num_edges),
        ("cut edges", f"{quality.cut_edges:,} ({100 * quality.cut_fraction:.2f} %)"),
        ("max/mean nodes", f"{quality.node_balance:.3f}"),
        ("max/mean in-edges", f"{quality.edge_balance:.3f}"),
        ("max/mean training nodes", f"{quality.train_balance:.3f}"),
        ("halo rows", f"{quality.halo_total:,} (largest part {quality.halo_max:,})"),
        ("replication", f"{quality.replication:.3f}"),
        ("seconds", ", ".join(f"{step} {seconds:.2f}" for step, seconds in report.seconds.items())),
        ("seconds of compiling", f"{compile_seconds():.2f}"),
        ("peak memory of a process", console.size(report.peak_memory_bytes)),
    ]
    empty = [("empty parts", quality.empty_parts)] if quality.empty_parts else []
    return [*rows, *empty, *(("note", note) for note in report.notes)]
