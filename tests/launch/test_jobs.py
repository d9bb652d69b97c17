"""The job templates under plain mpirun, and on a real Slurm on this machine alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import said
from rank_pool import ROOT
from requires import require

SBATCH = ROOT / "jobs" / "slurm.sbatch"
MPIRUN_JOB = ROOT / "jobs" / "mpirun.sh"
LONGEST_JOB_SECONDS = 240.0
FAILURES = ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")  # states of a job
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")

# Replaces `hpcgnn` in tests of the placement of ranks, and of arguments and names of files. LAUNCHER is the real command, or
# empty for a single rank without MPI.
PLACEMENT_STUB = """#!/usr/bin/env python3
import json, os, pathlib, sys
command, *args = sys.argv[1:]
if command == "launch":
    words = [LAUNCHER, *sys.argv[1:]] if LAUNCHER else args[args.index("--") + 1:]
    os.execv(words[0], words)
if command == "train":
    run = pathlib.Path(args[args.index("--out") + 1])
    run.mkdir(exist_ok=True)
    placement = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND")}
    placement["cores"] = sorted(os.sched_getaffinity(0))
    placement |= {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")}
    placement["cray"] = os.environ.get("MPICH_GPU_SUPPORT_ENABLED")
    placement["arguments"] = args
    (run / f"placement-{os.getpid()}.json").write_text(json.dumps(placement))
    (run / "summary.json").write_text('{"finished": true}')
else:
    pathlib.Path(args[1]).touch()
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """The settings of a small job in ``tmp_path``."""
    command = Path(sys.executable).with_name("hpcgnn")
    require(command.exists(), "the installed command hpcgnn")
    return {
        "SOURCE": "digits",
        "DATA": str(tmp_path / "data"),
        "RUN": str(tmp_path / "run"),
        "TRAIN_FLAGS": "--epochs 3 --hidden 16 --quiet",
        "HPCGNN": str(command),
    }


@pytest.fixture
def prepared(settings: dict[str, str], warm_hpcgnn: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same settings for jobs that find the graph and its parts, because another job has made them."""
    return settings | {"DATA": str(tmp_path_factory.getbasetemp() / "made-by-a-job"), "HPCGNN": warm_hpcgnn}


@pytest.fixture
def endless(prepared: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The same settings for trainings that do not end before ``epochs`` in ``tmp_path`` says in which epoch they do."""
    command = tmp_path / "endless"
    number = f"$(cat {tmp_path}/epochs 2>/dev/null || echo 1000000)"
    command.write_text(
        f'#!/bin/sh\n[ "$1" != train ] || set -- "$@" --epochs {number}\nexec {prepared["HPCGNN"]} "$@"\n'
    )
    command.chmod(0o755)
    return prepared | {"HPCGNN": str(command), "TRAIN_FLAGS": "--hidden 16 --checkpoint-every 1 --quiet"}


@pytest.mark.parametrize(("system", "script"), [("slurm", SBATCH), ("mpirun", MPIRUN_JOB)])
def test_launch_prints_the_scripts(system: str, script: Path) -> None:
    assert said("launch", "--print-job", system) == script.read_text()


def start_mpirun_job(settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MPIRUN_JOB],
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_JOB_SECONDS,
        check=False,
    )


def run_mpirun_job(settings: dict[str, str]) -> None:
    result = start_mpirun_job(settings)
    assert result.returncode == 0, result.stdout + result.stderr


def read_summary(settings: dict[str, str]) -> dict:
    return json.loads((Path(settings["RUN"]) / "summary.json").read_text())


def read_epochs(settings: dict[str, str]) -> list[int]:
    """The epochs in ``metrics.jsonl`` so far."""
    path = Path(settings["RUN"]) / "metrics.jsonl"
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()] if path.exists() else []


def use_stub(settings: dict[str, str], tmp_path: Path, ranks: int = 1) -> dict[str, str]:
    stub = tmp_path / "hpcgnn"
    stub.write_text(PLACEMENT_STUB.replace("LAUNCHER", repr(settings["HPCGNN"] if ranks > 1 else "")))
    stub.chmod(0o755)
    return settings | {"HPCGNN": str(stub), "RANKS": str(ranks), "PARTITION_RANKS": "1"}


def read_placements(settings: dict[str, str], ranks: int) -> list[dict]:
    placements = [json.loads(path.read_text()) for path in Path(settings["RUN"]).glob("placement-*.json")]
    assert len(placements) == ranks
    return placements


def assert_own_cores(settings: dict[str, str], ranks: int) -> None:
    placements = read_placements(settings, ranks)
    cores = [core for placement in placements for core in placement["cores"]]
    assert len(cores) == len(set(cores)) == ranks, "each rank has one core of its own"
    for placement in placements:
        assert placement["OMP_NUM_THREADS"] == "1"
        assert placement["OMP_PLACES"] == "cores"
        assert placement["OMP_PROC_BIND"] == "close"


def assert_says_that_there_is_no_gpu(output: str) -> None:
    errors = [line for line in output.splitlines() if "hpcgnn: error" in line]
    assert len(errors) == 1, output
    assert errors[0].startswith("hpcgnn: error: --device cuda was asked for on rank 0, but ")
    assert "Traceback" not in output


@pytest.mark.mpi
@pytest.mark.launches
def test_mpirun_job_trains_and_goes_on_when_run_again(settings: dict[str, str], warm_hpcgnn: str) -> None:
    settings |= {"RANKS": "2", "HPCGNN": warm_hpcgnn}
    run_mpirun_job(settings)
    assert read_summary(settings)["finished"] is True
    assert read_summary(settings)["ranks"] == 2
    made = {path: path.stat().st_mtime_ns for path in Path(settings["DATA"]).iterdir()}
    assert len(made) == 2

    run_mpirun_job(settings | {"TRAIN_FLAGS": "--epochs 5 --hidden 16 --quiet"})
    assert read_epochs(settings) == [0, 1, 2, 3, 4]
    assert {path: path.stat().st_mtime_ns for path in Path(settings["DATA"]).iterdir()} == made


@pytest.mark.slow
def test_mpirun_job_takes_no_other_graph_for_its_own(settings: dict[str, str], tmp_path: Path) -> None:
    """This covers sources whose names become the same, other flags, and a file that has changed."""
    settings = use_stub(settings, tmp_path)
    sources = {name: tmp_path / name for name in ("a b.npz", "a_b.npz")}
    for path in sources.values():
        path.write_text("one")
    before = {"SOURCE": f"npz:{sources['a b.npz']}"}
    made = set()

    def files_after(**changes: str) -> int:
        before.update(changes)
        run_mpirun_job(settings | before)
        found = set(Path(settings["DATA"]).iterdir())
        new = len(found - made)
        made.update(found)
        return new

    assert files_after() == 2
    assert files_after() == 0
    assert files_after(SOURCE=f"npz:{sources['a_b.npz']}") == 2
    assert files_after(CONVERT_FLAGS="--undirected") == 2
    assert files_after(PARTITION_FLAGS="--method block") == 1
    sources["a_b.npz"].write_text("another")
    assert files_after() == 2


@pytest.mark.launches
def test_mpirun_job_does_not_continue_the_run_of_another_graph(
    settings: dict[str, str], warm_hpcgnn: str, tmp_path: Path
) -> None:
    """The graphs have equal sizes and other edges, and the first run has no epochs left."""
    settings |= {"RANKS": "1", "HPCGNN": warm_hpcgnn}
    sizes = "sbm:nodes=60,blocks=3,degree=4,features=8"
    run_mpirun_job(settings | {"SOURCE": sizes})
    before = read_summary(settings)
    result = start_mpirun_job(settings | {"SOURCE": f"{sizes},seed=1"})
    assert result.returncode != 0
    assert "last.pt was made with another graph, which differs in edges, features" in result.stderr
    assert "choose another --out" in result.stderr
    assert read_summary(settings) == before


def test_mpirun_job_takes_no_name_for_an_option(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = use_stub(settings, tmp_path) | {"DATA": "-r --version", "RUN": "-run $(touch marker)"}
    run_mpirun_job(settings)
    assert len(list((tmp_path / "-r --version").iterdir())) == 2
    (placement,) = read_placements(settings, 1)
    assert placement["arguments"][0].startswith("./-r --version/")
    assert not list(tmp_path.rglob("marker"))


OF_SLURM = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}


@pytest.mark.parametrize(
    ("script", "name", "set_before"),
    [
        *((MPIRUN_JOB, name, {}) for name in ("RANKS", "RANKS_PER_NODE", "PARTITION_RANKS")),
        *((SBATCH, name, OF_SLURM) for name in ("RANKS", "THREADS", "PARTITION_RANKS", "SLURM_NTASKS_PER_NODE",
                                                "MAX_RESTARTS", "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID")),
    ],
)  # fmt: skip
def test_a_job_runs_nothing_in_place_of_a_number(script: Path, name: str, set_before: dict, tmp_path: Path) -> None:
    """Arithmetic of the shell runs commands in an index of an array. "08" would be an octal number, and 0 divides."""
    for wrong in (f"PATH[$(touch {tmp_path}/marker)]", "4 ranks", "-1", "08", "1e3", "9" * 30):
        run = {**os.environ, "DATA": "data", "RUN": "run", "STUDY": "study", "KEYS": "keys", **set_before, name: wrong}
        ended = subprocess.run(["bash", script], env=run, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 2, ended.stderr
        assert re.search(rf"{script.name}: {name} is .*: set it to a whole number from [01] on\n$", ended.stderr)
        assert ended.stderr.count("\n") == 1
        assert not list(tmp_path.iterdir())


@pytest.mark.mpi
@pytest.mark.launches
def test_mpirun_job_gives_each_rank_its_cores(settings: dict[str, str], tmp_path: Path) -> None:
    require(len(os.sched_getaffinity(0)) >= 2, "two cores")
    settings = use_stub(settings, tmp_path, ranks=2) | {"THREADS": "1"}
    run_mpirun_job(settings)
    assert_own_cores(settings, ranks=2)


def test_mpirun_job_asks_for_gpus_where_it_is_told(settings: dict[str, str], tmp_path: Path) -> None:
    settings = use_stub(settings, tmp_path)
    run_mpirun_job(settings)
    run_mpirun_job(settings | {"RUN": str(tmp_path / "gpus"), "GPUS": "1", "GPU_MPI": "on"})
    (before,), (after,) = (read_placements(settings | {"RUN": str(tmp_path / run)}, 1) for run in ("run", "gpus"))
    assert not {"--device", "--gpu-mpi"} & set(before["arguments"])
    assert before["cray"] is None
    assert " --device cuda --gpu-mpi on " in " ".join(after["arguments"])
    assert after["cray"] == "1"


@WITHOUT_GPU
@pytest.mark.mpi
@pytest.mark.launches
def test_mpirun_job_with_gpus_says_that_there_is_none(prepared: dict[str, str]) -> None:
    result = start_mpirun_job(prepared | {"RANKS": "2", "GPUS": "1"})
    assert result.returncode != 0
    assert_says_that_there_is_no_gpu(result.stderr)


# -- Slurm -------------------------------------------------------------------------------------------------------------


class Job:
    """A submitted copy of ``jobs/slurm.sbatch`` with two ranks of one core. asked: further options of sbatch."""

    def __init__(self, slurm: dict[str, str], settings: dict[str, str], folder: Path, *asked: str) -> None:
        self._env = os.environ | slurm | settings
        self._log = folder / "job.out"
        flags = ["--parsable", "--ntasks=2", "--cpus-per-task=1", "--time=10", f"--output={self._log}"]
        self.id = self.command("sbatch", *flags, *asked, str(SBATCH)).strip()

    def command(self, *command: str) -> str:
        result = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=180, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def field(self, name: str) -> str:
        match = re.search(rf"\b{name}=(\S*)", self.command("scontrol", "show", "job", self.id))
        assert match, name
        return match[1]

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def wait_until(self, condition: Callable[[], object], what: str, *, may_fail: bool = False) -> None:
        """Wait for ``condition``; if the job fails or takes too long, the test fails with the job's output."""
        deadline = time.monotonic() + LONGEST_JOB_SECONDS
        while not condition():
            state = self.field("JobState")
            assert may_fail or state not in FAILURES, f"job is {state}\n{self.log}"
            assert time.monotonic() < deadline, f"no {what}: job is {state}\n{self.log}"
            time.sleep(0.5)

    def wait(self) -> None:
        self.wait_until(lambda: self.field("JobState") == "COMPLETED", "end of the job")


# Options of sbatch, settings of the job, and the GPUs that the ranks see.
PLACINGS: list[tuple[list[str], dict[str, str], list[str | None]]] = [
    (["--gpus-per-task=1"], {}, ["0", "1"]),
    (["--gpus-per-task=1", "--gres-flags=enforce-binding"], {"GPU_BIND": "single:1"}, ["0", "1"]),
    (["--gpus-per-node=2"], {"GPUS": "1"}, ["0", "1"]),
    (["--gpus-per-node=2"], {"GPUS": "1", "GPU_BIND": "closest"}, ["0,1", "0,1"]),  # hpcgnn uses one of them
    ([], {}, [None, None]),
]


@pytest.mark.slurm
def test_slurm_job_gives_each_rank_its_cores_and_its_gpu(
    slurm: dict[str, str], settings: dict[str, str], tmp_path: Path
) -> None:
    require(len(os.sched_getaffinity(0)) >= 2, "two cores")
    settings = use_stub(settings, tmp_path, ranks=2) | {"GPU_MPI": "on"}
    jobs = []
    for number, (asked, given, _) in enumerate(PLACINGS):  # all of them wait in the queue together
        folder = tmp_path / str(number)
        folder.mkdir()
        of_job = settings | given | {"DATA": str(folder / "data"), "RUN": str(folder / "run")}
        jobs.append((Job(slurm, of_job, folder, *asked), of_job))
    for (job, of_job), (*_, seen) in zip(jobs, PLACINGS, strict=True):
        job.wait()
        assert (job.field("ExitCode"), job.field("Restarts")) == ("0:0", "0")
        assert_own_cores(of_job, ranks=2)
        placements = read_placements(of_job, ranks=2)
        for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            assert sorted((placement[name] for placement in placements), key=str) == seen
        for placement in placements:
            is_asked = " --device cuda --gpu-mpi on " in " ".join(placement["arguments"])
            assert (is_asked, placement["cray"]) == ((False, None) if seen[0] is None else (True, "1"))


@WITHOUT_GPU
@pytest.mark.slurm
def test_slurm_job_with_gpus_says_that_there_is_none(
    slurm: dict[str, str], prepared: dict[str, str], tmp_path: Path
) -> None:
    job = Job(slurm, prepared, tmp_path, "--gpus-per-task=1")
    job.wait_until(lambda: job.field("JobState") == "FAILED", "end of the job", may_fail=True)
    assert_says_that_there_is_no_gpu(job.log)


@pytest.mark.slurm
@pytest.mark.parametrize("what", ["SIGUSR1", "preemption"])
def test_slurm_job_goes_on_after_a_signal_and_after_a_preemption(
    slurm: dict[str, str], endless: dict[str, str], tmp_path: Path, what: str
) -> None:
    """The signal is that of --signal=USR1@120; a preemption has a grace period."""
    job = Job(slurm, endless, tmp_path)
    job.wait_until(lambda: read_epochs(endless), "first epoch")
    if what == "SIGUSR1":
        job.command("scancel", "--signal=USR1", job.id)  # to the ranks
    else:
        job.command("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
    job.wait_until(lambda: job.field("JobState") == "PENDING", "requeued job")
    if what == "SIGUSR1":
        assert read_summary(endless)["finished"] is False
        assert read_summary(endless)["stop_reason"] == "SIGUSR1"
    else:
        assert "a preemption has stopped the ranks" in job.log
        assert job.log.count("hpcgnn: stopped by a signal") == 1
        assert "Traceback" not in job.log
    epochs = len(read_epochs(endless)) + 5
    (tmp_path / "epochs").write_text(str(epochs))
    assert (Path(endless["RUN"]) / "checkpoints" / "last.pt").exists()

    # By itself this Slurm waits for 16 seconds. It refuses a job that starts in the same second in which it was requeued:
    # credentials have times in whole seconds, and older ones were revoked ("Job credential revoked").
    job.command("scontrol", "update", f"JobId={job.id}", "StartTime=now+3")
    job.wait()
    assert job.field("Restarts") == "1"
    summary = read_summary(endless)
    assert (summary["finished"], summary["ranks"], summary["threads_per_rank"]) == (True, 2, 1)
    assert read_epochs(endless) == list(range(epochs)), "each epoch is recorded once"


@pytest.mark.slurm
def test_slurm_job_keeps_the_exit_code_of_an_interruption_without_a_preemption(
    slurm: dict[str, str], endless: dict[str, str], tmp_path: Path
) -> None:
    job = Job(slurm, endless, tmp_path)
    job.wait_until(lambda: read_epochs(endless), "first epoch")
    job.command("scancel", "--signal=TERM", job.id)
    job.wait_until(lambda: job.field("JobState") == "FAILED", "end of the job", may_fail=True)
    assert job.field("ExitCode") == "130:0"
    assert job.field("Restarts") == "0"
