"""The command line of the zoo."""

from __future__ import annotations

import logging
import sys
import warnings
from functools import partial

import click
import torch
import torch_geometric

from pyg_zoo import graph
from pyg_zoo.page import PAGE, Row, page
from pyg_zoo.run import Outcome, alone, outcomes
from pyg_zoo.specimens import Specimen, specimens


@click.command(
    epilog="\b\nExamples\n  python tools/pyg_zoo\n  python tools/pyg_zoo --only GATConv --only VirtualNode"
    "\n  python tools/pyg_zoo --only GCNConv --no-check"
)
@click.option(
    "--only",
    multiple=True,
    metavar="WORD",
    help="Run the models with this word, and write no page; may be given again.",
)
@click.option("--no-check", is_flag=True, help="Distribute models without a rehearsal, and write no page.")
@click.option("--parallel", is_flag=True, help="Use a graph with parallel edges, and write no page.")
def zoo(only: tuple[str, ...], *, no_check: bool, parallel: bool) -> None:
    """Distribute each model of the zoo, compare it with PyG's own, and write docs/reference/pyg-layers.md.

    Each model runs in a process of its own, so that one that ends its process does not end the zoo. The exit code is 1 if
    a model is neither equal nor refused.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("hpcgnn").setLevel(logging.ERROR)
    graph.make_files(parallel=parallel)
    rows: list[Row] = []
    for specimen in specimens():
        if not only or any(word in specimen.code for word in only):
            found = alone(partial(outcomes, specimen, check=not no_check, parallel=parallel))
            rows.append((specimen, found))
            if only or not all(outcome.is_right for outcome in found):
                _tell(specimen, found)
    wrong = [specimen for specimen, found in rows if not all(outcome.is_right for outcome in found)]
    click.echo(f"{len(rows)} models, {len(wrong)} of them neither equal nor refused")
    if not (only or no_check or parallel or wrong):
        PAGE.write_text(page(rows, torch_geometric.__version__))
    sys.exit(bool(wrong))


def _tell(specimen: Specimen, found: list[Outcome]) -> None:
    for ranks, outcome in zip(graph.RANKS, found, strict=True):
        error = f" {outcome.error:.0e}" if outcome.error else ""
        click.echo(f"{specimen}, number of ranks {ranks}: {outcome.kind}{error} {outcome.text}")
