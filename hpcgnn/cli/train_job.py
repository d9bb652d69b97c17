"""The main job behind ``hpcgnn train``, once its arguments are known to be right."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import StopRequest, disable_malloc_trimming, return_free_memory
from hpcgnn.cli import console
from hpcgnn.exchange import Messages
from hpcgnn.graph import DISK
from hpcgnn.graph.local_graph import load
from hpcgnn.kernels import library, resolve
from hpcgnn.nn.config import ModelConfig
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.policy.config import AdaQPSettings
from hpcgnn.train import checkpoint
from hpcgnn.train.account import TOTAL, account_of, trainer_of
from hpcgnn.train.checks import check_fits
from hpcgnn.train.config import TrainConfig, in_words
from hpcgnn.train.run_config import LINK_COSTS, NODE, RunConfig
from hpcgnn.train.run_folder import RunFolder
from hpcgnn.train.summary import TensorBoard, writers
from hpcgnn.train.trainer import Trainer
from hpcgnn.world import MpiWorld, check_alike, raise_on_all_ranks
from hpcgnn.world.devices import choose_device, use_threads

if TYPE_CHECKING:
    from hpcgnn.world import World


@dataclass(frozen=True)
class TrainArguments:
    """The arguments of the command beside the settings of a run."""

    parts: Path
    out: Path
    resume: bool
    tensorboard: bool
    quiet: bool
    as_json: bool
    log_level: str


def run(asked: TrainArguments, timeout: float, configured: Callable[[], RunConfig], stop: StopRequest) -> None:
    """Train, and show the summary on rank 0. configured: makes the run's settings, or raises HpcgnnError. Collective."""
    world = check_alike(MpiWorld(timeout_seconds=timeout))
    console.set_up_logging(asked.log_level, world.rank, quiet=asked.quiet)
    use_threads(world)
    with raise_on_all_ranks(world, "choose the kernels"):
        _choose_kernels()
    with raise_on_all_ranks(world, "check the settings"):
        config = configured()
        if asked.tensorboard and world.rank == 0:
            writers()
    _compare(world, config)
    is_limited = config.memory_limit != "none"
    if is_limited:
        disable_malloc_trimming(is_limited=True)  # also of reading and planning
    trainer = _make_trainer(world, asked, config, stop)
    return_free_memory()  # of reading and planning; allocations have the same sizes from here on
    disable_malloc_trimming(is_limited=is_limited)
    predicted = {} if trainer.account is None else trainer.account.largest()
    if world.rank == 0 and predicted and not (asked.quiet or asked.as_json):
        rows = ((name, console.size(count)) for name, count in predicted.items() if count)
        console.table("memory of a rank, predicted (the largest of each part)", rows)
    if world.rank == 0:
        _write_config(trainer, asked, config)
    stop.advice = lambda: advice(asked.out)
    summary = _fit(trainer, asked)
    world.close()
    if world.rank == 0 and asked.as_json:
        print(json.dumps(summary))
    elif world.rank == 0 and not asked.quiet:
        _show(summary, asked.out)


def advice(out: Path) -> str:
    """A sentence for the user of a training that a signal has ended."""
    checkpoints = checkpoint.folder(out)
    if (checkpoints / checkpoint.LAST).exists():
        return f"the last checkpoint is in {checkpoints}; --resume continues from it"
    return f"there is no checkpoint in {out} yet; --resume starts with epoch 0 (--checkpoint-every N writes one every N epochs)"


def _write_config(trainer: Trainer, asked: TrainArguments, config: RunConfig) -> None:
    assert trainer.run is not None
    kept = {"parts": str(asked.parts)} | ({"tensorboard": True} if asked.tensorboard else {})
    trainer.run.write_config(kept | config.settings())
    if asked.resume and not asked.quiet:
        without = "there is no checkpoint, so training starts with epoch 0"
        start = f"resuming with epoch {trainer.next_epoch}" if trainer.next_epoch else without
        console.note(f"{asked.out}: {start}")


def _fit(trainer: Trainer, asked: TrainArguments) -> dict[str, Any]:
    """Train the remaining epochs and return the summary. Collective."""
    is_first, add = trainer.graph.world.rank == 0, lambda record: None
    with contextlib.ExitStack() as stack:
        quiet = asked.quiet or asked.as_json or not is_first
        advance = stack.enter_context(console.progress("training", trainer.config.epochs, quiet=quiet))
        if asked.tensorboard and is_first:
            add = stack.enter_context(contextlib.closing(TensorBoard(asked.out, trainer.next_epoch))).add
        advance(trainer.next_epoch)
        trainer.on_epoch = lambda record: (advance(1), add(record))
        return trainer.fit()


def _compare(world: World, config: RunConfig) -> None:
    """Raise HpcgnnError on all ranks if one has other settings than rank 0, as from another --config file. Collective."""
    mine = {name: str(value) for name, value in config.settings().items()}
    wanted = world.broadcast(mine, what="the settings")
    with raise_on_all_ranks(world, "compare settings"):
        for name in sorted((mine.keys() | wanted.keys()) - {"device"}):  # some ranks may have no GPU
            if mine.get(name) != wanted.get(name):
                raise HpcgnnError(
                    f"rank {world.rank} was started with {name} {mine.get(name, 'unset')} and rank 0 with "
                    f"{wanted.get(name, 'unset')}: give all ranks the same options and the same --config file"
                )


def _make_trainer(world: World, asked: TrainArguments, config: RunConfig, stop: StopRequest) -> Trainer:
    """The trainer that the settings describe; with --resume, in the state of the last checkpoint. Collective."""
    parts, out = asked.parts, asked.out
    assert isinstance(config.model, ModelConfig)
    device = choose_device(world, config.device, config.ranks_per_gpu)
    with raise_on_all_ranks(world, "take the device of a rank"):
        if device.torch_device.type != "cpu" and (config.features == DISK or config.memory_limit != "none"):
            named = "--features disk" if config.features == DISK else "--memory-limit"
            raise HpcgnnError(f"{named} is for ranks on CPUs, and {device.name} is none: pass --device cpu")
    account, activations = account_of(world, parts, config, device)
    logging.getLogger("hpcgnn").info("activations: %s", activations)
    graph = load(parts, world, features=config.features)
    log = None if str(config.replay) == "none" else config.replay
    clock = Clock(None if log is None else read_log(world, log, graph.data))
    run = RunFolder(out)
    with raise_on_all_ranks(world, f"prepare the run folder {out}"):
        if world.rank == 0:
            run.prepare(resume=asked.resume)
    if config.task == NODE:
        graph = graph.with_target(config.target)
    graph = graph.reordered(config.node_order, config.model.hidden)
    seconds = ", ".join(f"{name} {seconds:.4f} s" for name, seconds in graph.order.seconds.items())
    told = seconds and f" (measured: {seconds})"
    logging.getLogger("hpcgnn").info("rank %d: node order %s%s", world.rank, graph.order.method, told)
    check_fits(graph, config.model, device, config.ranks_per_gpu, activations)
    graph = graph.to(device)
    messages = Messages(world, config.messages, device=device)
    chosen = replace(config, activations=activations, train=_with_costs_in(out, config.train))
    trainer = trainer_of(chosen, graph, messages, run=run, stop=stop, clock=clock)
    trainer.account, account.is_due = account, device.torch_device.type == "cpu"
    if asked.resume:
        trainer.resume()
        if trainer.next_epoch > config.train.epochs:
            done, wanted = trainer.next_epoch, config.train.epochs
            raise HpcgnnError(
                f"{out} already has {done} epochs: --epochs is the total number and must be at least {done}, not {wanted}",
                agreed=True,
            )
    return trainer


def _with_costs_in(out: Path, config: TrainConfig) -> TrainConfig:
    """The settings with a file of link costs in the run folder, if AdaQP needs one and none was given."""
    if AdaQPSettings not in config.policy.sections() or config.policy.link_costs is not None:
        return config
    with_file: dict[str, Any] = {"link_costs": out / LINK_COSTS}
    return replace(config, policy=replace(config.policy, **with_file))


def _choose_kernels() -> None:
    """Warn if the native kernels are missing, and refuse a wrong ``HPCGNN_ISA`` before any file is read."""
    if resolve() == "jit":
        logging.getLogger("hpcgnn").warning(
            "the native kernels are missing because hpcgnn was built without a C++ compiler: training uses numba kernels"
        )
    else:
        library.isa()


def _show(summary: dict[str, Any], out: Path) -> None:
    """Print the result first, and then what it took. What is zero or does not apply is left out; summary.json has it."""
    has_gpus, has_policies = (
        {*summary["devices"]} != {"CPU"},
        (summary["bits_policy"], summary["staleness"]) != ("fixed", "off"),
    )
    shares = ", ".join(f"{bits}: {100 * share:.0f} %" for bits, share in summary["bits_shares"].items())
    stale = f"{100 * summary['stale_share']:.0f} % ({summary['staleness']})"
    rows: dict[str, object] = {
        **_result_rows(summary),
        "epochs": f"{summary['epochs']}" + (f", stopped by {why}" if (why := summary["stop_reason"]) else ""),
        "seconds per epoch, slowest rank (median)": f"{summary['epoch_seconds_median']:.4f}",
        "seconds per epoch without the first, slowest rank (mean)": f"{summary['epoch_seconds_mean']:.4f}",
        **_phase_rows(summary),
        "arithmetic of dense products": summary["compute"],
        "bytes sent per epoch, all ranks": int(summary["bytes_sent_per_epoch"]),
        "  between nodes": int(summary["bytes_between_nodes_per_epoch"]),
        "bytes read in shared memory per epoch": int(summary["bytes_shared_on_nodes_per_epoch"]),
        "bit-widths, by share of rows": f"{shares} ({summary['bits_policy']})" if has_policies else "",
        "epochs with stale rows": stale if summary["staleness"] != "off" else "",
        "peak memory per rank, largest": console.size(summary["peak_memory_bytes_per_rank"]),
        **_memory_rows(summary.get("memory_bytes", {})),
        "devices x ranks": _counts(summary["devices"]) if has_gpus else "",
        "peak GPU memory per rank, largest": console.size(summary["peak_device_memory_bytes_per_rank"])
        if has_gpus
        else "",
        "node order x ranks": _counts(
            {name: ranks for name, ranks in summary["node_orders"].items() if name != "none"}
        ),
        "ranks x threads": f"{summary['ranks']} x {summary['threads_per_rank']}",
        "run folder": str(out),
    }
    title = "training finished" if summary["finished"] else "training stopped (--resume continues it)"
    console.table(title, ((name, value) for name, value in rows.items() if value not in ("", 0)))


def _memory_rows(account: dict[str, dict[str, int]]) -> dict[str, str]:
    """The parts of the memory, measured, and as they were predicted."""
    measured, predicted = (account.get(name, {}) for name in ("measured", "predicted"))
    return {
        f"  {part}": console.size(count) + (f", predicted {console.size(predicted[part])}" if predicted else "")
        for part, count in measured.items()
        if (count or predicted.get(part)) and (predicted or part != TOTAL)  # the peak is the total
    }


def _counts(named: dict[str, int]) -> str:
    return ", ".join(f"{name} x {count}" for name, count in named.items())


def _result_rows(summary: dict[str, Any]) -> dict[str, str]:
    """The best metrics; one line that says why if there are none."""
    name, epoch = summary["metric_name"], summary["best_epoch"]
    validation, test = summary["best_val_metric"], summary["test_metric_at_best_val"]
    if validation is None and test is None:
        reason = "no epoch was evaluated" if epoch < 0 else "there are neither validation nor test labels"
        return {name: f"not measured: {reason}"}
    ranking = dict(summary.get("test_ranking", {}))
    among = {"all": "all nodes", "fixed": "fixed candidates"}[ranking.pop("candidates", "all")]
    ranked = {f"test {measure} among {among}": f"{100 * value:.2f} %" for measure, value in ranking.items()}
    if validation is None:
        last = f"in epoch {epoch}, the last that was evaluated: nothing is for validation"
        return {f"test {name}": f"{in_words(name, test)} {last}"} | ranked
    return {
        f"best validation {name}": f"{in_words(name, validation)} in epoch {epoch}",
        f"test {name} in that epoch": "" if test is None else in_words(name, test),
    } | ranked


def _phase_rows(summary: dict[str, Any]) -> dict[str, str]:
    """The phases of an epoch that took long enough to be seen in four decimals. Means over epochs, as only some may have one."""
    means, beside = summary["breakdown_seconds_mean_per_epoch"], {"wire_seconds": "wire (overlaps the others)"}
    return {
        f"  {beside.get(phase, phase).removesuffix('_seconds').replace('_', ' ')}": (
            f"{seconds:.4f} on the slowest rank, mean {means[phase]:.4f}"
        )
        for phase, seconds in summary["breakdown_seconds_per_epoch"].items()
        if round(seconds, 4)
    }
