"""The section: cases of the worker, and cases that need their own processes."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaign.bad_input import environment
from campaign.processes import environment as variables_of_children
from campaign.processes import run
from campaign.section import FAILED, LEFT_OUT, REFUSED, RIGHT, Case, Section, Session

_PROGRESS = re.compile(r"cov: (\d+) ft: \d+ corp: (\d+)")  # a line of libFuzzer
GUIDED = ("edge list", "METIS", "MatrixMarket", "settings", "link costs", "decisions", "study")
"""Formats whose cases are guided by coverage (:mod:`campaign.bad_input.guided`)."""
_LONGEST_SAID = 600
_SHARE_OF_PROCESSES = 0.25  # share of the time for cases that need their own processes
_RUNS, _SHORT_RUNS = 10_000, 500
_MOST_SECONDS = 90.0  # for the runs of one format


def _run(session: Session) -> Iterator[Case]:
    inputs = session.new_folder("worker")
    yield from _of_worker(session, inputs)
    for kind in GUIDED[: 1 if session.short else None]:
        if session.wants(name := f"{kind}, guided by coverage"):
            yield from _guided(session, kind, name, inputs / "inputs")
    yield from environment.cases(session)


def _of_worker(session: Session, folder: Path) -> Iterator[Case]:
    """Run the worker's cases. The worker is a separate process, because it must neither enter MPI nor start torch's threads
    before it forks.
    """
    asked = {
        "seed": session.seed,
        "folder": str(folder),
        "short": session.short,
        "deadline": session.deadline - _SHARE_OF_PROCESSES * (session.deadline - time.monotonic()),
        "only": session.only,
    }
    errors = session.folder / "worker.stderr"
    with errors.open("w") as stderr:
        worker = subprocess.Popen(
            [sys.executable, "-m", "campaign.bad_input.worker", json.dumps(asked)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
            env=variables_of_children(OMP_NUM_THREADS="1"),
        )
        assert worker.stdout is not None
        try:
            for line in worker.stdout:
                yield _case(json.loads(line))
        finally:
            worker.stdout.close()  # the reader of the cases needs no more of them
            code = worker.wait()
    if code:
        yield Case("the campaign itself", "worker", FAILED, f"ended with {code}: {_tail(errors)}")


def _guided(session: Session, kind: str, group: str, inputs: Path) -> Iterator[Case]:
    """Run changed texts of one format, each of which is a case."""
    if importlib.util.find_spec("atheris") is None:
        yield Case(group, kind, LEFT_OUT, "Atheris is not installed: there is none for this Python and this machine")
        return
    folder, runs = session.new_folder(f"guided {kind}"), _SHORT_RUNS if session.short else _RUNS
    asked = {"kind": kind, "inputs": str(inputs), "folder": str(folder), "seed": session.seed, "runs": runs}
    asked["seconds"] = max(min(_MOST_SECONDS, (session.deadline - time.monotonic()) / 2), 5.0)
    command = (sys.executable, "-m", "campaign.bad_input.guided", json.dumps(asked))
    ended = run(command, variables={"OMP_NUM_THREADS": "1"}, seconds=asked["seconds"] + 120)
    if ended.exit != 0:
        said = " | ".join(ended.stderr.strip().splitlines()[-4:])[-_LONGEST_SAID:]
        yield Case(group, kind, FAILED, f"ended with {ended.exit}: {said}", ended.seconds)
        return
    told = json.loads(ended.stdout.splitlines()[-1])
    for end in (RIGHT, REFUSED):
        yield from (Case(group, f"{kind} {number}", end) for number in range(told["ends"].get(end, 0)))
    for number, failure in enumerate(told["failures"]):
        yield Case(group, f"{kind}, failed {number}", FAILED, f"{failure['said']}: {failure['text']}"[:_LONGEST_SAID])
    reached = _PROGRESS.findall(ended.stderr)
    if reached:
        session.add_fact(f"{group}: branches of its parser reached", int(reached[-1][0]))
        session.add_fact(f"{group}: inputs that reached new branches", int(reached[-1][1]))


def _case(told: dict[str, Any]) -> Case:
    if told["defects"]:
        wrong = "; ".join(f"{kind}: {what}" for kind, what in told["defects"].items())
        said = f"{told['what']}: {wrong}"[:_LONGEST_SAID]
        return Case(told["group"], told["name"], FAILED, said, told["seconds"])
    said = told["said"].splitlines()[-1][:_LONGEST_SAID] if told["said"] else ""
    return Case(told["group"], told["name"], REFUSED if told["exit"] else RIGHT, said, told["seconds"])


def _tail(path: Path) -> str:
    return " | ".join(path.read_text(errors="replace").strip().splitlines()[-4:])[-_LONGEST_SAID:]


_ABOUT = """\
Each case gives one faulty input to one command or function:

- a valid file in which a bit, a value, a shape, a type or a line was changed at random, from a seed;
- files that are cut off at every 4 KiB, and headers that claim 2^60 rows;
- files with Python code in them, and checkpoints of other runs;
- a value of a command-line option, an environment variable, or an argument of a public Python function.

Text formats that are parsed in Python are also fuzzed with Atheris, which tries thousands of inputs. It keeps the inputs that
reach new code, and mutates them further. Graphs that are accepted are compared with the result of a second reader.

A case fails unless it ends with a right result, or with exit code 1 or 2 on all ranks and one sentence that names the file,
the option or the argument. The following are failures, too:

- a run of more than 30 s;
- damage that is accepted and changes the result;
- a temporary or incomplete file that is left behind;
- more memory than for the valid file, plus twice the file's size and 32 MiB;
- code from a file that was executed.
"""

SECTION = Section(
    "bad_input",
    "Bad input",
    _ABOUT,
    _run,
    share=5.0,
)
