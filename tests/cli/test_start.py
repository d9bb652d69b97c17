"""Commands report wrong arguments before torch or numba is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from hpcgnn.cli.main import cli

_PROGRAM = """
import json, sys
from hpcgnn.cli.main import main
sys.argv = ["hpcgnn", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print(json.dumps([end.code or 0, sorted({"torch", "numba", "matplotlib", "scipy"} & set(sys.modules))]))
"""


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[str]:
    """All commands, including those of groups, as a user types them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*words, name))
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


def started(*words: str) -> tuple[int, list[str]]:
    """The exit code of the command, and the large packages that it has imported."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=True)
    code, imported = json.loads(done.stdout.splitlines()[-1])
    return code, imported


@pytest.mark.parametrize("command", list(commands(cli)))
def test_a_wrong_option_is_told_before_large_packages_are_imported(command: str) -> None:
    assert started(*command.split(), "--no-such-option") == (2, [])


def test_the_settings_of_a_training_are_told_without_torch() -> None:
    assert started("train", "--help") == (0, [])
    assert started("train", "parts.h5", "--out", "run", "--bits", "3") == (2, [])


def test_shipped_studies_are_listed_without_large_packages() -> None:
    assert started("study", "list") == (0, [])
    assert started("study", "list", "--json") == (0, [])
