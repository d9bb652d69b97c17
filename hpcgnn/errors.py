"""The one exception that users see.

Everything that a user can cause (a missing file, a graph without features, a checkpoint of another model) is raised as
:class:`HpcgnnError` with one sentence that says what is wrong, where, and what to do. Any other exception is a bug and
keeps its traceback.
"""

from __future__ import annotations


class HpcgnnError(Exception):
    """A problem the user can act on; ``str(error)`` is the sentence to print.

    ``agreed`` is true when every rank raised the same error (see :meth:`hpcgnn.comm.World.together`), so that one of
    them can print it and all can leave in order. False means that only this rank knows, and the job must be aborted.
    """

    def __init__(self, message: str, *, agreed: bool = False) -> None:
        super().__init__(message)
        self.agreed = agreed


class WrongValueError(HpcgnnError, ValueError):
    """An argument or a setting that Python gave, of the right type, whose value cannot be."""


class WrongTypeError(HpcgnnError, TypeError):
    """An argument or a setting that Python gave, of another type than it has."""


def again(error: HpcgnnError, message: str) -> HpcgnnError:
    """An error of the same kind as ``error``, which all ranks raise with the same ``message``."""
    kinds = (WrongValueError, WrongTypeError)
    return next((kind for kind in kinds if isinstance(error, kind)), HpcgnnError)(message, agreed=True)


class StalledError(HpcgnnError):
    """A wait ran into its deadline.

    ``grace_seconds``: how long to leave the others, which wait as well, until theirs, before the job is aborted.
    """

    def __init__(self, message: str, grace_seconds: float) -> None:
        super().__init__(message)
        self.grace_seconds = grace_seconds
