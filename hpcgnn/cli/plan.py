"""``hpcgnn plan``: the rows and bytes that training would send."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from hpcgnn.cli import console
from hpcgnn.cli.options import COUNT, FILE, QUIET
from hpcgnn.cli.train import same_option
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.data.plan_pieces import fitting_jobs
from hpcgnn.data.plan_store import StoredPlan
from hpcgnn.graph.node_plan import node_rows
from hpcgnn.nn.config import ModelConfig, plan_in_use
from hpcgnn.plan import STRATEGIES
from hpcgnn.plan.plan import PairRows, describe, max_over_mean
from hpcgnn.world.placement import Placement

_BYTES_PER_VALUE = 4
_PAIRS_SHOWN = 10
_MOST_PAIRS_LISTED = 1 << 18  # thousands of parts have millions of pairs, each of which takes some 100 bytes as a list


EXAMPLES = """\b
Examples:
  hpcgnn plan parts.h5 --strategy all --width 256
  hpcgnn plan parts.h5 --ranks-per-node 8
  hpcgnn plan parts.h5 --model rgcn
"""


@click.command(epilog=EXAMPLES)
@click.argument("parts", type=FILE)
@click.option("--strategy", type=click.Choice([*STRATEGIES, "all"]), default="hybrid", show_default=True,
              help="Strategy whose plan is counted: see `hpcgnn train --help`. all compares the three strategies.")  # fmt: skip
@same_option("model", default=None, help="Model whose plan is counted: that of attention is post, and that of sums by types of "
             "edges is made by ranks when they train, and never stored.")  # fmt: skip
@same_option("edge_types", default=None, help="Use of types of edges by that model: see `hpcgnn train --help`.")
@click.option(
    "--width", type=COUNT, default=256, show_default=True, help="Number of float32 columns of the rows, for the bytes."
)
@click.option("--ranks-per-node", metavar="K", type=click.IntRange(1),
              help="Also count the rows between nodes, and within nodes, of K ranks each.")  # fmt: skip
@click.option("--jobs", metavar="N", type=click.IntRange(0), default=0, show_default=True,
              help="Number of processes that compute plans; 0 starts one for each core that this process may use.")  # fmt: skip
@click.option("--pairs", "all_pairs", is_flag=True,
              help=f"Show every pair of ranks rather than the {_PAIRS_SHOWN} largest. --json always lists up to "
                   f"{_MOST_PAIRS_LISTED:,} pairs, and more with this flag.")  # fmt: skip
@QUIET
@click.option("--json", "as_json", is_flag=True,
              help="Print one JSON object on stdout instead of tables; --pairs says with how many pairs.")  # fmt: skip
def plan(
    parts: Path,
    strategy: str,
    width: int,
    ranks_per_node: int | None,
    jobs: int,
    all_pairs: bool,
    quiet: bool,
    as_json: bool,
    **of_model: str | None,
) -> None:
    """Count the rows and bytes that one aggregation sends in one direction, in total and between pairs of ranks, and the work of
    each rank: entries of its matrices, which are additions and copies of rows.

    Nothing is trained. Plans that are missing from PARTS, or outdated there, are computed and stored in it.
    """
    strategies, row_bytes = list(STRATEGIES) if strategy == "all" else [strategy], width * _BYTES_PER_VALUE
    given: dict[str, Any] = {name: value for name, value in of_model.items() if value is not None}
    if given:
        strategies = list(dict.fromkeys(plan_in_use(ModelConfig(**given), name) for name in strategies))
    stored = [name for name in strategies if name in STRATEGIES]
    started = time.perf_counter()
    with PartsFile(parts) as file:
        total = len(strategies) * file.num_parts
        jobs = jobs or fitting_jobs(file.meta.num_edges, file.num_parts)
        if file.meta.num_edge_types and not (given or quiet):
            console.note(f"{parts} has types of edges, by which some models send other rows: name yours with --model")
    with console.progress("planning parts", total, quiet=quiet or as_json) as advance:
        made = plan_store.store_plans(parts, stored, advance, jobs=jobs)
        counts = {name: plan_store.count(parts, name, advance, jobs) for name in strategies if name not in stored}
    report: dict[str, Any] = {"parts": str(parts), **of_model, "width": width, "made": made}
    report["seconds"] = time.perf_counter() - started
    with PartsFile(parts) as file:
        plans = {name: StoredPlan(file, name) for name in stored}
        counts |= {name: (each.pairs(), each.entries()) for name, each in plans.items()}
        pairs = {name: rows for name, (rows, _) in counts.items()}
        report["strategies"] = {
            name: describe(rows, file.num_parts, row_bytes)
            | {"work_imbalance": max_over_mean(sum(entries.values(), np.zeros(file.num_parts, np.int64)))}
            for name, (rows, entries) in counts.items()
        }
        by_rank = {name: _by_rank(entries, rows) for name, (rows, entries) in counts.items()}
        if ranks_per_node is not None:
            placement = Placement.in_blocks(file.num_parts, ranks_per_node)
            with console.progress("rows between nodes", total, quiet=quiet or as_json) as advance:
                for name, rows in pairs.items():
                    report["strategies"][name] |= node_rows(file, name, rows, placement, row_bytes, advance)
            report["ranks_per_node"] = ranks_per_node
    if as_json:
        listed = {
            name: np.stack((rows.sender, rows.receiver, rows.post, rows.pre), axis=1).tolist()
            for name, rows in pairs.items()
            if all_pairs or rows.sender.size <= _MOST_PAIRS_LISTED
        }
        report["ranks"] = by_rank
        print(json.dumps(report | {"pairs": listed, "pairs_left_out": [name for name in pairs if name not in listed]}))
    elif not quiet:
        _show(report, pairs, None if all_pairs else _PAIRS_SHOWN)


def _by_rank(entries: dict[str, np.ndarray], pairs: PairRows) -> dict[str, list[int]]:
    """The work of each rank, P numbers each."""
    sent, received = pairs.by_rank(entries["L"].size)
    found = {"entries_local": entries["L"], "entries_send": entries["S"], "entries_receive": entries["R"]}
    return {name: each.tolist() for name, each in (found | {"rows_sent": sent, "rows_received": received}).items()}


def _show(report: dict[str, Any], pairs: dict[str, PairRows], limit: int | None) -> None:
    columns = {"pairs": "pairs", "rows": "rows", "post_rows": "post", "pre_rows": "pre", "bytes": "bytes",
               "max_rows_sent": "max sent", "max_rows_received": "max received",
               "work_imbalance": "max/avg work"}  # fmt: skip
    tables = {f"one aggregation in one direction, {report['width']} float32 columns": columns}
    if "ranks_per_node" in report:
        columns = {"rows_between_nodes": "rows between nodes", "bytes_between_nodes": "bytes between nodes",
                   "rows_within_nodes": "rows within nodes",
                   "rows_between_nodes_by_pairs_of_ranks": "between nodes, --node-aware off"}  # fmt: skip
        tables[f"on nodes of {report['ranks_per_node']} ranks"] = columns
    for title, columns in tables.items():
        rows = [[name, *(round(facts[each], 2) for each in columns)] for name, facts in report["strategies"].items()]
        console.numbers(title, ("strategy", *columns.values()), rows)
    for strategy, found in pairs.items():
        chosen = (-found.rows).argsort(kind="stable")[:limit]
        sizes = found.rows * (report["width"] * _BYTES_PER_VALUE)
        values = [each[chosen].tolist() for each in (found.sender, found.receiver, found.post, found.pre, sizes)]
        title = f"{strategy}: {'all pairs' if limit is None else 'pairs with the most rows'}"
        console.numbers(title, ("from", "to", "post rows", "pre rows", "bytes"), zip(*values, strict=True))
