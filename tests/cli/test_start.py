"""Commands have help with an example, and report wrong arguments before torch or numba is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from command_line import said

from hpcgnn.cli.main import cli

# Runs each command line in a fork, which prints its exit code and the large packages that it has imported.
_PROGRAM = """
import json, os, sys
from hpcgnn.cli.main import main
LARGE = {"torch", "numba", "matplotlib", "scipy"}
assert not LARGE & set(sys.modules)
for words in json.loads(sys.argv[1]):
    if os.fork() == 0:
        sys.argv = ["hpcgnn", *words]
        try:
            main()
        except SystemExit as end:
            print("\\nended: " + json.dumps([end.code or 0, sorted(LARGE & set(sys.modules))]), flush=True)
            os._exit(0)
    os.wait()
"""


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands, including those of groups, as a user types them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


def started(*lines: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    """The exit code of each command line, and the large packages that it has imported."""
    program = [sys.executable, "-c", _PROGRAM, json.dumps(lines)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    ends = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("ended: ")]
    assert len(ends) == len(lines), done.stdout + done.stderr
    return [(code, imported) for code, imported in ends]


@pytest.mark.slow
def test_wrong_options_are_told_before_large_packages_are_imported() -> None:
    lines = [(*words, "--no-such-option") for words in commands(cli)]
    assert len(lines) > 30
    found = dict(zip(lines, started(*lines), strict=True))
    assert {line: end for line, end in found.items() if end != (2, [])} == {}


def test_settings_and_studies_are_told_without_large_packages() -> None:
    lines = ("train", "--help"), ("study", "list"), ("study", "list", "--json")
    assert started(*lines, ("train", "parts.h5", "--out", "run", "--bits", "3")) == [(0, [])] * 3 + [(2, [])]


def test_every_command_has_help_with_an_example() -> None:
    helps = {words: said(*words, "--help") for words in commands(cli)}
    offenders = [
        words for words, text in helps.items() if "xample" not in text or f"hpcgnn {' '.join(words)}" not in text
    ]
    assert offenders == []
