"""``hpcgnn train``: the training command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError, nearest
from hpcgnn.base.lazy import importing
from hpcgnn.cli import train_options
from hpcgnn.train.run_config import CONFIG, check_file, read_file

_PRESETS = Path(__file__).parent.parent / "presets"
_MAY_BE_UNUSED = "hpcgnn.base.settings that may be unused"
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


class _BesideSettings(msgspec.Struct, kw_only=True):
    """The options that a TOML file may set in addition to the settings of a run."""

    parts: str | None = None
    tensorboard: bool = False
    quiet: bool = False
    as_json: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "warning"


def _read_settings(ctx: click.Context, path: Path) -> dict[str, Any]:
    """The settings of a TOML file. They become defaults, so flags on the command line override them."""
    values = read_file(path)
    known = {str(parameter.name) for parameter in ctx.command.get_params(ctx)}
    unknown = [_with_suggestion(name, known - _CANNOT_BE_SET) for name in sorted(values.keys() - known)]
    if unknown:
        raise HpcgnnError(
            f"{path} has unknown settings: {', '.join(unknown)}; `hpcgnn train --help` lists all settings"
        )
    for name in sorted(values.keys() & _CANNOT_BE_SET):
        raise HpcgnnError(f"{path}: {name} cannot be set in a file: give --{name} on the command line")
    typed.checked(values, _BesideSettings, str(path))
    check_file(values, str(path))
    return values


def _with_suggestion(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"{name} (did you mean {near}?)" if near else name


def _take_defaults(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Set the defaults of the other options once --out, --resume, --preset and --config are known.

    A resumed run keeps its settings; those of a preset override them, and those of --config override both. Files that a run
    wrote, which name its parts, may hold settings that nothing uses any more.
    """
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
            ctx.meta[train_options.PROBLEM] = error  # the file may be wrong on one node only, so ranks must agree
    return value


@click.command(cls=train_options.RunCommand, epilog=_EXAMPLE)
@click.argument("parts", type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=_RunFolder(path_type=Path),
    is_eager=True,
    callback=_take_defaults,
    help="Run folder to create; with --resume, the folder of the run to continue.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_take_defaults,
    help="TOML file with settings, named as the flags below with underscores for hyphens; flags override it. The config.toml of "
    "a run folder repeats that run.",
)
@click.option(
    "--preset",
    type=click.Choice(sorted(path.stem for path in _PRESETS.glob("*.toml"))),
    is_eager=True,
    expose_value=False,
    callback=_take_defaults,
    help="Settings from the paper of a model; --config and flags override them.",
)
@click.option(
    "--resume",
    is_flag=True,
    is_eager=True,
    callback=_take_defaults,
    help="Continue the run in --out from its last checkpoint, with its settings unless flags override them. Without a "
    "checkpoint, start with epoch 0.",
)
@click.option(
    "--tensorboard",
    is_flag=True,
    help="Also write the scalars of each epoch to the folder tensorboard/ in the run folder, for `tensorboard --logdir`.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the content of summary.json on stdout instead of a table.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Lowest level of the log messages of rank 0 on stderr; other ranks print errors only.",
)
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

    asked = train_job.Asked(parts, out, resume, tensorboard, quiet, as_json, settings.pop("log_level"))
    train_job.run(ctx, asked, settings, ctx.meta[_MAY_BE_UNUSED])
