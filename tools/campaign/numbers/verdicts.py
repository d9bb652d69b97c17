"""Comparison of the results of P ranks with those of one process."""

from __future__ import annotations

import math
import re

import numpy as np

from campaign.numbers.ranks import Outcome

TOLERANCE = {"float32": 2e-4, "jit": 2e-4, "reference": 2e-4, "float64": 1e-9, "bf16-emulated": 0.05}
MOST_SPREADS = 20.0
"""The factor for the change of one process's own results when its inputs change in their last bits."""


def difference(found: np.ndarray, wanted: np.ndarray, floor: float = 0.0) -> float:
    """The largest difference relative to the largest magnitude; 0 if all values are equal, including those that are
    not finite.
    """
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if not np.array_equal(np.isfinite(found), np.isfinite(wanted)):
        return math.inf
    kept = np.isfinite(wanted)
    if not kept.any():
        return 0.0
    off = float(np.abs(found[kept] - wanted[kept]).max())
    return off / max(float(np.abs(wanted[kept]).max()), floor) if off else 0.0


def differences(found: Outcome, wanted: Outcome, epochs: int) -> dict[str, float]:
    """The differences of the losses of this many first epochs, and of the gradients of the first epoch. They are relative to
    the largest gradient of all, because tiny gradients of one parameter are rounding errors of the others.
    """
    told = {"losses": difference(np.array(found.losses[:epochs]), np.array(wanted.losses[:epochs]))}
    names = wanted.gradients.keys()
    if found.gradients.keys() != names:
        return told | {"gradients": math.inf}
    both = [[np.ravel(each.gradients[name]) for name in names] for each in (found, wanted)]
    return told | {"gradients": difference(*(np.concatenate(each) if each else np.zeros(0) for each in both))}


def is_a_sentence(refused: str) -> bool:
    """Return whether a text can be shown to people: it is one line with words, without parts of Python code."""
    return "\n" not in refused and len(refused.split()) > 3 and "Traceback" not in refused and "Error(" not in refused


def of_numbers(refused: str) -> bool:
    """Return whether a training was refused because of its numbers, which may differ with another order of summation."""
    return re.search(r"NaN|nan|inf", refused) is not None


def finite_everywhere(found: Outcome) -> str:
    """A phrase about a value that is not finite in a training that completed; empty if there is none."""
    if not np.isfinite(found.losses).all():
        return f"ends well with losses {found.losses}"
    if not found.weights_finite:
        return "ends well with weights that are not finite"
    return ""


def ranks_disagree(outcomes: list[Outcome]) -> str:
    """A phrase about a difference between the ranks of one job; empty if there is none."""
    first = outcomes[0]
    for rank, each in enumerate(outcomes):
        if each.refused != first.refused:
            return f"rank {rank} ends with {each.refused or 'success'!r}, rank 0 with {first.refused or 'success'!r}"
        if each.metrics != first.metrics:
            return f"rank {rank} has metrics {each.metrics}, rank 0 {first.metrics}"
        if differences(each, first, len(first.losses))["losses"] > 1e-6:
            return f"rank {rank} has losses {each.losses}, rank 0 {first.losses}"
    return ""
