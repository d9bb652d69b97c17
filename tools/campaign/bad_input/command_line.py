"""Every option and argument of every command, with values of wrong types and out of range."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from campaign.mutations.case import Case
from campaign.mutations.fork import Task
from campaign.mutations.mutation import FREE, Mutation
from campaign.mutations.readers import Reader, command
from hpcgnn.cli.main import cli

_GROUP = "command lines"
_FILE = "arguments.json"
_VALUES = (
    "", " ", "x", "-1", "0", "1.5", "nan", "inf", "-inf", "1e400", "1e-400", str(2**63), str(-(2**63) - 1), "1" * 400,
    "\u0663", "\u00b2", "1_000", "0x10", "+3", "a\nb", "'; touch ran.tmp; '", 'a "b" c', "\udcff", "..", "/",
    "/dev/null", "/dev/full", "no/such/folder/x", "A" * 300, "/".join(["a" * 100] * 50), "-", "=", ",", ",,", ":",
    "a:b:c", "1:2", "8:nan", "None", "true", "[]", "{}", "[[", "%s%n", "$HOME", "~", "*", "\x1b[31m", "2147483648",
    "1e9", "x=1", "=1", "x=", "hidden=nan", "graph.h5", "parts.h5", "run", "arguments.json",
)  # fmt: skip
# Options that determine the amount of work, and with it the time of a command, or the time of a measurement.
_NUMBERS_OF_WORK = {"--epochs", "--rounds", "--rows", "--shape"}
_MEASURED = {("bench aggregate", "--plot")}
_OF_PATHS = (
    "does not exist", "there is no file", "cannot write", "cannot read", "cannot be", "not a file", "is a folder",
    "No such option", "too long", "not the folder of", "no specification", "no checkpoint", "no finished run",
    "needs the number of ranks", "hidden must", "parts, not",
)  # fmt: skip
_LARGE = {"1e9", "2147483648", str(2**63), "1" * 400}
_GRAPH, _PARTS, _PARTS_OF_2, _RUN = (
    ("plain-graph.h5", "graph.h5"),
    ("plain-1.h5", "parts.h5"),
    ("plain-2.h5", "parts.h5"),
    ("run", "run"),
)


@dataclass(frozen=True)
class Base:
    """A command line that ends soon. arguments: positional arguments in order. options: options that it needs. copies: files
    that it reads. refused: a word of the sentence that refuses this command line in any case; empty if it succeeds. rest: words
    after all others.
    """

    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    refused: str = ""
    rest: tuple[str, ...] = ()


_STUDY, _FITTED = (("study", "study"),), (("model.toml", "model.toml"), _PARTS_OF_2)
_NO_CLUSTER = ("--name", "no.such.cluster")  # the name is refused, so that these cases do not change any network
_TINY = ("--rounds", "1", "--threads", "1")
BASES = {
    "info": Base(),
    "doctor": Base((), ("--no-launch",)),
    "check": Base(("graph.h5",), (), (_GRAPH,)),
    "show": Base(("graph.h5",), (), (_GRAPH,)),
    "convert": Base(("sbm:nodes=60,blocks=3,degree=4,features=4", "out.h5"), ("--quiet",)),
    "partition": Base(("graph.h5", "out.h5"), ("--parts", "2", "--quiet"), (_GRAPH,)),
    "plan": Base(("parts.h5",), ("--quiet",), (_PARTS_OF_2,)),
    "train": Base(
        ("parts.h5",), ("--out", "new", "--epochs", "1", "--hidden", "8", "--layers", "2", "--quiet"), (_PARTS,)
    ),
    "predict": Base(("parts.h5", "run"), ("--out", "p.h5", "--quiet"), (_PARTS, _RUN)),
    "launch": Base((), ("-n", "2", "--dry-run"), (("hosts", "hosts"),), rest=("--", "true")),
    "bench aggregate": Base((), ("--graph", "nowhere:x", "--width", "4", *_TINY), refused="nowhere"),
    "bench breakdown": Base(("parts.h5",), ("--epochs", "2", "--hidden", "8"), (_PARTS,)),
    "bench epoch": Base(("parts.h5",), ("--rounds", "1", "--hidden", "8"), (_PARTS,)),
    "bench exchange": Base(("parts.h5",), ("--rounds", "1", "--width", "8"), (_PARTS,), refused="a single rank"),
    "bench gemm": Base((), ("--shape", "8x8x8", "--dtype", "float32", *_TINY)),
    "bench overhead": Base(("parts.h5",), ("--rounds", "1", "--hidden", "8"), (_PARTS,)),
    "bench plan": Base(("parts.h5",), ("--rounds", "1", "--width", "4", "--ranks", "2"), (_PARTS,)),
    "bench ranks": Base(("parts.h5",), ("--rounds", "1", "--hidden", "8", "--ranks", "2"), (_PARTS_OF_2,)),
    "bench pyg": Base(("graph.h5",), ("--epochs", "1", "--hidden", "8", "--threads", "1"), (_GRAPH,)),
    "bench dgl": Base(
        ("graph.h5",), ("--epochs", "1", "--hidden", "8", "--threads", "1"), (_GRAPH,), refused="DGL cannot be imported"
    ),
    "bench sar": Base(
        ("graph.h5",),
        ("--epochs", "1", "--hidden", "8", "--norm", "layer"),
        (_GRAPH,),
        refused="SAR cannot be imported",
    ),
    "bench quantize": Base((), ("--rows", "64", "--width", "8", *_TINY)),
    "bench sddmm": Base((), ("--graph", "nowhere:x", "--width", "4", *_TINY), refused="nowhere"),
    "cluster bytes": Base((), _NO_CLUSTER, refused="no.such.cluster"),
    "cluster cut": Base(("node-1",), _NO_CLUSTER, refused="no.such.cluster"),
    "cluster down": Base((), _NO_CLUSTER, refused="no.such.cluster"),
    "cluster heal": Base(("node-1",), _NO_CLUSTER, refused="no.such.cluster"),
    "cluster rate": Base(("1gbit",), _NO_CLUSTER, refused="no.such.cluster"),
    "cluster run": Base((), _NO_CLUSTER, refused="no.such.cluster", rest=("--", "true")),
    "cluster status": Base((), _NO_CLUSTER, refused="no.such.cluster"),
    "cluster up": Base(("2",), _NO_CLUSTER, refused="no.such.cluster"),
    "study check": Base(("study", "targets.toml"), (), (*_STUDY, ("targets.toml", "targets.toml"))),
    "study export": Base(("study",), (), _STUDY, refused="varies no axis"),
    "study list": Base(("study.toml",), (), (("study.toml", "study.toml"),)),
    "study report": Base(("study",), (), _STUDY),
    "study run": Base(("nowhere.toml",), ("--out", "new"), refused="nowhere.toml"),
    "study submit": Base(("study.toml",), ("--out", "new", "--dry-run"), (("study.toml", "study.toml"),)),
    "model compare": Base(("model.toml", "study"), (), (*_FITTED, *_STUDY), refused="study"),
    "model fit": Base(("study",), ("--out", "new.toml"), _STUDY, refused="study"),
    "model predict": Base(("model.toml", "parts.h5"), ("--quiet",), _FITTED),
    "model project": Base(("model.toml", "parts.h5"), ("--out", "f.svg", "--quiet"), _FITTED),
    "report": Base(("run",), ("--out", "page.html", "--quiet"), (_RUN,)),
}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""

    def walk(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if isinstance(found, click.Group):
                yield from walk(found, (*words, name))
            elif found is not None:
                yield " ".join((*words, name)), found

    yield from walk(cli, ())


def tasks(inputs: Path) -> list[Task]:
    """The tasks of this group. A command without a base here fails, so that none is forgotten."""
    found = []
    for name, each in commands():
        base = BASES[name]
        case = _case(name, base)
        position = 0
        for parameter in each.get_params(click.Context(each)):
            if isinstance(parameter, click.Option):
                option = max(parameter.opts, key=len)
                values = ("x",) if parameter.is_flag else _VALUES
                for value in values:
                    makes_hosts = name == "cluster up" and option == "--name" and value.isalnum()
                    takes_long = (option in _NUMBERS_OF_WORK and value in _LARGE) or (name, option) in _MEASURED
                    if not takes_long and not makes_hosts and option not in ("--help", "--version"):
                        found.append(_task(case, name, base, [f"{option}={value}"], {}, option, value))
            elif base.arguments:
                place = min(position, len(base.arguments) - 1)
                position += 1
                for value in _VALUES:
                    found.append(_task(case, name, base, [], {place: value}, parameter.human_readable_name, value))
    return found


def _line(name: str, base: Base, more: list[str], instead: dict[int, str]) -> list[str]:
    arguments = [instead.get(place, argument) for place, argument in enumerate(base.arguments)]
    return [*name.split(), *arguments, *base.options, *more, *base.rest]


def _case(name: str, base: Base) -> Case:
    usual = _line(name, base, [], {})

    def run() -> int:
        given = Path(_FILE)
        return command(json.loads(given.read_text()) if given.exists() else usual)

    reader = Reader(f"hpcgnn {name}", run, lambda: "", may_refuse=bool(base.refused), reads_files=False)
    return Case("command line", reader, base.copies, _FILE, ())


def _task(case: Case, name: str, base: Base, more: list[str], instead: dict[int, str], which: str, value: str) -> Task:
    line = _line(name, base, more, instead)
    words = {which, which.lstrip("-"), which.lstrip("-").replace("-", "_"), "memory"}
    is_found = value.strip() and (len(value) > 2 or not value.isalnum())  # any sentence may contain a single digit
    words |= {value, repr(value)[1:-1]} if is_found else {repr(value)}
    words |= {base.refused, *_OF_PATHS} - {""}

    def give(folder: Path) -> Mutation:
        (folder / _FILE).write_text(json.dumps(line))
        return Mutation(" ".join(line)[:200], FREE, names=tuple(sorted(words)))

    return Task(case, f"command line {name} {which}={value[:40]!r}", give, _GROUP)
