"""Coverage notes by which test a line was run, by the names that this module gives (``make coverage``)."""

from __future__ import annotations

import sys


def count_for(test: str) -> None:
    """If coverage measures this process, count the lines that run from now on for ``test``, as $PYTEST_CURRENT_TEST names it."""
    coverage = sys.modules.get("coverage")
    measured = coverage and coverage.Coverage.current()
    if measured:
        measured.switch_context(test.rpartition(" (")[0] or test)
