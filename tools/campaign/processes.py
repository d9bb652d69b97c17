"""Commands that are started as a user starts them, and the judgement of their ends."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.run import ROOT
from hpcgnn.launch import mpiexec

HPCGNN = (sys.executable, "-m", "hpcgnn")
HANG_SECONDS = 30.0
_GRACE_SECONDS = 5.0
_SENTENCE = re.compile(r"(hpcgnn: error( on rank \d+)?|Error): .+")
# Single lines of mpirun and Open MPI: about a rank that aborts, a race between a launcher and its processes, a failed write.
_OF_THE_LAUNCHER = re.compile(
    r"-{20,}|.*(mpirun|mpiexec|prterun|PMIX|MPI_ABORT|orte|Primary job|the job to be terminated).*"
    r"|  (Process name|Exit code): .*|with errorcode 1\.|mca_[a-z_]+: .*"
    r"|.*plm:rsh: Warning: setpgid.*|\[.*\] \d+ more process(es)? ha(s|ve) sent help message .*"
    r"|(You may or may not see output|exactly when Open MPI kills them|a non-zero exit code\. Per user-direction).*"
)
# Messages of several lines between lines of hyphens: for instance about a peer that has ended before this rank.
_RULE = re.compile(r"-{20,}")
_NAMES_ITSELF = re.compile(r"Open MPI|MPI_ABORT|MPI process|MPI communication|mpirun|mpiexec|prterun|PMIX|Primary job")


@dataclass(frozen=True)
class Ended:
    """A command that has ended. exit: its exit code, or minus the signal; None if it hung and was ended."""

    exit: int | None
    stdout: str
    stderr: str
    seconds: float


def environment(**changes: str) -> dict[str, str]:
    """The environment of a command: without the variables that an MPI in this process sets for its children, and with the
    package, the tests' helpers and the campaign on the path.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PMI_"))}
    places = (str(ROOT), str(ROOT / "tests"), str(ROOT / "tools"), os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(filter(None, places))
    return own | {"PYTHONPATH": path, "OMP_WAIT_POLICY": "passive"} | changes


def start(
    command: Sequence[object], *, folder: Path | None = None, ranks: int = 0, variables: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start ``command`` in a new process group, by mpirun if ``ranks`` is above 0."""
    words = [*(mpiexec.command(ranks, 1) if ranks else []), *map(str, command)]
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment(**(variables or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    )


def finish(process: subprocess.Popen[str], *, seconds: float = HANG_SECONDS) -> Ended:
    """Wait for the end. After ``seconds`` the command counts as hanging, and its process group is ended."""
    started = time.monotonic()
    try:
        stdout, stderr = process.communicate(timeout=seconds)
        return Ended(process.returncode, stdout, stderr, time.monotonic() - started)
    except subprocess.TimeoutExpired:
        stdout, stderr = end_group(process)
        return Ended(None, stdout, stderr, time.monotonic() - started)


def run(
    command: Sequence[object],
    *,
    folder: Path | None = None,
    ranks: int = 0,
    variables: dict[str, str] | None = None,
    seconds: float = HANG_SECONDS,
) -> Ended:
    """Run ``command`` to its end, as :func:`start` and :func:`finish` do."""
    return finish(start(command, folder=folder, ranks=ranks, variables=variables), seconds=seconds)


def end_group(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End all processes of the command: first by SIGTERM, with which a launcher ends its ranks, and then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            return process.communicate(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    return process.communicate()


def without_launcher(text: str) -> str:
    """The output of a command without its launcher's messages. Our own sentence that names a launcher stays."""
    lines = text.splitlines(keepends=True)
    rules = [place for place, line in enumerate(lines) if _RULE.fullmatch(line.rstrip("\n"))]
    of_blocks: set[int] = set()
    for begin, end in itertools.pairwise(rules):
        if begin not in of_blocks and _NAMES_ITSELF.search("".join(lines[begin:end])):
            of_blocks.update(range(begin, end + 1))
    kept = [
        line
        for place, line in enumerate(lines)
        if _SENTENCE.match(line) or (place not in of_blocks and not _OF_THE_LAUNCHER.fullmatch(line.rstrip("\n")))
    ]
    return "".join(kept)


def wrong_end(ended: Ended, *, names: Sequence[str] = (), ranks: int = 0) -> str:
    """A phrase about a wrong end of a command that may succeed or be refused; empty if there is none.

    Args:
        names: words of which the sentence must contain one: the file, the option, the variable.
        ranks: of mpirun, which adds lines of its own. Ranks that wait for others may each print one sentence about it.
    """
    if ended.exit is None:
        return f"hangs: no end within {ended.seconds:.0f} s: {_tail(ended.stderr)}"
    if "Traceback (most recent call last)" in ended.stderr:
        return f"a traceback: {_tail(ended.stderr)}"
    if ended.exit < 0 or ended.exit > 128:
        return f"ends by a signal ({ended.exit}): {_tail(ended.stderr)}"
    if ended.exit == 0:
        return ""
    if ended.exit not in (1, 2):
        return f"exit code {ended.exit}: {_tail(ended.stderr)}"
    return _not_a_sentence(ended, names, ranks)


def _not_a_sentence(ended: Ended, names: Sequence[str], ranks: int) -> str:
    text = without_launcher(ended.stderr) if ranks else ended.stderr
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("Usage:"):
        lines = lines[-1:]
    if ranks:  # rank 0 prints this when the launcher ends it because another rank has failed
        lines = [line for line in lines if not line.startswith("hpcgnn: stopped")]
    said = [line for line in lines if _SENTENCE.match(line)]
    if not said or len(said) > max(ranks, 1) or len(said) < len(lines):
        lines.sort(key=lambda line: line in said)  # wrong lines first
        return f"{len(lines)} lines where one sentence is wanted: {' | '.join(lines)[:500]}"
    if names and not any(name in line for name in names for line in said):
        return f"names none of {', '.join(names)}: {said[0][:300]}"
    return ""


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-4:])[-600:]
