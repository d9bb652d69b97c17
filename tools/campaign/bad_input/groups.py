"""The groups of cases that the worker runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaign.bad_input import calls, claims, code_in_files, command_line, cuts, strangers
from campaign.mutations.fork import Task


@dataclass(frozen=True)
class Group:
    """A group. tasks: a function that makes the tasks once the valid files exist. short: number of tasks of the short form. long:
    number of tasks otherwise; None: all.
    """

    name: str
    tasks: Callable[[Path], list[Task]]
    short: int
    long: int | None = None


GROUPS = (
    Group("cuts", cuts.tasks, 8),
    Group("claims", claims.tasks, 12),
    Group("code in files", code_in_files.tasks, 12),
    Group("strangers", strangers.tasks, 6),
    Group("calls", calls.tasks, 20),
    Group("command lines", command_line.tasks, 12, 4000),
)


def warm_up() -> None:
    """Import the commands that children use."""
    for _ in command_line.commands():
        pass
