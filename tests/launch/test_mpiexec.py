"""`hpcgnn launch` on this machine: each MPI's options, and a process that behaves like the launcher in every respect."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal
from rank_pool import ranks_of
from requires import require
from virtual_clusters import wait_until

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.launch import mpiexec
from hpcgnn.launch.mpiexec import Placing

HPCGNN = [sys.executable, "-m", "hpcgnn"]
SAYS = {"Open MPI": "mpiexec (OpenRTE) 4.1.4", "Hydra": "HYDRA build details:", "another": "mpiexec 1.0"}


def flags_of_open_mpi(placing: Placing, *, crowded: bool = False, root: bool = False, variables: tuple = ()) -> str:
    return " ".join(mpiexec.open_mpi_flags(placing, 2, crowded, is_root=root, variables=variables))


def test_flags_of_open_mpi_and_hydra() -> None:
    last = "-x OMP_NUM_THREADS"
    assert flags_of_open_mpi(Placing()) == f"--bind-to none {last}"
    assert flags_of_open_mpi(Placing(), root=True) == f"--allow-run-as-root --bind-to none {last}"
    bound = Placing(bind=True, ranks_per_host=4, hostfile="nodes")
    assert flags_of_open_mpi(bound) == f"--hostfile nodes --bind-to core --map-by ppr:4:node:PE=2 {last}"
    assert flags_of_open_mpi(Placing(ranks_per_host=4)) == f"--bind-to none --map-by ppr:4:node {last}"
    crowded = "--oversubscribe --mca mpi_yield_when_idle 1"
    assert flags_of_open_mpi(Placing(), crowded=True) == f"--bind-to none {crowded} {last}"
    assert flags_of_open_mpi(Placing(virtual=True)) == f"--bind-to none --noprefix {last}"
    names = ("HPCGNN_ISA", "PATH", "OMP_PLACES", "OMP_NUM_THREADS")
    assert flags_of_open_mpi(Placing(), variables=names) == f"--bind-to none -x HPCGNN_ISA {last} -x OMP_PLACES"
    assert mpiexec.hydra_flags(Placing(), 2) == []
    assert " ".join(mpiexec.hydra_flags(bound, 2)) == "-f nodes -ppn 4 -bind-to core:2"


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``launcher(kind)``: MPIEXEC is a launcher of this kind, on a machine with eight cores."""
    monkeypatch.setattr(mpiexec, "usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def make(kind: str) -> str:
        path = tmp_path / "mpiexec"
        path.write_text(f"#!/bin/sh\necho '{SAYS[kind]}'\n")
        path.chmod(0o755)
        monkeypatch.setenv("MPIEXEC", str(path))
        return str(path)

    return make


@pytest.mark.parametrize("kind", SAYS)
def test_the_launchers_own_flags_are_chosen(kind: str, launcher) -> None:
    path = launcher(kind)
    env, threads, found, *flags = mpiexec.command(4)
    assert (env, threads, found) == ("/usr/bin/env", "OMP_NUM_THREADS=2", path)
    assert flags[-2:] == ["-n", "4"]
    assert ("--bind-to" in flags) == (kind == "Open MPI")
    bound = mpiexec.command(2, placing=Placing(bind=True))
    assert ("ppr:2:node:PE=4" in bound, "core:4" in bound) == (kind == "Open MPI", kind == "Hydra")


def refused(sentence: str, **how: Any) -> None:
    with pytest.raises(HpcgnnError, match=sentence):
        mpiexec.command(1, **how)


def test_threads(launcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The number is the one asked for, else that of the environment, else the cores of a host divided by its ranks. Too many
    threads are not bound.
    """
    launcher("Open MPI")
    assert mpiexec.command(3)[1] == "OMP_NUM_THREADS=2"
    assert mpiexec.command(16)[1] == "OMP_NUM_THREADS=1"
    assert mpiexec.command(16, placing=Placing(ranks_per_host=2))[1] == "OMP_NUM_THREADS=4"
    assert "--oversubscribe" not in mpiexec.command(16, placing=Placing(ranks_per_host=2))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert mpiexec.command(1)[1] == "OMP_NUM_THREADS=5"
    crowded = mpiexec.command(4, 3, Placing(bind=True))
    assert crowded[1] == "OMP_NUM_THREADS=3"
    assert {"--oversubscribe", "none", "ppr:4:node"} <= set(crowded)
    assert "4 ranks with 3 threads each have only 8 cores on this host: ranks are not bound" in caplog.text
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    refused("'4,2', which is not a number of threads")


def test_what_is_missing_is_said(launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("no command there-is-none", program="there-is-none")
    refused("--ranks-per-host", placing=Placing(hostfile="nodes"))
    launcher("Hydra")
    refused("virtual hosts need Open MPI", placing=Placing(virtual=True))
    monkeypatch.setenv("MPIEXEC", "/bin/false")
    refused("`/bin/false --version` failed")
    monkeypatch.setenv("MPIEXEC", str(tmp_path))
    refused("cannot be started")
    monkeypatch.delenv("MPIEXEC")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "program").write_text("#!/bin/sh\n")
    (alone / "program").chmod(0o755)
    refused("no mpiexec was found", program=str(alone / "program"))


def test_python_and_hpcgnn_are_this_installations_where_path_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert mpiexec.of_this_installation(["python", "x"]) == [sys.executable, "x"]
    assert mpiexec.of_this_installation(["hpcgnn", "info"]) == [*HPCGNN, "info"]
    assert mpiexec.of_this_installation(["true", "hpcgnn"]) == ["true", "hpcgnn"]


def test_the_first_program_on_path_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI's launcher would look into its own folder first, where there may be another Python."""
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert mpiexec.of_this_installation(["python3", "x"]) == [str(program), "x"]
    assert launch("-n", "2", "--", "python3").stdout == "mine\nmine\n"


def launch(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = os.environ | environment
    return subprocess.run([*HPCGNN, "launch", *words], capture_output=True, text=True, env=given, check=False)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-n", "2", "--", "there-is-no-such-command"], "no command"),
        (["--hosts", "2", "--rate", "fast", "true"], "fast is not a rate"),
        (["--rate", "1gbit", "-n", "2", "true"], "--rate is for virtual hosts and needs --hosts"),
        (["--hosts", "2", "--bind", "true"], "--bind is for real hosts and cannot be used with --hosts"),
        (["true"], "-n RANKS"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], reason: str) -> None:
    found = refusal("launch", *words)
    assert reason in found
    assert "\n" not in found.strip()


def test_a_dry_run_starts_nothing(launcher, tmp_path: Path) -> None:
    path = launcher("Hydra")
    done = launch("-n", "2", "-t", "3", "--dry-run", "--", "touch", f"{tmp_path}/a file")
    assert done.stdout == f"/usr/bin/env OMP_NUM_THREADS=3 {path} -n 2 {shutil.which('touch')} '{tmp_path}/a file'\n"
    assert not (tmp_path / "a file").exists()


def test_torch_is_not_imported() -> None:
    script = "import sys, hpcgnn.lab.cli.launch; print({'torch', 'numpy', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.mpi
@pytest.mark.launches
def test_ranks_have_their_threads_and_leave_their_exit_code() -> None:
    # A single write, because two writes of two ranks at the same time may be mixed.
    script = "import os; from mpi4py import MPI; said = f'{MPI.COMM_WORLD.size} {os.environ[\"OMP_NUM_THREADS\"]}\\n'"
    script += "; os.write(1, said.encode()); MPI.Finalize(); raise SystemExit(7)"
    done = launch("-n", "2", "-t", "3", "--", sys.executable, "-c", script)
    assert done.stdout.splitlines() == ["2 3", "2 3"], done.stderr
    assert done.returncode == 7


@pytest.mark.mpi
@pytest.mark.launches
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_ranks(tmp_path: Path, number: signal.Signals) -> None:
    """The launcher forwards SIGUSR1, on which training writes a checkpoint, and ends the ranks at SIGTERM."""
    require(Path("/proc/self/environ").exists(), "/proc")
    script = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        "from mpi4py import MPI\n"
        f"pathlib.Path({str(tmp_path)!r}, str(MPI.COMM_WORLD.rank)).touch()\n"
        "time.sleep(1000)\n"
    )
    job = subprocess.Popen([*HPCGNN, "launch", "-n", "2", "-t", "1", "--", sys.executable, "-c", script])
    try:
        wait_until(lambda: job.poll() is not None or len(list(tmp_path.iterdir())) == 2, "start of the ranks")
        ranks = ranks_of(job.pid)
        assert set(ranks) == {0, 1}
        job.send_signal(number)
        code = job.wait(timeout=180)
    finally:
        job.kill()
        job.wait()
    assert (code == 0) == (number == signal.SIGUSR1)
    wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in ranks.values()), "end of the ranks")
