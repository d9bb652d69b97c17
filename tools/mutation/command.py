"""The command ``python tools/mutation``."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as tests/conftest.py does, before torch is imported

import click
from coverage import CoverageData
from rich.progress import Progress

from mutation import mutants, runs
from mutation.faults import FAULTS
from mutation.runs import CAUGHT, LONG, MARKS, MISSING, PASSED, QUICK, ROOT, WORK, Run

CORE = ("exchange", "plan", "nn", "policy", "train")
PACKAGES = sorted(path.parent.name for path in (ROOT / "hpcgnn").glob("*/__init__.py"))
# Of `make coverage`: which tests ran which lines (data), and their seconds (tests.xml).
COVERED = ROOT / "build" / "coverage"
_FIRST = 3  # tests of a file that a mutant meets before all others
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


def _must_pass(unchanged: Sequence[Run], jobs: int) -> None:
    """End with an error unless tests pass without a change."""
    _shown("tests without a change", unchanged, jobs)
    for run in unchanged:
        if run.end != PASSED:
            print(*run.log.read_text().splitlines()[-30:], sep="\n")
            raise click.ClickException(f"without a change, {' '.join(run.tests)} {run.end}")


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
        unchanged = {tests: Run("", tests, marks, _LONGEST) for tests in {FAULTS[name].tests for name in left}}
        _must_pass(list(unchanged.values()), jobs)
        todo = [Run(name, FAULTS[name].tests, marks, 60 + 4 * unchanged[FAULTS[name].tests].seconds) for name in left]
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


def _seconds_of_tests() -> dict[str, float]:
    """The seconds of each test with its fixtures, as `make coverage` measured them."""
    cases = ElementTree.parse(COVERED / "tests.xml").iter("testcase")  # noqa: S314 - our own
    return {
        f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}": float(case.attrib["time"])
        for case in cases
    }


def _ran(covered: CoverageData, mutant: mutants.Mutant) -> set[str]:
    """The tests that ran a mutant's line; those that ran any line of its file where there are none, because numba compiles its
    function, or because it runs at imports."""
    lines = covered.contexts_by_lineno(str(ROOT / mutants.file_of(mutant.name)))
    ran = set(lines.get(mutant.line, [])) - {""} or {context for each in lines.values() for context in each}
    return {context.rpartition("|")[2].removesuffix(" (call)").removesuffix(" (setup)") for context in ran}


def _stages(mutant: mutants.Mutant, ran: set[str], seconds: Mapping[str, float]) -> list[Run]:
    """The tests for a mutant: first the quickest of each file that ran its line, then all of these files, because a fixture runs
    lines for several tests. Each may take a minute and four times as long as without a change."""
    by_file: dict[str, list[str]] = {}
    for test in sorted(ran & seconds.keys(), key=lambda test: (seconds[test], test)):
        by_file.setdefault(test.partition("::")[0], []).append(test)
    whole = {file: sum(each for test, each in seconds.items() if test.startswith(file + "::")) for file in by_file}
    first = [test for tests in by_file.values() for test in tests[:_FIRST]]
    chosen = [
        (first, sum(seconds[test] for test in first)),
        (sorted(whole, key=lambda file: whole[file]), sum(whole.values())),
    ]
    return [Run(mutant.name, tuple(tests), MARKS, 60 + 4 * total) for tests, total in chosen if tests]


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
    type=click.Choice(PACKAGES),
    default=CORE,
    show_default=True,
    help="Folders of hpcgnn/.",
)
@click.option("--floor", default=90.0, show_default=True, help="The lowest score, in percent.")
@_jobs
def score(
    names: tuple[str, ...],
    sample: int,
    seed: int,
    packages: tuple[str, ...],
    floor: float,
    jobs: int,
) -> None:
    """Draw mutants, and measure the share that tests kill, of those that run the mutant's line. One that hangs, or cannot be
    imported, is killed; one that no test runs survives.

    Survivors without a line in tools/mutation/equivalent.json count against the score, which build/mutation/ keeps.
    """
    if not (COVERED / "tests.xml").exists():
        raise click.ClickException(f"{COVERED} has no record of which tests run which lines: run make coverage")
    covered, seconds = CoverageData(str(COVERED / "data")), _seconds_of_tests()
    covered.read()
    named = [each for name in names for each in mutants.of_file(ROOT, mutants.file_of(name)) if each.name == name]
    if unknown := set(names) - {each.name for each in named}:
        raise click.UsageError(f"there is no mutant {min(unknown)}")
    drawn = named or mutants.drawn(ROOT, packages, sample, seed)
    meets = {each.name: _stages(each, _ran(covered, each), seconds) for each in drawn}
    started, killed = time.monotonic(), dict[str, Run]()
    for stage in range(2):
        todo = [runs[stage] for name, runs in meets.items() if runs[stage:] and name not in killed]
        _shown(f"{len(todo)} mutants", todo, jobs)
        if any(run.end == MISSING for run in todo):
            raise click.ClickException(
                "some tests of the last `make coverage` do not exist at this commit: run it again"
            )
        killed |= {run.name: run for run in todo if run.end != PASSED}
    killers = sorted({run.failed for run in killed.values()} - {""})
    _must_pass([Run("", (test,), MARKS, _LONGEST) for test in killers], jobs)
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
        print(
            f"survived: {each.name} (line {each.line or 'at import'}){': ' + known[each.name] if each.name in known else ''}"
        )
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
