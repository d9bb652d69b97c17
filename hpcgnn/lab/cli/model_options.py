"""The options that ``hpcgnn model predict`` and ``project`` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hpcgnn.cli.ranges import COUNT

F = TypeVar("F", bound=Callable[..., Any])

# The settings of `hpcgnn train` that the equations cover, those of the machine, and assumptions about policies.
_SHARED = (
    click.option(
        "--hidden",
        type=click.IntRange(1),
        help="Number of columns of the hidden layers. This and the settings below are those of `hpcgnn train`, with the "
        "same defaults.",
    ),
    click.option("--layers", type=click.IntRange(1), help="Number of layers."),
    click.option("--model", "kind", metavar="sage|gcn|gin|gat|...", help="Model: see `hpcgnn train --help`."),
    click.option("--heads", type=COUNT, help="Number of attention heads."),
    click.option("--hops", type=COUNT, help="Number of propagation steps."),
    click.option("--compute", metavar="auto|float32|bf16|int8", help="Arithmetic of dense products."),
    click.option("--node-aware", type=click.Choice(["auto", "on", "off"]), help="Aggregation by node."),
    click.option("--cache-input-aggregation", is_flag=True, help="Aggregate the input features once."),
    click.option(
        "--set",
        "others",
        metavar="NAME=VALUE",
        multiple=True,
        help="Another setting of `hpcgnn train`, such as one of a policy; may be given several times.",
    ),
    click.option(
        "--threads",
        type=COUNT,
        help="Number of threads of each rank.  [default: 1; with a profile, its units for each rank]",
    ),
    click.option(
        "--ranks-per-node",
        metavar="K",
        type=COUNT,
        help="Number of ranks of a node.  [default: 1; with a profile, its own]",
    ),
    click.option(
        "--rate",
        metavar="RATE",
        help="Speed of the links, such as 100mbit or 1gbit, of virtual hosts on the machine of MODEL.toml.",
    ),
    click.option("--network", metavar="NAME", help="Profile, or file NAME.toml, whose network connects the nodes."),
    click.option(
        "--like",
        metavar="RUN",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Run folder whose policies' decisions are assumed; may be given several times, for several policies.",
    ),
    click.option(
        "--shares",
        metavar="BITS:SHARE,...",
        help="Assumed share of rows with each bit-width, such as 2:0.7,4:0.2,8:0.1, for policies that choose bit-widths.",
    ),
    click.option("--stale-share", type=float, help="Assumed share of epochs that use stale rows, 0 to 1."),
    click.option("--sent-share", type=float, help="Assumed share of epochs that send messages, 0 to 1."),
    click.option(
        "--every-message",
        is_flag=True,
        help="Compute the time of every single message, even if there are very many.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(0),
        default=0,
        help="Number of processes that compute missing plans; 0 starts one for each core that this process may use.  "
        "[default: 0]",
    ),
    click.option("--quiet", is_flag=True, help="Print nothing but errors."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of a table."),
)


# The shared options under the titles of the help; each command puts its own in the first section.
_SECTIONS = {
    "Run": ("hidden", "layers", "kind", "heads", "hops", "compute", "node_aware", "cache_input_aggregation", "others"),
    "Machine": ("threads", "ranks_per_node", "network", "rate"),
    "Assumptions about policies": ("like", "shares", "stale_share", "sent_share"),
    "Computation and output": ("every_message", "jobs", "quiet", "as_json"),
}


def sections(*first: str) -> dict[str, tuple[str, ...]]:
    """The sections of the help of a command whose own options are ``first``."""
    return _SECTIONS | {"Run": (*first, *_SECTIONS["Run"])}


def with_settings(command: F) -> F:
    """Add the shared options to a command."""
    for option in reversed(_SHARED):
        command = option(command)
    return command
