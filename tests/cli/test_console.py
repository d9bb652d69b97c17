"""What counts as a terminal: where the launcher's output goes, whatever it gives to its ranks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpcgnn.launch import mpiexec

ASK = "from hpcgnn.cli import console; print(console.is_terminal(1), console.is_terminal(2))"


@pytest.mark.mpi
@pytest.mark.launches
@pytest.mark.parametrize("on_terminal", [False, True])
def test_under_a_launcher(on_terminal):
    leader, follower = os.openpty()
    stderr = follower if on_terminal else subprocess.DEVNULL
    command = [*mpiexec.command(1), sys.executable, "-c", ASK]
    environment = dict(os.environ)  # without what a single-process MPI in an earlier test put beside Python's back
    output = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, check=True
    ).stdout
    os.close(leader)
    os.close(follower)
    assert output.decode().split() == ["False", str(on_terminal)]


def test_without_a_launcher():
    leader, follower = os.openpty()
    output = subprocess.run([sys.executable, "-c", ASK], stdout=subprocess.PIPE, stderr=follower, check=True).stdout
    os.close(leader)
    os.close(follower)
    assert output.decode().split() == ["False", "True"]
