"""The description of a mutation, and of the expected outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REFUSE = "refuse"
SAME = "same"
FREE = "free"
"""The expected outcome for a mutated file:

refuse: the schema forbids it. Any exit but an error is a defect.
same: it may be refused. If it is accepted, the result must be that of the original file.
free: it is, or may be, a valid other file. It may be accepted with any result.
any other text: the digest of what a valid other file holds, by :mod:`oracles`. It may be refused, or accepted with that result.
"""


@dataclass(frozen=True)
class Mutation:
    """A mutation. what: in words. expects: see above. touches: the dataset, array or field, for readers that do not read the
    whole file. names: words, one of which a refusal must contain if it does not name the damaged file.
    """

    what: str
    expects: str
    touches: str = ""
    names: tuple[str, ...] = ()


Mutator = Callable[[Path, np.random.Generator], Mutation]
"""Changes the file in place, once."""


def pick(rng: np.random.Generator, options: list | tuple | dict) -> object:
    """A random option, unchanged; numpy's own choice would convert options to arrays."""
    options = list(options)
    return options[int(rng.integers(len(options)))]
