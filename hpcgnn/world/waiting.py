"""Waits that take long: the line that tells of one, the error of a wait in vain, and a time limit for MPI calls that have no
nonblocking form.

MPI does not tell which ranks a collective waits for. So one of the first ranks, when it has waited for long, asks all others, and
each rank that waits as well answers with the name of its call. A rank that does not answer computes, has ended, or has come only
just now. Usually no wait takes long, and nothing is sent.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcgnn.base.errors import StalledError, printable
from hpcgnn.world import job
from hpcgnn.world.job import PROGRESS, flush_output

_LOG = logging.getLogger("hpcgnn")
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
    if say_seconds < seconds:
        if is_over.wait(say_seconds):
            return
        if rank < 2:  # either may be the one that does not come
            say(rank, f"rank {rank} has waited for {say_seconds:.0f} s for {what}")
        seconds -= say_seconds
    if not is_over.wait(seconds):
        with contextlib.suppress(Exception):  # it must end also where nobody can be told
            sys.stderr.write(f"hpcgnn: error on rank {rank}: {printable(str(error))}\n")
        flush_output()
        if not is_over.wait(error.grace_seconds):
            os._exit(1)


def say(rank: int, sentence: str) -> None:
    """Print a line of this rank about a wait: commands print warnings of rank 0 only, and errors of all ranks."""
    _LOG.log(logging.ERROR if rank else logging.WARNING, "%s", sentence)


_ASK_SHARE = 5 / 6  # of the time after which the line is printed: answers arrive before
_LOOK_SHARE = 1 / 60  # of the same time, between two looks for questions
_ASKERS = 8  # the lowest of these ranks that waits prints the line; each sends P questions
_NOTE_BYTES = 64
_QUESTION, _ANSWER = 32_001, 32_002  # tags beside all other messages between two ranks; MPI has tags up to 32,767
_MOST_NAMED = 8


class RollCall:
    """The questions and answers of this process. say_seconds: the time after which a wait is told; more after waits
    that took longer and came to an end, as of a rank that is always slow."""

    def __init__(self, say_seconds: float = SAY_SECONDS) -> None:
        self.say_seconds = say_seconds
        self._questions = 0
        self._calls: dict[int, str] = {}  # the calls of the ranks that have answered the last question
        self._sent: list[tuple[Any, bytes]] = []
        self._next_look, self._has_asked, self._has_said = 0.0, False, False

    def during(self, mpi: Any, comm: Any, waited: float, what: str, timeout_seconds: float) -> None:
        """Answer questions, ask, and say that this rank waits for ``what``, when it is time. Call it again and again in a wait.
        mpi: mpi4py's module. comm: the communicator of the call. waited: seconds since the wait began."""
        say_at = max(self.say_seconds, timeout_seconds * SHARE_OF_TIMEOUT)
        if waited < say_at * _LOOK_SHARE or waited < self._next_look:
            return
        self._next_look = waited + say_at * _LOOK_SHARE
        with contextlib.suppress(mpi.Exception):
            for asker, question in _received(mpi, _QUESTION):
                self._send(mpi, asker, _ANSWER, f"{question} {what}")
            may_ask = mpi.COMM_WORLD.rank < _ASKERS
            if may_ask and not self._has_asked and waited > say_at * _ASK_SHARE:
                self._has_asked, self._questions, self._calls = True, self._questions + 1, {}
                for other in _others(mpi, comm):
                    self._send(mpi, other, _QUESTION, str(self._questions))
            if may_ask and not self._has_said and waited > say_at:
                self._has_said = True
                self._say(mpi, comm, waited, what)

    def over(self, waited: float) -> None:
        """End a wait that took ``waited`` seconds."""
        if self._next_look:
            if self._has_asked:
                self.say_seconds = max(self.say_seconds, 2 * waited)
            self._next_look, self._has_asked, self._has_said = 0.0, False, False

    def _send(self, mpi: Any, rank: int, tag: int, note: str) -> None:
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        kept = note.encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES, b"\0")
        self._sent.append((mpi.COMM_WORLD.Isend([kept, mpi.BYTE], rank, tag), kept))

    def _say(self, mpi: Any, comm: Any, waited: float, what: str) -> None:
        """Print the line, unless a lower rank waits as well and does."""
        for other, note in _received(mpi, _ANSWER):
            question, _, call = note.partition(" ")
            if question == str(self._questions):
                self._calls[other] = call
        rank = mpi.COMM_WORLD.rank
        if rank < min(self._calls, default=rank + 1):
            say(rank, sentence(rank, waited, what, _others(mpi, comm), self._calls))


def _others(mpi: Any, comm: Any) -> list[int]:
    """The other ranks of a communicator, by their numbers in the job. O(P) memory."""
    world = mpi.COMM_WORLD
    ranks = mpi.Group.Translate_ranks(comm.group, None, world.group)
    return [int(rank) for rank in ranks if rank not in (world.rank, mpi.UNDEFINED)]


def _received(mpi: Any, tag: int) -> list[tuple[int, str]]:
    """The senders and texts of the notes that have arrived."""
    found, status, note = [], mpi.Status(), bytearray(_NOTE_BYTES)
    while mpi.COMM_WORLD.Iprobe(mpi.ANY_SOURCE, tag, status):
        mpi.COMM_WORLD.Recv([note, mpi.BYTE], status.source, tag)
        found.append((status.source, note.rstrip(b"\0").decode(errors="replace")))
    return found


@functools.cache
def receive_all_at_exit() -> None:
    """Receive, when Python ends, the questions that came while this rank computed, and late answers, because MPICH may crash at
    its end where a message was never received. Not collective."""
    process = os.getpid()

    def receive() -> None:
        if os.getpid() == process and job.is_parallel():
            mpi = sys.modules["mpi4py.MPI"]
            PROGRESS.take_over()
            with contextlib.suppress(mpi.Exception):
                for tag in (_QUESTION, _ANSWER):
                    _received(mpi, tag)

    atexit.register(receive)


def sentence(rank: int, waited: float, what: str, others: Sequence[int], calls: Mapping[int, str]) -> str:
    """The line about a wait of ``rank``. others: the other ranks of the call. calls: by rank, the call in which it waits."""
    away = [other for other in others if other not in calls]
    elsewhere = {other: calls[other] for other in others if calls.get(other, what) != what}
    text = f"rank {rank} has waited for {waited:.0f} s in the call '{what}'"
    text += f" for {named(away)}" if away else ""
    if elsewhere:
        text += "".join(f"; rank {other} waits in '{call}'" for other, call in list(elsewhere.items())[:_MOST_NAMED])
    elif not away:
        text += ", and so have all other ranks: a link may have stopped"
    return text


def named(ranks: Sequence[int]) -> str:
    """``rank 2``, or ``ranks 2, 3 and 17 others``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed, left = [str(rank) for rank in ranks[:_MOST_NAMED]], len(ranks) - _MOST_NAMED
    *shown, last = [*listed, f"{left} others"] if left > 0 else listed
    return f"ranks {', '.join(shown)} and {last}"


ROLL_CALL = RollCall()  # one for each process, like MPI
