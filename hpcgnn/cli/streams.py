"""The standard streams of a command: results that cannot be written are an error of one sentence, and messages that cannot be
written are lost, because nobody can be told."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
from typing import Any, Self

from hpcgnn.base.errors import HpcgnnError


def set_up() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by streams that end a command in one sentence where they cannot be written.

    A stream that the caller has closed gets an open descriptor, so that no file of the command is opened in its place and then
    written by a library that prints.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)  # the lowest that is free; a read-only one refuses results
            if name != "stdin":
                setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    with contextlib.suppress(io.UnsupportedOperation):  # a stream of another program, which may be no file
        sys.stdout, sys.stderr = _Results.of(sys.stdout), _Messages.of(sys.stderr)
        atexit.register(_give_up)


class _Stream(io.TextIOWrapper):
    @classmethod
    def of(cls, stream: Any) -> Self:
        """A stream for the same descriptor, in place of a text stream. Names of files may be any bytes."""
        stream.flush()
        at_once = bool(getattr(stream, "write_through", False))
        buffer = open(stream.fileno(), "wb", 0 if at_once else -1, closefd=False)  # noqa: SIM115
        at_line_ends = bool(getattr(stream, "line_buffering", False))
        return cls(buffer, stream.encoding, "backslashreplace", line_buffering=at_line_ends, write_through=at_once)

    def write(self, text: str) -> int:
        """As of any text stream. click writes an empty text to see whether it can write, and ignores the error."""
        try:
            return super().write(text) if text != "" else 0
        except OSError as error:
            self.fail(error)
        return len(text)

    def flush(self) -> None:
        """As of any text stream."""
        try:
            super().flush()
        except OSError as error:
            self.fail(error)

    def fail(self, error: OSError) -> None:
        """End or go on where the system refuses to write."""
        raise NotImplementedError


class _Results(_Stream):
    def fail(self, error: OSError) -> None:
        """Raise HpcgnnError, or the system's error for a reader that has left, as ``head`` does: then a command ends quietly."""
        with contextlib.suppress(OSError):  # what is still in the buffer goes nowhere, without a second error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise error
        raise HpcgnnError(
            f"cannot write to standard output: {error.strerror}; files that this command has written are complete"
        ) from error


class _Messages(_Stream):
    def fail(self, error: OSError) -> None:
        """Go on, because the work does not need its messages."""


def _give_up() -> None:
    """Drop results that cannot be written when Python ends, where it would print the error and change the exit code."""
    with contextlib.suppress(HpcgnnError, OSError, ValueError):
        sys.stdout.flush()
