"""The one exception that users see, for everything that a user can cause. Any other one is a bug and keeps its traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Characters that a terminal obeys as commands, and those that change the direction of text.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_LONGEST = 200  # characters of a value in a sentence


class HpcgnnError(Exception):
    """A problem that the user can solve: a missing or damaged file, a wrong value, settings that contradict each other.

    ``str(error)`` is one sentence that says what happened, where, and what to do. Wrong values of arguments are also a
    ``ValueError`` (``WrongValueError``), and wrong types a ``TypeError`` (``WrongTypeError``).

    Attributes:
        agreed: True if every rank raised the same error, so that one of them can print it and all can end by themselves.
            False if only this rank knows of it: the job must then be aborted.
    """

    def __init__(self, message: str, *, agreed: bool = False) -> None:
        super().__init__(message)
        self.agreed = agreed


class WrongValueError(HpcgnnError, ValueError):
    """An argument or a setting of a Python program has the right type, but a value that is not allowed."""


class WrongTypeError(HpcgnnError, TypeError):
    """An argument or a setting of a Python program has a wrong type."""


def printable(text: str, *, keep: str = "") -> str:
    """``text`` with its control characters, except those in ``keep``, written as Python's escapes: names and contents of files
    may come from other people, and must not give commands to a terminal."""
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def quoted(value: object) -> str:
    """``repr(value)`` in one line, cut after 200 characters, for an error's sentence."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write whole numbers with thousands of digits
        text = f"one of type {type(value).__name__}"
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most similar to a mistyped one; empty if none is similar."""
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1)), "")


class StalledError(HpcgnnError):
    """A wait has reached its deadline. ``grace_seconds``: the time to wait before the job is aborted, so that other ranks can
    reach their deadlines as well."""

    def __init__(self, message: str, grace_seconds: float) -> None:
        super().__init__(message)
        self.grace_seconds = grace_seconds
