"""Cells of a matrix of settings: some that are drawn by a seed, which changes with the commit, and all pairs in the nightly run.

An axis is a name and its values, of which the first is the default. A cell has a value of each axis. Its number and the seed
repeat it: ``HPCGNN_MATRIX_SEED=1234 pytest -k "cell17"``.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from requires import EVERYTHING

Axes = Mapping[str, Sequence[Any]]
_SEED = "HPCGNN_MATRIX_SEED"


@dataclass(frozen=True)
class Cell:
    """A value of each axis. number: its place among the cells of ``seed``, from which further draws may follow."""

    number: int
    seed: int
    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("values", {}):
            raise AttributeError(name)
        return self.values[name]

    @property
    def draws(self) -> random.Random:
        """Random numbers of this cell alone, the same ones in each call."""
        return random.Random(f"{self.seed} {self.number}")

    def changed(self, **values: Any) -> Cell:
        """The cell with other values of some axes, and the same draws."""
        return Cell(self.number, self.seed, {**self.values, **values})

    def changes(self, axes: Axes) -> list[str]:
        """The axes whose value is not the default."""
        return [name for name, of_axis in axes.items() if self.values[name] != of_axis[0]]

    def described(self, axes: Axes) -> str:
        """The command that repeats the cell, and what is not the default."""
        told = ", ".join(f"{name}={self.values[name]}" for name in self.changes(axes))
        return f"{_SEED}={self.seed} pytest -k cell{self.number}: {told}"


def seed() -> int:
    """The seed of this run: that of the environment, else one that follows from the commit; 0 outside of a repository."""
    if given := os.environ.get(_SEED):
        return int(given)
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return int(found.stdout[:6] or "0", 16)


def cells(axes: Axes, count: int) -> list[Cell]:
    """``count`` cells, in which every value occurs, and half of the values are defaults; with ``HPCGNN_TESTS=all``, a cell for
    each pair of values of two axes, beside each value of the first axis."""
    at = seed()
    found = pairs(axes) if EVERYTHING else drawn(axes, count, random.Random(at))
    return [Cell(number, at, values) for number, values in enumerate(found)]


def drawn(axes: Axes, count: int, draws: random.Random) -> Iterator[dict[str, Any]]:
    """See :func:`cells`. The first axis has each of its values equally often."""
    first, *others = axes
    for number in range(count):
        found = {name: axes[name][0] if draws.random() < 0.5 else draws.choice(axes[name]) for name in others}
        always = [(name, value) for name in others for value in axes[name]]
        found |= dict([always[number % len(always)]])
        yield {first: axes[first][number % len(axes[first])]} | found


def pairs(axes: Axes) -> Iterator[dict[str, Any]]:
    """See :func:`cells`."""
    first, *others = axes
    defaults = {name: axes[name][0] for name in others}
    for value, (one, other) in itertools.product(axes[first], itertools.combinations(others, 2)):
        for chosen in itertools.product(axes[one][1:], axes[other][1:]):
            yield {first: value} | defaults | dict(zip((one, other), chosen, strict=True))
