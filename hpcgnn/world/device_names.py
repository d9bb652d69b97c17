"""The names that ``--device`` takes; no torch is imported for them."""

from __future__ import annotations

import re

from hpcgnn.base.errors import WrongValueError

AUTO, HOST = "auto", "cpu"
_NAMED = re.compile(r"auto|cpu|cuda(:\d{1,4})?")


def check_device(asked: str) -> None:
    """Raise WrongValueError unless ``asked`` is one of the names that ``--device`` takes."""
    if not isinstance(asked, str) or not _NAMED.fullmatch(asked):
        raise WrongValueError(
            f"device must be auto, cpu, cuda or cuda:N (AMD's GPUs are called cuda too), not {asked!r}"
        )
