"""Numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click

COUNT = click.IntRange(1, 2**20)  # columns, layers, heads, epochs, threads, rounds: more is a slip of the hand

ROWS = click.IntRange(1, 2**40)


class NumberRange(click.FloatRange):
    """As click's, which lets NaN pass; here it is in no range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Click's number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number
