"""Faults of a link or of a rank, and their durations."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcgnn.lab.virtual.network import Network

RATE, SLOW = "50mbit", "1mbit"
_FITS, _FIT_SECONDS = 5, 0.2
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Victim:
    """A host of the cluster, and the process of its rank."""

    network: Network
    host: int
    pid: int

    def cut(self) -> None:
        """Cut the link of the host."""
        self.network.set_link(self.network.hosts[self.host], up=False)

    def heal(self) -> None:
        """Restore the link."""
        self.network.set_link(self.network.hosts[self.host], up=True)


Go = Callable[[], None]


def cut_for_good(victim: Victim, go: Go, seconds: float) -> None:
    """Cut the link; it is restored after the run has ended."""
    victim.cut()
    go()


def cut_short(victim: Victim, go: Go, seconds: float) -> None:
    """Cut the link for some seconds."""
    victim.cut()
    go()
    time.sleep(seconds)
    victim.heal()


def slow(victim: Victim, go: Go, seconds: float) -> None:
    """Slow down all links."""
    victim.network.set_rate(SLOW)
    go()
    time.sleep(seconds)
    victim.network.set_rate(RATE)


def in_fits(victim: Victim, go: Go, seconds: float) -> None:
    """Cut and restore the link again and again, so that messages come late and in bursts."""
    victim.cut()
    go()
    for _ in range(_FITS):
        time.sleep(_FIT_SECONDS)
        victim.heal()
        time.sleep(_FIT_SECONDS)
        victim.cut()
    victim.heal()


def paused(victim: Victim, go: Go, seconds: float) -> None:
    """Stop the rank of the host for a while."""
    paused_rank(victim.pid, go, seconds)


def paused_rank(pid: int, go: Go, seconds: float) -> None:
    """Send SIGSTOP, and SIGCONT some seconds later if the process still exists."""
    os.kill(pid, signal.SIGSTOP)
    go()
    until = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(pid, 0)
            time.sleep(_LOOK_SECONDS)
        os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True)
class Kind:
    """A kind of fault. seconds: shortest and longest duration. ends_job: it lasts longer than ``--timeout``."""

    name: str
    happens: Callable[[Victim, Go, float], None]
    seconds: tuple[float, float]
    timeout_seconds: float
    ends_job: bool = False


def kinds(longest_pause: float) -> Sequence[Kind]:
    """All kinds of faults."""
    return (
        Kind("cut and healed", cut_short, (0.2, 1.5), 60),
        Kind("1 Mbit/s for a while", slow, (0.5, 2.0), 60),
        Kind("delayed in fits", in_fits, (0.0, 0.0), 60),
        Kind("paused", paused, (0.3, 3.0), 60),
        Kind("paused for long", paused, (longest_pause, longest_pause), 60 + longest_pause),
        Kind("cut for good", cut_for_good, (0.0, 0.0), 4, ends_job=True),
        Kind("paused beyond --timeout", paused, (10.0, 12.0), 4, ends_job=True),
    )
