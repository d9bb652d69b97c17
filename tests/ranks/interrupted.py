"""A stop signal that arrives while ctypes converts an argument, which turns the exception into an error of another kind."""

from __future__ import annotations

import ctypes
import os
import signal

from hpcgnn.cli import main as command_line


class Argument:
    @property
    def _as_parameter_(self) -> int:
        os.kill(os.getpid(), signal.SIGTERM)  # Ctrl-C is ignored if a shell has started the tests in the background
        return 0


def job(*_: object, obj: object, **__: object) -> None:
    obj.advice = "go on with --resume"
    abs_of = ctypes.CDLL(None).abs
    abs_of.argtypes = [ctypes.c_int]
    abs_of(Argument())


command_line.cli.main = job
command_line.main()
