"""Options that the commands of ``hpcgnn bench`` share, and tables of their results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.table import Table

from hpcgnn.cli.ranges import COUNT
from hpcgnn.lab.bench.names import HOST_NAME

if TYPE_CHECKING:
    from hpcgnn.devices import Device

WIDTH = 256
folder = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Folder that keeps the graphs for another measurement.  [default: a temporary folder]",
)
threads = click.option(
    "--threads",
    type=click.IntRange(1, os.cpu_count()),
    help="Number of threads of each contender.  [default: the number of cores that this process may use]",
)
rounds = click.option(
    "--rounds",
    type=COUNT,
    default=7,
    show_default=True,
    help="Number of rounds, in each of which every contender is measured once; medians are shown.",
)
device = click.option(
    "--device", default=HOST_NAME, show_default=True, metavar="DEVICE",
    help="Device to measure: cpu, cuda, or cuda:N (AMD GPUs are called cuda, too).",
)  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of tables.")


def graphs(default: str) -> Any:
    """The option that names the graphs."""
    return click.option(
        "--graph", "sources", multiple=True, metavar="SOURCE",
        help=f"Graph to measure, a SOURCE of `hpcgnn convert`; may be given several times.  [default: {default}]",
    )  # fmt: skip


def widths(default: str) -> Any:
    """The option for the number of feature columns."""
    return click.option(
        "--width", "widths", multiple=True, type=COUNT,
        help=f"Number of feature columns: once for all graphs, or once for each graph.  [default: {default}]",
    )  # fmt: skip


def dtypes(names: tuple[str, ...], default: str) -> Any:
    """The option for the types that are measured in addition to float32."""
    return click.option(
        "--dtype", "dtypes", multiple=True, type=click.Choice(names),
        help="Type to measure in addition to float32, with the conversions included in its time; may be given several times.  "
             f"[default: {default}]",
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
        raise click.UsageError(
            f"--width was given {len(widths)} times for {len(sources)} graphs: give it once, or once for each graph"
        )
    return tuple(zip(sources, widths * len(sources) if len(widths) == 1 else widths, strict=True))


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def table(title: str, *names: str) -> Table:
    """A table without rows, whose first column holds names."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE)
    for number, name in enumerate(names):
        shown.add_column(name, justify="left" if number == 0 else "right")
    return shown


def chosen_device(asked: str) -> Device:
    """The device that ``--device`` names, for a single process."""
    from hpcgnn.world.devices import choose_device
    from hpcgnn.world.thread_world import one_rank

    return choose_device(one_rank(), asked)
