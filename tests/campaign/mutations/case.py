"""A file, who reads it, and how it may be damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from campaign.mutations.mutation import Mutation, Mutator, pick
from campaign.mutations.readers import Reader


@dataclass(frozen=True, eq=False)
class Case:
    """copies: (name among the inputs, name beside the reader). target: the one to be damaged, as the reader finds it. ways: what
    may be done to it, groups of which are chosen alike. weight: how often it is chosen."""

    kind: str
    reader: Reader
    copies: tuple[tuple[str, str], ...]
    target: str
    ways: tuple[list[Mutator], ...]
    weight: int = 1

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.kind} / {self.reader.name}"

    def mutate(self, folder: Path, rng: np.random.Generator) -> Mutation:
        """Damage the target in ``folder``, once."""
        way: Callable[[Path, np.random.Generator], Mutation] = pick(rng, pick(rng, self.ways))  # type: ignore[call-overload,assignment]
        return way(folder / self.target, rng)
