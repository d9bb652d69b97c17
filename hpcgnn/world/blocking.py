"""The error of a wait in vain, and a time limit for MPI calls that block because they have no nonblocking form: those that make
communicators, windows and files."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator

from hpcgnn.base.errors import StalledError, printable
from hpcgnn.world.job import flush_output

# A wait is told after 30 s, or later in a job that may wait for long, as partitioning does: 30 s are this share of training's
# 1,800 s.
SAY_SECONDS = 30.0
SHARE_OF_TIMEOUT = 1 / 60
# Ranks reach a wait at different times, by as much as their computing times differ; so their deadlines differ as much.
_LEAST_GRACE_SECONDS, _MOST_GRACE_SECONDS = 2.0, 60.0


def stalled(who: str, seconds: float, what: str) -> StalledError:
    """The error of a process ``who`` that waited ``seconds`` in vain for ``what``."""
    return StalledError(
        f"{who} waited {seconds:.0f} s for {what}: a peer or a link has stopped (raise --timeout if the step can really take "
        "that long)",
        grace_seconds=min(max(seconds, _LEAST_GRACE_SECONDS), _MOST_GRACE_SECONDS),
    )


@contextlib.contextmanager
def limited(
    seconds: float, error: StalledError, rank: int, what: str, say_seconds: float = SAY_SECONDS
) -> Iterator[None]:
    """Run a body that may hang inside a call. If it still runs after ``seconds``, print ``error``, and end the process unless
    the body ends within the error's grace time.

    No exception can be raised in a thread that is inside C code, and MPI may not be called beside it. So another thread prints
    the error, gives other ranks time to report their own waits, and ends the process; the launcher then ends the job.
    rank: rank of this process. what: the call, which ranks 0 and 1 name in a line after ``say_seconds``.
    """
    is_over = threading.Event()
    say_seconds = max(say_seconds, seconds * SHARE_OF_TIMEOUT)
    told = (min(seconds, threading.TIMEOUT_MAX), say_seconds, error, rank, what, is_over)
    threading.Thread(target=_limit, args=told, name="limit", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _limit(
    seconds: float, say_seconds: float, error: StalledError, rank: int, what: str, is_over: threading.Event
) -> None:
    """Say that the body takes long, and in the end leave."""
    if say_seconds < seconds:
        if is_over.wait(say_seconds):
            return
        if rank < 2:  # either may be the one that does not come
            level = logging.ERROR if rank else logging.WARNING
            logging.getLogger("hpcgnn").log(level, "rank %d has waited for %.0f s for %s", rank, say_seconds, what)
        seconds -= say_seconds
    if not is_over.wait(seconds):
        _leave(error, rank, is_over)


def _leave(error: StalledError, rank: int, is_over: threading.Event) -> None:
    """Print ``error``, and end the process unless the body ends within the grace time."""
    with contextlib.suppress(Exception):  # it must end also where nobody can be told
        sys.stderr.write(f"hpcgnn: error on rank {rank}: {printable(str(error))}\n")
    flush_output()
    if not is_over.wait(error.grace_seconds):
        os._exit(1)
