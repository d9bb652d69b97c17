"""The line about a wait that takes long: it names the call, and the ranks that have not come to it.

MPI does not tell which ranks a collective waits for. So a rank that has waited for some seconds sends a note with the name of its
call to the first ranks, and another note when the wait is over. The lowest of these ranks that waits as well prints one line. A
rank without a note computes, has ended, or has come only just now. Usually no wait takes long, and nothing is sent.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hpcgnn.comm.blocking import SAY_SECONDS, SHARE_OF_TIMEOUT

_TELL_SHARE = 6  # notes arrive before the line is printed
_READERS = 8  # P ranks send up to 8 P notes of 64 bytes in a wait that takes long
_NOTE_BYTES = 64
_TAG = 32_001  # beside all other messages between two ranks; MPI guarantees tags up to 32,767
_MOST_NAMED = 8

_LOG = logging.getLogger("hpcgnn")


class RollCall:
    """The notes of this process, and those that it has received. say_seconds: the time after which a wait is told; more after
    waits that took longer and came to an end."""

    def __init__(self, say_seconds: float = SAY_SECONDS) -> None:
        self.say_seconds = say_seconds
        self._calls: dict[int, str] = {}  # what each rank waits for, as far as it has told
        self._sent: list[tuple[Any, bytes]] = []
        self._has_told = self._has_said = False

    def during(self, mpi: Any, comm: Any, waited: float, what: str, timeout_seconds: float) -> None:
        """Tell other ranks, and later the user, that this rank waits for ``what``. Call it again and again in a wait.

        mpi: mpi4py's module. comm: the communicator of the call.
        """
        say_at = max(self.say_seconds, timeout_seconds * SHARE_OF_TIMEOUT)
        if not self._has_told and waited > say_at / _TELL_SHARE:
            self._has_told = True
            self._tell(mpi, what)
        if not self._has_said and waited > say_at:
            self._has_said = True
            self._say(mpi, comm, waited, what)

    def over(self, mpi: Any, waited: float) -> None:
        """End a wait that took ``waited`` seconds."""
        if self._has_told:
            self._tell(mpi, "")
            if self._has_said:
                self.say_seconds = max(self.say_seconds, 2 * waited)
            self._has_told = self._has_said = False

    def _tell(self, mpi: Any, what: str) -> None:
        world = mpi.COMM_WORLD
        note = what.encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES, b"\0")
        with contextlib.suppress(mpi.Exception):
            self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
            for reader in range(min(_READERS, world.size)):
                if reader != world.rank:
                    self._sent.append((world.Isend([note, mpi.BYTE], reader, _TAG), note))
            self._read(mpi)

    def _read(self, mpi: Any) -> None:
        status, note = mpi.Status(), bytearray(_NOTE_BYTES)
        while mpi.COMM_WORLD.Iprobe(mpi.ANY_SOURCE, _TAG, status):
            mpi.COMM_WORLD.Recv([note, mpi.BYTE], status.source, _TAG)
            self._calls[status.source] = note.rstrip(b"\0").decode(errors="replace")

    def _say(self, mpi: Any, comm: Any, waited: float, what: str) -> None:
        """Print the line, unless a lower rank does."""
        with contextlib.suppress(mpi.Exception):
            self._read(mpi)
            rank = mpi.COMM_WORLD.rank
            waiting = {other: call for other, call in self._calls.items() if call}
            if rank < _READERS and (not waiting or rank < min(waiting)):
                others = mpi.Group.Translate_ranks(comm.group, None, mpi.COMM_WORLD.group)
                text = sentence(rank, waited, what, [other for other in others if other != rank], waiting)
                # Commands print warnings of rank 0 only.
                _LOG.log(logging.ERROR if rank else logging.WARNING, "%s", text)


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
