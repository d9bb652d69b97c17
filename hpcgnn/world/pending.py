"""A collective that was started and may still be running."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Pending:
    """The request of a started collective, and the objects that must live until it ends.

    request: has MPI's ``Test()``; None if the collective was complete when it started. what: its name in error messages.
    buffers: objects to keep alive. seconds: time from the start until a test or wait found it complete; 0 before.
    """

    request: Any
    what: str
    buffers: tuple[Any, ...]
    started_at: float
    seconds: float = 0.0
    error: Exception | None = None

    @classmethod
    def started(cls, request: Any, what: str, *buffers: Any) -> Pending:
        """A collective that starts now."""
        return cls(request, what, buffers, time.perf_counter())

    @classmethod
    def done(cls, what: str) -> Pending:
        """A collective that was complete as soon as it started."""
        return cls(None, what, (), time.perf_counter(), seconds=1e-9)

    def test(self) -> bool:
        """Let MPI make progress; true once this is complete. An error that MPI raised is raised again by each later call."""
        if self.error is not None:  # MPI forgets it: a request that failed is null afterwards
            raise self.error
        if not self.seconds:
            try:
                complete = self.request.Test()
            except Exception as error:
                self.error = error
                raise
            if complete:
                self.seconds = time.perf_counter() - self.started_at
        return self.seconds > 0
