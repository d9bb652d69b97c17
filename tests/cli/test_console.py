"""The definition of a terminal: the launcher's output decides, whatever the launcher gives to its ranks."""

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


@pytest.mark.mpi
@pytest.mark.launches
@pytest.mark.parametrize("on_terminal", [False, True])
def test_under_a_launcher(on_terminal):
    leader, follower = os.openpty()
    stderr = follower if on_terminal else subprocess.DEVNULL
    command = [*mpiexec.command(1), sys.executable, "-c", ASK]
    # Without the variables that MPI of a single process in an earlier test set behind Python's back.
    environment = dict(os.environ)
    output = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, check=True
    ).stdout
    os.close(leader)
    os.close(follower)
    assert output.decode().split() == ["False", str(on_terminal)]


def test_without_a_launcher():
    leader, follower = os.openpty()
    output = subprocess.run([sys.executable, "-c", ASK], stdout=subprocess.PIPE, stderr=follower, check=True).stdout
    os.close(leader)
    os.close(follower)
    assert output.decode().split() == ["False", "True"]


ORDERS = "a\x1b]0;title\x07b\x9b2J\r\u202ec"
HARMLESS = r"a\x1b]0;title\x07b\x9b2J\r\u202ec"


TABLE = """
from rich.table import Table
from hpcgnn.cli import console
table = Table()
for name in range(12):
    table.add_column(f"column {name}")
table.add_row(*["1,234,567"] * 12)
console.stdout().print(table)
"""


@pytest.mark.parametrize(("columns", "whole"), [(None, 12), ("60", 0)])
def test_numbers_in_a_file_are_not_cut_unless_a_width_is_given(columns, whole):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {} if columns is None else {"COLUMNS": columns}
    output = subprocess.run([sys.executable, "-c", TABLE], env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert output.decode().count("1,234,567") == whole


def test_headings_break_before_numbers_are_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    table = Table(box=None)
    for name in ("rows that are sent", "rows that are received"):
        table.add_column(name, justify="right")
    table.add_row("1,234,567,890", "9,876,543,210")
    console.numbers(table)
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
