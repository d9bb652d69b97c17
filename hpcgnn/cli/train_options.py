"""The options of ``hpcgnn train``, which are made from the fields of the settings, and the run that given options describe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpcgnn.base.settings import Setting, as_flag, kind_of
from hpcgnn.cli.ranges import NumberRange
from hpcgnn.cli.sections import SectionedCommand
from hpcgnn.nn.config import MODELS
from hpcgnn.train.run_config import LINK, Named, RunConfig, as_written, settings_by_name

PROBLEM = "hpcgnn.problem of a file of settings"
"""The key in ``Context.meta`` of the error of a file of settings, which :func:`run_config` raises, because ranks agree there."""


_MOST_USED = ("out", "config", "preset", "resume", "model", "layers", "hidden", "epochs", "lr", "dropout", "bits", "staleness",
              "device", "seed", "task")  # fmt: skip
# The settings under each title of the help: parts of a run, and names.
_TITLES: dict[str, tuple[str, ...]] = {
    "Links (--task link)": ("links", "decoder"),
    "Model": ("model",),
    "Labels as inputs": ("labels",),
    "Training, learning rate and early stopping": ("train", "schedule"),
    "Messages between ranks": ("strategy", "messages", "cache_input_aggregation", "timeout"),
    "Policies of --bits and --staleness": ("policy", "replay"),
    "Arithmetic and devices": ("compute", "int8", "ranks_per_gpu", "node_order"),
}


class RunCommand(SectionedCommand):
    """A command that has its own options and, before the last ``behind`` of them, all settings of a run.

    Settings of models and policies that are registered after the command was made are included.
    """

    behind = 4

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, sections={}, **kwargs)

    def sections(self) -> dict[str, list[str]]:
        """The names of options under each title: those that most runs need come first, and those about output last."""
        found: dict[str, list[str]] = {"Most used": [*_MOST_USED]}
        for title, places in _TITLES.items():
            named = settings_by_name().items()
            found[title] = [name for place in places for name, each in named if place in (name, each.part)]
        return found | {"Output": []}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters and the settings of a run."""
        own = super().get_params(ctx)
        first = len(self.params) - self.behind
        return [*own[:first], *map(option, settings_by_name().values()), *own[first:]]


def option(named: Named) -> click.Option:
    """The option of a setting."""
    setting, about = named.setting, named.setting.about
    is_flag = setting.default is False
    default = as_written(setting, setting.default)
    default = str(default) if about.chosen_from() else default
    return click.Option(
        [as_flag(setting.name or "")],
        type=bool if is_flag else _type(setting),
        is_flag=is_flag,
        default=tuple(default) if isinstance(default, list) else default,
        show_default=not is_flag and default is not None,
        metavar=about.metavar,
        help=_help(named) or None,
    )


def _type(setting: Setting) -> Any:
    about, (kind, _) = setting.about, kind_of(setting.type)
    if choices := about.chosen_from():
        return click.Choice([str(choice) for choice in choices])
    if setting.default is True:
        return click.Choice(["on", "off"])
    if isinstance(setting.default, tuple):
        return tuple(map(type, setting.default))
    if kind is Path:
        return click.Path(path_type=Path)
    if kind in (int, float):
        low, high = (about.above, about.below)
        least, most = (about.least if low is None else low), (about.most if high is None else high)
        bounded: Any = click.IntRange if kind is int else NumberRange
        return bounded(least, most, min_open=low is not None, max_open=high is not None)
    return str


def _help(named: Named) -> str:
    """The setting's text, and the choices that use the setting."""
    about = named.setting.about
    text = f"{about.in_words()} {_users(named)}".strip()
    return text + (f"  [default: {about.default_in_words}]" if about.default_in_words else "")


def _users(named: Named) -> str:
    """A sentence such as ``Models: gat, gatv2.`` or ``Used by --bits sylvie.``; empty if all choices have the setting."""
    names = list(dict.fromkeys(named.users))
    if not names:
        return ""
    if named.part != "model":
        return f"Used by {', '.join(f'--task {name}' if name == LINK else name for name in names)}."
    others = [name for name in MODELS if name not in names]
    if len(names) > len(others):
        return f"Models: all except {', '.join(others)}." if others else ""
    return f"Models: {', '.join(names)}."


def run_config(ctx: click.Context, settings: Mapping[str, Any], may_be_unused: set[str]) -> RunConfig:
    """The run that ``settings`` describe. Settings that are not defaults count as given.

    may_be_unused: names of settings from files of older runs, which hold all settings of their time.

    Raises:
        HpcgnnError: for settings that contradict each other, for a given setting that nothing uses, and for a file of settings
            that could not be read.
    """
    if PROBLEM in ctx.meta:
        raise ctx.meta[PROBLEM]
    sources = {name: ctx.get_parameter_source(name) for name in settings}
    given = {name: value for name, value in settings.items() if sources[name] is not ParameterSource.DEFAULT}
    typed = {name for name, source in sources.items() if source is not ParameterSource.DEFAULT_MAP}
    config = RunConfig.from_settings(given, lenient=may_be_unused - typed)
    config.check()
    return config
