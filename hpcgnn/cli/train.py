"""``hpcgnn train``: the main job."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcgnn.cli import console
from hpcgnn.comm.links import COLLECTIVES
from hpcgnn.comm.messages import CODINGS, EVAL_PRECISIONS, MessageConfig
from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels.packing import MESSAGE_BITS
from hpcgnn.memory import keep_freed_memory
from hpcgnn.nn.compute import COMPUTES
from hpcgnn.nn.models import MODELS, NORMS, ModelConfig
from hpcgnn.node_order import METHODS
from hpcgnn.plan import STRATEGIES
from hpcgnn.policy.config import (
    BITS_POLICIES,
    DESCENT_RULES,
    DRIFT_RULES,
    SAFE_BITS,
    SMOOTHINGS,
    STALENESS_POLICIES,
    PolicyConfig,
)
from hpcgnn.stop import StopRequest
from hpcgnn.train.label_propagation import REDRAWS, LabelPropagationConfig
from hpcgnn.train.objective import METRICS
from hpcgnn.train.run_folder import CONFIG, LINK_COSTS, RunFolder
from hpcgnn.train.schedule import SCHEDULES, ScheduleConfig
from hpcgnn.train.trainer import TrainConfig, Trainer

if TYPE_CHECKING:
    from hpcgnn.comm import World
    from hpcgnn.graph import LocalGraph

_EXAMPLE = """
\b
Example
  mpirun -n 4 hpcgnn train parts.h5 --out run --model gcn --layers 2 --hidden 64 --epochs 200
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
    """Once --out, --resume and --config are known: a resumed run keeps its settings, and --config comes before them."""
    ctx.meta[str(parameter.name)] = value
    if {"out", "resume", "config"} <= ctx.meta.keys():
        stored = ctx.meta["out"] / CONFIG
        kept = _read_settings(ctx, stored) if ctx.meta["resume"] and stored.exists() else {}
        given = _read_settings(ctx, ctx.meta["config"]) if ctx.meta["config"] else {}
        ctx.default_map = kept | given
    return value


def _options(*decorators: Callable) -> Callable:
    def apply(command: Callable) -> Callable:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


_MODEL = _options(
    click.option("--model", type=click.Choice(list(MODELS)), default="sage", show_default=True,
                 help="GraphSAGE with mean aggregation, or GCN, which also uses edge weights."),
    click.option("--layers", type=click.IntRange(1), default=3, show_default=True, help="Depth."),
    click.option("--hidden", type=click.IntRange(1), default=256, show_default=True, help="Width of hidden layers."),
    click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.5, show_default=True,
                 help="Before every layer but the first."),
    click.option(
        "--input-dropout", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True,
        help="Dropout of the features.",
    ),
    click.option("--norm", type=click.Choice(NORMS), default="layer", show_default=True,
                 help="After every layer but the last; batch takes the statistics of all ranks."),
    click.option(
        "--label-propagation", metavar="RATE", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True,
        help="Share of the training labels that are inputs: their embedding is added to the features, and the loss is on "
             "the other training nodes (SuperGCN's code: 0.62; 0 = off). Evaluation and prediction are given all training "
             "labels and no others, so the training metric is then about nodes whose label is known.",
    ),
    click.option("--label-redraw", type=click.Choice(REDRAWS), default="epoch", show_default=True,
                 help="When the propagated labels are drawn: anew every epoch, or once for the run."),
)  # fmt: skip
_OPTIMISER = _options(
    click.option("--epochs", type=click.IntRange(1), default=100, show_default=True, help="In all, resumed ones included."),
    click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True,
                 help="Learning rate of Adam."),
    click.option("--weight-decay", type=click.FloatRange(0), default=0.0, show_default=True),
    click.option("--schedule", type=click.Choice(SCHEDULES), default="constant", show_default=True,
                 help="Learning rate over the epochs."),
    click.option("--warmup", type=click.IntRange(0), default=0, show_default=True, help="Epochs of linear rise."),
    click.option("--decay", type=click.FloatRange(0, 1, min_open=True), default=0.5, show_default=True,
                 help="Factor of the step and plateau schedules."),
    click.option("--decay-every", type=click.IntRange(1), default=50, show_default=True, help="Epochs between decays."),
    click.option("--patience", type=click.IntRange(0), default=0, show_default=True,
                 help="Stop after so many epochs without a better validation metric; 0 = never."),
    click.option("--metric", type=click.Choice(["auto", *METRICS]), default="auto", show_default=True,
                 help="What is evaluated; auto is accuracy, or micro-f1 for multi-label graphs."),
    click.option("--eval-every", type=click.IntRange(1), default=1, show_default=True,
                 help="Epochs from one evaluation to the next."),
    click.option("--checkpoint-every", type=click.IntRange(1), default=10, show_default=True,
                 help="Epochs from one checkpoint to the next."),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
)  # fmt: skip
_SYSTEM = _options(
    click.option("--strategy", type=click.Choice(STRATEGIES), default="hybrid", show_default=True,
                 help="Aggregate cut edges before or after they travel, or whichever sends fewer rows."),
    click.option("--node-order", type=click.Choice(METHODS), default="none", show_default=True,
                 help="Order in which each rank keeps its nodes, for the sake of its caches; results are under original "
                      "ids whatever it is. auto: each rank measures and takes the fastest, so that a run need not repeat "
                      "bit for bit; with the others it does."),
    click.option("--bits", type=click.Choice([*(str(bits) for bits in reversed(MESSAGE_BITS)), *BITS_POLICIES]),
                 default="32", show_default=True,
                 help="Bits of a value that travels in training: 32 is float32, 16 bfloat16; below that, values are "
                      "rounded at random to steps between their row's smallest and largest (delta: to the nearest). Or who "
                      "decides for each row: uniform draws 2, 4 or 8; adaqp weighs variance against time; sylvie goes by "
                      "in-degrees and the loss; pipeqs by how much rows change."),
    click.option("--eval-precision", type=click.Choice(EVAL_PRECISIONS), default="float32", show_default=True,
                 help="What evaluations send: float32, or as few bits as training does."),
    click.option("--staleness", type=click.Choice(STALENESS_POLICIES), default="off", show_default=True,
                 help="Use rows of an epoch before while new ones travel: pipeline always (PipeGCN), sylvie while the loss "
                      "falls well, pipeqs also older ones while they change little. Evaluations are always fresh, and what "
                      "travels is waited for before each: choose --eval-every above 1."),
    click.option("--message-coding", type=click.Choice(CODINGS), default="plain", show_default=True,
                 help="delta sends differences to what the receiver has from the last epoch, so that nothing that rounding "
                      "lost is lost for good; it keeps all rows sent and received in memory."),
    click.option("--cache-input-aggregation", is_flag=True,
                 help="Aggregate the features once, with float32 messages, and keep the result: the first layer then sends "
                      "nothing. Not to be used on one side of a comparison only."),
    click.option("--overlap", type=click.Choice(["on", "off"]), default="on", show_default=True,
                 help="Compute while messages travel; off shows what that saves. Results are the same, bit for bit."),
    click.option("--collective", type=click.Choice(COLLECTIVES), default="auto", show_default=True,
                 help="MPI's call for boundary messages: over all ranks, or over those that have some for each other. auto "
                      "measures both where that may pay."),
    click.option("--compute", type=click.Choice(COMPUTES), default="float32", show_default=True,
                 help="Arithmetic of dense products. bf16: they take bfloat16 where that is faster (8 bits of mantissa) and "
                      "add in float32; weights, optimiser and everything else stay float32, and so do checkpoints."),
    click.option("--device", type=click.Choice(["cpu"]), default="cpu", show_default=True),
    click.option("--timeout", type=click.FloatRange(0, min_open=True), default=1800.0, show_default=True,
                 help="Seconds to wait for another rank before giving up."),
)  # fmt: skip

_POLICY = _options(
    click.option("--bits-period", type=click.IntRange(1), default=50, show_default=True,
                 help="adaqp, uniform: epochs from one assignment of bits to the next."),
    click.option("--variance-weight", type=click.FloatRange(0, 1), default=0.5, show_default=True,
                 help="adaqp's lambda: 0 for the fewest seconds on the wire, 1 for the least variance."),
    click.option("--group-rows", type=click.IntRange(1), default=100, show_default=True,
                 help="adaqp: rows that share an assignment."),
    click.option("--link-costs", type=click.Path(path_type=Path), default=None,
                 help="adaqp: file with what messages cost, written if it is missing.  [default: link_costs.json in --out]"),
    click.option("--refit-links", is_flag=True, help="adaqp: measure what messages cost, whatever --link-costs holds."),
    click.option("--loss-memory", type=click.FloatRange(0, 1), default=0.9, show_default=True,
                 help="sylvie's lambda, of the running average of the loss."),
    click.option("--loss-window", type=click.IntRange(1), default=5, show_default=True,
                 help="sylvie's delta: the loss's descent is compared with that of so many epochs ago (20: faster)."),
    click.option("--descent-rule", type=click.Choice(DESCENT_RULES), default="corrected", show_default=True,
                 help="sylvie: the loss descent rate with the sign that the paper prints, or with that of its text."),
    click.option("--drift-threshold", type=click.FloatRange(0), default=0.1, show_default=True,
                 help="pipeqs' E: rows whose cosine distance from those before is larger are sent anew, in other bits."),
    click.option("--drift-rule", type=click.Choice(DRIFT_RULES), default="corrected", show_default=True,
                 help="pipeqs: Eq. 7 as printed only ever raises bits; corrected also lowers them."),
    click.option("--most-stale-epochs", type=click.IntRange(1), default=4, show_default=True,
                 help="pipeqs: rows are never used later than so many epochs after they were sent."),
    click.option("--smoothing", type=click.Choice(SMOOTHINGS), default="none", show_default=True,
                 help="Use a moving average of stale features, gradients or both (PipeGCN)."),
    click.option("--smoothing-decay", type=click.FloatRange(0, 1), default=0.95, show_default=True,
                 help="Share of the epochs before in that average."),
    click.option("--replay", metavar="LOG", type=click.Path(path_type=Path), default=None,
                 help="decisions.jsonl of another run with these settings: see its times in place of the clock, so that "
                      "policies decide as they did and the run repeats bit for bit; none to go on with the clock where it ends."),
)  # fmt: skip


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
    "--resume",
    is_flag=True,
    is_eager=True,
    callback=_take_defaults,
    help="Continue the run in --out from its last checkpoint, with its settings where no flag changes them.",
)
@_MODEL
@_OPTIMISER
@_SYSTEM
@_POLICY
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json on stdout instead of a table.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning")
@click.pass_context
def train(
    ctx: click.Context, parts: Path, out: Path, resume: bool, quiet: bool, as_json: bool, **settings: Any
) -> None:
    """Train a model on PARTS with one MPI rank a part."""
    from hpcgnn.comm import World
    from hpcgnn.comm.threads import use_threads

    world = World(timeout_seconds=settings["timeout"])
    console.set_up_logging(settings.pop("log_level"), world.rank, quiet=quiet)
    use_threads(world)
    with world.together("choose the kernels"):
        _choose_kernels()
    hidden = quiet or as_json or world.rank != 0
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
    with world.together(f"prepare the run folder {out}"):
        if graph.features is None:
            raise HpcgnnError(f"{parts} has no node features: convert the graph with --features degree:64 or another")
        _message_config(settings).check()
        _policy_config(settings).check(settings["message_coding"])
        if world.rank == 0:
            run.prepare(resume=resume)
    labels = LabelPropagationConfig(settings["label_propagation"], settings["label_redraw"])
    config = ModelConfig(**_pick(ModelConfig, settings), label_inputs=labels.rate > 0)
    graph = _in_order(graph, settings["node_order"], config.hidden)
    messages = Messages(world, _message_config(settings))
    how = {name: settings[name] for name in ("strategy", "seed", "compute")}
    how["keep_input_aggregation"] = settings["cache_input_aggregation"]
    model = build_model(config, graph, messages=messages, **how)
    policy = _policy_config(settings)
    nested = {"schedule": ScheduleConfig(**_pick(ScheduleConfig, settings)), "labels": labels, "policy": policy}
    is_replay = settings["replay"] is not None and str(settings["replay"]) != "none"
    clock = Clock(read_log(world, settings["replay"]) if is_replay else None)
    costs_file = settings["link_costs"] or out / LINK_COSTS
    costs = partial(kept_costs, world, costs_file, refit=settings["refit_links"])
    train_config = TrainConfig(**_pick(TrainConfig, settings | nested))
    trainer = Trainer(model, graph, train_config, run=run, stop=stop, clock=clock, measure_costs=costs)
    if resume:
        trainer.resume()
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
