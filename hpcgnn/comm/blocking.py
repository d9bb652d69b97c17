"""Waiting in vain: the error of it, and an end for calls of MPI that can only be waited for, because they have no form to test:
those that make communicators, windows and files."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from hpcgnn.errors import StalledError, printable

# Ranks come to what they wait for in vain as far apart as they compute, and so do their deadlines.
_LEAST_GRACE_SECONDS, _MOST_GRACE_SECONDS = 2.0, 60.0


def stalled(who: str, seconds: float, what: str) -> StalledError:
    """The error of a wait in vain."""
    return StalledError(
        f"{who} waited {seconds:.0f} s for {what}: a peer or a link has stopped (raise --timeout if the step can really take "
        "that long)",
        grace_seconds=min(max(seconds, _LEAST_GRACE_SECONDS), _MOST_GRACE_SECONDS),
    )


@contextlib.contextmanager
def limited(seconds: float, error: StalledError, rank: int) -> Iterator[None]:
    """Run a body that may stand still inside of a call; ``seconds`` later this process says ``error``, and leaves if it does not
    go on.

    Nothing can be raised in a thread that is inside of C, and MPI may not be called beside it. So another thread speaks, gives
    the others time to say what they wait for, and ends the process, upon which the launcher ends the job. rank: of the process.
    """
    is_over = threading.Event()
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), _leave, (error, rank, is_over))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        is_over.set()
        timer.cancel()


def _leave(error: StalledError, rank: int, is_over: threading.Event) -> None:
    """Unless the call ends after all, while the others are given time."""
    sys.stderr.write(f"hpcgnn: error on rank {rank}: {printable(str(error))}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    if not is_over.wait(error.grace_seconds):
        os._exit(1)
