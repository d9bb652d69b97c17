"""The launcher: whether it is of the MPI that mpi4py loads, and whether the ranks that it starts become one job.

A process that no launcher has started looks at ranks that it starts itself, by the launcher that ``hpcgnn launch`` takes. It does
not start MPI before that: on the login nodes of some clusters MPI ends a process that starts it alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.doctor.finding import BROKEN, OK, WORTH_CHANGING, Finding, Report
from hpcgnn.errors import HpcgnnError
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
_START_MPI = "from hpcgnn.comm.mpi_world import MpiWorld; print(MpiWorld().library)"


def is_launched(variables: Mapping[str, str]) -> bool:
    """Return whether a launcher has started this process as a rank of MPI, as far as the environment tells."""
    step = variables.get(_STEP, "")
    return any(name in variables for name in _RANKS_OF_LAUNCHERS) or (step.isdecimal() and int(step) > 1)


# -- the launcher -----------------------------------------------------------------------------------------------------


def family_of(words: str) -> str:
    """``Open MPI``, ``MPICH``, or nothing where neither is told."""
    return next((name for name, known in _FAMILIES.items() if any(word in words for word in known)), "")


def look_at_launcher(library: str, *, ranks_run: bool) -> Finding:
    """That of `hpcgnn launch`. library: of mpi4py, empty where it is not known. ranks_run: ranks have started, so it is not
    broken whatever else is found."""
    try:
        launcher = mpiexec.find_launcher(sys.executable)
        said = mpiexec.version_of(launcher)
    except HpcgnnError as error:
        return Finding("launcher", "", WORTH_CHANGING if ranks_run else BROKEN, str(error))
    return judge_launcher(launcher, said, library, ranks_run=ranks_run)


def judge_launcher(launcher: str, said: str, library: str, *, ranks_run: bool) -> Finding:
    """said: by the launcher, of its version."""
    found = f"{launcher} ({_title(said)})"
    wanted, has = family_of(library), family_of(said)
    if wanted and has and wanted != has:
        return Finding(
            "launcher", found, WORTH_CHANGING if ranks_run else BROKEN,
            f"{launcher} is {has}'s, and mpi4py loads {library.partition(',')[0]}, so each rank would be a job of its own: put"
            " the mpiexec of that library first on PATH, or name it in MPIEXEC",
        )  # fmt: skip
    numbers = [re.search(r"(\d+)\.\d+", text) for text in (library.partition(",")[0], _version_line(said))]
    if wanted == has == "Open MPI" and all(numbers) and numbers[0][1] != numbers[1][1]:  # type: ignore[index]
        return Finding(
            "launcher", found, WORTH_CHANGING,
            f"{launcher} is of version {numbers[1][0]} and the library of mpi4py of {numbers[0][0]}: take both from one MPI",  # type: ignore[index]
        )  # fmt: skip
    return Finding("launcher", found, OK)


def _version_line(said: str) -> str:
    """The line with the version: Hydra tells it in the second."""
    lines = [line.strip() for line in said.splitlines() if re.search(r"\d+\.\d+", line)]
    return lines[0] if lines else ""


def _title(said: str) -> str:
    """A launcher's words for itself, in short."""
    name, line = family_of(said), _version_line(said)
    version = re.search(r"\d+(?:\.\d+)+\S*", line)
    return f"{name} {version[0]}" if name and version else line or name or "it tells no version"


# -- ranks ------------------------------------------------------------------------------------------------------------


def judge_size(size: int, sizes: Mapping[str, int]) -> Finding:
    """Return whether MPI's job is as large as the launcher's. sizes: as :func:`hpcgnn.comm.startup.told_sizes` tells them."""
    found = f"one job of {size} {'rank' if size == 1 else 'ranks'}"
    if not sizes or size in sizes.values():
        return Finding("ranks", found, OK)
    name, wanted = next(iter(sizes.items()))
    if size == 1:  # HPCGNN_ALONE is set, or the job would have been refused
        return Finding(
            "ranks", found, WORTH_CHANGING,
            f"the launcher has started {wanted} processes ({name}), each of which is a job of its own, as HPCGNN_ALONE is set:"
            " unset it, unless you want that",
        )  # fmt: skip
    return Finding(
        "ranks", found, WORTH_CHANGING,
        f"the launcher tells of {wanted} ranks ({name}) and MPI of {size}: start ranks with one launcher, not in another's job",
    )  # fmt: skip


# -- starting some ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """report: of the ranks; None where there is none. problem: the sentence for that. line: the command line."""

    report: Report | None
    problem: str
    line: str


def start_ranks(folder: Path, seconds: float) -> Started:
    """Look at :data:`RANKS` ranks that are started for it, which have so long."""
    # A wait of theirs that does not end is told by them, before they are ended from here.
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
            f"{RANKS} ranks did not come to an end within {seconds:g} s (--timeout): try `hpcgnn launch -n {RANKS} -- hostname`,"
            " and look whether host names resolve, whether a firewall lets ranks connect, and whether the job has slots for them",
            line,
        )
    for text in reversed(output.splitlines()):
        if text.startswith('{"hpcgnn"'):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return Started(Report.of(json.loads(text)), "", line)
    return Started(None, f"{RANKS} ranks failed (exit code {code}): {_reason(problems + output)}", line)


def start_mpi(seconds: float) -> tuple[str, str]:
    """The MPI library, or a sentence about its fault, found by a process of its own that may be ended by it."""
    code, output, problems = _run([sys.executable, "-c", _START_MPI], seconds)
    if code == 0 and output.strip():
        return output.strip().splitlines()[-1], ""
    if code is None:
        slow = f"MPI does not start within {seconds:g} s (--timeout) in a process of its own"
        return "", f"{slow}: look whether this host's name resolves"
    return "", f"MPI does not start in a process of its own (exit code {code}): {_reason(problems + output)}"


def _run(line: Sequence[str], seconds: float) -> tuple[int | None, str, str]:
    """The exit code, which is None after so many seconds, and the two outputs of the command; it is ended with its ranks."""
    process = subprocess.Popen(
        line,
        env=dict(os.environ),  # without variables that a library may have set in C
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches it once and from here
    )
    try:
        output, problems = process.communicate(timeout=seconds)
        return process.returncode, output, problems
    except subprocess.TimeoutExpired:
        return None, "", ""
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """A launcher that is asked to end ends its ranks; one that is killed does not."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _reason(text: str) -> str:
    """The sentence that hpcgnn has said, else the last line of an exception, else the first words of the launcher."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    own = [line.partition("hpcgnn: ")[2] for line in lines if line.startswith("hpcgnn: ")]
    if own:
        return own[0]
    if any(line.startswith("Traceback") for line in lines):
        return lines[-1][:_LONGEST]
    said = " ".join(lines)
    return said if 0 < len(said) <= _LONGEST else f"{said[:_LONGEST]}..." if said else "nothing was said"


def of_start(started: Started) -> Finding:
    """Return whether ranks could be started at all; where they could, their own report has the check of the same name."""
    return Finding("ranks", started.line, BROKEN, started.problem)
