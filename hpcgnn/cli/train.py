"""``hpcgnn train``: the training command."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from click.core import ParameterSource

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError, nearest
from hpcgnn.base.lazy import importing
from hpcgnn.base.settings import Setting, as_flag, is_choice, kind_of
from hpcgnn.cli.options import FILE, QUIET, NumberRange, SectionedCommand
from hpcgnn.nn.config import MODELS
from hpcgnn.train.run_config import (
    CONFIG,
    LINK,
    RunConfig,
    RunSetting,
    as_written,
    check_file,
    in_words,
    read_file,
    settings_by_name,
)

# The key in ``Context.meta`` of the error of a file of settings, which :func:`run_config` raises, because ranks agree there.
PROBLEM = "hpcgnn.problem of a file of settings"
_MOST_USED = ("out", "config", "preset", "resume", "model", "layers", "hidden", "epochs", "lr", "dropout", "bits", "staleness",
              "device", "seed", "task")  # fmt: skip
# The settings under each title of the help: names, and parts of a run without what is named. Options about output are in none.
_TITLES: dict[str, tuple[str, ...]] = {
    "Links (--task link)": ("links", "decoder"),
    "Model": ("model",),
    "Labels as inputs": ("labels",),
    "Training, loss, learning rate and early stopping": ("target", "train", "loss", "schedule"),
    "Messages between ranks": ("strategy", "messages", "cache_input_aggregation", "timeout"),
    "Policies of --bits and --staleness": ("policy", "replay"),
    "Stale rows": ("stale_correction", "smoothing", "smoothing_decay", "most_stale_epochs", "bypass"),
    "Memory, arithmetic and devices": (
        "features",
        "activations",
        "memory_limit",
        "compute",
        "int8",
        "ranks_per_gpu",
        "node_order",
    ),
    "Output": (),
}
_PLACES = frozenset(itertools.chain(*_TITLES.values()))


class RunCommand(SectionedCommand):
    """A command that has its own options and, before the last ``after`` of them, all settings of a run, including those of models
    and policies that are registered after the command was made."""

    def __init__(self, *args: Any, after: int = 4, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._after = after

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Click's method."""
        own, named = super().get_params(ctx), settings_by_name()
        place_of = {name: name if name in _PLACES else each.part for name, each in named.items()}
        self.sections = {"Most used": _MOST_USED} | {
            title: [name for place in places for name in named if place_of[name] == place]
            for title, places in _TITLES.items()
        }
        first = len(self.params) - self._after
        return [*own[:first], *map(option, named.values()), *own[first:]]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's method. A choice among on, off and others, which may once have been a flag, is on without a value."""
        choices = {as_flag(name): each.setting.chosen_from() for name, each in settings_by_name().items()}
        given = []
        for word, after in zip(args, [*args[1:], ""], strict=True):
            given.append(word)
            values = choices.get(word, ())
            if any(value is True for value in values) and after not in map(in_words, values):
                given.append("on")
        return super().parse_args(ctx, given)


def option(named: RunSetting) -> click.Option:
    """The option of a setting."""
    setting = named.setting
    choices = setting.chosen_from()
    is_flag, text = setting.default is False and not choices, f"{setting.in_words()} {_users(named)}".strip()
    default = in_words(setting.default) if choices else as_written(setting, setting.default)
    return click.Option(
        [as_flag(setting.name)],
        type=bool if is_flag else _type(setting),
        is_flag=is_flag,
        default=tuple(default) if isinstance(default, list) else default,
        show_default=not is_flag and default is not None,
        metavar=setting.metavar,
        help=text + (f"  [default: {setting.default_in_words}]" if setting.default_in_words else ""),
    )


def same_option(name: str, **others: Any) -> Callable[[Any], Any]:
    """The option of this name for another command. others: arguments of click that differ there."""
    same = option(settings_by_name()[name])
    about: dict[str, Any] = {"type": same.type, "default": same.default, "metavar": same.metavar, "help": same.help}
    return click.option(as_flag(name), show_default=True, **about | others)


class _Choice(click.Choice[str]):
    """A choice among words, some of which take an argument."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Click's method."""
        value = in_words(value) if isinstance(value, bool) else value  # in a file
        return value if any(is_choice(value, each) for each in self.choices) else super().convert(value, param, ctx)


def _type(setting: Setting) -> Any:
    kind, _ = kind_of(setting.type)
    if choices := setting.chosen_from():
        return _Choice([in_words(choice) for choice in choices])
    if setting.default is True:
        return click.Choice(["on", "off"])
    if isinstance(setting.default, tuple):
        return tuple(map(type, setting.default))
    if kind is Path:
        return FILE
    if kind in (int, float):
        low, high = setting.above, setting.below
        least, most = (setting.least if low is None else low), (setting.most if high is None else high)
        bounded: Any = click.IntRange if kind is int else NumberRange
        return bounded(least, most, min_open=low is not None, max_open=high is not None)
    return str


def _users(named: RunSetting) -> str:
    """A sentence such as ``Models: gat, gatv2.`` or ``Used by --bits sylvie.``; empty if all choices have the setting."""
    names, others = [*named.users], [name for name in MODELS if name not in named.users]
    if not names or not others:
        return ""
    if named.part != "model":
        return f"Used by {', '.join(f'--task {name}' if name == LINK else name for name in names)}."
    if len(names) > len(others):
        return f"Models: all except {', '.join(others)}."
    return f"Models: {', '.join(names)}."


def run_config(ctx: click.Context, settings: Mapping[str, Any], may_be_unused: set[str]) -> RunConfig:
    """The run that ``settings`` describe. Settings that are not defaults count as given. may_be_unused: names of settings from
    files of older runs, which hold all settings of their time. Raises HpcgnnError, also for the problem of a file of settings."""
    if PROBLEM in ctx.meta:
        raise ctx.meta[PROBLEM]
    sources = {name: ctx.get_parameter_source(name) for name in settings}
    given = {name: value for name, value in settings.items() if sources[name] is not ParameterSource.DEFAULT}
    typed = {name for name, source in sources.items() if source is not ParameterSource.DEFAULT_MAP}
    config = RunConfig.from_settings(given, lenient=may_be_unused - typed)
    config.check()
    return config


_PRESETS = Path(__file__).parent.parent / "presets"
_MAY_BE_UNUSED = "hpcgnn.settings that may be unused"
_CANNOT_BE_SET = {"out", "config", "preset", "resume"}  # in a file
_EXAMPLE = """
\b
Examples
  mpirun -n 4 hpcgnn train parts.h5 --out run --model gcn --layers 2 --hidden 64 --epochs 200
  mpirun -n 4 hpcgnn train parts.h5 --out run --preset gat --seed 1
  mpirun -n 4 hpcgnn train parts.h5 --out run --task link --metric hits@50
  mpirun -n 4 hpcgnn train parts.h5 --out run --resume
  mpirun -n 4 hpcgnn train parts.h5 --out again --config run/config.toml

After SIGUSR1 the current epoch ends, a checkpoint is written, and the command exits with code 0 (Slurm: --signal=USR1@120).
"""


class _RunFolder(click.Path):
    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Click's method; the text follows "Missing option '--out'."."""
        return "Name the run folder to create, such as --out run"


class _BesideSettings(msgspec.Struct, kw_only=True):  # which a file may set as well
    parts: str | None = None
    tensorboard: bool = False
    quiet: bool = False
    as_json: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "warning"


def _read_settings(ctx: click.Context, path: Path) -> dict[str, Any]:
    """The settings of a TOML file. They become defaults, so flags on the command line override them."""
    values = read_file(path)
    known = {str(parameter.name) for parameter in ctx.command.get_params(ctx)}
    unknown = [(name, nearest(name, known - _CANNOT_BE_SET)) for name in sorted(values.keys() - known)]
    if unknown:
        told = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in unknown)
        raise HpcgnnError(f"{path} has unknown settings: {told}; `hpcgnn train --help` lists all settings")
    for name in sorted(values.keys() & _CANNOT_BE_SET):
        raise HpcgnnError(f"{path}: {name} cannot be set in a file: give --{name} on the command line")
    typed.validated(values, _BesideSettings, str(path))
    check_file(values, str(path))
    return values


def _take_defaults(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Set the defaults of the other options once --out, --resume, --preset and --config are known. Files that a run wrote, which
    name its parts, may hold settings that nothing uses any more."""
    ctx.meta[str(parameter.name)] = value
    if {"out", "resume", "preset", "config"} <= ctx.meta.keys():
        stored = ctx.meta["out"] / CONFIG
        files = [stored] if ctx.meta["resume"] and stored.exists() else []
        files += [_PRESETS / f"{ctx.meta['preset']}.toml"] if ctx.meta["preset"] else []
        files += [ctx.meta["config"]] if ctx.meta["config"] else []
        ctx.default_map, ctx.meta[_MAY_BE_UNUSED] = {}, set()
        try:
            for path in files:
                values = _read_settings(ctx, path)
                ctx.default_map |= values
                ctx.meta[_MAY_BE_UNUSED] -= values.keys()
                ctx.meta[_MAY_BE_UNUSED] |= values.keys() if "parts" in values else set()
        except HpcgnnError as error:
            ctx.meta[PROBLEM] = error  # the file may be wrong on one node only, so ranks must agree
    return value


@click.command(cls=RunCommand, sections={}, epilog=_EXAMPLE)
@click.argument("parts", type=FILE)
@click.option("--out", required=True, type=_RunFolder(path_type=Path), is_eager=True, callback=_take_defaults,
              help="Run folder to create; with --resume, the folder of the run to continue.")  # fmt: skip
@click.option("--config", type=FILE, is_eager=True, expose_value=False, callback=_take_defaults,
              help="TOML file with settings, named as the flags below with underscores for hyphens; flags override it. The "
                   "config.toml of a run folder repeats that run.")  # fmt: skip
@click.option("--preset", type=click.Choice(sorted(path.stem for path in _PRESETS.glob("*.toml"))), is_eager=True,
              expose_value=False, callback=_take_defaults,
              help="Settings from the paper of a model; --config and flags override them.")  # fmt: skip
@click.option("--resume", is_flag=True, is_eager=True, callback=_take_defaults,
              help="Continue the run in --out from its last checkpoint, with its settings unless flags override them. Without "
                   "a checkpoint, start with epoch 0.")  # fmt: skip
@click.option("--tensorboard", is_flag=True,
              help="Also write the scalars of each epoch to the folder tensorboard/ in the run folder, for `tensorboard "
                   "--logdir`.")  # fmt: skip
@QUIET
@click.option("--json", "as_json", is_flag=True, help="Print the content of summary.json on stdout instead of a table.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True,
              help="Lowest level of the log messages of rank 0 on stderr; other ranks print errors only.")  # fmt: skip
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
    """Train a model on PARTS (parts.h5), with one MPI rank for each part.

    Start the command with mpirun, srun or `hpcgnn launch`. It writes a run folder with config.toml, metrics.jsonl (one line for
    each epoch), summary.json, ranks.json and checkpoints.
    """
    with importing():
        from hpcgnn.cli import train_job  # imports torch, so wrong arguments are reported before

    asked = train_job.TrainArguments(parts, out, resume, tensorboard, quiet, as_json, settings.pop("log_level"))
    configured = partial(run_config, ctx, settings, ctx.meta[_MAY_BE_UNUSED])
    train_job.run(asked, settings["timeout"], configured, ctx.obj)
