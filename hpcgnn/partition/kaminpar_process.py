"""A function that runs a partitioner's script in a process of its own, which reads and writes unnamed files."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import numpy as np

from hpcgnn.base.errors import HpcgnnError


def run_on_file(
    name: str, script: Path, graph: IO[bytes], folder: Path | None, num_nodes: int, *arguments: object
) -> np.ndarray:
    """Parts (N,) int32 that ``script GRAPH PARTS ARGUMENTS`` writes for the N nodes of the file ``graph``.

    The script runs in a new process, not a fork of this one, and imports only the partitioner, so that all of its memory goes
    back to the system. Its parts go through a file in ``folder``. Raises :class:`HpcgnnError`, which has ``name``, if it fails.
    """
    with tempfile.TemporaryFile(dir=folder) as out:
        inherited = (graph.fileno(), out.fileno())
        # With -P, Python does not import from the script's folder, whose modules have the names of the libraries that they use.
        command = [sys.executable, "-P", str(script), *(f"/dev/fd/{number}" for number in inherited)]
        command += map(str, arguments)
        ended = subprocess.run(command, pass_fds=inherited, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise HpcgnnError(f"{name} failed ({_reason(ended)}): try --method metis or fennel")
        out.seek(0)
        parts = np.fromfile(out, dtype=np.int32)
    if parts.size != num_nodes:
        raise HpcgnnError(f"{name} gave parts for {parts.size:,} of {num_nodes:,} nodes: try --method metis or fennel")
    return parts


def _reason(ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode < 0:
        hint = ": is there too little memory?" if ended.returncode == -signal.SIGKILL else ""
        return f"signal {-ended.returncode} ended it{hint}"
    lines = ended.stderr.strip().splitlines()
    return lines[-1] if lines else f"status {ended.returncode}"
