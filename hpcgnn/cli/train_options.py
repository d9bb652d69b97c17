"""The options of ``hpcgnn train``, made of the settings' own fields, and what was given of them where."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpcgnn.cli.ranges import NumberRange
from hpcgnn.nn.config import MODELS
from hpcgnn.settings import Setting, as_flag, kind_of
from hpcgnn.train.run_config import Named, RunConfig, as_told, settings_by_name


class RunCommand(click.Command):
    """A command whose options are those of its own and, before the last ``behind`` of them, all settings of a run: also those of
    models and policies that are registered after the command was made."""

    behind = 4

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """As click's."""
        own = super().get_params(ctx)
        first = len(self.params) - self.behind
        return [*own[:first], *map(option, settings_by_name().values()), *own[first:]]


def option(named: Named) -> click.Option:
    """The option of a setting."""
    setting, about = named.setting, named.setting.about
    is_flag = setting.default is False
    default = as_told(setting, setting.default)
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
    """The setting's own help, behind the names of those who use it."""
    about = named.setting.about
    names = list(dict.fromkeys(user.rpartition(" ")[2] for user in named.users))
    if named.part == "model" and 2 * len(names) > len(list(MODELS)):
        others = [name for name in MODELS if name not in names]
        names = [f"all but {', '.join(others)}"] if others else []
    text = ": ".join(filter(None, (", ".join(names), about.in_words())))
    return text + (f"  [default: {about.default_in_words}]" if about.default_in_words else "")


def run_config(ctx: click.Context, settings: Mapping[str, Any], may_be_unused: set[str]) -> RunConfig:
    """The run of ``settings``, of which those count as given that are not defaults.

    may_be_unused: names in files of older runs, which hold all settings there were.

    Raises:
        HpcgnnError: for what does not go together, and for a setting that is given and that nothing uses.
    """
    sources = {name: ctx.get_parameter_source(name) for name in settings}
    given = {name: value for name, value in settings.items() if sources[name] is not ParameterSource.DEFAULT}
    typed = {name for name, source in sources.items() if source is not ParameterSource.DEFAULT_MAP}
    config = RunConfig.from_settings(given, lenient=may_be_unused - typed)
    config.check()
    return config
