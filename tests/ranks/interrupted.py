"""A command that SIGTERM interrupts in the place that the first argument names."""

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

from hpcgnn.cli import main as command_line
from hpcgnn.comm.mpi_world import MpiWorld


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


def job(*_: object, obj: object, **__: object) -> None:
    obj.advice = "go on with --resume"
    globals()[sys.argv[1]]()


command_line.cli.main = job
command_line.main()
