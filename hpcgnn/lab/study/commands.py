"""The commands that a study runs: those of this package, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import mapped_bytes
from hpcgnn.lab.bench.names import DGL, SAR
from hpcgnn.lab.study.axes import DATA, Placement
from hpcgnn.launch import mpiexec

_GRACE_SECONDS = 15.0  # launchers give ranks some seconds from SIGTERM to SIGKILL
_SAID = 400  # most characters of an error


@dataclass(frozen=True)
class Commands:
    """The way to run commands. hpcgnn: the words that run ``hpcgnn``. launcher: on a batch system, the words that start ranks,
    such as ``srun --ntasks={ranks}``; without it, ``hpcgnn launch`` starts them. data: the folder for ``$DATA`` in sources.
    peers: the Python of each other library's own environment, and the folder of SAR's repository."""

    hpcgnn: tuple[str, ...] = (sys.executable, "-m", "hpcgnn")
    launcher: str = ""
    data: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)

    def of_peer(self, framework: str) -> dict[str, str]:
        """Options of ``hpcgnn bench FRAMEWORK``, "" for those that are not given. SAR uses DGL."""
        if framework == SAR:
            return {"python": self.peers.get(DGL, ""), "source": self.peers.get(SAR, "")}
        return {"python": self.peers.get(framework, "")}

    def located(self, source: str) -> str:
        """A source of ``hpcgnn convert`` with the folder in place of ``$DATA``. Raises HpcgnnError if there is no folder."""
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
            said = f"--launcher {self.launcher!r} may have only {{ranks}} and {{threads}} in braces"
            raise HpcgnnError(said) from error


def run(line: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command line with its output in a file; return "", or, if it fails, one sentence with the reason. If this function is
    interrupted, it ends the command and its ranks first. environment: variables beside those of this process."""
    with _started(line, output, environment or {}) as process:
        return _why(process.wait(), output)


def measured(line: Sequence[str], output: Path) -> tuple[str, dict[str, float]]:
    """As :func:`run`; also returns ``wall_seconds``, and ``peak_memory_bytes`` of all the command's processes together."""
    began = time.perf_counter()
    with _started(line, output, {}) as process, memory_watch(process.pid) as most:
        code = process.wait()
        seconds = time.perf_counter() - began
    return _why(code, output), {"wall_seconds": seconds, "peak_memory_bytes": float(most[0])}


@contextlib.contextmanager
def _started(line: Sequence[str], output: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as stream:
        streams = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": subprocess.STDOUT}
        with mpiexec.started(line, _GRACE_SECONDS, env=os.environ | environment, **streams) as process:
            yield process


def facts(line: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object that a command prints; arguments as of :func:`run`. Raises HpcgnnError with its sentence if it fails."""
    if said := run(line, output, environment):
        raise HpcgnnError(said)
    return object_in(output)


def object_in(output: Path) -> dict[str, Any]:
    """The last JSON object in the output of a command; an empty one if there is none."""
    for text in reversed(output.read_text(errors="replace").splitlines()):
        if text.startswith("{"):
            return json.loads(text)
    return {}


def _why(code: int, output: Path) -> str:
    """The reason of a failure: the command's error, or else its last line, with its exit code or signal. "" for code 0."""
    if code == 0:
        return ""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("hpcgnn: error")]
    said = errors[0].partition(": ")[2] if errors else (lines[-1] if lines else "it printed nothing")
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    return f"{said[:_SAID]} ({how})"


_EVERY_SECONDS = 0.05


@contextlib.contextmanager
def memory_watch(pid: int) -> Iterator[list[int]]:
    """Measure the memory of a process and its descendants, up to twenty times a second: a list with the largest total in bytes; 0
    on systems without /proc. Proportional set sizes are added up, so that pages that processes share count once. A measurement
    walks page tables, which takes long for large processes; so measurements take a twentieth of the time at most."""
    most, over = [0], threading.Event()

    def look() -> None:
        pause = _EVERY_SECONDS
        while not over.wait(pause):
            began = time.perf_counter()
            most[0] = max(most[0], sum(mapped_bytes(each, ("Pss:",)) for each in _family(pid)))
            pause = max(_EVERY_SECONDS, 20 * (time.perf_counter() - began))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def _family(pid: int) -> list[int]:
    found = [pid]
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _family(int(child))
    except OSError:  # the process has ended
        pass
    return found
