"""``hpcgnn bench pyg``, ``breakdown`` and ``overhead``: measurements of whole epochs, by PyG and by hpcgnn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcgnn.base.typed import MESSAGE_BITS
from hpcgnn.cli import console
from hpcgnn.cli.ranges import COUNT, NumberRange
from hpcgnn.lab.bench.names import ACTIVATIONS, NORMS, PYG_MODELS, PygSettings
from hpcgnn.lab.cli import bench_shared as shared

if TYPE_CHECKING:
    from hpcgnn.graph.local_graph import LocalGraph

_USUAL = PygSettings()


def _count(name: str, default: int, text: str) -> Any:
    return click.option(name, type=COUNT, default=default, show_default=True, help=text)


@click.command(
    epilog="\b\nExample\n  hpcgnn bench pyg graph.h5 --model gat --layers 2 --hidden 64 --heads 8 --epochs 10"
)
@click.argument("graph", metavar="graph.h5", type=click.Path(path_type=Path))
@click.option("--model", type=click.Choice(PYG_MODELS), default=_USUAL.model, show_default=True, help="Model.")
@_count("--layers", _USUAL.layers, "Number of layers.")
@_count("--hidden", _USUAL.hidden, "Number of columns of the hidden layers; with attention, of all heads together.")
@_count("--heads", _USUAL.heads, "Number of attention heads; each has --hidden / --heads columns.")
@click.option("--norm", type=click.Choice(NORMS), default=_USUAL.norm, show_default=True,
              help="Normalisation after every layer except the last.")  # fmt: skip
@click.option("--activation", type=click.Choice(ACTIVATIONS), default=_USUAL.activation, show_default=True,
              help="Activation function between layers.")  # fmt: skip
@click.option("--dropout", type=NumberRange(0, 1, max_open=True), default=_USUAL.dropout, show_default=True,
              help="Dropout rate before every layer except the first.")  # fmt: skip
@_count("--epochs", _USUAL.epochs, "Number of epochs.")
@click.option("--lr", type=NumberRange(0, min_open=True), default=_USUAL.lr, show_default=True,
              help="Learning rate of Adam.")  # fmt: skip
@click.option("--weight-decay", type=NumberRange(0), default=_USUAL.weight_decay, show_default=True,
              help="Weight decay (L2 penalty) of Adam.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=_USUAL.seed, show_default=True,
              help="Seed of the initial weights and of dropout.")  # fmt: skip
@shared.threads
@shared.device
@shared.as_json
def pyg(graph: Path, threads: int | None, device: str, as_json: bool, **settings: Any) -> None:
    """Train with PyG's layers in one process, as a baseline.

    The whole graph is trained on in every epoch. The model is the same as that of `hpcgnn train` with the same settings.
    """
    if settings["model"] == "gat" and settings["hidden"] % settings["heads"]:
        raise click.UsageError(
            f"--heads {settings['heads']} does not divide --hidden {settings['hidden']}: choose a divisor of --hidden"
        )
    from hpcgnn.lab.bench import pyg as by_pyg

    chosen = shared.chosen_device(device)
    found = by_pyg.run(graph, PygSettings(threads=threads or shared.cores(), **settings), chosen)
    if as_json:
        print(json.dumps(found))
        return
    shown = shared.table(f"PyG's {settings['model']}, {found['threads']} threads", "", "measured")
    shown.add_row("epoch, median", f"{found['epoch_seconds_median'] * 1e3:.1f} ms")
    shown.add_row("peak memory", f"{found['peak_memory_bytes_per_rank'] / 2**20:,.0f} MiB")
    shown.add_row("loss of the last epoch", f"{found['final_loss']:.4f}")
    console.stdout().print(shown)


@click.command(epilog="\b\nExample\n  mpirun -n 4 hpcgnn bench breakdown parts.h5 --epochs 100")
@click.argument("parts", type=click.Path(path_type=Path))
@click.option("--epochs", type=click.IntRange(2), default=100, show_default=True,
              help="Number of epochs with the breakdown, and of epochs without it.")  # fmt: skip
@_count("--hidden", 256, "Number of columns of the hidden layers.")
@click.option("--bits", type=click.Choice([str(bits) for bits in reversed(MESSAGE_BITS)]), default="2", show_default=True,
              help="Bit-width of each value in messages.")  # fmt: skip
@shared.as_json
def breakdown(parts: Path, epochs: int, hidden: int, bits: str, as_json: bool) -> None:
    """Measure the cost of the time breakdown of an epoch.

    Training epochs with the breakdown and without it alternate. Start the command under mpirun or srun, with one rank for each
    part of PARTS.
    """
    from hpcgnn.lab.bench import breakdown as measuring

    graph = _loaded(parts)
    world = graph.world
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
    cost = f"{found['cost']:+.2%} ± {found['cost_interval']:.2%}"
    console.stdout().print(f"  the breakdown costs {cost} of an epoch", highlight=False)


@click.command(epilog="\b\nExample\n  mpirun -n 2 hpcgnn bench overhead parts.h5 --layers 3 --hidden 16")
@click.argument("parts", type=click.Path(path_type=Path))
@_count("--layers", 3, "Number of layers.")
@_count("--hidden", 16, "Number of columns of the hidden layers.")
@shared.rounds
@shared.as_json
def overhead(parts: Path, layers: int, hidden: int, rounds: int, as_json: bool) -> None:
    """Measure the epochs of a small graph, beside PyG's.

    With some hundreds of nodes, most of an epoch is work of the framework. A plain loop with PyG's layers, hpcgnn on one rank,
    and hpcgnn on all ranks train the same model in turn, with one thread in each rank. Start the command under mpirun or srun,
    with one rank for each part of PARTS.
    """
    from hpcgnn.lab.bench import overhead as measuring

    graph = _loaded(parts)
    settings = PygSettings(layers=layers, hidden=hidden, dropout=0.0)
    with console.progress("rounds", rounds + 1, quiet=as_json or graph.world.rank != 0) as advance:
        found = measuring.run(graph, settings, rounds, advance)
    graph.world.close()
    if graph.world.rank != 0:
        return
    if as_json:
        print(json.dumps(found))
        return
    title = f"{found['nodes']:,} nodes, {layers} layers of width {hidden}, one thread: an epoch"
    shown = shared.table(title, "", "ms", "spread", "x PyG", "Python calls")
    for name, line in found["contenders"].items():
        shown.add_row(
            name, f"{line['seconds'] * 1e3:.2f}", f"{line['spread']:.0%}", f"{line['to_pyg']:.2f}", f"{line['python_calls']:,}"
        )  # fmt: skip
    console.stdout().print(shown)


def _loaded(parts: Path) -> LocalGraph:
    """This rank's part, in a process that is set up as for training. Collective."""
    from hpcgnn.base.process import keep_freed_memory
    from hpcgnn.graph.local_graph import load
    from hpcgnn.world import MpiWorld, check_alike
    from hpcgnn.world.devices import use_threads

    world = check_alike(MpiWorld())
    console.set_up_logging("warning", world.rank)
    use_threads(world)
    graph = load(parts, world)
    keep_freed_memory()
    return graph
