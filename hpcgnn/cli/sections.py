"""The help of commands with many options: they are listed under titles, the most used first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


class SectionedCommand(click.Command):
    """A command whose help lists its options in sections.

    sections: the names of parameters under each title, in the order of the help. Options that are in none of them, such as
    --help, come at the end of the last one.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections

    def sections(self) -> Mapping[str, Sequence[str]]:
        """The names of parameters under each title."""
        return self._sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Click's method, which writes the options."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        left = {str(option.name): record for option in options if (record := option.get_help_record(ctx))}
        sections = {
            title: [left.pop(name) for name in names if name in left] for title, names in self.sections().items()
        }
        sections[next(reversed(sections))] += left.values()
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
