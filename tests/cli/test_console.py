"""Output: what is a terminal (the launcher's output decides, whatever it gives to its ranks), tables, names, and progress."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from rich.table import Table

from hpcgnn.cli import console
from hpcgnn.launch import mpiexec

ASK = "from hpcgnn.cli import console; print(console.is_terminal(1), console.is_terminal(2))"


@pytest.mark.parametrize(
    ("is_launched", "on_terminal"),
    [
        (False, True),
        *(pytest.param(True, there, marks=[pytest.mark.mpi, pytest.mark.launches]) for there in (False, True)),
    ],
)
def test_what_is_a_terminal(is_launched, on_terminal):
    leader, follower = os.openpty()
    stderr = follower if on_terminal else subprocess.DEVNULL
    command = [*(mpiexec.command(1) if is_launched else []), sys.executable, "-c", ASK]
    output = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, check=True).stdout
    os.close(leader)
    os.close(follower)
    assert output.decode().split() == ["False", str(on_terminal)]


ORDERS = "a\x1b]0;title\x07b\x9b2J\r\u202ec"
HARMLESS = r"a\x1b]0;title\x07b\x9b2J\r\u202ec"


@pytest.mark.parametrize(("columns", "whole"), [(None, 12), ("60", 0)])
def test_numbers_in_a_file_are_not_cut_unless_a_width_is_given(columns, whole, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS", raising=False)
    table = Table(*(f"column {number}" for number in range(12)))
    table.add_row(*["1,234,567"] * 12)
    console.stdout().print(table)
    assert capsys.readouterr().out.count("1,234,567") == whole


def test_headings_break_before_numbers_are_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    console.numbers("", ("rows that are sent", "rows that are received"), [(1234567890, 9876543210)])
    assert capsys.readouterr().out.split()[-2:] == ["1,234,567,890", "9,876,543,210"]


def test_names_give_no_orders_to_a_terminal(capsys):
    """Names and texts in files may come from other people, so control characters are shown and not obeyed."""
    console.table(f"title {ORDERS}", [(f"name {ORDERS}", f"[bold]value[/bold] {ORDERS}")])
    console.note(ORDERS)
    console.set_up_logging("INFO", 0)
    logging.getLogger("hpcgnn").warning("%s", ORDERS)
    with console.progress(f"[/red] {ORDERS}", 1) as advance:
        advance(1)
    told = capsys.readouterr()
    assert not set("\x1b\x07\x9b\r\u202e") & set(told.out + told.err)
    assert told.out.count(HARMLESS) == 3
    assert "[bold]value[/bold]" in told.out
    assert told.err.count(HARMLESS) == 2


def test_a_bar_takes_a_name_for_no_markup(monkeypatch, capsys):
    monkeypatch.setattr(console, "is_terminal", lambda descriptor: True)
    with console.progress(f"[/red] {ORDERS}", 1) as advance:
        advance(1)
    assert "\x1b]0;title" not in capsys.readouterr().err


# -- progress ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A clock in seconds that the test sets, for output that is not a terminal."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console, "is_terminal", lambda _: False)
    return now


def test_a_line_now_and_then_says_how_long_it_will_take(clock, capsys):
    for quiet in (False, True):
        clock[0] = 0
        with console.progress("planning parts", 100, quiet=quiet) as advance:
            for seconds in (1, 59, 61, 100, 7200):
                clock[0] = seconds
                advance(10)
    assert capsys.readouterr().err.splitlines() == [
        "note: planning parts: 30% after 1 min, about 2 min left",
        "note: planning parts: 50% after 2 h 0 min, about 2 h 0 min left",
    ]


def test_there_are_bars_on_terminals_only(capsys, monkeypatch):
    def shown(**how):
        with console.progress("edges", 10, **how) as advance:
            advance(10)
        return capsys.readouterr()

    assert shown() == ("", "")
    monkeypatch.setattr(console, "is_terminal", lambda descriptor: True)
    monkeypatch.setenv("TERM", "xterm")
    output, bar = shown()
    assert output == ""
    assert "edges" in bar
    assert shown(quiet=True) == ("", "")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (29, "29 s"), (3569, "59 min"), (3580, "1 h 0 min"), (3700, "1 h 2 min")]
)
def test_spans(seconds, text):
    assert console._span(seconds) == text


def test_sizes():
    assert [console.size(n) for n in (0, 1023, 3 << 20, 5 << 40)] == ["0 B", "1023 B", "3.0 MiB", "5.0 TiB"]
