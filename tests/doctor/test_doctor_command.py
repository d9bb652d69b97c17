"""``hpcgnn doctor``: each fault of an installation has its sentence, and the command finds them on real ranks."""

from __future__ import annotations

import functools
import json
import os
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rank_pool import ThreadPool

from hpcgnn.base.errors import HpcgnnError, StalledError
from hpcgnn.doctor import cores, examine, folders, software
from hpcgnn.doctor.job import (
    BROKEN,
    OK,
    WORTH_CHANGING,
    Check,
    Fact,
    Finding,
    Job,
    Report,
    Verdict,
    by_rank,
    of_problems,
)
from hpcgnn.launch import mpiexec
from hpcgnn.world.thread_world import ThreadWorld, one_rank

OPEN_MPI, HYDRA = "mpiexec (OpenRTE) 4.1.4\n", "HYDRA build details:\n    Version:   4.2.3\n"
CHECKS = ["launcher", "ranks", "versions", "MPI", "binding", "threads", "kernels", "GPUs", "link within a node", "folder",
          "temporary files", "shared memory", "optional parts"]  # fmt: skip


def job(nodes: list[int], *, by_doctor: bool = False, folder: Path = Path()) -> Job:
    """A job of ranks on these nodes, only whose facts are judged."""
    found = Job(one_rank(), folder, by_doctor)
    found.__dict__["nodes"] = nodes  # replaces a collective
    return found


def rank(*cpus: int, asked: str = "", node: str = "n1", of_node: int = 8, quota: float | None = None) -> Fact:
    """A rank that may use these CPUs, each of which is a core."""
    own = list(cpus)
    return {"host": node, "cpus": own, "cores": own, "cpus_of_node": of_node, "quota": quota, "asked": asked}


def says(state: str, finding: Finding | None, *words: str) -> None:
    """Check the state of a finding, and that its sentence has these words."""
    assert finding is not None
    assert finding.state == state, finding
    assert [word for word in words if word not in finding.sentence] == []


is_fine, is_worth, is_broken = (functools.partial(says, state) for state in (OK, WORTH_CHANGING, BROKEN))


def judged(
    judge: Callable[..., Verdict | None], *facts: Fact, nodes: Sequence[int] = (), by_doctor: bool = False
) -> Finding | None:
    """The finding of a check in the facts of ranks, all of which are on one node unless ``nodes`` says otherwise."""
    verdict = judge(list(facts), job([*nodes] or [0] * len(facts), by_doctor=by_doctor))
    return None if verdict is None else of_problems("judged", *verdict)


# -- cores and threads ------------------------------------------------------------------------------------------------


def test_ranks_that_share_cores_and_too_many_or_few_threads_are_found() -> None:
    bound = functools.partial(judged, cores.judge_binding)
    is_worth(bound(rank(0), rank(0)), "ranks 0 and 1 of n1", "the same core (number 0)", "--bind")
    is_worth(bound(rank(0, 1), rank(1, 2)), "rank 0 and rank 1", "both have number 1")
    is_worth(bound(*[rank(0, 1, of_node=2)] * 3), "2 cores for 3 ranks: start at most 2 ranks there")
    is_fine(bound(rank(0), rank(1)))
    is_fine(bound(*[rank(*range(8))] * 4))
    is_fine(bound(rank(0), rank(0, node="n2"), nodes=[0, 1]))  # the same number stands for different cores

    found = functools.partial(judged, cores.judge_threads)
    eight, idle = range(8), [rank(*range(8), asked="1")] * 2
    is_worth(found(rank(0, 1, asked="8")), "8 threads", "may use 2 CPUs", "set OMP_NUM_THREADS=2")
    is_worth(found(*[rank(*eight, asked="4")] * 4), "16 threads of 4 ranks share 8 CPUs of n1: set OMP_NUM_THREADS=2")
    is_worth(found(rank(*eight, quota=2.0)), "may use the time of 2 CPUs", "8 threads")
    is_worth(found(rank(0, 1, asked="many")), "'many' on rank 0")
    is_worth(found(*idle), "use only 2 of their 8 cores", "set OMP_NUM_THREADS=4")
    is_fine(found(*[rank(*eight, asked="4")] * 2))
    assert cores.threads_of([rank(0, 1), rank(2, 3, asked="1")], [0, 1]) == {0: 2, 1: 1}

    alone = [rank(0, of_node=1)] * 2  # those that the command has started itself
    is_fine(bound(*alone, by_doctor=True))
    is_worth(bound(*alone), "1 core for 2 ranks")
    for few in (alone, idle):
        is_fine(found(*few, by_doctor=True))


def test_the_limit_of_a_container_is_read(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text("150000 100000\n")
    assert cores.cpu_quota(limit) == 1.5
    limit.write_text("max 100000\n")
    assert cores.cpu_quota(limit) is None
    assert cores.cpu_quota(tmp_path / "missing") is None


# -- launcher and ranks -----------------------------------------------------------------------------------------------


def test_the_launcher_of_another_mpi_is_found() -> None:
    found = functools.partial(examine.judge_launcher, "/m/mpiexec")
    library = "Open MPI v4.1.4, package: Debian OpenMPI"
    is_broken(found(HYDRA, library, ranks_run=False), "/m/mpiexec is MPICH's", "MPIEXEC")
    is_broken(found(OPEN_MPI, "MPICH Version: 4.2.3", ranks_run=False), "is Open MPI's")
    is_worth(found(HYDRA, library, ranks_run=True), "is MPICH's")
    is_worth(found(OPEN_MPI, "Open MPI v5.0.3", ranks_run=False), "version 4.1", "has 5.0")
    is_fine(found(HYDRA, "Intel(R) MPI Library 2021.9", ranks_run=False))
    is_fine(found("mpiexec 1.0", library, ranks_run=False))
    fitting = found(OPEN_MPI, library, ranks_run=False)
    assert (fitting.state, fitting.found) == (OK, "/m/mpiexec (Open MPI 4.1.4)")


def test_a_machine_without_a_launcher_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(program: str) -> str:
        raise HpcgnnError("no mpiexec was found: install an MPI")

    monkeypatch.setattr(mpiexec, "find_launcher", none)
    is_broken(examine.look_at_launcher("", ranks_run=False), "no mpiexec was found")
    is_worth(examine.look_at_launcher("", ranks_run=True), "no mpiexec was found")  # srun has started them


def test_a_job_of_another_size_than_the_launchers_is_found() -> None:
    is_worth(examine.judge_size(1, {"PMI_SIZE": 4}), "4 processes (PMI_SIZE)", "HPCGNN_ALONE")
    is_worth(examine.judge_size(2, {"PMI_SIZE": 4}), "the launcher has 4 ranks", "MPI has 2")
    is_fine(examine.judge_size(4, {"SLURM_STEP_NUM_TASKS": 1, "OMPI_COMM_WORLD_SIZE": 4}))
    is_fine(examine.judge_size(1, {}))
    assert examine.is_launched({"OMPI_COMM_WORLD_RANK": "0"})
    assert examine.is_launched({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"})
    assert not examine.is_launched({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})  # a shell within a step
    assert not examine.is_launched({})


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``launcher(commands)``: MPIEXEC is a launcher that runs these commands, whatever its arguments are."""

    def make(commands: str) -> None:
        path = tmp_path / "mpiexec"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "mpiexec 1.0"; exit; }}\n{commands}\n')
        path.chmod(0o755)
        monkeypatch.setenv("MPIEXEC", str(path))

    return make


def test_a_launcher_that_fails_or_does_not_end_is_quoted_and_ended(
    launcher: Callable[[str], None], tmp_path: Path
) -> None:
    launcher("echo 'There are not enough slots' >&2\nexit 7")
    problem = examine.start_ranks(tmp_path, 60).problem
    assert "exit code 7" in problem
    assert "There are not enough slots" in problem
    launcher("echo 'hpcgnn: error: no MPI' >&2\necho rubbish >&2\nexit 1")
    assert examine.start_ranks(tmp_path, 60).problem.endswith("error: no MPI")
    launcher(f"echo $$ > {tmp_path}/pid\nexec sleep 600")
    assert "did not end within 0.5 s (--timeout)" in examine.start_ranks(tmp_path, 0.5).problem
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# -- software ---------------------------------------------------------------------------------------------------------


def test_different_versions_libraries_and_slow_kernels_are_found() -> None:
    found, mine = functools.partial(judged, software.judge_versions), software.versions()
    is_fine(found(mine, mine))
    is_broken(found(mine, mine | {"torch": "1.0"}), "rank 1 has torch 1.0", "one environment")
    is_worth(found(mine, mine | {"numpy": "1.0"}), "rank 1 has numpy 1.0")

    found = functools.partial(judged, software.judge_mpi)
    fact = {"library": "Open MPI v4.1.4", "paths": ["/a/libmpi.so.40"], "serialized": True}
    assert found(fact, fact) == Finding("judged", "Open MPI v4.1.4 (/a/libmpi.so.40)")
    is_broken(found(fact, fact | {"library": "MPICH"}), "rank 1 has loaded MPICH")
    two = ["/a/libmpi.so.40", "/b/libmpi.so.12"]
    is_broken(found(fact | {"paths": two}), "2 MPI libraries", "/b/libmpi.so.12")
    is_worth(found(fact | {"serialized": False}), "MPI_THREAD_SERIALIZED")

    found = functools.partial(judged, software.judge_kernels)
    fact = {"kernels": "native", "missing": None, "isa": "avx512", "isas": ["scalar", "avx2", "avx512"], "asked": "",
            "openmp_runtimes": ["/a/libgomp.so"]}  # fmt: skip
    is_fine(found(fact, fact))
    other = fact | {"isa": "avx2", "isas": ["scalar", "avx2"]}
    is_worth(found(fact, other, nodes=[0, 1]), "rank 1", "avx2", "rank 0 with avx512")
    is_worth(found(fact | {"asked": "avx2", "isa": "avx2"}), "HPCGNN_ISA=avx2", "unset HPCGNN_ISA")
    is_worth(found(fact | {"missing": "no compiler", "isa": "", "isas": []}), "no compiler")
    is_worth(found(fact | {"openmp_runtimes": ["/a/libgomp.so", "/b/libiomp.so"]}), "2 OpenMP runtimes")

    found = functools.partial(judged, software.judge_parts)
    parts = ("KaMinPar", "METIS", "ParMETIS or PT-Scotch", "pip install pyarrow")
    is_fine(found({"partitioners": ["ldg"], "missing": ["pyarrow"]}), *parts)
    one = {"partitioners": ["parmetis", "ldg"], "missing": []}
    is_worth(found(one, one | {"partitioners": ["ldg"]}, nodes=[0, 1]), "parmetis", "ranks 0 and 1")


def gpus(*identities: str, problem: str | None = None, to_mpi: bool = True) -> Fact:
    return {"problem": problem, "names": ["H100"] * len(identities), "identities": list(identities),
            "files": ["/dev/nvidia0"], "to_mpi": to_mpi, "free_bytes": [0] * len(identities)}  # fmt: skip


def test_gpus_that_are_shared_idle_or_unusable_are_found() -> None:
    found = functools.partial(judged, software.judge_gpus)
    is_fine(found(gpus("a", "b"), gpus("a", "b")))
    is_fine(found(gpus("a"), gpus("b")))
    is_fine(found(gpus("a"), gpus("a"), by_doctor=True))
    is_worth(found(gpus("a"), gpus("a")), "ranks 0 and 1 have only 1 GPU", "--ranks-per-gpu 2")
    is_worth(found(gpus("a", "b", "c"), gpus("a", "b", "c")), "leave 1 of the 3 GPUs")
    is_worth(found(gpus("a", to_mpi=False), gpus("b")), "GPU-aware")
    without = gpus(problem="torch was built for CPUs")
    is_worth(found(without), "built for CPUs")
    assert found(without | {"files": []}) == Finding("judged", "none: ranks compute on the CPU")


# -- links ------------------------------------------------------------------------------------------------------------


def test_a_slow_link_is_found() -> None:
    between, within = (functools.partial(cores.judge, "a link", between_nodes=way) for way in (True, False))
    fast = cores.Link(0, 1, 2e-6, cores.LARGE_BYTES / 10e9)
    slow = replace(fast, large_seconds=cores.LARGE_BYTES / 80e6)
    is_fine(between(fast))
    is_worth(between(slow), "80 MB/s", "management network")
    is_worth(within(replace(slow, large_seconds=0.01)), "shared memory")
    is_fine(between(replace(slow, large_seconds=cores.LARGE_BYTES / 118e6)))  # a gigabit per second
    is_worth(within(replace(fast, small_seconds=0.02)), "20.0 ms for 8 bytes")
    is_fine(within(slow, crowded=True))


def measured(world: ThreadWorld) -> list[Finding | None]:
    there = Job(world, Path())
    there.__dict__["nodes"] = [0, 0, 2]
    return [cores.WITHIN.run(there), cores.BETWEEN.run(there)]


def test_links_are_measured_within_and_between_nodes() -> None:
    within, between = ThreadPool(3).run(measured)[2]
    assert "between rank 0 and rank 1" in within.found
    assert "between rank 0 and rank 2" in between.found
    assert cores.WITHIN.run(job([0, 1])) is None


def changed_on_the_way(world: ThreadWorld) -> str:
    start = world.start_alltoallv

    def start_and_change(send, received, what, neighbours=None):
        pending = start(send, received, what, neighbours)
        if world.rank == 1:
            received.buffer.on_host()[...] += 1
        return pending

    world.start_alltoallv = start_and_change
    finding = cores.WITHIN.finding(Job(world, Path()))
    return f"{finding.state}: {finding.sentence}"


def test_bytes_that_change_on_the_way_are_found() -> None:
    said = ThreadPool(2).run(changed_on_the_way)
    assert said[0] == said[1]
    assert "broken: rank 1 received 8 bytes of rank 0 with wrong values" in said[0]


# -- folders ----------------------------------------------------------------------------------------------------------


def in_folder(world: ThreadWorld, folder: Path) -> Finding:
    return folders.FOLDER.finding(Job(world, folder))


def test_a_folder_is_one_that_all_ranks_see_and_can_write(tmp_path: Path) -> None:
    for finding in ThreadPool(3).run(in_folder, tmp_path):
        assert finding.state == OK
        assert finding.found.startswith("3 ranks wrote and read 0.7 MiB")
    assert list(tmp_path.iterdir()) == []
    for folder, words in ((Path("/sys"), "cannot write /sys"), (tmp_path / "missing", "is not a folder here")):
        for finding in ThreadPool(2).run(in_folder, folder):
            is_broken(finding, words)
    with pytest.raises(HpcgnnError, match="use a folder that all nodes share"):
        folders._check_is_seen(tmp_path / "of-rank-0")


def test_other_bytes_than_were_written_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This simulates a file system that loses bytes which another node writes into the same block."""
    from hpcgnn.data.h5 import SlabWriter

    write = SlabWriter.write
    monkeypatch.setattr(
        SlabWriter, "write", lambda self, name, row, rows: write(self, name, row, rows[: -1 if row else None])
    )
    is_broken(ThreadPool(2).run(in_folder, tmp_path)[0], "reads other bytes", "than rank 1 wrote", "(on rank ")
    assert list(tmp_path.iterdir()) == []


def test_full_disks_and_temporary_files_that_others_may_replace_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_temporary_files() -> Finding:
        return folders.TEMPORARY.finding(job([0]))

    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))
    is_fine(of_temporary_files())
    with monkeypatch.context() as patch:
        patch.setattr(folders, "LEAST_FREE_BYTES", 1 << 60)
        is_worth(folders.FOLDER.finding(job([0], folder=tmp_path)), "MiB free", "another folder")
        is_worth(of_temporary_files(), "MiB free", "TMPDIR")
    tmp_path.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    is_worth(of_temporary_files(), "other users may replace files", "TMPDIR")
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: "/sys")
    is_broken(of_temporary_files(), "denied")


def test_little_shared_memory_is_found() -> None:
    found = functools.partial(judged, folders.judge_shared_memory)
    little, much = ({"host": "n1", "free": free, "writable": True} for free in (64 << 20, 1 << 40))
    is_worth(found(little), "64 MiB free", "--shm-size")
    is_worth(found(much | {"writable": False}), "is not writable")
    is_fine(found(much))


def test_the_type_of_a_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw 0 0\nb {tmp_path} lustre rw 0 0\nc {tmp_path}-other nfs rw 0 0\n")
    assert folders.file_system(tmp_path / "x", mounts) == "lustre"
    assert folders.file_system(Path("/"), mounts) == "ext4"


# -- checks -----------------------------------------------------------------------------------------------------------


def fails_on_one(world: ThreadWorld) -> list[Finding | None]:
    def look(at: Job) -> Fact:
        if world.rank == 1:
            raise ZeroDivisionError("by nought")
        return {}

    def judge(facts: list[Fact], at: Job) -> Verdict:
        return str(facts[1]["missing"]), ()

    def sees(facts: list[Fact], at: Job) -> Verdict:
        return str(len(facts)), ()

    checks = {"bad": (look, judge), "judged": (lambda at: {}, judge), "good": (lambda at: {}, sees)}
    return [by_rank(name, *how).finding(Job(world, Path())) for name, how in checks.items()]


def test_a_check_that_raises_on_one_rank_is_a_finding_on_all() -> None:
    for bad, judged, good in ThreadPool(3).run(fails_on_one):
        is_broken(bad, "ZeroDivisionError: 'by nought' (on rank 1)")
        is_broken(judged, "KeyError")
        assert good == Finding("good", "3")


def loses_the_others(world: ThreadWorld) -> Report | str:
    def waits(at: Job) -> Finding:
        raise StalledError("rank 0 waited for 30 s", 0.1)

    good = Check("good", lambda at: Finding("good", ""))
    try:
        examine._findings((good, Check("waits", waits), good), Job(world, Path()), lambda name: None)
    except examine.Unfinished as cut:
        return replace(cut.report, mpi=type(cut.error).__name__)
    except StalledError as error:
        return str(error)
    return ""


def test_what_was_found_is_told_where_ranks_wait_in_vain() -> None:
    report, said = ThreadPool(2).run(loses_the_others)
    assert report.mpi == "StalledError"  # so that the job ends as after any wait that is too long
    assert report.findings == (Finding("good", ""), Finding("waits", "", BROKEN, "rank 0 waited for 30 s"))
    assert said == "rank 0 waited for 30 s"


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.mpi
def test_on_ranks_what_is_broken_ends_all_of_them_with_1(mpirun: Callable) -> None:
    """A launch of its own, because ranks that other tests have used may have loaded the libraries of another MPI."""
    result = mpirun(2, ["-m", "hpcgnn", "doctor", "--folder", "/sys"], check=False)
    assert result.returncode == 1
    table = " ".join(result.stdout.split())
    assert [word for word in CHECKS if word not in table] == []
    said = [line for line in result.stderr.splitlines() if line.startswith("hpcgnn: ")]
    assert len(said) == 1
    assert said[0].startswith("hpcgnn: error: something is broken (folder): cannot write /sys")


@pytest.fixture
def alone(warm_hpcgnn: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``alone(*words)``: a process ``hpcgnn doctor --json`` without a launcher."""

    def run(*words: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [warm_hpcgnn, "doctor", "--json", "--folder", str(tmp_path), *words]
        environment = os.environ | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=check, timeout=120)

    return run


@pytest.mark.mpi
@pytest.mark.launches
def test_alone_two_ranks_are_started(alone: Callable, tmp_path: Path) -> None:
    """They run the same command, whose rank 0 prints the same report."""
    facts = json.loads(alone().stdout)
    assert (facts["ranks"], facts["nodes"]) == (2, 1)
    assert facts["state"] != BROKEN
    assert [each["check"] for each in facts["findings"]] == CHECKS
    assert all(set(each) == {"check", "found", "state", "sentence"} for each in facts["findings"])
    assert facts["findings"][1]["found"] == "one job of 2 ranks, started by this command"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mpi
def test_without_ranks_one_process_is_looked_at(alone: Callable, launcher: Callable, tmp_path: Path) -> None:
    launcher(f"touch {tmp_path}/started")
    facts = json.loads(alone("--no-launch").stdout)
    assert facts["ranks"] == 1
    assert "ranks" not in [each["check"] for each in facts["findings"]]
    assert not (tmp_path / "started").exists()


def test_four_jobs_of_one_rank_are_told_by_the_first(alone: Callable) -> None:
    wrong = {"PMI_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "4"}
    first = alone(check=False, **wrong, PMI_RANK="0")
    assert first.returncode == 1
    said = "hpcgnn: error: something is broken (ranks): the launcher has started 4"
    assert first.stderr.splitlines()[-1].startswith(said)
    facts = json.loads(first.stdout)
    assert facts["state"] == BROKEN
    assert [each["check"] for each in facts["findings"] if each["state"] == BROKEN] == ["ranks"]
    assert alone(**wrong, PMI_RANK="1").stdout == ""


def test_a_check_that_takes_long_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import threading

    from hpcgnn.cli import doctor as command

    told, note = threading.Event(), command.console.note
    monkeypatch.setattr(command, "_QUIET_SECONDS", 0.01)
    monkeypatch.setattr(command.console, "note", lambda text: (note(text), told.set()))
    with command._notes(True) as tell:
        tell("folder")
        told.clear()
        assert told.wait(20)
    assert "note: still checking folder after" in capsys.readouterr().err
    with command._notes(False):
        pass


def test_every_check_is_part_of_the_report() -> None:
    assert [check.name for check in examine.CHECKS] == [*CHECKS[2:9], "link between nodes", *CHECKS[9:]]
