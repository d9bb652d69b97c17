"""The commands that a study runs: those of this package, each in a process of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study.axes import Placement
from hpcgnn.lab.study.graphs import DATA
from hpcgnn.lab.study.process_tree import MemoryWatch

_GRACE_SECONDS = 15.0  # launchers give ranks some seconds from SIGTERM to SIGKILL
_SAID = 400  # most characters of an error


@dataclass(frozen=True)
class Commands:
    """The way to run commands. hpcgnn: the words that run ``hpcgnn``. launcher: on a batch system, the words that start ranks,
    such as ``srun --ntasks={ranks} --cpus-per-task={threads}``; without it, ``hpcgnn launch`` starts them. data: the folder that
    stands for ``$DATA`` in sources of graphs."""

    hpcgnn: tuple[str, ...] = (sys.executable, "-m", "hpcgnn")
    launcher: str = ""
    data: str = ""

    def located(self, source: str) -> str:
        """A source of ``hpcgnn convert``, with the folder of the data in place of ``$DATA``.

        Raises:
            HpcgnnError: if the source contains ``$DATA`` and no folder was given.
        """
        if DATA in source and not self.data:
            raise HpcgnnError(f"the graph {source} is in the folder $DATA: give the folder with --data DIR")
        return source.replace(DATA, self.data)

    def on_ranks(self, place: Placement, words: Sequence[str]) -> list[str]:
        """The command line that runs ``hpcgnn WORDS`` on ranks."""
        if self.launcher:
            return [*self._launched(place.ranks, place.threads or 1), *self.hpcgnn, *words]
        launch = [*self.hpcgnn, "launch", "-n", str(place.ranks)]
        launch += ["-t", str(place.threads)] if place.threads else []
        if place.hosts:
            launch += ["--hosts", str(place.hosts), "--ranks-per-host", str(place.ranks_per_node), "--rate", place.rate]
        return [*launch, "--", *self.hpcgnn, *words]

    def on_one(self, words: Sequence[str], threads: int = 1) -> list[str]:
        """The command line that runs ``hpcgnn WORDS`` in one process. A batch system's launcher starts this one, too, because
        MPI may refuse to start without it."""
        return [*(self._launched(1, threads) if self.launcher else []), *self.hpcgnn, *words]

    def _launched(self, ranks: int, threads: int) -> list[str]:
        try:
            return shlex.split(self.launcher.format(ranks=ranks, threads=threads))
        except (KeyError, IndexError, ValueError) as error:
            raise HpcgnnError(
                f"--launcher {self.launcher!r} may have only {{ranks}} and {{threads}} in braces"
            ) from error


def run(line: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command line with its output in a file; return "", or, if it fails, one sentence with the reason.

    environment: variables that the command gets beside those of this process. If this function is interrupted, it ends the
    command and its ranks before it raises the interruption.
    """
    return _run(line, output, environment or {}, lambda process: None)


def measured(line: Sequence[str], output: Path) -> tuple[str, dict[str, float]]:
    """As :func:`run`; also returns ``wall_seconds``, and ``peak_memory_bytes`` of all the command's processes together."""
    watches: list[MemoryWatch] = []
    started = time.perf_counter()
    said = _run(line, output, {}, lambda process: watches.append(MemoryWatch(process.pid)))
    seconds = time.perf_counter() - started
    return said, {"wall_seconds": seconds, "peak_memory_bytes": float(watches[0].stop())}


def _run(
    line: Sequence[str],
    output: Path,
    environment: Mapping[str, str],
    started: Callable[[subprocess.Popen[bytes]], object],
) -> str:
    with output.open("wb") as stream:
        # In a process group of its own, so that Ctrl-C does not reach it directly: this process ends it. Not in a session of its
        # own: Linux shares cores between sessions, and one whose ranks spin can keep this process off them for a minute.
        process = subprocess.Popen(
            line,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            started(process)
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    return "" if code == 0 else _why(code, output)


def facts(line: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object that a command prints. environment: as in :func:`run`.

    Raises:
        HpcgnnError: if the command fails, with the sentence that it prints.
    """
    if said := run(line, output, environment):
        raise HpcgnnError(said)
    return object_in(output)


def object_in(output: Path) -> dict[str, Any]:
    """The last JSON object in the output of a command; an empty one if there is none."""
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
    """The reason of a failure: the command's error, or else its last line, with its exit code or signal."""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("hpcgnn: error")]
    said = errors[0].partition(": ")[2] if errors else (lines[-1] if lines else "it printed nothing")
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    return f"{said[:_SAID]} ({how})"
