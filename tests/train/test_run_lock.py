"""Only one process at a time trains into a run folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train.run_folder import NAME, RunFolder

HOLDER = """
import sys
from hpcgnn.train.run_folder import RunFolder
run = RunFolder(sys.argv[1])
run.prepare(resume=True)
print("held", flush=True)
sys.stdin.readline()
run.release()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["releases", "is killed"])
def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path, ends: str) -> None:
    path = tmp_path / "run"
    environment = {name: value for name, value in os.environ.items() if name != "PBS_JOBID"} | {"SLURM_JOB_ID": "17"}
    command = [sys.executable, "-c", HOLDER, path]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    with holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(HpcgnnError) as refused:
                RunFolder(path).prepare(resume=True)
            named = f"process {holder.pid} on {socket.gethostname()}, job 17"
            assert str(refused.value) == (
                f"{named} is training into {path}: wait until it ends, or choose another folder"
            )
            if ends == "releases":
                holder.stdin.write("\n")
                holder.stdin.flush()
                assert holder.stdout.readline() == "released\n"
                assert not (path / NAME).exists()
            else:
                holder.kill()
                holder.wait()
            run = RunFolder(path)
            run.prepare(resume=True)
            run.release()
            assert not (path / NAME).exists()
        finally:
            holder.kill()


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "graph.h5").touch()
    with pytest.raises(HpcgnnError, match="is a file, and a run needs a folder"):
        RunFolder(tmp_path / "graph.h5").prepare(resume=False)
