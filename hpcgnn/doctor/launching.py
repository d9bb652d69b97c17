"""Checks of the launcher: it must belong to the MPI that mpi4py loads, and the ranks that it starts must become one job.

A process that no launcher started checks ranks that it starts itself, with the launcher of ``hpcgnn launch``. It does not start
MPI before that, because MPI ends a process that runs alone on the login nodes of some clusters.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.doctor.finding import BROKEN, OK, WORTH_CHANGING, Finding, Report
from hpcgnn.launch import mpiexec

RANKS = 2
_STEP = "SLURM_STEP_NUM_TASKS"  # also of a step of one task, which may be an interactive shell
_RANKS_OF_LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
_FAMILIES = {  # of MPI: the words of launchers and libraries. Those of one family understand each other's ranks.
    "Open MPI": ("Open MPI", "OpenRTE", "open-mpi", "PRRTE"),
    "MPICH": ("HYDRA", "MPICH", "MVAPICH", "Intel(R) MPI"),
}
_GRACE_SECONDS = 5.0
_LONGEST = 300  # characters of a launcher's message
_START_MPI = "from hpcgnn.world.mpi_world import MpiWorld; print(MpiWorld().library)"


def is_launched(variables: Mapping[str, str]) -> bool:
    """Return whether a launcher has started this process as a rank of MPI, as far as the environment tells."""
    step = variables.get(_STEP, "")
    return any(name in variables for name in _RANKS_OF_LAUNCHERS) or (step.isdecimal() and int(step) > 1)


# -- the launcher -----------------------------------------------------------------------------------------------------


def family_of(words: str) -> str:
    """``Open MPI`` or ``MPICH``; empty if ``words`` name neither."""
    return next((name for name, known in _FAMILIES.items() if any(word in words for word in known)), "")


def look_at_launcher(library: str, *, ranks_run: bool) -> Finding:
    """Check the launcher of `hpcgnn launch`.

    library: the MPI library of mpi4py; empty if it is unknown. ranks_run: whether ranks have started; the launcher is then not
    broken, whatever else is found.
    """
    try:
        launcher = mpiexec.find_launcher(sys.executable)
        said = mpiexec.version_of(launcher)
    except HpcgnnError as error:
        return Finding("launcher", "", WORTH_CHANGING if ranks_run else BROKEN, str(error))
    return judge_launcher(launcher, said, library, ranks_run=ranks_run)


def judge_launcher(launcher: str, said: str, library: str, *, ranks_run: bool) -> Finding:
    """Judge a launcher. said: the output of its option ``--version``."""
    found = f"{launcher} ({_title(said)})"
    wanted, has = family_of(library), family_of(said)
    if wanted and has and wanted != has:
        return Finding(
            "launcher", found, WORTH_CHANGING if ranks_run else BROKEN,
            f"{launcher} is {has}'s, but mpi4py loads {library.partition(',')[0]}, so each rank would be a job of its own:"
            " put the mpiexec of that library first on PATH, or set MPIEXEC to it",
        )  # fmt: skip
    numbers = [re.search(r"(\d+)\.\d+", text) for text in (library.partition(",")[0], _version_line(said))]
    if wanted == has == "Open MPI" and all(numbers) and numbers[0][1] != numbers[1][1]:  # type: ignore[index]
        return Finding(
            "launcher", found, WORTH_CHANGING,
            f"{launcher} has version {numbers[1][0]}, but the library of mpi4py has {numbers[0][0]}: use both from one MPI",  # type: ignore[index]
        )  # fmt: skip
    return Finding("launcher", found, OK)


def _version_line(said: str) -> str:
    """The first line with a version; Hydra prints it in its second line."""
    lines = [line.strip() for line in said.splitlines() if re.search(r"\d+\.\d+", line)]
    return lines[0] if lines else ""


def _title(said: str) -> str:
    """The name and version of a launcher, from its own words."""
    name, line = family_of(said), _version_line(said)
    version = re.search(r"\d+(?:\.\d+)+\S*", line)
    return f"{name} {version[0]}" if name and version else line or name or "unknown version"


# -- ranks ------------------------------------------------------------------------------------------------------------


def judge_size(size: int, sizes: Mapping[str, int]) -> Finding:
    """Judge whether MPI and the launcher have the same number of ranks. sizes: from :func:`hpcgnn.world.world.told_sizes`."""
    found = f"one job of {size} {'rank' if size == 1 else 'ranks'}"
    if not sizes or size in sizes.values():
        return Finding("ranks", found, OK)
    name, wanted = next(iter(sizes.items()))
    if size == 1:  # HPCGNN_ALONE is set, or the job would have been refused
        return Finding(
            "ranks", found, WORTH_CHANGING,
            f"the launcher has started {wanted} processes ({name}), and each is a job of its own because HPCGNN_ALONE is set:"
            " unset it, unless you want separate jobs",
        )  # fmt: skip
    return Finding(
        "ranks", found, WORTH_CHANGING,
        f"the launcher has {wanted} ranks ({name}), but MPI has {size}: start ranks with a single launcher, not inside the job of"
        " another one",
    )  # fmt: skip


# -- starting some ----------------------------------------------------------------------------------------------------


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
    code, output, problems = _run([*start, sys.executable, *doctor], seconds)
    if code is None:
        return Started(
            None,
            f"{RANKS} ranks did not end within {seconds:g} s (--timeout): try `hpcgnn launch -n {RANKS} -- hostname`, and check"
            " that host names resolve, that no firewall stops connections, and that the job has slots for these ranks",
            line,
        )
    for text in reversed(output.splitlines()):
        if text.startswith('{"hpcgnn"'):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return Started(Report.of(json.loads(text)), "", line)
    return Started(None, f"{RANKS} ranks failed (exit code {code}): {_reason(problems + output)}", line)


def start_mpi(seconds: float) -> tuple[str, str]:
    """The MPI library, or a sentence about a problem with it. MPI is started in a process of its own, which it may end."""
    code, output, problems = _run([sys.executable, "-c", _START_MPI], seconds)
    if code == 0 and output.strip():
        return output.strip().splitlines()[-1], ""
    if code is None:
        slow = f"MPI does not start within {seconds:g} s (--timeout) in a process of its own"
        return "", f"{slow}: check that the name of this host resolves"
    return "", f"MPI does not start in a process of its own (exit code {code}): {_reason(problems + output)}"


def _run(line: Sequence[str], seconds: float) -> tuple[int | None, str, str]:
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


def of_start(started: Started) -> Finding:
    """The finding for ranks that could not be started. If they could, their own report has a finding of the same name."""
    return Finding("ranks", started.line, BROKEN, started.problem)
