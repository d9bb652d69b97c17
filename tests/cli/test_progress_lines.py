"""Lines of progress for output that is not a terminal."""

from __future__ import annotations

import pytest

from hpcgnn.cli import console


@pytest.fixture
def clock(monkeypatch):
    """A clock in seconds that the test sets."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console, "is_terminal", lambda _: False)
    return now


def test_a_line_now_and_then_says_how_long_it_will_take(clock, capsys):
    with console.progress("planning parts", 100) as advance:
        for seconds in (1, 59, 61, 100, 7200):
            clock[0] = seconds
            advance(10)
    assert capsys.readouterr().err.splitlines() == [
        "note: planning parts: 30% after 1 min, about 2 min left",
        "note: planning parts: 50% after 2 h 0 min, about 2 h 0 min left",
    ]


def test_quiet_is_quiet(clock, capsys):
    with console.progress("planning parts", 10, quiet=True) as advance:
        clock[0] = 1000
        advance(5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (29, "29 s"), (3569, "59 min"), (3580, "1 h 0 min"), (3700, "1 h 2 min")]
)
def test_spans(seconds, text):
    assert console._span(seconds) == text
