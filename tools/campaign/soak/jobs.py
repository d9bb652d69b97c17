"""The jobs of the soak: each is watched from outside, with MPI counted inside, and judged when it has ended."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from campaign import processes
from campaign.section import FAILED, LEFT_OUT, RIGHT
from campaign.soak import counts, growth, watch

Verdict = tuple[str, str, str]
"""The quantity, the end of the case, and its sentence."""
_MPI = ("under_way", "communicators", "types", "windows", "groups")


@dataclass
class Job:
    """A command on ranks. every: number of epochs between two samples. reductions: number of all-reduces between two lines of
    counts. share: of its memory by which a rank may grow in ``growth.SCALE`` epochs. variables: of the environment.
    """

    folder: Path
    ranks: int
    command: list[object]
    epochs_done: Callable[[], int]
    every: int
    reductions: int
    share: float
    seconds: float
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Soaked:
    """A job that has ended. watched: samples from outside. counted: counts by its ranks. problem: a phrase about its end, if
    that was wrong.
    """

    job: Job
    watched: watch.Watched
    counted: dict[int, list[counts.Count]]
    problem: str
    temporary: list[str]


def run(job: Job) -> Soaked:
    """Start the job, sample it until it ends, and collect the counts of its ranks."""
    library, temporary = counts.library(job.folder), job.folder / "t"
    temporary.mkdir()
    prefix = job.folder / "told"
    mpi = {} if library is None else counts.variables(library, prefix, job.reductions)
    variables = job.variables | mpi | {"TMPDIR": str(temporary)}
    process = processes.start(job.command, folder=job.folder, ranks=job.ranks, variables=variables)
    watched = watch.watch(process, job.ranks, job.epochs_done, job.every, job.seconds)
    ended = processes.finish(process, seconds=processes.HANG_SECONDS)
    problem = processes.wrong_end(ended, ranks=job.ranks)
    if not problem and ended.exit != 0:
        problem = f"exit code {ended.exit}: {ended.stderr[-300:]}"
    left = sorted(str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file())
    return Soaked(job, watched, counts.read(prefix), problem, left)


def verdicts(soaked: Soaked) -> Iterator[Verdict]:
    """The verdicts about memory, files, threads, MPI's objects and left-over files."""
    job = soaked.job
    if soaked.problem:
        yield "it ends well", FAILED, soaked.problem
        return
    if len(soaked.watched.samples) < job.ranks:
        yield "it ends well", FAILED, f"only {len(soaked.watched.samples)} of {job.ranks} ranks were seen"
        return
    yield "it ends well", RIGHT, ""
    ranks = soaked.watched.samples
    slopes = {pid: growth.slope([s.epoch for s in rows], [s.memory for s in rows]) for pid, rows in ranks.items()}
    yield _worst("memory of its own", [each.problem(job.share) for each in slopes.values()])
    yield _worst("open files", [growth.rises([s.files for s in rows]) for rows in ranks.values()])
    yield _worst("threads", [growth.rises([s.threads for s in rows]) for rows in ranks.values()])
    yield from _of_mpi(soaked)
    left = [path for path in soaked.watched.shared if Path(path).exists()]
    yield "shared memory", FAILED if left else RIGHT, f"left behind: {', '.join(left)}" if left else ""
    files = soaked.temporary
    yield "temporary files", FAILED if files else RIGHT, f"left behind: {', '.join(files[:3])}" if files else ""


def _of_mpi(soaked: Soaked) -> Iterator[Verdict]:
    if not soaked.counted:
        yield "MPI's objects", LEFT_OUT, "no mpicc that makes a library to count them"
        return
    if len(soaked.counted) != soaked.job.ranks:
        yield "MPI's objects", FAILED, f"{len(soaked.counted)} ranks of {soaked.job.ranks} told what they counted"
        return
    epochs = max(soaked.watched.last_epoch, 1)
    allocated = []
    for rows in soaked.counted.values():
        running = rows[:-1]  # the last row is from the end of the run
        per_epoch = epochs / max(rows[-1].reductions, 1)
        allocated.append(growth.slope([c.reductions * per_epoch for c in running], [c.allocated for c in running]))
    level = [
        growth.slope([s.epoch for s in rows], [s.memory for s in rows]).level
        for rows in soaked.watched.samples.values()
    ]
    of_rank = [growth.Slope(each.value, each.half_width, min(level)) for each in allocated]
    yield _worst("bytes given out by malloc", [each.problem(soaked.job.share) for each in of_rank])
    for name in _MPI:
        yield _worst(
            f"MPI: {name.replace('_', ' ')}",
            [growth.rises([getattr(c, name) for c in rows[:-1]]) for rows in soaked.counted.values()],
        )
    under_way = [
        f"{rows[-1].under_way} are under way at the end" for rows in soaked.counted.values() if rows[-1].under_way
    ]
    yield _worst("MPI: requests at the end", under_way)


def _worst(name: str, problems: list[str]) -> Verdict:
    found = [problem for problem in problems if problem]
    return name, FAILED if found else RIGHT, f"{len(found)} ranks: {found[0]}" if found else ""


def slopes(soaked: Soaked) -> list[growth.Slope]:
    """The slope of each rank's memory."""
    return [growth.slope([s.epoch for s in rows], [s.memory for s in rows]) for rows in soaked.watched.samples.values()]


def unlike(one: Path, other: Path) -> str:
    """A phrase about a difference between two runs in losses and metrics of any epoch, or in the final weights; empty if there
    is none.
    """
    names = ("loss", "train_metric", "val_metric", "test_metric", "bits", "stale_epochs")
    records = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    if len(records[0]) != len(records[1]):
        return f"one has {len(records[0])} epochs, the other {len(records[1])}"
    for mine, theirs in zip(*records, strict=True):
        for name in names:
            if mine.get(name) != theirs.get(name):
                return f"{name} of epoch {mine['epoch']}: {mine.get(name)} and {theirs.get(name)}"
    states = [torch.load(run / "checkpoints" / "last.pt", weights_only=True)["model"] for run in (one, other)]
    for name, value in states[0].items():
        if not torch.equal(value, states[1][name]):
            return f"{name} at the end"
    return ""


def training(
    folder: Path, parts: Path, out: str, *, ranks: int, epochs: int, period: int, bits: str, replay: Path | None, seconds: float,
    share: float, variables: dict[str, str],
) -> Job:  # fmt: skip
    """``hpcgnn train`` with the bits of AdaQP or PipeQS and the staleness of PipeQS, with evaluations and checkpoints every ten
    epochs.
    """
    words: list[object] = ["--bits", bits, "--staleness", "pipeqs", "--epochs", epochs, "--eval-every", 10]
    words += ["--checkpoint-every", 10, "--hidden", 16, "--layers", 2, "--seed", 1, "--quiet", "--bits-period", period]
    words += ["--replay", replay] if replay is not None else []
    lines = folder / out / "metrics.jsonl"
    command = [*processes.HPCGNN, "train", parts, "--out", out, *words]
    every = max(epochs // 100, 2)
    return Job(folder, ranks, command, lambda: watch.lines_of(lines), every, 4 * every, share, seconds, variables)


def repeated(folder: Path, parts: Path, *, rounds: int, share: float, seconds: float, variables: dict[str, str]) -> Job:
    """Rounds of :mod:`campaign.soak.again` on two ranks."""
    out = folder / "rounds"
    command = [sys.executable, "-m", "campaign.soak.again", parts, rounds, out]
    every = max(rounds // 50, 1)
    return Job(folder, 2, command, lambda: watch.lines_of(out) // 2, every, 40 * every, share, seconds, variables)


def prepared(folder: Path, ranks: int) -> str:
    """Make ``parts.h5`` of the digits graph; return a phrase if that failed."""
    steps = itertools.chain(
        [["convert", "digits", "graph.h5", "--quiet"]] if not (folder / "graph.h5").exists() else [],
        [["partition", "graph.h5", f"parts{ranks}.h5", "--parts", ranks, "--quiet"]],
    )
    for step in steps:
        ended = processes.run([*processes.HPCGNN, *step], folder=folder, seconds=240)
        if ended.exit != 0:
            return f"hpcgnn {step[0]} ends with {ended.exit}: {ended.stderr[-300:]}"
    return ""
