"""The agreement of ranks on errors: either all ranks raise the same error, or none does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from hpcgnn.base.errors import HpcgnnError, again


class Agreeing(Protocol):
    """The part of :class:`hpcgnn.world.world.World` that ranks need in order to agree."""

    rank: int
    size: int

    def allreduce(self, values: np.ndarray, op: str = "sum", what: str = "a reduction") -> np.ndarray:
        """See :meth:`hpcgnn.world.world.World.allreduce`."""
        ...

    def broadcast(self, value: Any, root: int = 0, what: str = "a broadcast") -> Any:
        """See :meth:`hpcgnn.world.world.World.broadcast`."""
        ...


@contextlib.contextmanager
def raise_on_all_ranks(world: Agreeing, doing: str) -> Iterator[None]:
    """Run a body that has no collectives; if it raises :class:`HpcgnnError` on any rank, raise the same error on all. Collective.

    The error of the lowest failing rank is the one that is raised, and an ``OSError`` becomes "cannot <doing>: ...". Any other
    exception is a bug: it keeps its traceback on its own rank, and that rank's abort ends the job.
    """
    error: HpcgnnError | None = None
    try:
        yield
    except HpcgnnError as caught:
        error = caught
    except OSError as caught:
        error = HpcgnnError(f"cannot {doing}: {caught.strerror or caught}" + _named(caught.filename))
    failing = np.array([world.size if error is None else world.rank], dtype=np.int64)
    first = int(world.allreduce(failing, "min", f"every rank to {doing}")[0])
    if first < world.size:
        kind = None if error is None else type(again(error, ""))
        kind, sentence = world.broadcast((kind, str(error)), first, f"rank {first}'s problem")
        # If this rank's error has the same sentence, it is left out, because a traceback should show each sentence once.
        cause = error.__cause__ if error is not None and str(error) == sentence else error
        raise kind(sentence, agreed=True) from cause


def same_everywhere(world: Agreeing, values: Sequence[int], problem: str) -> None:
    """Raise :class:`HpcgnnError` with ``problem`` on every rank unless all ranks have the same ``values``, each below 2**64.

    Collective."""
    mine = np.array(list(values), dtype=np.uint64).view(np.int64)
    most = world.allreduce(np.concatenate((mine, ~mine)), "max", "the ranks to compare what they have read")
    if not np.array_equal(most[: mine.size], ~most[mine.size :]):
        raise HpcgnnError(problem, agreed=True)


def _named(filename: object) -> str:
    return f" ({filename})" if filename else ""
