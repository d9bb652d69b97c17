"""``hpcgnn train``: the main job."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from hpcgnn import typed
from hpcgnn.cli import console, train_options
from hpcgnn.comm import MpiWorld, check_alike, together
from hpcgnn.errors import HpcgnnError
from hpcgnn.memory import keep_freed_memory
from hpcgnn.nn.config import ModelConfig
from hpcgnn.policy.adaqp import AdaQPSettings
from hpcgnn.stop import StopRequest
from hpcgnn.train.config import TrainConfig
from hpcgnn.train.links import split_links
from hpcgnn.train.run_config import LINK, RunConfig, check_file, read_file
from hpcgnn.train.run_folder import CONFIG, LINK_COSTS, RunFolder
from hpcgnn.train.tensorboard import TensorBoard, writers
from hpcgnn.train.trainer import Trainer

if TYPE_CHECKING:
    from hpcgnn.comm import World
    from hpcgnn.graph import LocalGraph

_PRESETS = Path(__file__).parent.parent / "presets"
_MAY_BE_UNUSED = "hpcgnn.settings that may be unused"
_EXAMPLE = """
\b
Example
  mpirun -n 4 hpcgnn train parts.h5 --out run --model gcn --layers 2 --hidden 64 --epochs 200
  mpirun -n 4 hpcgnn train parts.h5 --out run --preset gat --seed 1
  mpirun -n 4 hpcgnn train parts.h5 --out run --task link --metric hits@50
  mpirun -n 4 hpcgnn train parts.h5 --out run --resume
  mpirun -n 4 hpcgnn train parts.h5 --out again --config run/config.toml

SIGUSR1 writes a checkpoint and stops cleanly after the current epoch (Slurm: --signal=USR1@120).
"""


class _BesideSettings(msgspec.Struct, kw_only=True):
    """What a file may say beside the settings of a run."""

    parts: str | None = None
    tensorboard: bool = False
    quiet: bool = False
    as_json: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "warning"


def _read_settings(ctx: click.Context, path: Path) -> dict[str, Any]:
    """Settings of a TOML file, which become defaults, so that flags on the command line win."""
    values = read_file(path)
    unknown = sorted(set(values) - {parameter.name for parameter in ctx.command.get_params(ctx)})
    if unknown:
        raise HpcgnnError(f"{path} has settings that do not exist: {', '.join(unknown)}")
    for name in sorted(values.keys() & {"out", "config", "preset", "resume"}):
        raise HpcgnnError(f"{path}: {name} is given on the command line, not in a file")
    typed.checked(values, _BesideSettings, str(path))
    check_file(values, str(path))
    return values


def _take_defaults(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Once --out, --resume, --preset and --config are known.

    A resumed run keeps its settings; a preset comes before them, --config before both. Files that a run wrote, which name its
    parts, may have settings that are of no use any more.
    """
    ctx.meta[str(parameter.name)] = value
    if {"out", "resume", "preset", "config"} <= ctx.meta.keys():
        stored = ctx.meta["out"] / CONFIG
        files = [stored] if ctx.meta["resume"] and stored.exists() else []
        files += [_PRESETS / f"{ctx.meta['preset']}.toml"] if ctx.meta["preset"] else []
        files += [ctx.meta["config"]] if ctx.meta["config"] else []
        ctx.default_map, ctx.meta[_MAY_BE_UNUSED] = {}, set()
        for path in files:
            values = _read_settings(ctx, path)
            ctx.default_map |= values
            ctx.meta[_MAY_BE_UNUSED] -= values.keys()
            ctx.meta[_MAY_BE_UNUSED] |= values.keys() if "parts" in values else set()
    return value


@click.command(cls=train_options.RunCommand, epilog=_EXAMPLE)
@click.argument("parts", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), is_eager=True, callback=_take_defaults, help="Run folder."
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_take_defaults,
    help="TOML file with any of these settings; a run folder's config.toml repeats that run.",
)
@click.option(
    "--preset",
    type=click.Choice(sorted(path.stem for path in _PRESETS.glob("*.toml"))),
    is_eager=True,
    expose_value=False,
    callback=_take_defaults,
    help="The settings of a paper; --config and flags change them.",
)
@click.option(
    "--resume",
    is_flag=True,
    is_eager=True,
    callback=_take_defaults,
    help="Continue the run in --out from its last checkpoint, with its settings where no flag changes them.",
)
@click.option(
    "--tensorboard",
    is_flag=True,
    help="Also write the scalars of each epoch into tensorboard/ of the run folder, for `tensorboard --logdir`.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout instead of a table.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning")
@click.pass_context
def train(
    ctx: click.Context,
    parts: Path,
    out: Path,
    resume: bool,
    tensorboard: bool,
    quiet: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a model on PARTS with one MPI rank a part."""
    from hpcgnn.comm.threads import use_threads

    world = check_alike(MpiWorld(timeout_seconds=settings["timeout"]))
    console.set_up_logging(settings.pop("log_level"), world.rank, quiet=quiet)
    use_threads(world)
    with together(world, "choose the kernels"):
        _choose_kernels()
    hidden = quiet or as_json or world.rank != 0
    with together(world, "check the settings"):
        config = train_options.run_config(ctx, settings, ctx.meta[_MAY_BE_UNUSED])
        if tensorboard and world.rank == 0:
            writers()
    _compare(world, config)
    trainer = _make_trainer(world, parts, out, config, ctx.obj, resume=resume)
    keep_freed_memory()  # from here on sizes repeat; what reading and planning took has gone back to the system
    if world.rank == 0 and trainer.run is not None:
        kept = {"parts": str(parts)} | ({"tensorboard": True} if tensorboard else {})
        trainer.run.write_config(kept | config.settings())
    if resume and world.rank == 0 and not quiet:
        start = (
            f"continuing after epoch {trainer.next_epoch}" if trainer.next_epoch else "nothing to resume, starting anew"
        )
        console.note(f"{out}: {start}")
    ctx.obj.advice = f"the last checkpoint is in {out}/checkpoints, and --resume continues from it"
    with (
        console.progress("training", trainer.config.epochs, quiet=hidden) as advance,
        _told_to(TensorBoard(out, trainer.next_epoch) if tensorboard and world.rank == 0 else None) as add,
    ):
        advance(trainer.next_epoch)
        trainer.on_epoch = lambda record: (advance(1), add(record))
        summary = trainer.fit()
    world.close()
    if world.rank == 0 and as_json:
        print(json.dumps(summary))
    elif not hidden:
        _show(summary, out)


@contextlib.contextmanager
def _told_to(board: TensorBoard | None) -> Iterator[Callable[[dict[str, Any]], object]]:
    """Yield what takes each epoch's record; what it wrote is whole in the end, also of a run that fails."""
    if board is None:
        yield lambda record: None
        return
    try:
        yield board.add
    finally:
        board.close()


def _compare(world: World, config: RunConfig) -> None:
    """Raise HpcgnnError, on all ranks, where one has other settings than rank 0: a file of each node's own. Collective."""
    mine = {name: str(value) for name, value in config.settings().items()}
    wanted = world.broadcast(mine, what="the settings")
    with together(world, "compare settings"):
        for name in sorted((mine.keys() | wanted.keys()) - {"device"}):  # of which some ranks may have none
            if mine.get(name) != wanted.get(name):
                raise HpcgnnError(
                    f"rank {world.rank} has {name} {mine.get(name, 'unset')} and rank 0 {wanted.get(name, 'unset')}: "
                    "all are to read the same --config"
                )


def _make_trainer(
    world: World, parts: Path, out: Path, config: RunConfig, stop: StopRequest, *, resume: bool
) -> Trainer:
    """The trainer that the settings describe, continued where the run was left. Collective."""
    from hpcgnn.comm import Messages
    from hpcgnn.comm.devices import choose_device
    from hpcgnn.graph import load
    from hpcgnn.nn import build_model
    from hpcgnn.policy.clock import Clock, read_log
    from hpcgnn.train.memory_need import check_fits

    assert isinstance(config.model, ModelConfig)
    device = choose_device(world, config.device, config.ranks_per_gpu)
    graph = load(parts, world)
    run = RunFolder(out)
    with together(world, f"prepare the run folder {out}"):
        if graph.features is None:
            raise HpcgnnError(f"{parts} has no node features: convert the graph with --features degree:64 or another")
        if world.rank == 0:
            run.prepare(resume=resume)
    graph = _in_order(graph, config.node_order, config.model.hidden)
    check_fits(graph, config.model, device, config.ranks_per_gpu)
    graph = graph.to(device)
    links = split_links(graph, config.links) if config.task == LINK else None
    model = build_model(
        config.model,
        graph if links is None else links.train,
        messages=Messages(world, config.messages, device=device),
        strategy=config.strategy,
        seed=config.seed,
        compute=config.compute,
        int8=config.int8,
        keep_input_aggregation=config.cache_input_aggregation,
    )
    log = None if str(config.replay) == "none" else config.replay
    clock = Clock(None if log is None else read_log(world, log))
    trainer = Trainer(model, links or graph, _with_costs_in(out, config.train), run=run, stop=stop, clock=clock)
    if resume:
        trainer.resume()
        if trainer.next_epoch > config.train.epochs:
            done, wanted = trainer.next_epoch, config.train.epochs
            raise HpcgnnError(f"{out} has {done} epochs already, more than --epochs {wanted}", agreed=True)
    return trainer


def _with_costs_in(out: Path, config: TrainConfig) -> TrainConfig:
    """The costs of links are kept in the run folder, where no other file is named."""
    if AdaQPSettings not in config.policy.sections() or config.policy.link_costs is not None:
        return config
    with_file: dict[str, Any] = {"link_costs": out / LINK_COSTS}
    return replace(config, policy=replace(config.policy, **with_file))


def _in_order(graph: LocalGraph, method: str, width: int) -> LocalGraph:
    graph = graph.reordered(method, width)
    seconds = ", ".join(f"{name} {seconds:.4f} s" for name, seconds in graph.order.seconds.items())
    log = logging.getLogger("hpcgnn")
    log.info("rank %d: node order %s%s", graph.world.rank, graph.order.method, seconds and f" (measured: {seconds})")
    return graph


def _choose_kernels() -> None:
    """Say where the fast kernels are missing, and refuse a wrong ``HPCGNN_ISA`` before anything is read."""
    from hpcgnn.kernels import resolve
    from hpcgnn.kernels.native import library

    if resolve() == "jit":
        logging.getLogger("hpcgnn").warning("no native kernels (built without a C++ compiler): running on numba")
    else:
        library.isa()


def _show(summary: dict[str, Any], out: Path) -> None:
    def percent(value: float | None) -> str:
        return "not measured" if value is None else f"{100 * value:.2f} %"

    name = summary["metric_name"]
    largest, means = summary["breakdown_seconds_median"], summary["breakdown_seconds_mean_median"]
    beside = {"wire_seconds": "wire (beside the others)"}
    rows: list[tuple[str, object]] = [
        (f"best validation {name}", f"{percent(summary['best_val_metric'])} in epoch {summary['best_epoch']}"),
        (f"test {name} there", percent(summary["test_metric_at_best_val"])),
        ("epochs", f"{summary['epochs']}" + (f", stopped by {why}" if (why := summary["stop_reason"]) else "")),
        ("seconds an epoch, slowest rank (median)", f"{summary['epoch_seconds_median']:.4f}"),
        *[
            (
                f"  {beside.get(phase, phase).removesuffix('_seconds').replace('_', ' ')}",
                f"{value:.4f} on the slowest rank, mean {means[phase]:.4f}",
            )
            for phase, value in largest.items()
        ],
        ("arithmetic of dense products", summary["compute"]),
        ("bytes sent an epoch", int(summary["bytes_sent_per_epoch"])),
        *_node_rows(summary),
        *_policy_rows(summary),
        ("peak memory of a rank", console.size(summary["peak_memory_bytes_per_rank"])),
        *_device_rows(summary),
        ("node orders x ranks", ", ".join(f"{name} x {count}" for name, count in summary["node_orders"].items())),
        ("ranks x threads", f"{summary['ranks']} x {summary['threads_per_rank']}"),
        ("run folder", str(out)),
    ]
    console.table("training finished" if summary["finished"] else "training stopped: --resume continues it", rows)


def _node_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    """What went between nodes, if there were several."""
    between, shared = (int(summary[f"bytes_{what}_per_epoch"]) for what in ("between_nodes", "shared_on_nodes"))
    if not between and not shared:
        return []
    return [("  between nodes", between), ("bytes read in shared memory an epoch", shared)]


def _device_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    """What GPUs did, if there were any."""
    if set(summary["devices"]) == {"CPU"}:
        return []
    used = ", ".join(f"{name} x {count}" for name, count in summary["devices"].items())
    return [
        ("devices x ranks", used),
        ("peak memory of a rank on its GPU", console.size(summary["peak_device_memory_bytes_per_rank"])),
    ]


def _policy_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    """What policies did, if there were any."""
    if summary["bits_policy"] == "fixed" and summary["staleness"] == "off":
        return []
    shares = ", ".join(f"{bits}: {100 * share:.0f} %" for bits, share in summary["bits_shares"].items())
    return [
        ("bits of a value: share of rows", f"{shares} ({summary['bits_policy']})"),
        ("epochs with stale rows", f"{100 * summary['stale_share']:.0f} % ({summary['staleness']})"),
    ]
