"""A collective that was started and is not over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Pending:
    """The request of a started collective, and what must live until it ends.

    request: has MPI's ``Test()``; None where it was complete when it started. what: the words for it in a sentence. seconds:
    from the start until a test or wait found it complete; 0 before.
    """

    request: Any
    what: str
    buffers: tuple[Any, ...]
    started_at: float
    seconds: float = 0.0
    error: Exception | None = None

    @classmethod
    def started(cls, request: Any, what: str, *buffers: Any) -> Pending:
        """That has just begun."""
        return cls(request, what, buffers, time.perf_counter())

    @classmethod
    def done(cls, what: str) -> Pending:
        """That was complete as soon as it had begun."""
        return cls(None, what, (), time.perf_counter(), seconds=1e-9)

    def test(self) -> bool:
        """Give MPI a chance to make progress; true once this is complete. Raises what MPI has raised, each time."""
        if self.error is not None:  # MPI itself forgets it: a request that failed is none afterwards
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
