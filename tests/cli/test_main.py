"""How the command line leaves."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path


def test_an_error_is_one_write(tmp_path: Path) -> None:
    """Ranks share a launcher's stderr: a line in two writes, as print's are with -u, may have another rank's in its middle."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # keeps writes apart
    with ours, theirs:
        command = [sys.executable, "-u", "-m", "hpcgnn", "train", tmp_path / "missing.h5", "--out", tmp_path / "run"]
        job = subprocess.run(command, stderr=theirs.fileno(), timeout=120)
        ours.settimeout(10)
        sentence = ours.recv(10_000).decode()
    assert job.returncode == 1
    assert sentence.startswith("hpcgnn: error")
    assert sentence.endswith("\n")
    assert str(tmp_path) in sentence


def test_an_interruption_is_told_from_the_error_that_c_code_makes_of_it() -> None:
    program = Path(__file__).parents[1] / "ranks" / "interrupted.py"
    job = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert (job.returncode, job.stderr) == (130, "hpcgnn: stopped: go on with --resume\n")
