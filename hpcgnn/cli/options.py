"""Options that several commands have, ranges of numbers, and help in sections."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

COUNT = click.IntRange(1, 2**20)  # columns, layers, heads, epochs, threads, rounds: larger numbers are typing errors
ROWS = click.IntRange(1, 2**40)
FILE = click.Path(path_type=Path)

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead of a table.")
QUIET = click.option("--quiet", is_flag=True, help="Print nothing but errors.")


class NumberRange(click.FloatRange):
    """A range of numbers that refuses NaN, which click's range accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Click's method, which fails for a number out of range, and here for NaN, too."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class SectionedCommand(click.Command):
    """A command whose help lists its options in sections: the names of parameters under each title. Options that are in none of
    them, such as --help, come at the end of the last one."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Click's method, which writes the options."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        left = {str(option.name): record for option in options if (record := option.get_help_record(ctx))}
        sections = {title: [left.pop(name) for name in names if name in left] for title, names in self.sections.items()}
        sections[next(reversed(sections))] += left.values()
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
