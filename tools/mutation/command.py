"""The command ``python tools/mutation``."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as tests/conftest.py does, before torch is imported

import click
from rich.progress import Progress

from mutation import mutants, runs
from mutation.faults import FAULTS
from mutation.runs import CAUGHT, LONG, PASSED, QUICK, ROOT, WORK, Run

# The folders of tests for a change in a package, the package's own first (CONTRIBUTING.md, "Which tests to run").
TESTS = {
    "exchange": ("exchange", "policy", "train", "nn"),
    "plan": ("plan", "nn", "policy", "train"),
    "nn": ("nn", "policy", "train"),
    "policy": ("policy", "train"),
    "train": ("train",),
    "graph": ("graph", "nn", "policy", "train"),
    "world": ("world", "nn", "policy", "train"),
    "kernels": ("kernels", "nn", "policy", "train"),
    "partition": ("partition",),
    "data": ("data",),
    "sources": ("data",),
    "pyg": ("nn",),
}
CORE = ("exchange", "plan", "nn", "policy", "train")
_LONGEST = 3600.0  # seconds
_jobs = click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Runs of tests at a time.")


@click.group()
def mutation() -> None:
    """Test the tests: by planted faults, and by mutants that are drawn from the source."""
    for name in ("torch", "numba", "h5py", "scipy.sparse", "scipy.optimize", "sklearn.metrics"):
        importlib.import_module(name)  # for all processes that are forked from this one


def _shown(title: str, todo: Sequence[Run], jobs: int) -> None:
    with Progress(transient=True) as progress:
        task = progress.add_task(title, total=len(todo))
        for run in runs.ended(todo, jobs):
            if run.name:
                print(f"{run.end:12} {run.seconds:6.1f} s  {run.name}", flush=True)
            progress.advance(task)


Tests = tuple[frozenset[str], str]  # files or folders, and the markers


def _limit(todo: Sequence[Run], limits: dict[Tests, float], jobs: int) -> None:
    """Give each run the time that its tests may take, a minute and four times as long as without a change, from ``limits``, to
    which those of new tests are added. End with an error unless these pass."""
    wanted = {(frozenset(run.tests), run.marks): run for run in todo}
    unchanged = {key: Run("", run.tests, run.marks, _LONGEST) for key, run in wanted.items() if key not in limits}
    _shown("tests without a change", list(unchanged.values()), jobs)
    for key, run in unchanged.items():
        if run.end != PASSED:
            print(*run.log.read_text().splitlines()[-30:], sep="\n")
            raise click.ClickException(f"without a change, {' '.join(run.tests)} {run.end}")
        limits[key] = 60 + 4 * run.seconds
    for run in todo:
        run.limit = limits[frozenset(run.tests), run.marks]


@mutation.command()
@click.argument("names", nargs=-1)
@_jobs
def faults(names: tuple[str, ...], jobs: int) -> None:
    """Put each fault in, or those with NAMES, one at a time: the tests that it names must fail."""
    if unknown := set(names) - FAULTS.keys():
        raise click.UsageError(f"there is no fault {min(unknown)}: tools/mutation/faults.py has them all")
    done: dict[str, Run] = {}
    for marks in (QUICK, LONG):
        left = [name for name in names or FAULTS if name not in done or done[name].end != CAUGHT]
        todo = [Run(name, FAULTS[name].tests, marks, 0) for name in left]
        _limit(todo, {}, jobs)
        _shown("faults", todo, jobs)
        done |= {run.name: run for run in todo}
    missed = [run for run in done.values() if run.end != CAUGHT]
    for run in missed:
        print(f"not caught ({run.end}): {run.name}: {FAULTS[run.name].about}")
    print(f"{len(done) - len(missed)} of {len(done)} faults caught")
    raise SystemExit(bool(missed))


# -- mutants -----------------------------------------------------------------------------------------------------------


def equivalent() -> dict[str, str]:
    """The mutants that are known to change no result, and the reason of each."""
    return json.loads((ROOT / "tools" / "mutation" / "equivalent.json").read_text())  # type: ignore[no-any-return]


def _files(folder: str, module: str) -> tuple[str, ...]:
    """The test files of a folder; those that name a module often come first, because they are the ones that notice most."""
    paths = (ROOT / "tests" / folder).glob("test_*.py")
    counts = {path.relative_to(ROOT).as_posix(): path.read_text().count(module) for path in paths}
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


def _stages(name: str) -> list[Run]:
    """The tests for a mutant: the quick ones of its own folder and of the others, and then the long ones of all."""
    _, package, *_, module = mutants.file_of(name).split("/")
    stages = [(folder, marks) for marks in (QUICK, LONG) for folder in TESTS[package]]
    return [Run(name, _files(folder, module.removesuffix(".py")), marks, 0) for folder, marks in stages]


@mutation.command()
@click.argument("name")
def show(name: str) -> None:
    """Print the change of the mutant NAME, as score tells it."""
    before, after = mutants.texts(name, ROOT / mutants.file_of(name))
    print(*difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2), sep="\n")


@mutation.command()
@click.argument("names", nargs=-1)
@click.option(
    "--sample", default=300, show_default=True, help="Number of mutants that are drawn, if no NAMES are given."
)
@click.option("--seed", default=0, show_default=True, help="The seed by which they are drawn.")
@click.option(
    "--package",
    "packages",
    multiple=True,
    type=click.Choice(list(TESTS)),
    default=CORE,
    show_default=True,
    help="Folders of hpcgnn/.",
)
@click.option(
    "--tests", multiple=True, help="Files or folders that all mutants meet in place of those for their package."
)
@click.option("--floor", default=90.0, show_default=True, help="The lowest score, in percent.")
@_jobs
def score(
    names: tuple[str, ...],
    sample: int,
    seed: int,
    packages: tuple[str, ...],
    tests: tuple[str, ...],
    floor: float,
    jobs: int,
) -> None:
    """Draw mutants, and measure the share that tests kill. One that hangs, or cannot be imported, is killed.

    Survivors without a line in tools/mutation/equivalent.json count against the score, which build/mutation/ keeps.
    """
    drawn = [mutants.Mutant(name) for name in names] or mutants.drawn(ROOT, packages, sample, seed)
    meets = {
        each.name: [Run(each.name, tests, marks, 0) for marks in (QUICK, LONG)] if tests else _stages(each.name)
        for each in drawn
    }
    left, started = list(drawn), time.monotonic()
    killed, limits = dict[str, Run](), dict[Tests, float]()
    while any(meets.values()):
        todo = [meets[each.name].pop(0) for each in left if meets[each.name]]
        _limit(todo, limits, jobs)
        _shown(f"{len(left)} mutants", todo, jobs)
        killed |= {run.name: run for run in todo if run.end != PASSED}
        left = [each for each in left if each.name not in killed and meets[each.name]]
        meets = {each.name: meets[each.name] for each in left}
    _report(drawn, killed, equivalent(), {"seed": seed, "seconds": round(time.monotonic() - started)}, floor)


def _report(
    drawn: Sequence[mutants.Mutant],
    killed: dict[str, Run],
    reasons: dict[str, str],
    about: dict[str, Any],
    floor: float,
) -> None:
    """Print and record the score and the survivors; end with 1 if the score is below the floor."""
    survivors = [each for each in drawn if each.name not in killed]
    known = {each.name: reasons[each.name] for each in survivors if each.name in reasons}
    counted = len(drawn) - len(known)
    percent = 100 * len(killed) / max(counted, 1)
    for package in sorted({each.name.split("/")[1] for each in drawn}):
        own = [each.name for each in drawn if each.name.split("/")[1] == package]
        dead, same = (sum(name in group for name in own) for group in (killed, known))
        print(f"{package:10} {len(own):4} mutants, {dead:4} killed, {same:3} equivalent")
    for each in survivors:
        print(f"survived: {each.name} (line {each.line}){': ' + known[each.name] if each.name in known else ''}")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - found by PATH
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    ends = {each.name: killed[each.name].end if each.name in killed else "survived" for each in drawn}
    record = about | {"commit": commit, "score": percent, "mutants": ends, "equivalent": known}
    path = WORK / f"score-{about['seed']}-{len(drawn)}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"{len(killed)} of {counted} mutants killed, {percent:.1f} %; {path.relative_to(ROOT)} has the record")
    raise SystemExit(percent < floor)
