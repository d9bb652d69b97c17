"""The run of all checks, on the ranks of this job or on two ranks that are started for the purpose."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.version import __version__
from hpcgnn.doctor import cores, folders, software
from hpcgnn.doctor.job import BROKEN, OK, WORTH_CHANGING, Check, Finding, Job, Problem, Report, counted, of_problems
from hpcgnn.launch import mpiexec
from hpcgnn.world import job as process
from hpcgnn.world.mpi_world import MpiWorld
from hpcgnn.world.thread_world import one_rank
from hpcgnn.world.world import World, check_alike, told_sizes

RANKS = 2
_STEP = "SLURM_STEP_NUM_TASKS"  # also of a step of one task, which may be an interactive shell
_RANKS_OF_LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_FAMILIES = {  # of MPI: the words of launchers and libraries. Those of one family understand each other's ranks.
    "Open MPI": ("Open MPI", "OpenRTE", "open-mpi", "PRRTE"),
    "MPICH": ("HYDRA", "MPICH", "MVAPICH", "Intel(R) MPI"),
}
_GRACE_SECONDS = 5.0
_LONGEST = 300  # characters of a launcher's message
_NUMBER = re.compile(r"((\d+)\.\d+)")
_START_MPI = "from hpcgnn.world.mpi_world import MpiWorld; print(MpiWorld().library)"


def is_launched(variables: Mapping[str, str]) -> bool:
    """Return whether a launcher has started this process as a rank of MPI, as far as the environment tells."""
    step = variables.get(_STEP, "")
    return any(name in variables for name in _RANKS_OF_LAUNCHERS) or (step.isdecimal() and int(step) > 1)


def family_of(words: str) -> str:
    """``Open MPI`` or ``MPICH``; empty if ``words`` name neither."""
    return next((name for name, known in _FAMILIES.items() if any(word in words for word in known)), "")


def look_at_launcher(library: str, *, ranks_run: bool) -> Finding:
    """Check the launcher of `hpcgnn launch`. library: the MPI library of mpi4py; empty if it is unknown. ranks_run: whether ranks
    have started; the launcher is then not broken, whatever else is found."""
    try:
        launcher = mpiexec.find_launcher(sys.executable)
        said = mpiexec.version_of(launcher)
    except HpcgnnError as error:
        return Finding("launcher", "", WORTH_CHANGING if ranks_run else BROKEN, str(error))
    return judge_launcher(launcher, said, library, ranks_run=ranks_run)


def judge_launcher(launcher: str, said: str, library: str, *, ranks_run: bool) -> Finding:
    """Judge a launcher. said: the output of its option ``--version``."""
    wanted, has, loaded = family_of(library), family_of(said), library.partition(",")[0]
    mine, theirs = (found and found.groups() for found in map(_NUMBER.search, (_version_line(said), loaded)))
    problems: list[Problem] = []
    if wanted and has and wanted != has:
        sentence = (
            f"{launcher} is {has}'s, but mpi4py loads {loaded}, so each rank would be a job of its own: put the mpiexec of that"
            " library first on PATH, or set MPIEXEC to it"
        )
        problems = [(WORTH_CHANGING if ranks_run else BROKEN, sentence)]
    elif wanted == has == "Open MPI" and mine and theirs and mine[1] != theirs[1]:
        problems = [
            f"{launcher} has version {mine[0]}, but the library of mpi4py has {theirs[0]}: use both from one MPI"
        ]
    return of_problems("launcher", f"{launcher} ({_title(said)})", problems)


def _version_line(said: str) -> str:
    """The first line with a version; Hydra prints it in its second line."""
    return next((line.strip() for line in said.splitlines() if _NUMBER.search(line)), "")


def _title(said: str) -> str:
    """The name and version of a launcher, from its own words."""
    name, line = family_of(said), _version_line(said)
    version = re.search(r"\d+(?:\.\d+)+\S*", line)
    return f"{name} {version[0]}" if name and version else line or name or "unknown version"


def judge_size(size: int, sizes: Mapping[str, int]) -> Finding:
    """Judge whether MPI and the launcher have the same number of ranks. sizes: from :func:`hpcgnn.world.world.told_sizes`."""
    problems: list[Problem] = []
    if sizes and size not in sizes.values():
        name, wanted = next(iter(sizes.items()))
        if size == 1:  # HPCGNN_ALONE is set, or the job would have been refused
            problems = [
                f"the launcher has started {wanted} processes ({name}), and each is a job of its own because HPCGNN_ALONE is set:"
                " unset it, unless you want separate jobs"
            ]
        else:
            problems = [
                f"the launcher has {wanted} ranks ({name}), but MPI has {size}: start ranks with a single launcher, not inside"
                " the job of another one"
            ]
    return of_problems("ranks", f"one job of {counted(size, 'rank')}", problems)


@dataclass(frozen=True)
class Started:
    """The result of starting ranks. report: their report, or None. problem: a sentence if there is none. line: command line."""

    report: Report | None
    problem: str
    line: str


def start_ranks(folder: Path, seconds: float) -> Started:
    """Start :data:`RANKS` ranks of ``hpcgnn doctor``, and end them after ``seconds`` if they have not ended by then."""
    # Half the time for waits between the ranks, so they can report such a wait before this process ends them.
    doctor = ["-m", "hpcgnn", "doctor", "--json", "--by-doctor", "--folder", str(folder), f"--timeout={seconds / 2}"]
    try:
        start = mpiexec.command(RANKS)
    except HpcgnnError as error:
        return Started(None, str(error), "")
    line = shlex.join([*start[1:], "hpcgnn", "doctor"])
    code, output, problems = _output_of([*start, sys.executable, *doctor], seconds)
    if code is None:
        problem = (
            f"{RANKS} ranks did not end within {seconds:g} s (--timeout): try `hpcgnn launch -n {RANKS} -- hostname`, and check"
            " that host names resolve, that no firewall stops connections, and that the job has slots for these ranks"
        )
        return Started(None, problem, line)
    for text in reversed(output.splitlines()):
        if text.startswith('{"hpcgnn"'):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return Started(Report.of(json.loads(text)), "", line)
    return Started(None, f"{RANKS} ranks failed (exit code {code}): {_reason(problems + output)}", line)


def start_mpi(seconds: float) -> tuple[str, str]:
    """The MPI library, or a sentence about a problem with it. MPI is started in a process of its own, which it may end."""
    code, output, problems = _output_of([sys.executable, "-c", _START_MPI], seconds)
    if code == 0 and output.strip():
        return output.strip().splitlines()[-1], ""
    if code is None:
        slow = f"MPI does not start within {seconds:g} s (--timeout) in a process of its own"
        return "", f"{slow}: check that the name of this host resolves"
    return "", f"MPI does not start in a process of its own (exit code {code}): {_reason(problems + output)}"


def _output_of(line: Sequence[str], seconds: float) -> tuple[int | None, str, str]:
    """Run a command, and end it after ``seconds``. Returns its exit code (None if it was ended), stdout and stderr."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = dict(os.environ)  # without variables that a library set in C
    with mpiexec.started(line, _GRACE_SECONDS, env=environment, text=True, errors="replace", **pipes) as process:
        try:
            output, problems = process.communicate(timeout=seconds)
            return process.returncode, output, problems
        except subprocess.TimeoutExpired:
            return None, "", ""


def _reason(text: str) -> str:
    """The sentence that hpcgnn printed, else the last line of an exception, else the first words of the launcher."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    own = [line.partition("hpcgnn: ")[2] for line in lines if line.startswith("hpcgnn: ")]
    if own:
        return own[0]
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1][:_LONGEST]
    said = " ".join(lines)
    return said if 0 < len(said) <= _LONGEST else f"{said[:_LONGEST]}..." if said else "it printed nothing"


Tell = Callable[[str], None]  # called with the name of a check that begins

CHECKS: tuple[Check, ...] = (
    software.VERSIONS, software.MPI, cores.BINDING, cores.THREADS, software.KERNELS, software.GPUS, cores.WITHIN, cores.BETWEEN,
    folders.FOLDER, folders.TEMPORARY, folders.SHARED_MEMORY, software.PARTS,
)  # fmt: skip


class Unfinished(Exception):
    """Raised on rank 0 if a check failed without the other ranks' knowledge, so the job must end: all findings until then,
    including this failure, and the error of the check."""

    def __init__(self, report: Report, error: HpcgnnError) -> None:
        super().__init__(str(error))
        self.report, self.error = report, error


def examine(folder: Path, seconds: float, tell: Tell, *, launch: bool = True, by_doctor: bool = False) -> Report | None:
    """Run all checks and return the report, which is the same on every rank; None on ranks that MPI takes for jobs of their own,
    except the first of them. Collective.

    seconds: the longest time for the start of the ranks, and for an answer from another rank. launch: whether to start ranks if
    this process is not a rank of a job. by_doctor: whether ``hpcgnn doctor`` started this process as a rank. Raises
    :class:`Unfinished` on rank 0, if a check failed on one rank only; the others raise HpcgnnError.
    """
    if is_launched(os.environ):
        return _on_ranks(folder, seconds, tell, by_doctor=by_doctor)
    return _alone(folder, seconds, tell, launch=launch)


def _on_ranks(folder: Path, seconds: float, tell: Tell, *, by_doctor: bool) -> Report | None:
    tell("ranks")
    try:
        world = MpiWorld(timeout_seconds=seconds)
    except HpcgnnError as error:  # raised by each of several processes that MPI did not join to one job
        if process.launcher_rank():
            return None
        library, job = software.mpi_started()[0], Job(one_rank(), folder)
        findings = [] if by_doctor else [look_at_launcher(library, ranks_run=False)]
        findings.append(Finding("ranks", "", BROKEN, str(error)))
        return _report(job.world, library, _findings(CHECKS, job, tell, findings))
    try:
        check_alike(world)
    except HpcgnnError as error:
        if not error.agreed:
            raise
        # Ranks of another version may have other checks, so no more collective checks are run.
        findings = [Finding("ranks", counted(world.size, "rank"), BROKEN, str(error))]
        findings += _findings(CHECKS, Job(one_rank(), folder), tell) if world.rank == 0 else []
        return Report(__version__, world.library, world.size, 1, tuple(findings))
    findings = [judge_size(world.size, told_sizes())]
    if not by_doctor and world.rank == 0:
        findings.insert(0, look_at_launcher(world.library, ranks_run=True))
    job = Job(world, folder, by_doctor)
    findings = _findings(CHECKS, job, tell, findings)
    nodes = len(set(job.nodes))
    world.close()
    return _report(world, world.library, findings, nodes)


def _alone(folder: Path, seconds: float, tell: Tell, *, launch: bool) -> Report:
    findings: list[Finding] = []
    if launch:
        tell(f"the start of {RANKS} ranks")
        started = start_ranks(folder, seconds)
        if started.report is not None:
            report = started.report
            found = [look_at_launcher(report.mpi, ranks_run=report.ranks > 1)]
            for each in report.findings:
                is_start = each.check == "ranks" and each.state == OK
                found.append(replace(each, found=f"{each.found}, started by this command") if is_start else each)
            return replace(report, findings=tuple(found))
        findings = [Finding("ranks", started.line, BROKEN, started.problem)]
    tell("MPI")
    library, problem = start_mpi(seconds)
    findings.insert(0, look_at_launcher(library, ranks_run=False))
    if problem:
        findings.append(Finding("MPI", "", BROKEN, problem))
    world: World = one_rank() if problem else MpiWorld(timeout_seconds=seconds)
    return _report(world, library, findings + _findings(CHECKS, Job(world, folder), tell))


def _findings(checks: tuple[Check, ...], job: Job, tell: Tell, before: Sequence[Finding] = ()) -> list[Finding]:
    """Run the checks, and return their findings behind the findings ``before``."""
    found = [*before]
    for check in checks:
        tell(check.name)
        try:
            finding = check.finding(job)
        except HpcgnnError as error:
            if job.world.rank:
                raise
            findings = (*found, Finding(check.name, "", BROKEN, str(error)))
            raise Unfinished(Report(__version__, job.world.library, job.world.size, 1, findings), error) from error
        found += [] if finding is None else [finding]
    return found


def _report(world: World, library: str, findings: list[Finding], nodes: int = 1) -> Report:
    """The report of rank 0, on every rank of ``world``. Collective."""
    mine = Report(__version__, library, world.size, nodes, tuple(findings))
    return world.broadcast(mine, what="the report of rank 0")
