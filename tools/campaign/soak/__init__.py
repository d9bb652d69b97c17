"""Long runs: memory, open files, threads and MPI's objects must not grow, and the same training must give the same losses.

jobs     a job that is watched and judged
watch    samples of ranks from outside
counts   the requests of ranks to MPI, counted by a library in front of MPI's own (counts.c)
growth   the rules for growth
again    a job that loads, builds, trains and drops models repeatedly
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from campaign.section import FAILED, RIGHT, Case, Section, Session
from campaign.soak import jobs

_LONG = {"ranks": 16, "epochs": 1000, "rounds": 200, "period": 50, "share": 0.01, "seconds": 3600.0}
# Bits are assigned several times before the warm-up is over, because the first assignments take memory.
_SHORT = {"ranks": 2, "epochs": 200, "rounds": 0, "period": 5, "share": 0.08, "seconds": 400.0}
_BITS = "adaqp"
_AGAIN = "the same training again"


def _run(session: Session) -> Iterator[Case]:
    form = _SHORT if session.short else _LONG
    yield from soak(session, form, {})


def soak(session: Session, form: dict[str, float], variables: dict[str, str]) -> Iterator[Case]:
    """Run all jobs of a form. variables: for the environment of ranks."""
    folder, ranks = session.new_folder("soak"), int(form["ranks"])
    for count in dict.fromkeys((ranks, 2) if form["rounds"] else (ranks,)):
        problem = jobs.prepared(folder, count)
        if problem:
            yield Case("training", "parts", FAILED, problem)
            return
    if not session.only or session.wants("training"):
        yield from _training(session, folder, form, variables)
    if form["rounds"] and session.wants("load, build, train and drop"):
        job = jobs.repeated(
            session.new_folder("again"), folder / "parts2.h5", rounds=int(form["rounds"]), share=form["share"],
            seconds=form["seconds"], variables=variables,
        )  # fmt: skip
        yield from _judged(session, f"load, build, train and drop, {int(form['rounds'])} times", job)


def _training(session: Session, folder: Path, form: dict[str, float], variables: dict[str, str]) -> Iterator[Case]:
    group = f"{int(form['epochs'])} epochs of {int(form['ranks'])} ranks"
    runs: list[Path] = []
    for number in (1, 2):
        own = session.new_folder(f"run {number}")
        job = jobs.training(
            own, folder / f"parts{int(form['ranks'])}.h5", "run", ranks=int(form["ranks"]),
            epochs=int(form["epochs"]),
            period=int(form["period"]), bits=_BITS,
            replay=runs[0] / "decisions.jsonl" if runs else None, seconds=form["seconds"], share=form["share"],
            variables=variables,
        )  # fmt: skip
        yield from _judged(session, group if number == 1 else f"{group}, again", job)
        runs.append(own / "run")
        if session.short and not session.has_time():
            return
    started = time.monotonic()
    try:
        unlike = jobs.unlike(*runs)
    except OSError as error:
        unlike = f"a run has no results: {error}"
    yield Case(_AGAIN, group, FAILED if unlike else RIGHT, unlike, time.monotonic() - started)


def _judged(session: Session, group: str, job: jobs.Job) -> Iterator[Case]:
    started = time.monotonic()
    soaked = jobs.run(job)
    seconds = time.monotonic() - started
    for name, end, said in jobs.verdicts(soaked):
        yield Case(group, name, end, said, seconds)
        seconds = 0.0
    if not soaked.problem and soaked.watched.samples:
        steepest = max(jobs.slopes(soaked), key=lambda each: each.value)
        low, high = steepest.interval
        session.add_fact(
            f"{group}: steepest slope of a rank's memory (of {steepest.level / 2**20:.0f} MiB), 95 %",
            f"{steepest.value:,.0f} ({low:,.0f} to {high:,.0f})",
            "bytes per epoch",
        )
        session.add_fact(f"{group}: seconds", round(time.monotonic() - started))


_ABOUT = """\
Two kinds of jobs run for a long time:

- 16 ranks on the machine's cores train 1,000 epochs with AdaQP's bit-widths and PipeQS' staleness, with an evaluation and a
  checkpoint every ten epochs. They do it twice. The second run replays the times that the first one observed (`--replay`),
  and losses, metrics, bit-widths, ages of rows and weights must be equal bit for bit.
- Two ranks of one job load parts, build a model, train two epochs and drop everything, 200 times. Rounds alternate between
  a model of hpcgnn and a distributed model of PyG.

Meanwhile another process observes every rank: its private memory, open files, threads, and files of shared memory. A library
between hpcgnn and MPI counts requests, communicators, datatypes, windows and groups, and the bytes that malloc has given out.

A rank's memory must not grow: a line is fitted to it, without the first fifth of the samples. It passes if the 95 % interval of
the slope contains 0, or if 1,000 epochs (or rounds) at this slope add less than 1 % of the rank's memory. (The short form of
this section, with 200 epochs on 2 ranks, allows 8 %, because buffers are still being allocated.) Counts must not be higher in
the last quarter than in the first. At the end no request may be active, and no file of shared memory and no temporary file may
be left.
"""

SECTION = Section(name="soak", title="Long runs", about=_ABOUT, run=_run, share=1.5)
