"""The cases, one after the other: start, kill, start again, compare."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from campaign.kills import strike
from campaign.kills.jobs import (
    CONVERT,
    EPOCHS,
    INPUTS,
    OF_TRAINED_EPOCHS,
    PARTITION,
    PARTITION_ON_RANKS,
    PLAN,
    PREPARATION,
    Job,
    training,
)
from campaign.kills.strike import ALL_RANKS, LAUNCHER, ONE_RANK, PROCESS
from campaign.processes import HPCGNN, Ended, finish, start
from campaign.processes import run as run_command
from campaign.section import FAILED, RIGHT, Case, Session
from campaign.whole import none_half

ENDS_WITHIN_SECONDS = 30.0
_TOOK_SECONDS = 300.0  # a command that takes longer than this counts as hanging
_TRIES = 8
_STILL = "tmp"  # name of the folder for temporary files of a case
SOME_TIME, WRITING, CHECKPOINT = "at any time", "while it writes", "in a checkpoint"


@dataclass(frozen=True)
class Plan:
    """A planned kill: of ``who`` in the job, at a moment of this kind. twice: the job that was started again is killed, too."""

    job: Job
    who: str
    moment: str
    twice: bool = False


@dataclass(frozen=True)
class Undisturbed:
    """The results of an undisturbed command. seconds: until its end. first_file: seconds until it begins to write."""

    made: dict[str, str]
    names: set[str]
    seconds: float
    first_file: float
    folder: Path


@dataclass
class Tally:
    """Counts over all cases, for the report."""

    seconds: list[float] = field(default_factory=list)
    until_ended: list[float] = field(default_factory=list)
    too_late: int = 0
    in_checkpoints: int = 0
    of_open_mpi: int = 0


def plans(*, short: bool) -> list[Plan]:
    """The kills in order: one of each kind comes before the second of any kind."""
    delta, rows = training(2, "delta", 1), training(2, "learned rows", 1)
    if short:
        return [
            Plan(CONVERT, PROCESS, WRITING),
            Plan(PARTITION, PROCESS, WRITING),
            Plan(delta, ALL_RANKS, CHECKPOINT),
            Plan(delta, ONE_RANK, SOME_TIME),
            Plan(rows, ALL_RANKS, CHECKPOINT, twice=True),
        ]
    found: list[Plan] = []
    for turn, policy in enumerate(("", "adaqp, pipeline", "delta", "", "delta")):
        moment = (SOME_TIME, WRITING)[turn % 2]
        for job in (CONVERT, PARTITION, PLAN):
            found += [Plan(job, PROCESS, each) for each in (SOME_TIME, WRITING, moment)]
        found += [Plan(PARTITION_ON_RANKS, who, moment) for who in (ONE_RANK, ALL_RANKS, LAUNCHER)]
        for who in (ONE_RANK, ALL_RANKS, LAUNCHER):
            found += [Plan(training(2, policy, 3), who, each) for each in (SOME_TIME, WRITING)]
            found.append(Plan(training(4, policy, 3), who, moment))
        found += [Plan(training(2, policy, 1), who, CHECKPOINT) for who in (ONE_RANK, ALL_RANKS, LAUNCHER)]
        # Ranks that have lost their launcher may end their run, and leave nothing to be killed.
        found += [Plan(rows, who, CHECKPOINT, twice=who != LAUNCHER) for who in (ONE_RANK, ALL_RANKS, LAUNCHER)]
    return found


def run(session: Session) -> Iterator[Case]:
    """Yield the cases of the section."""
    inputs, tally = session.folder / Path(INPUTS).name, Tally()
    undisturbed: dict[str, Undisturbed] = {}
    inputs.mkdir()
    for words in PREPARATION[: 2 if session.short else None]:
        _check_ended(run_command([*HPCGNN, *words, "--quiet"], folder=inputs, seconds=_TOOK_SECONDS))
    for number, plan in enumerate(plans(short=session.short)):
        name = f"{number} {plan.job.name}: {plan.who}, {plan.moment}"
        if not session.wants(name):
            continue
        started = time.monotonic()
        if plan.job.name not in undisturbed:
            alone = _left_alone(session, plan.job)
            if plan.job.replays:  # a replaying run measures nothing, and so writes one file less
                alone = _left_alone(session, plan.job, replay=_decisions(alone))
            undisturbed[plan.job.name] = alone
        wrong = _try(session, name, plan, undisturbed[plan.job.name], tally)
        tally.seconds.append(time.monotonic() - started)
        group = f"{plan.job.name.partition(',')[0]}: {plan.who}" + (", in a checkpoint" * (plan.moment == CHECKPOINT))
        yield Case(group, name, FAILED if wrong else RIGHT, wrong, tally.seconds[-1])
    _add_facts(session, tally)


def _add_facts(session: Session, tally: Tally) -> None:
    session.add_fact("kills that hit a running command", len(tally.seconds))
    session.add_fact("commands that ended before the kill, and were tried again with an earlier one", tally.too_late)
    session.add_fact("kills while a temporary file of a checkpoint existed", tally.in_checkpoints)
    session.add_fact("files and folders left behind by killed launchers of Open MPI", tally.of_open_mpi)
    if tally.seconds:
        session.add_fact("duration of a case, median", round(statistics.median(tally.seconds), 1), "s")
        session.add_fact(
            "time until all processes of a killed job had ended, longest", round(max(tally.until_ended), 1), "s"
        )


def _check_ended(ended: Ended) -> None:
    if ended.exit != 0:
        raise RuntimeError(f"an undisturbed command ended with {ended.exit}: {ended.stderr}")


def _command(job: Job, folder: Path, *, again: bool = False, replay: Path | None = None) -> subprocess.Popen[str]:
    words = [*HPCGNN, *job.words, *(job.again if again else ()), "--quiet"]
    words += ["--replay", str(replay)] if replay else []
    return start(words, folder=folder, ranks=job.ranks, variables={"TMPDIR": str(folder / _STILL)})


def _new_folder(session: Session, job: Job, name: str) -> Path:
    folder = session.new_folder(name)
    (folder / _STILL).mkdir()
    if job.copied:
        shutil.copy(session.folder / Path(INPUTS).name / job.copied, folder)
    return folder


def _decisions(alone: Undisturbed) -> Path:
    """The decisions of an undisturbed training."""
    return alone.folder / "run" / "decisions.jsonl"


def _left_alone(session: Session, job: Job, *, replay: Path | None = None) -> Undisturbed:
    folder = _new_folder(session, job, f"undisturbed {job.name}")
    before, started = strike.names(folder), time.monotonic()
    process = _command(job, folder, replay=replay)
    strike.wait_until(lambda: _has_written(folder, before), process)
    first_file = time.monotonic() - started
    _check_ended(finish(process, seconds=_TOOK_SECONDS))
    return Undisturbed(job.made(folder), _names(folder), time.monotonic() - started, first_file, folder)


def _names(folder: Path) -> set[str]:
    """All names, except those that Open MPI gives to its own files."""
    return {name for name in strike.names(folder) if not strike.is_of_open_mpi(name.removeprefix(f"{_STILL}/"))}


def _writes(folder: Path, watched: str) -> bool:
    return any(watched in name for name in strike.temporaries(folder))


def _has_written(folder: Path, before: set[str]) -> bool:
    return any(not name.startswith(_STILL) for name in strike.names(folder) - before)


def _try(session: Session, name: str, plan: Plan, alone: Undisturbed, tally: Tally) -> str:
    """A phrase about the defect of a case; empty if there is none."""
    chance = session.generator(name)
    share, shared_before = float(chance.random()), strike.shared_memory()
    replay = _decisions(alone) if plan.job.replays else None
    # A checkpoint's file; best.pt is written before last.pt.
    own = {"delta": "-0.pt.", "learned rows": ".last-"}
    watched = str(
        chance.choice([".last.pt.", ".best.pt.", *(file for word, file in own.items() if word in plan.job.name)])
    )
    folder, hits = _new_folder(session, plan.job, name), 0
    for _ in range(_TRIES):
        process = _command(plan.job, folder, again=hits > 0, replay=replay)
        _wait_for_the_moment(plan, alone, folder, share, process, chance)
        members, chosen = strike.family(process.pid), strike.victims(process, plan.who, chance)
        jobs = strike.jobs_of(members)
        # The moment is chosen beforehand, because a checkpoint is written within milliseconds.
        if plan.moment == CHECKPOINT:
            strike.wait_until(partial(_writes, folder, watched), process, poll=0.0003)
        is_hit = strike.kill(chosen)
        hits += is_hit
        if hits == 1 + plan.twice:
            break
        if is_hit:  # ranks without their launcher may live on, and hold the run's lock
            strike.until_ended(sorted({*members, *strike.family(process.pid)}), ENDS_WITHIN_SECONDS)
        finish(process, seconds=_TOOK_SECONDS)
        if not is_hit:
            tally.too_late += 1
            share, hits = 0.7 * share, 0
            shutil.rmtree(folder)
            folder = _new_folder(session, plan.job, name)
    else:
        return f"ended before each of {_TRIES} kills"
    tally.in_checkpoints += plan.moment == CHECKPOINT and _writes(folder, watched)
    ended = strike.until_ended(sorted({*members, *strike.family(process.pid)}), ENDS_WITHIN_SECONDS)
    finish(process, seconds=ENDS_WITHIN_SECONDS)
    if ended is None:
        return f"processes are still there {ENDS_WITHIN_SECONDS:.0f} s after the kill"
    tally.until_ended.append(ended)
    half = none_half(folder)
    wrong = f"after the kill, {half}" if half else _start_again(plan.job, folder, alone, replay)
    tally.of_open_mpi += strike.remove_shared_memory(jobs) + sum(1 for _ in (folder / _STILL).glob("ompi.*/*"))
    wrong = wrong or _left_in_shared_memory(shared_before)
    if not wrong:
        shutil.rmtree(folder)
    return wrong


def _wait_for_the_moment(
    plan: Plan,
    alone: Undisturbed,
    folder: Path,
    share: float,
    process: subprocess.Popen[str],
    chance: np.random.Generator,
) -> None:
    """Wait for the moment of the kill. share: of the duration in question."""
    before, started = strike.names(folder), time.monotonic()
    length = alone.seconds
    if plan.moment == WRITING:
        strike.wait_until(lambda: _has_written(folder, before), process)
        started, length = time.monotonic(), alone.seconds - alone.first_file
    if plan.moment == CHECKPOINT:
        records = folder / "run" / "metrics.jsonl"
        # A job that is started again must have ranks, and have removed what the first kill left, which is an epoch later.
        wanted = max(1 + int(share * (EPOCHS - 2)), strike.lines_in(records) + 1)
        strike.wait_until(lambda: strike.lines_in(records) >= wanted, process, poll=0.002)
        return
    strike.wait_until(lambda: time.monotonic() > started + share * length, process)
    if plan.who == ONE_RANK:
        strike.wait_until(lambda: bool(strike.victims(process, ONE_RANK, chance)), process)


def _start_again(job: Job, folder: Path, alone: Undisturbed, replay: Path | None) -> str:
    ended = finish(_command(job, folder, again=True, replay=replay), seconds=_TOOK_SECONDS)
    if ended.exit != 0 and not (ended.exit == 1 and "exists: choose another name" in ended.stderr):
        return f"started again, it ends with {ended.exit}: {ended.stderr.strip()[-600:]}"
    return compare(job, folder, alone)


def compare(job: Job, folder: Path, alone: Undisturbed) -> str:
    """A phrase about a difference from the results and files of an undisturbed command; empty if there is none."""
    try:
        made = job.made(folder)
    except Exception as error:  # a damaged file may make a library raise any error
        return f"what was made cannot be read: {error!r}"
    other = [name for name, value in alone.made.items() if made.get(name) != value]
    if other:
        return f"not what an undisturbed command made: {', '.join(f'{name} {made.get(name)}' for name in other)}"
    left, missing = _names(folder) - alone.names, alone.names - _names(folder) - OF_TRAINED_EPOCHS
    if left or missing:
        return f"left behind: {sorted(left)}; missing: {sorted(missing)}"
    return ""


def _left_in_shared_memory(before: set[str]) -> str:
    left = [name for name in strike.shared_memory() - before if not strike.is_of_open_mpi(name)]
    return f"left behind in shared memory: {left}" if left else ""
