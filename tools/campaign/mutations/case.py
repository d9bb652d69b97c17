"""A file, its reader, and the ways to damage it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from campaign.mutations.mutation import Mutation, Mutator, pick
from campaign.mutations.readers import Reader


@dataclass(frozen=True, eq=False)
class Case:
    """A case. copies: pairs of the name among the inputs and the name beside the reader. target: the file to damage, by the
    reader's name for it. ways: groups of mutators; each group is chosen with the same probability. weight: relative frequency
    of the case.
    """

    kind: str
    reader: Reader
    copies: tuple[tuple[str, str], ...]
    target: str
    ways: tuple[list[Mutator], ...]
    weight: int = 1

    @property
    def name(self) -> str:
        """The name for people."""
        return f"{self.kind} / {self.reader.name}"

    def mutate(self, folder: Path, rng: np.random.Generator) -> Mutation:
        """Damage the target in ``folder`` once."""
        way: Callable[[Path, np.random.Generator], Mutation] = pick(rng, pick(rng, self.ways))  # type: ignore[call-overload,assignment]
        return way(folder / self.target, rng)
