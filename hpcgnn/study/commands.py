"""The commands that a study runs: this package's own, each in a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.errors import HpcgnnError
from hpcgnn.study.axes import Placement

_GRACE_SECONDS = 15.0  # launchers give ranks some seconds from SIGTERM to SIGKILL
_SAID = 400  # characters of an error


@dataclass(frozen=True)
class Commands:
    """hpcgnn: what runs it. launcher: for a batch system, what starts ranks, such as ``srun --ntasks={ranks}
    --cpus-per-task={threads}``; without it ``hpcgnn launch`` does."""

    hpcgnn: tuple[str, ...] = (sys.executable, "-m", "hpcgnn")
    launcher: str = ""

    def on_ranks(self, place: Placement, words: Sequence[str]) -> list[str]:
        """The command line that runs ``hpcgnn WORDS`` on ranks."""
        if self.launcher:
            return [*self._launched(place.ranks, place.threads or 1), *self.hpcgnn, *words]
        launch = [*self.hpcgnn, "launch", "-n", str(place.ranks)]
        launch += ["-t", str(place.threads)] if place.threads else []
        if place.hosts:
            launch += ["--hosts", str(place.hosts), "--ranks-per-host", str(place.ranks_per_node), "--rate", place.rate]
        return [*launch, "--", *self.hpcgnn, *words]

    def on_one(self, words: Sequence[str]) -> list[str]:
        """The same for one process, which a batch system's launcher starts as well: MPI may refuse to start beside it."""
        return [*(self._launched(1, 1) if self.launcher else []), *self.hpcgnn, *words]

    def _launched(self, ranks: int, threads: int) -> list[str]:
        try:
            return shlex.split(self.launcher.format(ranks=ranks, threads=threads))
        except (KeyError, IndexError, ValueError) as error:
            raise HpcgnnError(
                f"--launcher {self.launcher!r} may have {{ranks}} and {{threads}} in braces, and no other"
            ) from error


def run(line: Sequence[str], output: Path) -> str:
    """Run a command line, its output into a file; returns "" or, where it failed, one sentence that says why.

    Interrupted, it ends the command, and its ranks with it, before it raises what interrupted it.
    """
    with output.open("wb") as stream:
        # In a session of its own, so that Ctrl-C reaches it once and from here.
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    return "" if code == 0 else _why(code, output)


def facts(line: Sequence[str], output: Path) -> dict[str, Any]:
    """The JSON object that a command prints.

    Raises:
        HpcgnnError: with its own sentence where it fails.
    """
    if said := run(line, output):
        raise HpcgnnError(said)
    for text in reversed(output.read_text(errors="replace").splitlines()):
        if text.startswith("{"):
            return json.loads(text)
    return {}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _why(code: int, output: Path) -> str:
    """The command's own error, or else its last line."""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("hpcgnn: error")]
    said = errors[0].partition(": ")[2] if errors else (lines[-1] if lines else "it printed nothing")
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    return f"{said[:_SAID]} ({how})"
