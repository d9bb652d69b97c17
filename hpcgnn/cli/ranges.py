"""Ranges of numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click

COUNT = click.IntRange(1, 2**20)  # columns, layers, heads, epochs, threads, rounds: larger numbers are typing errors

ROWS = click.IntRange(1, 2**40)


class NumberRange(click.FloatRange):
    """A range of numbers that refuses NaN, which click's range accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails, as click does, for a number out of range and for NaN."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number
