"""The job scripts: ``jobs/`` of a checkout, of which a build puts a copy into the package."""

from __future__ import annotations

from pathlib import Path

from hpcgnn.base.errors import HpcgnnError

SLURM, MPIRUN = "slurm", "mpirun"
FILES = {SLURM: "slurm.sbatch", MPIRUN: "mpirun.sh"}
_PACKAGE = Path(__file__).parent.parent
# setup.py makes the first folder; a checkout has the second.
_FOLDERS = (_PACKAGE / "launch" / "jobs", _PACKAGE.parent / "jobs")


def path_of(system: str) -> Path:
    """The job script for a system, one of :data:`FILES`.

    Raises:
        HpcgnnError: if this installation lacks it.
    """
    for folder in _FOLDERS:
        if (path := folder / FILES[system]).is_file():
            return path
    raise HpcgnnError(f"this installation lacks the job script {_FOLDERS[0] / FILES[system]}: install hpcgnn again")
