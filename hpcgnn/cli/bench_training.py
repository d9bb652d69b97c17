"""``hpcgnn bench pyg`` and ``hpcgnn bench breakdown``: whole epochs, PyG's and ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hpcgnn.bench.names import ACTIVATIONS, NORMS, PYG_MODELS, PygSettings
from hpcgnn.bit_widths import MESSAGE_BITS
from hpcgnn.cli import bench_shared as shared
from hpcgnn.cli import console
from hpcgnn.cli.ranges import COUNT, NumberRange

_USUAL = PygSettings()


def _count(name: str, default: int, text: str) -> Any:
    return click.option(name, type=COUNT, default=default, show_default=True, help=text)


@click.command(
    epilog="\b\nExample\n  hpcgnn bench pyg graph.h5 --model gat --layers 2 --hidden 64 --heads 8 --epochs 10"
)
@click.argument("graph", metavar="graph.h5", type=click.Path(path_type=Path))
@click.option("--model", type=click.Choice(PYG_MODELS), default=_USUAL.model, show_default=True)
@_count("--layers", _USUAL.layers, "Depth.")
@_count("--hidden", _USUAL.hidden, "Width of hidden layers; of attention, of all heads together.")
@_count("--heads", _USUAL.heads, "Heads that share --hidden.")
@click.option("--norm", type=click.Choice(NORMS), default=_USUAL.norm, show_default=True)
@click.option("--activation", type=click.Choice(ACTIVATIONS), default=_USUAL.activation, show_default=True)
@click.option("--dropout", type=NumberRange(0, 1, max_open=True), default=_USUAL.dropout, show_default=True,
              help="Before every layer but the first.")  # fmt: skip
@_count("--epochs", _USUAL.epochs, "In all.")
@click.option("--lr", type=NumberRange(0, min_open=True), default=_USUAL.lr, show_default=True, help="Of Adam.")
@click.option("--weight-decay", type=NumberRange(0), default=_USUAL.weight_decay, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=_USUAL.seed, show_default=True)
@shared.threads
@shared.device
@shared.as_json
def pyg(graph: Path, threads: int | None, device: str, as_json: bool, **settings: Any) -> None:
    """Train on a whole graph by PyG's layers in one process, to compare `hpcgnn train` with.

    The model is that of `hpcgnn train` with the same settings.
    """
    if settings["model"] == "gat" and settings["hidden"] % settings["heads"]:
        raise click.UsageError(f"--heads {settings['heads']} does not divide --hidden {settings['hidden']}")
    from hpcgnn.bench import pyg as by_pyg

    chosen = shared.chosen_device(device)
    found = by_pyg.run(graph, PygSettings(threads=threads or shared.cores(), **settings), chosen)
    if as_json:
        print(json.dumps(found))
        return
    shown = shared.table(f"PyG's {settings['model']}, {found['threads']} threads", "", "measured")
    shown.add_row("an epoch, median", f"{found['epoch_seconds_median'] * 1e3:.1f} ms")
    shown.add_row("peak memory", f"{found['peak_memory_bytes_per_rank'] / 2**20:,.0f} MiB")
    shown.add_row("loss of the last epoch", f"{found['final_loss']:.4f}")
    console.stdout().print(shown)


@click.command(epilog="\b\nExample\n  mpirun -n 4 hpcgnn bench breakdown parts.h5 --epochs 100")
@click.argument("parts", type=click.Path(path_type=Path))
@click.option("--epochs", type=click.IntRange(2), default=100, show_default=True, help="Of each kind.")
@_count("--hidden", 256, "Width of hidden layers.")
@click.option("--bits", type=click.Choice([str(bits) for bits in reversed(MESSAGE_BITS)]), default="2", show_default=True,
              help="Bits of a value that travels.")  # fmt: skip
@shared.as_json
def breakdown(parts: Path, epochs: int, hidden: int, bits: str, as_json: bool) -> None:
    """Measure the cost of the time breakdown of an epoch: training epochs with it and without it take turns.

    Start it under mpirun or srun, one rank a part.
    """
    from hpcgnn.bench import breakdown as measuring
    from hpcgnn.comm import MpiWorld, check_alike
    from hpcgnn.comm.threads import use_threads
    from hpcgnn.graph import load
    from hpcgnn.memory import keep_freed_memory

    world = check_alike(MpiWorld())
    console.set_up_logging("warning", world.rank)
    use_threads(world)
    graph = load(parts, world)
    keep_freed_memory()  # as training has it
    settings = measuring.Settings(epochs, int(bits), hidden)
    steps = measuring.WARM_UP + epochs
    with console.progress("pairs of epochs", steps, quiet=as_json or world.rank != 0) as advance:
        found = measuring.run(graph, settings, advance)
    world.close()
    if world.rank != 0:
        return
    if as_json:
        print(json.dumps(found))
        return
    shown = shared.table(f"{found['ranks']} ranks, medians of {epochs} epochs", "", "ms")
    for way in ("with", "without"):
        shown.add_row(f"{way} the breakdown", f"{found[f'{way}_seconds'] * 1e3:.2f}")
    console.stdout().print(shown)
    console.stdout().print(f"  it costs {found['cost']:+.2%} ± {found['cost_interval']:.2%}", highlight=False)
