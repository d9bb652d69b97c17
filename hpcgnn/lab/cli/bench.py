"""``hpcgnn bench``: measurements of kernels, compared with other libraries and with the limits of the machine."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import click

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import MESSAGE_BITS
from hpcgnn.cli import console
from hpcgnn.cli.ranges import COUNT, ROWS, NumberRange
from hpcgnn.exchange.message_config import COLLECTIVES, GPU_MPI
from hpcgnn.lab.bench.names import DIRECTIONS, HOST_NAME, MODES
from hpcgnn.lab.cli import bench_products, bench_training
from hpcgnn.lab.cli import bench_shared as shared
from hpcgnn.lab.cli.bench_shared import table
from hpcgnn.plan import STRATEGIES

# Commands import torch and the measured kernels only after their arguments have been checked.
_GRAPHS = (("rmat:scale=17,degree=28", 256), ("rmat:scale=19,degree=25", 128))


@click.group(epilog="\b\nExample\n  hpcgnn bench aggregate --graph rmat:scale=15,degree=16 --width 64 --rounds 3")
def bench() -> None:
    """Measure kernels, and compare them with other libraries and with the limits (ceilings) of the machine."""


for command in (
    bench_products.gemm, bench_products.sddmm, bench_training.pyg, bench_training.breakdown, bench_training.overhead,
):  # fmt: skip
    bench.add_command(command)


@bench.command(
    epilog="\b\nExample\n  hpcgnn bench aggregate --graph rmat:scale=17,degree=28 --width 256 --plot roofline.svg"
)
@shared.graphs("R-MAT of scale 17 and of scale 19")
@shared.widths(f"{shared.WIDTH}; 256 and 128")
@shared.dtypes(("float32", "int8"), "nothing")
@click.option("--mode", type=click.Choice([*MODES, "both"]),
              help="Setting of the measurement. kernel: one process with warm memory for all contenders; user: a process with "
                   "default settings for each contender.  [default: both; on a GPU, kernel]")  # fmt: skip
@click.option("--parts", type=click.IntRange(0), default=2, show_default=True,
              help="Number of METIS parts into which each graph is divided, to measure the largest part as well; 0 measures "
                   "whole graphs only.")  # fmt: skip
@click.option(
    "--ablation", is_flag=True, help="Also measure the first graph with each optimisation switched off in turn."
)
@click.option("--plot", type=click.Path(path_type=Path), help="File for a roofline plot (.svg, .png or .pdf).")
@shared.folder
@shared.threads
@shared.rounds
@shared.device
@shared.as_json
def aggregate(
    sources: tuple[str, ...],
    widths: tuple[int, ...],
    dtypes: tuple[str, ...],
    mode: str | None,
    parts: int,
    ablation: bool,
    plot: Path | None,
    folder: Path | None,
    threads: int | None,
    rounds: int,
    device: str,
    as_json: bool,
) -> None:
    """Measure aggregation, forward and backward.

    The contenders are hpcgnn, and DGL, torch and PyG if they are installed; the ceilings are the limits of the machine. The
    contenders alternate, so other load on the machine affects all of them. Each result is compared with hpcgnn's.
    """
    from hpcgnn.devices import CPU
    from hpcgnn.lab.bench import plot as pictures
    from hpcgnn.lab.bench.run import Settings, run

    graphs = shared.paired(sources, widths, _GRAPHS)
    chosen = shared.chosen_device(device)
    if chosen is not CPU and (mode not in (None, "kernel") or ablation):
        raise click.UsageError("--mode user and --ablation cannot be used with --device cuda: leave them out")
    usual = "both" if chosen is CPU else "kernel"
    modes = MODES if (mode or usual) == "both" else (mode or usual,)
    if plot and "kernel" not in modes:
        raise click.UsageError("--plot needs the measurements of --mode kernel: give --mode kernel or both")
    settings = Settings(
        graphs, threads or shared.cores(), rounds, modes, parts, ablation, chosen, shared.beside(dtypes)
    )
    progress = functools.partial(console.progress, quiet=as_json)
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = run(settings, place, progress)
    if plot:
        pictures.roofline(found, plot)
    if as_json:
        print(json.dumps(found))
    else:
        _show_aggregation(found)


@bench.command(epilog="\b\nExample\n  hpcgnn bench quantize --rows 262144 --width 256 --bits 2 --bits 8")
@click.option("--rows", type=ROWS, default=1 << 18, show_default=True, help="Number of rows of the features.")
@click.option("--width", type=COUNT, default=shared.WIDTH, show_default=True, help="Number of columns of the features.")
@click.option("--bits", type=click.Choice(["1", "2", "4", "8", "16"]), multiple=True, default=["2"], show_default=True,
              help="Bit-width of each value; may be given several times.")  # fmt: skip
@shared.threads
@shared.rounds
@shared.device
@shared.as_json
def quantize(
    rows: int, width: int, bits: tuple[str, ...], threads: int | None, rounds: int, device: str, as_json: bool
) -> None:
    """Measure quantization and dequantization.

    Their rates are compared with the bandwidth of a copy on the same device.
    """
    from hpcgnn.devices import CPU
    from hpcgnn.lab.bench import quantize as quantization

    numbers, chosen = tuple(sorted({int(number) for number in bits})), shared.chosen_device(device)
    with console.progress("rounds", rounds, quiet=as_json) as advance:
        found = quantization.run(rows, width, numbers, threads or shared.cores(), rounds, advance, chosen)
    if as_json:
        print(json.dumps(found))
        return
    where = f"{found['threads']} threads" if chosen is CPU else chosen.name
    shown = table(f"{rows:,} rows of {width} float32, {where}", "kernel", "ms", "GB/s", "of a copy")
    for name, line in found["kernels"].items():
        shown.add_row(
            name, f"{line['seconds'] * 1e3:.2f}", f"{line['gigabytes_per_second']:.1f}", f"{line['of_copy']:.0%}"
        )
    console.stdout().print(shown)


@bench.command(epilog="\b\nExample\n  mpirun -n 4 hpcgnn bench exchange parts.h5 --width 256 --bits 2")
@click.argument("parts", type=click.Path(path_type=Path))
@click.option("--width", type=COUNT, default=shared.WIDTH, show_default=True, help="Number of columns of the rows.")
@click.option("--bits", type=click.Choice([str(bits) for bits in reversed(MESSAGE_BITS)]), default="32", show_default=True,
              help="Bit-width of each value in messages.")  # fmt: skip
@click.option("--strategy", type=click.Choice(STRATEGIES), default="hybrid", show_default=True,
              help="Place where edges between parts are aggregated: see `hpcgnn train --help`.")  # fmt: skip
@click.option("--collective", type=click.Choice(COLLECTIVES), default="auto", show_default=True,
              help="MPI call for boundary messages: see `hpcgnn train --help`.")  # fmt: skip
@click.option("--rounds", type=COUNT, default=15, show_default=True,
              help="Number of rounds of each direction; medians are shown.")  # fmt: skip
@click.option("--timeout", type=NumberRange(0, min_open=True), default=1800.0, show_default=True,
              help="Seconds that a rank waits for another rank before the job is aborted.")  # fmt: skip
@shared.device
@click.option("--ranks-per-gpu", type=click.IntRange(1), default=1, show_default=True,
              help="Largest number of ranks of a node that share a GPU.")  # fmt: skip
@click.option("--gpu-mpi", type=click.Choice(GPU_MPI), default="auto", show_default=True,
              help="Pass GPU memory to MPI: see `hpcgnn train --help`.")  # fmt: skip
@shared.as_json
def exchange(parts: Path, timeout: float, device: str, ranks_per_gpu: int, as_json: bool, **settings: Any) -> None:
    """Measure the exchange of boundary rows and its overlap.

    The table shows the seconds of local aggregation, of the exchange, and of both together, and the share of the shorter one that
    overlap hides, forward and backward. Start the command under mpirun or srun, with one rank for each part of PARTS, on the
    hosts of the training.
    """
    from hpcgnn.graph.local_graph import load
    from hpcgnn.lab.bench import exchange as measuring
    from hpcgnn.world import MpiWorld, check_alike, raise_on_all_ranks
    from hpcgnn.world.devices import choose_device, use_threads

    world = check_alike(MpiWorld(timeout_seconds=timeout))
    console.set_up_logging("warning", world.rank)
    use_threads(world)
    with raise_on_all_ranks(world, "measure an exchange"):
        if world.size == 1:
            raise HpcgnnError(
                f"a single rank sends no messages: start `mpirun -n P hpcgnn bench exchange {parts}` with P of at least 2"
            )
    graph = load(parts, world).to(choose_device(world, device, ranks_per_gpu))
    chosen = measuring.Settings(**settings | {"bits": int(settings["bits"])})
    with console.progress("rounds", 2 * chosen.rounds, quiet=as_json or world.rank != 0) as advance:
        found = measuring.run(graph, chosen, advance)
    world.close()
    if world.rank == 0:
        print(json.dumps(found)) if as_json else _show_exchange(found)


def _show_exchange(found: dict[str, Any]) -> None:
    about = f"{found['width']} columns, {found['bits']} bits, {found['collective']}"
    title = f"{found['ranks']} ranks, {_ways(found)}, {about}: milliseconds"
    timed = {"aggregation": "aggregate", "exchange": "exchange", "wire": "wire", "both": "both", "in turn": "in_turn"}
    shown = table(title, "", *timed, "hidden", "bytes", "largest of a rank")
    for name, line in found["directions"].items():
        milliseconds = (f"{line[f'{what}_seconds'] * 1e3:.2f}" for what in timed.values())
        hidden = "-" if line["hidden_of_shorter"] is None else f"{line['hidden_of_shorter']:.0%}"
        shown.add_row(name, *milliseconds, hidden, f"{line['bytes']:,}", f"{line['largest_bytes_of_a_rank']:,}")
    console.stdout().print(shown)


def _ways(found: dict[str, Any]) -> str:
    """The ways that messages take between ranks: "CPU", or the numbers of ranks such as "1 on a CPU, 1 on a GPU (direct)"."""
    words = {"host": "on a CPU", "staged": "on a GPU (staged)", "direct": "on a GPU (direct)"}
    by_way = {way: count for way, count in found["ranks_by_way"].items() if count}
    return "CPU" if [*by_way] == ["host"] else ", ".join(f"{count} {words[way]}" for way, count in by_way.items())


def _show_aggregation(found: dict[str, Any]) -> None:
    from hpcgnn.lab.bench.report import device_of

    for graph in found["graphs"]:
        for mode in filter(graph.__contains__, MODES):
            title = f"{graph['name']}, width {graph['width']}, {mode}: milliseconds, and times ours"
            _show_timings(title, graph[mode], device_of(graph))
    if "ablation" in found:
        _show_timings(f"{found['ablation']['graph']}, each optimisation switched off", found["ablation"])


def _show_timings(title: str, timings: dict[str, Any], device: str = HOST_NAME) -> None:
    from hpcgnn.lab.bench.report import timing_rows

    shown = table(title, "", *(cell for direction in DIRECTIONS for cell in (direction, "spread", "times")))
    for key, cells in timing_rows(timings, device):
        shown.add_row(key, *cells)
    console.stdout().print(shown)
