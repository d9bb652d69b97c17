"""The help of commands with many options lists them under titles, the most used first."""

from __future__ import annotations

import itertools
import re

import click
import pytest
from command_line import said

from hpcgnn.cli.train import train
from hpcgnn.lab.cli import launch, model

SECTIONED = {
    ("train",): train,
    ("launch",): launch.launch,
    ("model", "predict"): model.predict,
    ("model", "project"): model.project,
}


def sections(words: tuple[str, ...]) -> dict[str, list[str]]:
    """The long names of the options under each title."""
    found: dict[str, list[str]] = {}
    for line in said(*words, "--help").splitlines():
        if re.fullmatch(r"\S.*:", line):
            found[line[:-1]] = []
        elif found and (option := re.match(r"  (?:-\w, )?(--[a-z0-9-]+)", line)):
            found[list(found)[-1]].append(option[1])
    return found


@pytest.mark.parametrize("words", SECTIONED, ids=" ".join)
def test_every_option_is_in_one_section(words: tuple[str, ...]) -> None:
    command = SECTIONED[words]
    params = command.get_params(click.Context(command, help_option_names=["-h", "--help"]))
    wanted = [max(param.opts, key=len) for param in params if isinstance(param, click.Option)]
    found = sections(words)
    assert "Options" not in found
    assert sorted(itertools.chain(*found.values())) == sorted(wanted)
    assert max(map(len, found.values())) <= 16
