"""``hpcgnn doctor``: each fault of an installation has its sentence, and the command finds them on real ranks."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rank_pool import ThreadPool

from hpcgnn.comm.startup import told_sizes
from hpcgnn.comm.thread_world import ThreadWorld, one_rank
from hpcgnn.doctor import cores, examine, folders, installation, launching, links, software
from hpcgnn.doctor.finding import BROKEN, OK, WORTH_CHANGING, Finding, Report, some_ranks
from hpcgnn.doctor.job import Check, Fact, Job, by_rank
from hpcgnn.errors import HpcgnnError, StalledError
from hpcgnn.launch import mpiexec

DOCTOR = ["-m", "hpcgnn", "doctor"]
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
    return {
        "host": node,
        "cpus": list(cpus),
        "cores": list(cpus),
        "cpus_of_node": of_node,
        "quota": quota,
        "asked": asked,
    }


def is_worth(finding: Finding | None, *words: str) -> None:
    assert finding is not None
    assert finding.state == WORTH_CHANGING, finding
    assert [word for word in words if word not in finding.sentence] == []


def is_broken(finding: Finding | None, *words: str) -> None:
    assert finding is not None
    assert finding.state == BROKEN, finding
    assert [word for word in words if word not in finding.sentence] == []


def test_the_state_of_a_report_is_its_worst_finding() -> None:
    for states, worst in (((OK, BROKEN, WORTH_CHANGING), BROKEN), ((WORTH_CHANGING, OK), WORTH_CHANGING), ((), OK)):
        assert Report("0", "Some MPI", 2, 1, tuple(Finding("a check", "", state) for state in states)).state == worst


# -- cores and threads ------------------------------------------------------------------------------------------------


def test_ranks_that_are_bound_to_one_core_are_found() -> None:
    is_worth(
        cores.judge_binding([rank(0), rank(0)], job([0, 0])),
        "ranks 0 and 1 of n1",
        "the same core (number 0)",
        "--bind",
    )
    is_worth(cores.judge_binding([rank(0, 1), rank(1, 2)], job([0, 0])), "rank 0 and rank 1", "both have number 1")
    crowd = [rank(0, 1, of_node=2)] * 3
    is_worth(cores.judge_binding(crowd, job([0, 0, 0])), "2 cores for 3 ranks: start at most 2 ranks there")
    assert cores.judge_binding([rank(0), rank(1)], job([0, 0])).state == OK
    assert cores.judge_binding([rank(*range(8))] * 4, job([0] * 4)).state == OK
    # On two nodes, the same number stands for different cores.
    assert cores.judge_binding([rank(0), rank(0, node="n2")], job([0, 1])).state == OK


def test_the_doctor_does_not_complain_of_its_own_two_ranks() -> None:
    alone = [rank(0, of_node=1)] * 2
    for judge in (cores.judge_binding, cores.judge_threads):
        assert judge(alone, job([0, 0], by_doctor=True)).state == OK
    is_worth(cores.judge_binding(alone, job([0, 0])), "1 core for 2 ranks")


def test_more_threads_than_cores_are_found() -> None:
    is_worth(
        cores.judge_threads([rank(0, 1, asked="8")], job([0])), "8 threads", "may use 2 CPUs", "set OMP_NUM_THREADS=2"
    )
    shared = [rank(*range(8), asked="4")] * 4
    is_worth(
        cores.judge_threads(shared, job([0] * 4)), "16 threads of 4 ranks share 8 CPUs of n1: set OMP_NUM_THREADS=2"
    )
    is_worth(cores.judge_threads([rank(*range(8), quota=2.0)], job([0])), "may use the time of 2 CPUs", "8 threads")
    is_worth(cores.judge_threads([rank(0, 1, asked="many")], job([0])), "'many' on rank 0")
    idle = [rank(*range(8), asked="1")] * 2
    is_worth(cores.judge_threads(idle, job([0, 0])), "use only 2 of their 8 cores", "set OMP_NUM_THREADS=4")
    assert cores.judge_threads(idle, job([0, 0], by_doctor=True)).state == OK
    assert cores.judge_threads([rank(*range(8), asked="4")] * 2, job([0, 0])).state == OK


def test_ranks_that_share_cores_share_their_threads() -> None:
    assert cores.threads_of([rank(*range(8))] * 4, [0, 1, 2, 3]) == dict.fromkeys(range(4), 2)
    assert cores.threads_of([rank(0, 1), rank(2, 3, asked="1")], [0, 1]) == {0: 2, 1: 1}


def test_the_limit_of_a_container_is_read(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text("150000 100000\n")
    assert cores.cpu_quota(limit) == 1.5
    limit.write_text("max 100000\n")
    assert cores.cpu_quota(limit) is None
    assert cores.cpu_quota(tmp_path / "missing") is None


# -- launcher and ranks -----------------------------------------------------------------------------------------------


def test_the_launcher_of_another_mpi_is_found() -> None:
    library = "Open MPI v4.1.4, package: Debian OpenMPI"
    is_broken(
        launching.judge_launcher("/m/mpiexec", HYDRA, library, ranks_run=False), "/m/mpiexec is MPICH's", "MPIEXEC"
    )
    is_broken(
        launching.judge_launcher("/m/mpiexec", OPEN_MPI, "MPICH Version: 4.2.3", ranks_run=False), "is Open MPI's"
    )
    is_worth(launching.judge_launcher("/m/mpiexec", HYDRA, library, ranks_run=True), "is MPICH's")
    is_worth(
        launching.judge_launcher("/m/mpiexec", OPEN_MPI, "Open MPI v5.0.3", ranks_run=False), "version 4.1", "has 5.0"
    )
    fitting = launching.judge_launcher("/m/mpiexec", OPEN_MPI, library, ranks_run=False)
    assert (fitting.state, fitting.found) == (OK, "/m/mpiexec (Open MPI 4.1.4)")
    assert launching.judge_launcher("/m/mpiexec", HYDRA, "Intel(R) MPI Library 2021.9", ranks_run=False).state == OK
    assert launching.judge_launcher("/m/mpiexec", "mpiexec 1.0", library, ranks_run=False).state == OK


def test_a_machine_without_a_launcher_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(program: str) -> str:
        raise HpcgnnError("no mpiexec was found: install an MPI")

    monkeypatch.setattr(mpiexec, "find_launcher", none)
    is_broken(launching.look_at_launcher("", ranks_run=False), "no mpiexec was found")
    is_worth(launching.look_at_launcher("", ranks_run=True), "no mpiexec was found")  # srun has started them


def test_a_job_of_another_size_than_the_launchers_is_found() -> None:
    is_worth(launching.judge_size(1, {"PMI_SIZE": 4}), "4 processes (PMI_SIZE)", "HPCGNN_ALONE")
    is_worth(launching.judge_size(2, {"PMI_SIZE": 4}), "the launcher has 4 ranks", "MPI has 2")
    assert launching.judge_size(4, {"SLURM_STEP_NUM_TASKS": 1, "OMPI_COMM_WORLD_SIZE": 4}).state == OK
    assert launching.judge_size(1, {}).state == OK


def test_a_shell_within_a_step_is_no_rank() -> None:
    assert launching.is_launched({"OMPI_COMM_WORLD_RANK": "0"})
    assert launching.is_launched({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"})
    assert not launching.is_launched({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})
    assert not launching.is_launched({})


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``launcher(commands)``: MPIEXEC is a launcher that runs these commands, whatever its arguments are."""

    def make(commands: str) -> None:
        path = tmp_path / "mpiexec"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "mpiexec 1.0"; exit; }}\n{commands}\n')
        path.chmod(0o755)
        monkeypatch.setenv("MPIEXEC", str(path))

    return make


def test_ranks_that_do_not_start_in_time_are_ended(launcher: Callable[[str], None], tmp_path: Path) -> None:
    launcher(f"echo $$ > {tmp_path}/pid\nexec sleep 600")
    is_broken(
        launching.of_start(launching.start_ranks(tmp_path, 0.5)),
        "did not end within 0.5 s (--timeout)",
        "hostname",
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_launcher_that_fails_is_quoted(launcher: Callable[[str], None], tmp_path: Path) -> None:
    launcher("echo 'There are not enough slots' >&2\nexit 7")
    is_broken(launching.of_start(launching.start_ranks(tmp_path, 60)), "exit code 7", "There are not enough slots")
    launcher("echo 'hpcgnn: error: no MPI' >&2\necho rubbish >&2\nexit 1")
    assert launching.start_ranks(tmp_path, 60).problem.endswith("error: no MPI")


def test_the_report_of_started_ranks_is_read(launcher: Callable[[str], None], tmp_path: Path) -> None:
    report = Report("0", "Some MPI", 2, 1, (Finding("ranks", "one job of 2 ranks"),))
    (tmp_path / "said").write_text(f"a line of MPI\n{json.dumps(report.data())}\n")
    launcher(f"cat {tmp_path}/said")
    assert launching.start_ranks(tmp_path, 60).report == report


# -- software ---------------------------------------------------------------------------------------------------------


def test_different_versions_are_found() -> None:
    mine = installation.versions()
    assert software.judge_versions([mine, mine], job([0, 0])).state == OK
    is_broken(
        software.judge_versions([mine, mine | {"torch": "1.0"}], job([0, 0])), "rank 1 has torch 1.0", "one environment"
    )
    is_worth(software.judge_versions([mine, mine | {"numpy": "1.0"}], job([0, 0])), "rank 1 has numpy 1.0")


def test_different_or_several_mpi_libraries_are_found() -> None:
    fact = {"library": "Open MPI v4.1.4", "paths": ["/a/libmpi.so.40"], "serialized": True}
    assert software.judge_mpi([fact, fact], job([0, 0])) == Finding("MPI", "Open MPI v4.1.4 (/a/libmpi.so.40)")
    is_broken(software.judge_mpi([fact, fact | {"library": "MPICH"}], job([0, 0])), "rank 1 has loaded MPICH")
    two = fact | {"paths": ["/a/libmpi.so.40", "/b/libmpi.so.12"]}
    is_broken(software.judge_mpi([two], job([0])), "2 MPI libraries", "/b/libmpi.so.12")
    is_worth(software.judge_mpi([fact | {"serialized": False}], job([0])), "MPI_THREAD_SERIALIZED")


def test_kernels_that_are_slower_than_they_could_be_are_found() -> None:
    fact = {"kernels": "native", "missing": None, "isa": "avx512", "isas": ["scalar", "avx2", "avx512"], "asked": "",
            "openmp_runtimes": ["/a/libgomp.so"]}  # fmt: skip
    other = fact | {"isa": "avx2", "isas": ["scalar", "avx2"]}
    assert software.judge_kernels([fact, fact], job([0, 0])).state == OK
    is_worth(software.judge_kernels([fact, other], job([0, 1])), "rank 1", "avx2", "rank 0 with avx512")
    is_worth(
        software.judge_kernels([fact | {"asked": "avx2", "isa": "avx2"}], job([0])),
        "HPCGNN_ISA=avx2",
        "unset HPCGNN_ISA",
    )
    is_worth(
        software.judge_kernels([fact | {"missing": "no compiler", "isa": "", "isas": []}], job([0])), "no compiler"
    )
    two = fact | {"openmp_runtimes": ["/a/libgomp.so", "/b/libiomp.so"]}
    is_worth(software.judge_kernels([two], job([0])), "2 OpenMP runtimes")


def gpus(*identities: str, problem: str | None = None, to_mpi: bool = True) -> Fact:
    return {"problem": problem, "names": ["H100"] * len(identities), "identities": list(identities),
            "files": ["/dev/nvidia0"], "to_mpi": to_mpi, "free_bytes": [0] * len(identities)}  # fmt: skip


def test_gpus_that_are_shared_idle_or_unusable_are_found() -> None:
    assert software.judge_gpus([gpus("a", "b")] * 2, job([0, 0])).state == OK
    assert software.judge_gpus([gpus("a"), gpus("b")], job([0, 0])).state == OK
    assert software.judge_gpus([gpus("a"), gpus("a")], job([0, 0], by_doctor=True)).state == OK
    is_worth(
        software.judge_gpus([gpus("a"), gpus("a")], job([0, 0])), "ranks 0 and 1 have only 1 GPU", "--ranks-per-gpu 2"
    )
    is_worth(software.judge_gpus([gpus("a", "b", "c")] * 2, job([0, 0])), "leave 1 of the 3 GPUs")
    is_worth(software.judge_gpus([gpus("a", to_mpi=False), gpus("b")], job([0, 0])), "GPU-aware")
    is_worth(software.judge_gpus([gpus(problem="torch was built for CPUs")], job([0])), "built for CPUs")
    nothing = gpus(problem="torch was built for CPUs") | {"files": []}
    assert software.judge_gpus([nothing], job([0])) == Finding("GPUs", "none: ranks compute on the CPU")


def test_missing_parts_are_told_with_what_they_add() -> None:
    plain = software.judge_parts([{"partitioners": ["ldg"], "missing": ["pyarrow"]}], job([0]))
    assert plain.state == OK
    for word in ("KaMinPar", "METIS", "ParMETIS or PT-Scotch", "pip install pyarrow"):
        assert word in plain.sentence
    one = {"partitioners": ["parmetis", "ldg"], "missing": []}
    is_worth(software.judge_parts([one, one | {"partitioners": ["ldg"]}], job([0, 1])), "parmetis", "ranks 0 and 1")


# -- links ------------------------------------------------------------------------------------------------------------


def test_a_slow_link_is_found() -> None:
    fast = links.Link(0, 1, 2e-6, links.LARGE_BYTES / 10e9)
    slow = replace(fast, large_seconds=links.LARGE_BYTES / 80e6)
    assert links.judge("link between nodes", fast, between_nodes=True).state == OK
    is_worth(links.judge("link between nodes", slow, between_nodes=True), "80 MB/s", "management network")
    is_worth(links.judge("link within a node", replace(slow, large_seconds=0.01), between_nodes=False), "shared memory")
    # A gigabit per second is slow between nodes, but not too slow.
    assert links.judge("", replace(slow, large_seconds=links.LARGE_BYTES / 118e6), between_nodes=True).state == OK
    is_worth(links.judge("", replace(fast, small_seconds=0.02), between_nodes=False), "20.0 ms for 8 bytes")
    assert links.judge("", slow, between_nodes=False, crowded=True).state == OK


def measured(world: ThreadWorld) -> list[Finding | None]:
    nodes = job([0, 0, 2])
    there = Job(world, Path())
    there.__dict__["nodes"] = nodes.nodes
    return [links.within_a_node(there), links.between_nodes(there)]


def test_links_are_measured_within_and_between_nodes() -> None:
    within, between = ThreadPool(3).run(measured)[2]
    assert "between rank 0 and rank 1" in within.found
    assert "between rank 0 and rank 2" in between.found
    assert links.within_a_node(job([0, 1])) is None


def changed_on_the_way(world: ThreadWorld) -> str:
    start = world.start_alltoallv

    def start_and_change(send, received, what, neighbours=None):
        pending = start(send, received, what, neighbours)
        if world.rank == 1:
            received.buffer.on_host()[...] += 1
        return pending

    world.start_alltoallv = start_and_change
    finding = links.WITHIN.finding(Job(world, Path()))
    return f"{finding.state}: {finding.sentence}"


def test_bytes_that_change_on_the_way_are_found() -> None:
    said = ThreadPool(2).run(changed_on_the_way)
    assert said[0] == said[1]
    assert "broken: rank 1 received 8 bytes of rank 0 with wrong values" in said[0]


# -- folders ----------------------------------------------------------------------------------------------------------


def in_folder(world: ThreadWorld, folder: Path) -> Finding:
    return folders.FOLDER.finding(Job(world, folder))


def test_all_ranks_write_and_read_a_file_and_remove_it(tmp_path: Path) -> None:
    for finding in ThreadPool(3).run(in_folder, tmp_path):
        assert finding.state == OK
        assert finding.found.startswith("3 ranks wrote and read 0.7 MiB")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_found_on_all_ranks(tmp_path: Path) -> None:
    for folder, words in ((Path("/sys"), "cannot write /sys"), (tmp_path / "missing", "is not a folder here")):
        for finding in ThreadPool(2).run(in_folder, folder):
            is_broken(finding, words)


def test_other_bytes_than_were_written_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This simulates a file system that loses bytes which another node writes into the same block."""
    from hpcgnn.data.h5 import SlabWriter

    write = SlabWriter.write
    monkeypatch.setattr(
        SlabWriter, "write", lambda self, name, row, rows: write(self, name, row, rows[: -1 if row else None])
    )
    is_broken(ThreadPool(2).run(in_folder, tmp_path)[0], "reads other bytes", "than rank 1 wrote", "(on rank ")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_node_does_not_see_is_found(tmp_path: Path) -> None:
    with pytest.raises(HpcgnnError, match="use a folder that all nodes share"):
        folders._check_is_seen(tmp_path / "of-rank-0")


def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LEAST_FREE_BYTES", 1 << 60)
    is_worth(folders.FOLDER.finding(job([0], folder=tmp_path)), "MiB free", "another folder")
    is_worth(folders.TEMPORARY.finding(job([0])), "MiB free", "TMPDIR")


def test_temporary_files_that_others_may_replace_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))
    assert folders.TEMPORARY.finding(job([0])).state == OK
    tmp_path.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    is_worth(folders.TEMPORARY.finding(job([0])), "other users may replace files", "TMPDIR")
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: "/sys")
    is_broken(folders.TEMPORARY.finding(job([0])), "denied")


def test_little_shared_memory_is_found() -> None:
    fact = {"host": "n1", "free": 64 << 20, "writable": True}
    is_worth(folders.judge_shared_memory([fact], job([0])), "64 MiB free", "--shm-size")
    is_worth(folders.judge_shared_memory([fact | {"free": 1 << 40, "writable": False}], job([0])), "is not writable")
    assert folders.judge_shared_memory([fact | {"free": 1 << 40}], job([0])).state == OK


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

    def judge(facts: list[Fact], at: Job) -> Finding:
        return Finding("judged", str(facts[1]["missing"]))

    def sees(facts: list[Fact], at: Job) -> Finding:
        return Finding("good", str(len(facts)))

    checks: list[Check] = [
        by_rank("bad", look, judge),
        by_rank("judged", lambda at: {}, judge),
        by_rank("good", lambda at: {}, sees),
    ]
    return [check.finding(Job(world, Path())) for check in checks]


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
        examine._run((good, Check("waits", waits), good), Job(world, Path()), lambda name: None)
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


def test_ranks_are_named_shortly() -> None:
    assert [some_ranks(each) for each in ([3], [0, 1, 2])] == ["rank 3", "ranks 0, 1 and 2"]
    assert some_ranks(range(9)) == "9 ranks (0, 1, 2, 3, 4, ...)"


# -- the command ------------------------------------------------------------------------------------------------------


def facts_of(stdout: str) -> dict:
    facts = json.loads(stdout)
    assert facts["findings"]
    for each in facts["findings"]:
        assert set(each) == {"check", "found", "state", "sentence"}
    return facts


@pytest.mark.mpi
def test_on_ranks_all_is_checked_and_rank_0_prints(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    facts = facts_of(mpirun(2, [*DOCTOR, "--json", "--folder", tmp_path]).stdout)
    assert (facts["ranks"], facts["nodes"]) == (2, 1)
    assert [each["check"] for each in facts["findings"]] == CHECKS
    assert facts["state"] != BROKEN
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mpi
def test_on_ranks_what_is_broken_ends_all_of_them_with_1(
    mpirun: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    result = mpirun(2, [*DOCTOR, "--folder", "/sys"], check=False)
    assert result.returncode == 1
    assert "cannot write /sys" in " ".join(result.stdout.split())
    said = [line for line in result.stderr.splitlines() if line.startswith("hpcgnn: ")]
    assert len(said) == 1
    assert said[0].startswith("hpcgnn: error: something is broken (folder): cannot write /sys")


def alone(*words: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *DOCTOR, *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=check,
        timeout=120,
    )


@pytest.mark.mpi
@pytest.mark.launches
def test_alone_two_ranks_are_started(tmp_path: Path) -> None:
    facts = facts_of(alone("--json", "--folder", str(tmp_path)).stdout)
    assert facts["ranks"] == 2
    assert [each["check"] for each in facts["findings"]] == CHECKS
    assert facts["findings"][1]["found"] == "one job of 2 ranks, started by this command"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mpi
def test_without_ranks_one_process_is_looked_at(launcher: Callable[[str], None], tmp_path: Path) -> None:
    launcher(f"touch {tmp_path}/started")
    facts = facts_of(alone("--no-launch", "--json", "--folder", str(tmp_path)).stdout)
    assert facts["ranks"] == 1
    assert "ranks" not in [each["check"] for each in facts["findings"]]
    assert not (tmp_path / "started").exists()


def test_four_jobs_of_one_rank_are_told_by_the_first(tmp_path: Path) -> None:
    wrong = {"PMI_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "4"}
    first = alone("--json", "--folder", str(tmp_path), check=False, **wrong, PMI_RANK="0")
    finding = next(each for each in facts_of(first.stdout)["findings"] if each["check"] == "ranks")
    assert finding["state"] == BROKEN
    assert "has started 4 ranks" in finding["sentence"]
    assert first.returncode == 1
    assert first.stderr.splitlines()[-1].startswith(
        "hpcgnn: error: something is broken (ranks): the launcher has started 4"
    )
    second = alone("--json", "--folder", str(tmp_path), **wrong, PMI_RANK="1")
    assert second.stdout == ""


def test_what_is_told_of_a_launcher_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    assert told_sizes()["PMI_SIZE"] == 4


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


def test_help_has_examples_and_no_inner_option() -> None:
    text = alone("--help").stdout
    assert "mpirun -n 4 hpcgnn doctor" in text
    assert "--by-doctor" not in text


def test_every_check_is_part_of_the_report() -> None:
    assert [check.name for check in examine.CHECKS] == [*CHECKS[2:9], "link between nodes", *CHECKS[9:]]
