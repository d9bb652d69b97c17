"""Runs commands that meet one fault each, in a forked process or on ranks of mpirun."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.processes import HANG_SECONDS, HPCGNN, Ended, environment
from campaign.processes import run as run_command

_SOURCE = Path(__file__).with_name("faults.c")
SHORT = -1


@dataclass(frozen=True)
class Fault:
    """The ``number``-th call of this ``kind`` fails with ``error``, or transfers only half if that is ``SHORT``. Kind "": no
    fault.
    """

    kind: str = ""
    number: int = 0
    error: int = 0


NO_FAULT = Fault()


@dataclass(frozen=True)
class Call:
    """A call of a command on a file below its folder."""

    process: int
    kind: str
    path: str
    failed: bool


def build(folder: Path) -> Path | None:
    """Compile the library that injects faults into ``folder``, or return None without a compiler. Raises ``RuntimeError`` if
    the compiler fails.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "faults.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{_SOURCE.name} does not compile: {done.stderr}")
    return library


class Server:
    """The process of :mod:`campaign.disk.server`. beside: a folder for the commands' output."""

    def __init__(self, library: Path, beside: Path, *, seconds: float = 4 * HANG_SECONDS) -> None:
        self.library, self.beside, self.seconds = library, beside, seconds
        # A process without a launcher is a job of one rank, for which Open MPI must start no daemon.
        own = environment(LD_PRELOAD=str(library), OMPI_MCA_ess_singleton_isolated="1", OMP_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "campaign.disk.server"],
            env=own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=self.seconds)

    def run(self, words: Sequence[str], folder: Path, fault: Fault = NO_FAULT) -> Ended:
        """Run ``hpcgnn words`` in ``folder`` and return its end. :meth:`calls` then returns its calls there."""
        (self.beside / "tmp").mkdir(exist_ok=True)
        files = {name: str(self.beside / name) for name in ("stdout", "stderr", "log")}
        self._log.unlink(missing_ok=True)
        told = {"words": list(words), "folder": str(folder), "temporary": str(self.beside / "tmp"), **files}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told | vars(fault) | {"seconds": self.seconds}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._answer())
        stdout, stderr = (Path(files[name]).read_text(errors="replace") for name in ("stdout", "stderr"))
        return Ended(answer["exit"], stdout, stderr, answer["seconds"])

    def run_on_ranks(self, words: Sequence[str], folder: Path, rank: int, fault: Fault = NO_FAULT) -> Ended:
        """The same on 2 ranks of mpirun, one of which meets the fault; :meth:`calls` then returns the calls of that rank."""
        self._log.unlink(missing_ok=True)
        told: dict[str, Any] = {"FOLDER": folder, "LOG": self._log, "RANK": rank}
        told |= {"KIND": fault.kind, "NUMBER": fault.number, "ERROR": fault.error}
        variables = {f"FAULTS_{name}": str(value) for name, value in told.items()}
        variables |= {"LD_PRELOAD": str(self.library), "TMPDIR": str(self.beside)}
        return run_command([*HPCGNN, *words], folder=folder, ranks=2, variables=variables, seconds=self.seconds)

    @property
    def _log(self) -> Path:
        return self.beside / "log"

    def calls(self) -> list[Call]:
        """The calls of the last command on files below its folder, in order."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        found = (line.split("\t") for line in lines)
        return [Call(int(process), kind, path, bool(failed)) for process, kind, failed, path in found]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that forks commands has ended with {self._process.wait()}")
        return line
