"""Ranks of other versions of hpcgnn and of other MPI libraries, and launchers of another MPI."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from campaign import processes
from campaign.processes import HPCGNN, Ended, wrong_end
from campaign.run import ROOT
from campaign.section import FAILED, REFUSED, Case, Session
from campaign.wrong_cluster.ranks import line as line_of

_OTHER_VERSION = "99.7.0"
_OTHER_MPI = "Some MPI 7.5"
# The program of a rank whose MPI library claims to be another one.
_OF_ANOTHER_MPI = f"""
import hpcgnn.world.mpi_world, hpcgnn.cli.main
hpcgnn.world.mpi_world.MpiWorld.library = property(lambda world: {_OTHER_MPI!r})
hpcgnn.cli.main.main()
"""
_SECONDS = 90.0
# The variables that launchers of other MPI libraries set for their processes: name of the size, name of the rank.
_LAUNCHERS = {
    "MPICH": ("PMI_SIZE", "PMI_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    "MVAPICH": ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
}


def cases(session: Session, parts: Path) -> Iterator[Case]:
    """Yield all cases; ``parts`` has two parts."""
    other = session.folder / "other-version"
    shutil.copytree(ROOT / "hpcgnn", other / "hpcgnn", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "hpcgnn" / "base" / "version.py").write_text(f'__version__ = "{_OTHER_VERSION}"\n')
    commands: dict[str, list[object]] = {
        "train": ["train", parts, "--out", session.folder / "refused", "--quiet"],
        "info": ["info"],
        "predict": ["predict", parts, session.folder / "refused", "--out", session.folder / "p.h5"],
        "partition": ["partition", parts.with_name("graph.h5"), session.folder / "refused.h5", "--parts", 2],
    }
    for name, command in commands.items():
        if session.short and name != "train":
            continue
        if session.wants(f"another version: {name}"):
            line = line_of([*HPCGNN, *command], [{}, {"PYTHONPATH": str(other)}])
            yield _judged(f"another version: {name}", _run(session, line), f"hpcgnn {_OTHER_VERSION}", 1)
        if session.wants(f"another MPI: {name}") and not session.short:
            first = [*HPCGNN, *command]
            line = [*line_of(first, [{}]), ":", "-n", 1, sys.executable, "-c", _OF_ANOTHER_MPI, *command]
            yield _judged(f"another MPI: {name}", _run(session, line), _OTHER_MPI, 1)
    for launcher, (size, rank) in _LAUNCHERS.items():
        name = f"each rank alone: {launcher}"
        if session.wants(name) and (not session.short or launcher == "MPICH"):
            yield _alone(session, name, {size: "2", rank: "1"})


def _run(session: Session, line: list[object]) -> Ended:
    return processes.run(line, folder=session.folder, seconds=_SECONDS)


def _judged(name: str, ended: Ended, word: str, said_by: int, *, ranks: int = 2) -> Case:
    """Return the verdict: the command must end with exit code 1 and one sentence with ``word``, printed by this many ranks."""
    wrong = wrong_end(ended, names=[word], ranks=ranks)
    if not wrong and ended.exit != 1:
        wrong = f"exit code {ended.exit}, where it should be refused: {ended.stdout[-300:]}"
    sentences = [text for text in ended.stderr.splitlines() if text.startswith("hpcgnn: error")]
    if not wrong and len(sentences) != said_by:
        wrong = f"{len(sentences)} ranks say it, not {said_by}: {' | '.join(sentences)[:500]}"
    return Case("versions and launchers", name, FAILED if wrong else REFUSED, wrong or sentences[0], ended.seconds)


def _alone(session: Session, name: str, variables: dict[str, str]) -> Case:
    """The environment in which the launcher of another MPI starts a rank: its variables are set, but MPI knows only this
    process.
    """
    started = time.monotonic()
    ended = processes.run([*HPCGNN, "info"], folder=session.folder, variables=variables, seconds=_SECONDS)
    case = _judged(name, ended, next(iter(variables)), 1, ranks=0)
    return Case(case.group, case.name, case.end, case.said, time.monotonic() - started)
