"""The line about a wait that takes long: it names the call, and the ranks that have not come to it.

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
from collections.abc import Mapping, Sequence
from typing import Any

from hpcgnn.world import job
from hpcgnn.world.blocking import SAY_SECONDS, SHARE_OF_TIMEOUT
from hpcgnn.world.progress import PROGRESS

_ASK_SHARE = 5 / 6  # of the time after which the line is printed: answers arrive before
_LOOK_SHARE = 1 / 60  # of the same time, between two looks for questions
_ASKERS = 8  # the lowest of these ranks that waits prints the line; each sends P questions
_NOTE_BYTES = 64
_QUESTION, _ANSWER = 32_001, 32_002  # tags beside all other messages between two ranks; MPI has tags up to 32,767
_MOST_NAMED = 8

_LOG = logging.getLogger("hpcgnn")


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

        mpi: mpi4py's module. comm: the communicator of the call. waited: seconds since the wait began.
        """
        say_at = max(self.say_seconds, timeout_seconds * SHARE_OF_TIMEOUT)
        if waited < say_at * _LOOK_SHARE or waited < self._next_look:
            return
        self._next_look = waited + say_at * _LOOK_SHARE
        with contextlib.suppress(mpi.Exception):
            self._answer(mpi, what)
            may_ask = mpi.COMM_WORLD.rank < _ASKERS
            if may_ask and not self._has_asked and waited > say_at * _ASK_SHARE:
                self._has_asked = True
                self._ask(mpi, comm)
            if may_ask and not self._has_said and waited > say_at:
                self._has_said = True
                self._say(mpi, comm, waited, what)

    def over(self, waited: float) -> None:
        """End a wait that took ``waited`` seconds."""
        if self._next_look:
            if self._has_asked:
                self.say_seconds = max(self.say_seconds, 2 * waited)
            self._next_look, self._has_asked, self._has_said = 0.0, False, False

    def _ask(self, mpi: Any, comm: Any) -> None:
        self._questions, self._calls = self._questions + 1, {}
        for other in _others(mpi, comm):
            self._send(mpi, other, _QUESTION, str(self._questions))

    def _answer(self, mpi: Any, what: str) -> None:
        for asker, question in _received(mpi, _QUESTION):
            self._send(mpi, asker, _ANSWER, f"{question} {what}")

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
            # Commands print warnings of rank 0 only.
            level = logging.ERROR if rank else logging.WARNING
            _LOG.log(level, "%s", sentence(rank, waited, what, _others(mpi, comm), self._calls))


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
    """Receive, when Python ends, the questions that came while this rank computed, and late answers. MPICH may crash at its end
    where a message was never received. Not collective."""
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
    shown, left = [str(rank) for rank in ranks[:_MOST_NAMED]], len(ranks) - _MOST_NAMED
    if len(ranks) == 1:
        return f"rank {shown[0]}"
    return "ranks " + (
        f"{', '.join(shown)} and {left} others" if left > 0 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    )


ROLL_CALL = RollCall()  # one for each process, like MPI
