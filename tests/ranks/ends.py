"""A command that ends as its first argument says: SIGTERM interrupts it in some place, or a rank fails."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import click
import numpy as np

from hpcgnn.base import process
from hpcgnn.cli import main as command_line
from hpcgnn.world.mpi_world import MpiWorld


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # Ctrl-C is ignored if a shell has started the tests in the background


class Argument:
    @property
    def _as_parameter_(self) -> int:
        interrupt()
        return 0


class Finalised:
    def __del__(self) -> None:
        interrupt()


class Incomplete:
    """An exchange that never completes."""

    what = "a message that nobody sends"

    def test(self) -> bool:
        return False


def in_conversion_of_ctypes() -> None:
    """ctypes makes an error of another kind of the exception."""
    abs_of = ctypes.CDLL(None).abs
    abs_of.argtypes = [ctypes.c_int]
    abs_of(Argument())


def in_a_long_call() -> None:
    """Python's handlers wait until the call ends, and the launcher would kill the rank before. A lock that the thread itself has
    never opens, also not for a signal.
    """
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    threading.Timer(0.2, interrupt).start()
    lock(mutex)
    lock(mutex)


def in_a_fork() -> None:
    """The fork ends by the signal, and this process goes on."""
    fork = os.fork()
    if fork == 0:
        with contextlib.suppress(KeyboardInterrupt):
            interrupt()
            time.sleep(60)
        os._exit(0)
    os.waitpid(fork, 0)
    time.sleep(2 * process._ANSWER_SECONDS)
    print("went on")


def in_finaliser() -> None:
    """Python drops the exceptions of finalisers."""
    Finalised()
    time.sleep(60)


def while_cleaning_up() -> None:
    @contextlib.contextmanager
    def cleaned_up() -> Iterator[None]:
        try:
            yield
        finally:
            interrupt()
            print("cleaned up", flush=True)

    with cleaned_up():
        interrupt()


def again_and_again() -> None:
    def repeat() -> None:
        while True:
            interrupt()
            time.sleep(0.001)

    threading.Thread(target=repeat, daemon=True).start()
    time.sleep(60)


def at_exit() -> None:
    atexit.register(interrupt)


def in_wait() -> None:
    world = MpiWorld()
    os.write(sys.stdout.fileno(), b"waiting\n")  # one write: ``print`` may make two, between which another rank writes
    world.wait(Incomplete())


def one_fails() -> None:
    """Rank 1 raises an error while the others wait for it."""
    world = MpiWorld(timeout_seconds=60)
    if world.rank == 1:
        raise ValueError("only rank 1 knows")
    world.allreduce(np.ones(1), what="the others' numbers")


def mpi_fails() -> None:
    """Rank 1 has less room than rank 0 sends."""
    world = MpiWorld(timeout_seconds=20)
    try:
        world.broadcast_into(np.zeros(1000 if world.rank == 0 else 1), what="numbers of another file")
        world.allreduce(np.ones(1), what="the others")
    except KeyboardInterrupt as interruption:  # as click does
        raise click.Abort from interruption


def job(*_: object, obj: object, **__: object) -> None:
    obj.advice = lambda: "go on with --resume"
    globals()[sys.argv[1]]()


command_line.cli.main = job
command_line.main()
