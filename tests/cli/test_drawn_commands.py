"""Command lines with drawn values of every option and argument: each is taken, or refused by one sentence that names the option.

Commands, options and their types are those that click knows, so that a new option is drawn without a new line. Command lines are
parsed and not run: what a command does with files and settings is tested with the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from damages import budget
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.cli.main import cli

NUMBERS = ("-1", "0", "1.5", "nan", "-inf", "1e400", "1e9", str(2**63), "1" * 5000, "\u0663", "1_000", "0x10", "+3")
PATHS = ("/", "~", "/dev/null", "no/such/folder/x", "A" * 300, "a/" * 5000, "\udcff", "a\nb", "\x1b[31m", "%s%n")
SYNTAX = ("", " ", "x", "-", "=", ",", ",,", ":", "1:2", "8:nan", "x=1", "=1", "x=", "[]", "{}", "None", "true")


def commands(group: click.Group, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below a group, with the words that call them."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *words, name)
        else:
            yield (*words, name), command


CONTEXT = click.Context(cli)
COMMANDS = dict(commands(cli))


def right_value(kind: click.ParamType) -> str:
    """A value that the type of a parameter takes."""
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    if isinstance(kind, click.IntRange | click.FloatRange):
        return str(kind.max if kind.min is None else kind.min + kind.min_open)
    return "1"


def values_of(kind: click.ParamType) -> tuple[str, ...]:
    """Values of a parameter: right ones, those beside its range or its choices, and texts of any kind."""
    own: tuple[Any, ...] = (right_value(kind),)
    if isinstance(kind, click.Choice):
        own = (*kind.choices, f"{kind.choices[0]}x", kind.choices[0].upper())
    elif isinstance(kind, click.IntRange | click.FloatRange):
        own += tuple(end + step for end in (kind.min, kind.max) if end is not None for step in (-1, 0, 1))
    return (*map(str, own), *NUMBERS, *PATHS, *SYNTAX)


def words_of(data: st.DataObject, param: click.Parameter, *, is_drawn: bool) -> list[str]:
    """The words that give a parameter a value: a drawn one, or a right one."""
    if isinstance(param, click.Option) and param.is_flag:
        return [data.draw(st.sampled_from([*param.opts, f"{param.opts[-1]}=x"]))]
    values = values_of(param.type) if is_drawn else (right_value(param.type),)
    words = [data.draw(st.sampled_from(values)) for _ in range(max(param.nargs, 1))]
    return words if isinstance(param, click.Argument) else [param.opts[-1], *words]


def refusal(words: tuple[str, ...], line: list[str]) -> str:
    """The sentence that refuses a command line, without the usage that click prints before it; empty if it is right."""
    try:
        COMMANDS[words].make_context(words[-1], line)
    except click.exceptions.Exit:  # of --help
        return ""
    except (click.ClickException, HpcgnnError) as error:
        return error.format_message() if isinstance(error, click.ClickException) else str(error)
    return ""


@budget(300)
@given(data=st.data(), words=st.sampled_from(sorted(COMMANDS)))
def test_every_value_is_taken_or_refused_by_one_sentence(data: st.DataObject, words: tuple[str, ...]) -> None:
    params = COMMANDS[words].params
    drawn = data.draw(st.lists(st.sampled_from(params), min_size=1, max_size=3, unique_by=id))
    given = [param for param in params if param in drawn or param.required]
    words_by_kind: dict[str, list[str]] = {"option": [], "argument": ["--"]}
    for param in given:
        words_by_kind[param.param_type_name] += words_of(data, param, is_drawn=param in drawn)
    line = [*words_by_kind["option"], *words_by_kind["argument"]]
    said = refusal(words, line)
    names = [name for param in given for name in (*param.opts, param.human_readable_name, param.make_metavar(CONTEXT))]
    assert "\n" not in said, (line, said)
    assert not said or any(name.lstrip("-") in said for name in names), (line, said)


def test_every_command_is_drawn() -> None:
    assert {("train",), ("bench", "epoch"), ("study", "run")} < COMMANDS.keys()
    assert [words for words, command in COMMANDS.items() if not command.params] == []
