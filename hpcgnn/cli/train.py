"""``hpcgnn train``: the main job."""

from __future__ import annotations

import json
import logging
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hpcgnn.cli import console, train_options
from hpcgnn.comm import MpiWorld, together
from hpcgnn.comm.messages import MessageConfig
from hpcgnn.errors import HpcgnnError
from hpcgnn.memory import keep_freed_memory
from hpcgnn.nn.config import ModelConfig
from hpcgnn.policy.config import BITS_POLICIES, SAFE_BITS, PolicyConfig
from hpcgnn.stop import StopRequest
from hpcgnn.train.label_propagation import LabelPropagationConfig
from hpcgnn.train.links import LinkConfig, split_links
from hpcgnn.train.run_folder import CONFIG, LINK_COSTS, RunFolder
from hpcgnn.train.schedule import ScheduleConfig
from hpcgnn.train.trainer import TrainConfig, Trainer

if TYPE_CHECKING:
    from hpcgnn.comm import World
    from hpcgnn.graph import LocalGraph

_PRESETS = Path(__file__).parent.parent / "presets"
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


def _read_settings(ctx: click.Context, path: Path) -> dict[str, Any]:
    """Settings of a TOML file, which become defaults, so that flags on the command line win."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        # Not an error of usage, which rank 0 tells for all: the file may be missing on one node only.
        raise HpcgnnError(f"cannot read {path}: {error}") from error
    unknown = sorted(set(values) - {parameter.name for parameter in ctx.command.params})
    if unknown:
        raise click.UsageError(f"{path} has settings that do not exist: {', '.join(unknown)}")
    return values


def _take_defaults(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Once --out, --resume, --preset and --config are known.

    A resumed run keeps its settings; a preset comes before them, --config before both.
    """
    ctx.meta[str(parameter.name)] = value
    if {"out", "resume", "preset", "config"} <= ctx.meta.keys():
        stored = ctx.meta["out"] / CONFIG
        kept = _read_settings(ctx, stored) if ctx.meta["resume"] and stored.exists() else {}
        preset = _read_settings(ctx, _PRESETS / f"{ctx.meta['preset']}.toml") if ctx.meta["preset"] else {}
        given = _read_settings(ctx, ctx.meta["config"]) if ctx.meta["config"] else {}
        ctx.default_map = kept | preset | given
    return value


@click.command(epilog=_EXAMPLE)
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
@train_options.TASK
@train_options.MODEL
@train_options.OPTIMISER
@train_options.SYSTEM
@train_options.POLICY
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout instead of a table.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning")
@click.pass_context
def train(
    ctx: click.Context, parts: Path, out: Path, resume: bool, quiet: bool, as_json: bool, **settings: Any
) -> None:
    """Train a model on PARTS with one MPI rank a part."""
    from hpcgnn.comm.threads import use_threads

    world = MpiWorld(timeout_seconds=settings["timeout"])
    console.set_up_logging(settings.pop("log_level"), world.rank, quiet=quiet)
    use_threads(world)
    with together(world, "choose the kernels"):
        _choose_kernels()
    hidden = quiet or as_json or world.rank != 0
    _check_given(ctx, settings["task"])
    trainer = _make_trainer(world, parts, out, settings, ctx.obj, resume=resume)
    keep_freed_memory()  # from here on sizes repeat; what reading and planning took has gone back to the system
    if world.rank == 0 and trainer.run is not None:
        names = [p.name for p in ctx.command.params if p.name in settings and p.name != "refit_links"]  # once is enough
        ordered = {name: settings[name] for name in names}
        trainer.run.write_config({"parts": str(parts)} | ordered)
    if resume and world.rank == 0 and not quiet:
        start = (
            f"continuing after epoch {trainer.next_epoch}" if trainer.next_epoch else "nothing to resume, starting anew"
        )
        console.note(f"{out}: {start}")
    with console.progress("training", trainer.config.epochs, quiet=hidden) as advance:
        advance(trainer.next_epoch)
        trainer.on_epoch = lambda record: advance(1)
        try:
            summary = trainer.fit()
        except KeyboardInterrupt as interruption:
            advice = f"the last checkpoint is in {out}/checkpoints, and --resume continues from it"
            raise click.Abort(advice) from interruption
    if world.rank == 0 and as_json:
        print(json.dumps(summary))
    elif not hidden:
        _show(summary, out)


def _check_given(ctx: click.Context, task: str) -> None:
    """Refuse flags of another task."""
    names = [*LinkConfig.__dataclass_fields__, "decoder"] if task == "node" else []
    given = [name for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is for --task link")


def _make_trainer(
    world: World, parts: Path, out: Path, settings: dict[str, Any], stop: StopRequest, *, resume: bool
) -> Trainer:
    """The trainer that the settings describe, continued where the run was left. Collective."""
    from hpcgnn.comm import Messages
    from hpcgnn.graph import load
    from hpcgnn.nn import build_model
    from hpcgnn.policy.clock import Clock, read_log
    from hpcgnn.policy.link_costs import kept_costs

    graph = load(parts, world)
    run = RunFolder(out)
    with together(world, f"prepare the run folder {out}"):
        if graph.features is None:
            raise HpcgnnError(f"{parts} has no node features: convert the graph with --features degree:64 or another")
        _message_config(settings).check()
        _policy_config(settings).check(settings["message_coding"])
        if world.rank == 0:
            run.prepare(resume=resume)
    labels = LabelPropagationConfig(settings["label_propagation"], settings["label_redraw"])
    decoder = settings["decoder"] if settings["task"] == "link" else "none"
    config = ModelConfig(**_pick(ModelConfig, settings | {"decoder": decoder}), label_inputs=labels.rate > 0)
    graph = _in_order(graph, settings["node_order"], config.hidden)
    links = split_links(graph, LinkConfig(**_pick(LinkConfig, settings))) if settings["task"] == "link" else None
    messages = Messages(world, _message_config(settings))
    how = {name: settings[name] for name in ("strategy", "seed", "compute")}
    how["keep_input_aggregation"] = settings["cache_input_aggregation"]
    model = build_model(config, graph if links is None else links.train, messages=messages, **how)
    policy = _policy_config(settings)
    nested = {"schedule": ScheduleConfig(**_pick(ScheduleConfig, settings)), "labels": labels, "policy": policy}
    is_replay = settings["replay"] is not None and str(settings["replay"]) != "none"
    clock = Clock(read_log(world, settings["replay"]) if is_replay else None)
    costs_file = settings["link_costs"] or out / LINK_COSTS
    costs = partial(kept_costs, world, costs_file, refit=settings["refit_links"])
    train_config = TrainConfig(**_pick(TrainConfig, settings | nested))
    trainer = Trainer(model, links or graph, train_config, run=run, stop=stop, clock=clock, measure_costs=costs)
    if resume:
        trainer.resume()
        if trainer.next_epoch > settings["epochs"]:
            done = trainer.next_epoch
            raise HpcgnnError(f"{out} has {done} epochs already, more than --epochs {settings['epochs']}", agreed=True)
    if settings["refit_links"]:
        trainer.policies.forget_link_costs()
    return trainer


def _message_config(settings: dict[str, Any]) -> MessageConfig:
    dropout = settings["dropout"] or settings["input_dropout"]
    if settings["message_coding"] == "delta" and dropout:
        raise HpcgnnError(
            f"--message-coding delta needs --dropout 0 and --input-dropout 0, not {dropout}: masks that are drawn anew in "
            "each epoch would be most of each difference"
        )
    if settings["message_coding"] == "delta" and settings["label_propagation"] and settings["label_redraw"] == "epoch":
        raise HpcgnnError(
            "--message-coding delta needs --label-redraw once: labels drawn anew would be in each difference"
        )
    if settings["message_coding"] == "delta" and settings["task"] == "link":
        raise HpcgnnError(
            "--message-coding delta is not for --task link: gradients of negatives drawn anew are noise to it"
        )
    bits = SAFE_BITS if settings["bits"] in BITS_POLICIES else int(settings["bits"])
    typed = {"bits": bits, "overlap": settings["overlap"] == "on"}
    return MessageConfig(**_pick(MessageConfig, settings | typed))


def _policy_config(settings: dict[str, Any]) -> PolicyConfig:
    bits = settings["bits"] if settings["bits"] in BITS_POLICIES else "fixed"
    return PolicyConfig(**_pick(PolicyConfig, settings | {"bits": bits}))


def _in_order(graph: LocalGraph, method: str, width: int) -> LocalGraph:
    graph = graph.reordered(method, width)
    seconds = ", ".join(f"{name} {seconds:.4f} s" for name, seconds in graph.order.seconds.items())
    log = logging.getLogger("hpcgnn")
    log.info("rank %d: node order %s%s", graph.world.rank, graph.order.method, seconds and f" (measured: {seconds})")
    return graph


def _pick(config_type: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in config_type.__dataclass_fields__ if name in settings}


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
        ("bytes sent an epoch", int(summary["bytes_sent_per_epoch"])),
        *_policy_rows(summary),
        ("peak memory of a rank", console.size(summary["peak_memory_bytes_per_rank"])),
        ("node orders x ranks", ", ".join(f"{name} x {count}" for name, count in summary["node_orders"].items())),
        ("ranks x threads", f"{summary['ranks']} x {summary['threads_per_rank']}"),
        ("run folder", str(out)),
    ]
    console.table("training finished" if summary["finished"] else "training stopped: --resume continues it", rows)


def _policy_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    """What policies did, if there were any."""
    if summary["bits_policy"] == "fixed" and summary["staleness"] == "off":
        return []
    shares = ", ".join(f"{bits}: {100 * share:.0f} %" for bits, share in summary["bits_shares"].items())
    return [
        ("bits of a value: share of rows", f"{shares} ({summary['bits_policy']})"),
        ("epochs with stale rows", f"{100 * summary['stale_share']:.0f} % ({summary['staleness']})"),
    ]
