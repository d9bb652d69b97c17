"""What a mutator says of what it did, and what has to become of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REFUSE = "refuse"
SAME = "same"
FREE = "free"
"""What has to become of a mutated file:

refuse: the schema forbids it. Any exit but an error is a defect.
same: it may be refused. If it is accepted, what is made of it has to be what is made of the file as it was.
free: it is, or may be, a valid other file. It may be accepted with any result.
any other text: the digest of what a valid other file holds, by :mod:`oracles`. It may be refused, or accepted with that result.
"""


@dataclass(frozen=True)
class Mutation:
    """what: in words. expects: above. touches: the dataset, array or field, for readers that do not read all of a file. names:
    words of which a refusal has one, where that is not the name of the damaged file."""

    what: str
    expects: str
    touches: str = ""
    names: tuple[str, ...] = ()


Mutator = Callable[[Path, np.random.Generator], Mutation]
"""Changes the file in place, once."""


def pick(rng: np.random.Generator, options: list | tuple | dict) -> object:
    """One of them, as it is: numpy's choice would make arrays of them."""
    options = list(options)
    return options[int(rng.integers(len(options)))]
