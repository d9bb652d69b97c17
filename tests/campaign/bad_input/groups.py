"""Which groups of cases the worker runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaign.bad_input import calls, claims, code_in_files, command_line, cuts, strangers
from campaign.mutations.fork import Task


@dataclass(frozen=True)
class Group:
    """tasks: made when the valid files are there. short: how many of them run in CI. long: how many otherwise; None: all."""

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
    """Import the commands, which children use."""
    for _ in command_line.commands():
        pass
