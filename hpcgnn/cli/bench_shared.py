"""Options that the commands of ``hpcgnn bench`` share, and tables of their results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.table import Table

from hpcgnn.bench.names import HOST_NAME
from hpcgnn.cli.ranges import COUNT

if TYPE_CHECKING:
    from hpcgnn.devices import Device

WIDTH = 256
folder = click.option(
    "--folder", type=click.Path(path_type=Path), help="Keep the graphs here for another run.  [default: nowhere]"
)
threads = click.option(
    "--threads",
    type=click.IntRange(1, os.cpu_count()),
    help="Threads of every contender.  [default: the cores that this process may use]",
)
rounds = click.option(
    "--rounds", type=COUNT, default=7, show_default=True, help="Interleaved rounds; the median counts."
)
device = click.option(
    "--device", default=HOST_NAME, show_default=True, metavar="DEVICE",
    help="Where to measure: cpu, cuda, or cuda:N (AMD's GPUs are called cuda too).",
)  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


def graphs(default: str) -> Any:
    """The option of graphs."""
    return click.option(
        "--graph", "sources", multiple=True, metavar="SOURCE",
        help=f"A graph to measure, as for `hpcgnn convert`; repeat for more.  [default: {default}]",
    )  # fmt: skip


def widths(default: str) -> Any:
    """The option of graphs' columns."""
    return click.option(
        "--width", "widths", multiple=True, type=COUNT,
        help=f"Columns of the features: one for all graphs, or one for each.  [default: {default}]",
    )  # fmt: skip


def dtypes(names: tuple[str, ...], default: str) -> Any:
    """The option of what is measured beside float32."""
    return click.option(
        "--dtype", "dtypes", multiple=True, type=click.Choice(names),
        help=f"What to measure beside float32, conversions counted; repeat for more.  [default: {default}]",
    )  # fmt: skip


def beside(names: tuple[str, ...]) -> tuple[str, ...]:
    """The types that :func:`dtypes` asks for, each once; float32 is measured anyway."""
    return tuple(name for name in dict.fromkeys(names) if name != "float32")


def paired(
    sources: tuple[str, ...], widths: tuple[int, ...], usual: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    """Each source with its width."""
    if not sources:
        sources = tuple(source for source, _ in usual)
        widths = widths or tuple(width for _, width in usual)
    widths = widths or (WIDTH,)
    if len(widths) not in (1, len(sources)):
        raise click.UsageError(f"{len(widths)} --width for {len(sources)} graphs: give one for all, or one for each")
    return tuple(zip(sources, widths * len(sources) if len(widths) == 1 else widths, strict=True))


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def table(title: str, *names: str) -> Table:
    """One without rows yet; its first column holds names."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    for number, name in enumerate(names):
        shown.add_column(name, justify="left" if number == 0 else "right")
    return shown


def chosen_device(asked: str) -> Device:
    """The device that ``--device`` names, for a process on its own."""
    from hpcgnn.comm.devices import choose_device
    from hpcgnn.comm.thread_world import one_rank

    return choose_device(one_rank(), asked)
