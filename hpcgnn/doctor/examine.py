"""The run of all checks, on the ranks of this job or on two ranks that are started for the purpose."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.version import __version__
from hpcgnn.doctor import cores, folders, installation, launching, links, software
from hpcgnn.doctor.finding import BROKEN, OK, Finding, Report, counted
from hpcgnn.doctor.job import Check, Job
from hpcgnn.world import job as process
from hpcgnn.world.mpi_world import MpiWorld
from hpcgnn.world.thread_world import one_rank
from hpcgnn.world.world import World, check_alike, told_sizes

Tell = Callable[[str], None]  # called with the name of a check that begins

CHECKS: tuple[Check, ...] = (
    software.VERSIONS,
    software.MPI,
    cores.BINDING,
    cores.THREADS,
    software.KERNELS,
    software.GPUS,
    links.WITHIN,
    links.BETWEEN,
    folders.FOLDER,
    folders.TEMPORARY,
    folders.SHARED_MEMORY,
    software.PARTS,
)


class Unfinished(Exception):
    """Raised on rank 0 if a check failed without the other ranks' knowledge, so the job must end.

    report: all findings until then, including this failure. error: the error of the check.
    """

    def __init__(self, report: Report, error: HpcgnnError) -> None:
        super().__init__(str(error))
        self.report, self.error = report, error


def examine(folder: Path, seconds: float, tell: Tell, *, launch: bool = True, by_doctor: bool = False) -> Report | None:
    """Run all checks and return the report, which is the same on every rank. Collective.

    Returns None on ranks that MPI takes for jobs of their own, except the first of them.

    Args:
        folder: the folder for a file of all ranks.
        seconds: the longest time for the start of the ranks, and for an answer from another rank.
        launch: whether to start ranks if this process is not a rank of a job.
        by_doctor: whether ``hpcgnn doctor`` started this process as a rank.

    Raises:
        Unfinished: on rank 0, if a check failed on one rank only. The others raise HpcgnnError.
    """
    if launching.is_launched(os.environ):
        return _on_ranks(folder, seconds, tell, by_doctor=by_doctor)
    return _alone(folder, seconds, tell, launch=launch)


def _on_ranks(folder: Path, seconds: float, tell: Tell, *, by_doctor: bool) -> Report | None:
    tell("ranks")
    try:
        world = MpiWorld(timeout_seconds=seconds)
    except HpcgnnError as error:  # raised by each process by itself
        return None if process.launcher_rank() else _without_the_others(folder, tell, error, by_doctor=by_doctor)
    try:
        check_alike(world)
    except HpcgnnError as error:
        if not error.agreed:
            raise
        # Ranks of another version may have other checks, so no more collective checks are run.
        findings = [Finding("ranks", counted(world.size, "rank"), BROKEN, str(error))]
        findings += _run(CHECKS, Job(one_rank(), folder), tell) if world.rank == 0 else []
        return Report(__version__, world.library, world.size, 1, tuple(findings))
    findings = [launching.judge_size(world.size, told_sizes())]
    if not by_doctor and world.rank == 0:
        findings.insert(0, launching.look_at_launcher(world.library, ranks_run=True))
    job = Job(world, folder, by_doctor)
    findings = _run(CHECKS, job, tell, findings)
    nodes = len(set(job.nodes))
    world.close()
    return _report(world, world.library, findings, nodes)


def _without_the_others(folder: Path, tell: Tell, error: HpcgnnError, *, by_doctor: bool) -> Report:
    """The report of the first of several processes that a launcher started, but that MPI did not join to one job."""
    library = installation.mpi_started()[0]
    findings = [] if by_doctor else [launching.look_at_launcher(library, ranks_run=False)]
    findings.append(Finding("ranks", "", BROKEN, str(error)))
    return _report(one_rank(), library, findings + _run(CHECKS, Job(one_rank(), folder), tell))


def _alone(folder: Path, seconds: float, tell: Tell, *, launch: bool) -> Report:
    findings: list[Finding] = []
    if launch:
        tell(f"the start of {launching.RANKS} ranks")
        started = launching.start_ranks(folder, seconds)
        if started.report is not None:
            launcher = launching.look_at_launcher(started.report.mpi, ranks_run=started.report.ranks > 1)
            return _joined(launcher, started)
        findings = [launching.of_start(started)]
    tell("MPI")
    library, problem = launching.start_mpi(seconds)
    findings.insert(0, launching.look_at_launcher(library, ranks_run=False))
    if problem:
        findings.append(Finding("MPI", "", BROKEN, problem))
    world: World = one_rank() if problem else MpiWorld(timeout_seconds=seconds)
    return _report(world, library, findings + _run(CHECKS, Job(world, folder), tell))


def _joined(launcher: Finding, started: launching.Started) -> Report:
    """The report of the ranks that were started, with a finding about their start."""
    assert started.report is not None
    report = started.report
    findings = [
        Finding(each.check, f"{each.found}, started by this command", each.state, each.sentence)
        if each.check == "ranks" and each.state == OK
        else each
        for each in report.findings
    ]
    return Report(report.hpcgnn, report.mpi, report.ranks, report.nodes, (launcher, *findings))


def _run(checks: tuple[Check, ...], job: Job, tell: Tell, before: list[Finding] | None = None) -> list[Finding]:
    """Run the checks, and return their findings behind the findings ``before``."""
    found = list(before or [])
    for check in checks:
        tell(check.name)
        try:
            finding = check.finding(job)
        except HpcgnnError as error:
            if job.world.rank:
                raise
            findings = (*found, Finding(check.name, "", BROKEN, str(error)))
            raise Unfinished(Report(__version__, job.world.library, job.world.size, 1, findings), error) from error
        if finding is not None:
            found.append(finding)
    return found


def _report(world: World, library: str, findings: list[Finding], nodes: int = 1) -> Report:
    """The report of rank 0, on every rank of ``world``. Collective."""
    mine = Report(__version__, library, world.size, nodes, tuple(findings))
    return world.broadcast(mine, what="the report of rank 0")
