"""`hpcgnn cluster` and `hpcgnn launch --hosts`: separate hosts, links of the given speed, and complete removal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from requires import require
from virtual_clusters import COMMAND, LONGEST_SECONDS, ROOT, hpcgnn, require_rights, start, virtual_cluster, wait_until

TRANSFER = ROOT / "tests" / "ranks" / "transfer.py"
WHERE = ROOT / "tests" / "ranks" / "hosts.py"
HOSTS = 4

pytestmark = pytest.mark.virtual_cluster


@pytest.fixture(scope="module", autouse=True)
def _rights() -> None:
    require_rights()


@pytest.fixture(scope="module")
def name() -> str:
    """A name that no other run of these tests uses."""
    return f"test{os.getpid()}"


@pytest.fixture(scope="module")
def cluster(name: str) -> Iterator[str]:
    """The name of a cluster of four hosts with 100 Mbit/s links."""
    virtual_cluster("up", HOSTS, "--rate", "100mbit", "--name", name)
    try:
        yield name
    finally:
        virtual_cluster("down", "--name", name)
        assert remains(name) == []


@pytest.fixture
def passing_name(name: str) -> str:
    """The name of a cluster that a test creates for itself, beside the shared one."""
    return f"{name}-other"


def remains(name: str) -> list[str]:
    """Everything on the machine that belongs to the cluster, or to a job on it."""
    found = [
        str(path) for folder in ("/run", "/run/netns", "/tmp", "/dev/shm") for path in Path(folder).glob(f"*{name}*")
    ]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    found += [line for line in links.splitlines() if "veth" in line or "data" in line or "control" in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            if f"/run/virtual_cluster.{name}/".encode() in environment:
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def transfer(cluster: str, size_bytes: int) -> None:
    """Send a message from host 0 to host 1."""
    virtual_cluster("run", "--name", cluster, "-n", 2, sys.executable, TRANSFER, size_bytes)


def limiter(cluster: str, host: int) -> dict[str, Any]:
    """The kernel's queue in front of the host's link: its kind, its rate, and the number of packets that it has delayed."""
    command = ["tc", "-s", "-j", "-n", f"{cluster}-{host}", "qdisc", "show", "dev", "eth0"]
    (found,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def counted(cluster: str, host: int) -> dict[str, int]:
    return json.loads(virtual_cluster("bytes", "--json", "--name", cluster).stdout)[f"{cluster}-{host}"]


def reaches(cluster: str, host: int, address: str) -> bool:
    """Return whether a packet from the host comes back: a refused connection is an answer, too."""
    script = f"import socket; socket.create_connection(('{address}', 1), timeout=0.5)"
    command = ["ip", "netns", "exec", f"{cluster}-{host}", sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return "ConnectionRefusedError" in result.stderr


# -- properties of hosts ----------------------------------------------------------------------------------------------


def test_each_rank_has_a_host_and_the_jobs_environment(cluster: str) -> None:
    script = 'echo "$(hostname) $OMPI_COMM_WORLD_RANK $OMP_NUM_THREADS $HPCGNN_ISA $PYTHONPATH $(command -v python)"'
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    arguments = ("run", "--name", cluster, "-t", 3, "--", "bash", "-c", script)
    lines = virtual_cluster(*arguments, HPCGNN_ISA="scalar", PATH=path, PYTHONPATH=str(ROOT)).stdout.splitlines()
    python = shutil.which("python", path=path)
    assert sorted(lines) == [f"{cluster}-{i} {i} 3 scalar {ROOT} {python}" for i in range(HOSTS)]


# Options of the launch, and the ranks of each host.
PLACEMENTS = {
    "block": (("--ranks-per-host", 2), [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "cyclic": (("--ranks-per-host", 2, "--placement", "cyclic"), [[0, 4], [1, 5], [2, 6], [3, 7]]),
    "more ranks than hosts": (("-n", 6), [[0, 1], [2, 3], [4], [5]]),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_ranks_of_a_host_share_memory_and_no_others_do(cluster: str, placement: str) -> None:
    """A world sees the hosts as nodes."""
    options, expected = PLACEMENTS[placement]
    program = [sys.executable, WHERE, *(["--world"] if "-n" in options else [])]
    ranks = json.loads(virtual_cluster("run", "--name", cluster, *options, *program, OMP_NUM_THREADS="").stdout)
    assert len(ranks) == sum(map(len, expected))
    for index, host in enumerate(expected):
        for rank in host:
            found = dict(ranks[rank])
            assert 1 <= found.pop("threads") <= max(len(os.sched_getaffinity(0)) // len(ranks), 1)
            assert found.pop("messages") == len(host) or len(host) == 1, "messages within a host go through its memory"
            assert found == {"host": f"{cluster}-{index}", "node": host, "written": host[0]}


@pytest.mark.parametrize(("placement", "between_hosts"), [("block", False), ("cyclic", True)])
def test_only_what_goes_to_another_host_takes_the_link(
    cluster: str, tmp_path: Path, placement: str, between_hosts: bool
) -> None:
    size_bytes = 4_000_000
    arguments = ("--ranks-per-host", 2, "--placement", placement, "--bytes", tmp_path / "moved.json")
    virtual_cluster("run", "--name", cluster, *arguments, sys.executable, TRANSFER, size_bytes)
    moved = json.loads((tmp_path / "moved.json").read_text())
    for host, way in ((0, "tx"), (1, "rx")):
        payload_bytes = moved[f"{cluster}-{host}"][f"{way}_payload_bytes"]
        if between_hosts:
            assert size_bytes <= payload_bytes < size_bytes + 10_000
        else:
            assert payload_bytes < 10_000


def test_ranks_of_a_host_share_what_they_send_to_others(cluster: str, tmp_path: Path) -> None:
    """Training gives the same results with fewer bytes over the links, because rows within a host are read in shared memory."""
    graph, parts = tmp_path / "graph.h5", tmp_path / "parts.h5"
    partition = ("partition", graph, parts, "--parts", str(2 * HOSTS), "--ranks-per-node", "2", "--quiet")
    for command in (("convert", "digits", graph, "--quiet"), partition):
        subprocess.run([*COMMAND, *command], check=True)
    found = {}
    for asked in ("off", "auto"):
        options = ["--epochs", "5", "--hidden", "32", "--compute", "float32", "--node-aware", asked, "--quiet"]
        train = [*COMMAND, "train", parts, "--out", tmp_path / asked, *options]
        virtual_cluster("run", "--name", cluster, "--ranks-per-host", 2, "-t", 1, *train)
        found[asked] = [json.loads(line) for line in (tmp_path / asked / "metrics.jsonl").read_text().splitlines()]
    losses = {asked: [epoch["loss"] for epoch in epochs] for asked, epochs in found.items()}
    assert losses["auto"] == pytest.approx(losses["off"], rel=1e-4)
    last = {asked: epochs[-1] for asked, epochs in found.items()}
    assert last["auto"]["bytes_between_nodes"] == last["auto"]["bytes_sent"] > 0
    assert last["auto"]["bytes_between_nodes"] < last["off"]["bytes_between_nodes"] < last["off"]["bytes_sent"]
    assert last["auto"]["bytes_shared_on_nodes"] > 0 == last["off"]["bytes_shared_on_nodes"]


def test_each_host_has_a_shared_memory_of_its_own_and_of_the_size_asked_for(cluster: str) -> None:
    script = """
        touch /dev/shm/$(hostname)-$OMPI_COMM_WORLD_RANK
        until [ $(ls /dev/shm | grep -c "^$(hostname)-") = 2 ]; do sleep 0.05; done
        echo $(df --output=size -k /dev/shm | tail -1) $(ls /dev/shm | tr '\\n' ' ')
    """
    arguments = ("--ranks-per-host", 2, "--shared-memory", "64m", "--", "bash", "-c", script)
    lines = virtual_cluster("run", "--name", cluster, *arguments).stdout.splitlines()
    of_hosts = [f"65536 {cluster}-{host}-{2 * host} {cluster}-{host}-{2 * host + 1}" for host in range(HOSTS)]
    assert sorted(lines) == sorted(2 * of_hosts)


def test_a_transfer_is_held_back_by_the_links_rate_and_counted(cluster: str) -> None:
    size_bytes = 10_000_000
    before, held_back = [counted(cluster, host) for host in range(HOSTS)], limiter(cluster, 0)["overlimits"]
    transfer(cluster, size_bytes)
    found = limiter(cluster, 0)
    assert (found["kind"], found["options"]["rate"]) == ("tbf", 100_000_000 // 8)
    assert found["bytes"] > size_bytes
    assert found["overlimits"] > held_back, "packets came faster than the link lets them"
    after = [counted(cluster, host) for host in range(HOSTS)]

    def grown(host: int, counter: str) -> int:
        return after[host][counter] - before[host][counter]

    for host, counter in ((0, "tx_payload_bytes"), (1, "rx_payload_bytes")):
        assert size_bytes <= grown(host, counter) < size_bytes + 10_000, "the launcher's traffic is not in it"
    for host, counter in ((0, "rx_bytes"), (1, "tx_bytes"), (2, "tx_bytes"), (3, "rx_bytes")):
        assert grown(host, counter) < 0.02 * size_bytes


def test_the_rate_can_be_changed(cluster: str) -> None:
    try:
        virtual_cluster("rate", "25mbit", "--name", cluster)
        assert "25mbit" in virtual_cluster("status", "--name", cluster).stdout
        transfer(cluster, 1_000_000)
        slow = limiter(cluster, 0)
        assert (slow["kind"], slow["options"]["rate"]) == ("tbf", 25_000_000 // 8)
        assert slow["overlimits"] > 0
        virtual_cluster("rate", "unlimited", "--name", cluster)
        assert limiter(cluster, 0)["kind"] == "noqueue"
        transfer(cluster, 1_000_000)
    finally:
        virtual_cluster("rate", "100mbit", "--name", cluster)


def test_a_cut_link_carries_nothing_until_it_is_healed(cluster: str) -> None:
    assert reaches(cluster, 0, "10.77.0.2")
    virtual_cluster("cut", 1, "--name", cluster)
    try:
        assert not reaches(cluster, 0, "10.77.0.2")
        assert reaches(cluster, 0, "10.77.0.3")
        assert virtual_cluster("status", "--name", cluster).stdout.count(" cut") == 1
    finally:
        virtual_cluster("heal", f"{cluster}-1", "--name", cluster)
    wait_until(lambda: reaches(cluster, 0, "10.77.0.2"), "answer over the healed link")


@pytest.mark.usefixtures("cluster")
def test_a_second_cluster_is_apart(passing_name: str, tmp_path: Path) -> None:
    report = tmp_path / "bytes.json"
    arguments = ("--rate", "1gbit", "--bytes", report, "--", sys.executable, TRANSFER, 1_000_000)
    hpcgnn("launch", "--hosts", 2, "--name", passing_name, *arguments)
    assert remains(passing_name) == []
    moved = json.loads(report.read_text())
    assert set(moved) == {f"{passing_name}-0", f"{passing_name}-1"}
    assert moved[f"{passing_name}-0"]["tx_payload_bytes"] >= 1_000_000


# -- nothing is left ---------------------------------------------------------------------------------------------------


def test_a_failing_command_leaves_its_exit_code_and_nothing_else(passing_name: str) -> None:
    arguments = ("launch", "--hosts", 2, "--name", passing_name)
    hpcgnn(*arguments, "--", "bash", "-c", "exit 7", expect=7)
    assert remains(passing_name) == []
    assert "no command" in hpcgnn(*arguments, "there-is-no-such-command", expect=2).stderr
    assert remains(passing_name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_leaves_nothing(passing_name: str, tmp_path: Path, number: signal.Signals) -> None:
    # The rank's child survives the launcher's signals to the rank.
    script = f"touch {tmp_path}/$OMPI_COMM_WORLD_RANK; setsid sleep 1000 & sleep 1000"
    job = start("launch", "--hosts", 2, "--name", passing_name, "--", "bash", "-c", script)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "start of the ranks")
    job.send_signal(number)
    job.communicate(timeout=LONGEST_SECONDS)
    assert job.returncode == 128 + number
    assert remains(passing_name) == []


def test_what_a_killed_owner_leaves_is_removed_by_the_next_command(passing_name: str, tmp_path: Path) -> None:
    script = f"touch {tmp_path}/ready; sleep 1000"
    for command in (["down"], ["up", "1"]):
        job = start("launch", "--hosts", 2, "--name", passing_name, "--", "bash", "-c", script)
        wait_until((tmp_path / "ready").exists, "start of the ranks")
        refusal = virtual_cluster("down", "--name", passing_name, expect=2).stderr
        assert "another process" in refusal, "it is not for others to remove while its owner lives"
        job.kill()
        job.wait()
        assert remains(passing_name) != []
        virtual_cluster(*command, "--name", passing_name)
        (tmp_path / "ready").unlink()
    assert "exists already" in virtual_cluster("up", 1, "--name", passing_name, expect=2).stderr
    virtual_cluster("down", "--name", passing_name)
    assert remains(passing_name) == []
    virtual_cluster("down", "--name", passing_name)


@pytest.fixture
def slow_tc(tmp_path: Path) -> dict[str, str]:
    """An environment in which each change of a limit takes a while, and the third one fails."""
    program = tmp_path / "tc"
    program.write_text(f"#!/bin/sh\necho >>{tmp_path}/calls\nsleep 0.3\n[ $(wc -l <{tmp_path}/calls) -lt 3 ]\n")
    program.chmod(0o755)
    return {"PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]])}


def test_a_failure_half_way_leaves_nothing(passing_name: str, slow_tc: dict[str, str]) -> None:
    refusal = virtual_cluster("up", 3, "--rate", "100mbit", "--name", passing_name, expect=2, **slow_tc).stderr
    assert refusal.startswith("hpcgnn: error: `tc ")
    assert refusal.count("\n") == 1
    assert remains(passing_name) == []


def test_an_interruption_half_way_leaves_nothing(passing_name: str, slow_tc: dict[str, str], tmp_path: Path) -> None:
    process = start("cluster", "up", 1, "--rate", "100mbit", "--name", passing_name, **slow_tc)
    wait_until((tmp_path / "calls").exists, "first limit")
    process.terminate()
    process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert remains(passing_name) == []


# -- refusals ----------------------------------------------------------------------------------------------------------


def assert_refused(process: subprocess.CompletedProcess[str], reason: str, passing_name: str) -> None:
    assert process.returncode == 2, process.stderr
    assert reason in process.stderr
    assert process.stderr.count("\n") == 1, process.stderr
    assert remains(passing_name) == []


def test_refuses_without_the_rights(passing_name: str) -> None:
    require(shutil.which("setpriv"), "setpriv (util-linux)")
    less = ["setpriv", "--bounding-set=-net_admin,-sys_admin"]
    command = [*less, *COMMAND, "cluster", "up", "2", "--name", passing_name]
    assert_refused(subprocess.run(command, capture_output=True, text=True, check=False), "CAP_NET_ADMIN", passing_name)


def test_refuses_without_its_tools(passing_name: str, tmp_path: Path) -> None:
    up = ("up", 2, "--name", passing_name)
    assert_refused(virtual_cluster(*up, expect=2, PATH=str(tmp_path)), "iproute2", passing_name)
    launcher = tmp_path / "mpiexec"
    launcher.write_text("#!/bin/sh\necho HYDRA build details\n")
    launcher.chmod(0o755)
    run = ("launch", "--hosts", 1, "--name", passing_name, "true")
    assert_refused(hpcgnn(*run, expect=2, MPIEXEC=str(launcher)), "Open MPI", passing_name)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["up", "7", "--subnet", "10.1.0.0/29"], "addresses for 6 hosts"),
        (["up", "2", "--subnet", "169.254.3.0/24"], "another --subnet"),
        (["rate", "1gbit"], "there is no cluster"),
        (["cut", "0"], "there is no cluster"),
        (["run", "true"], "there is no cluster"),
        (["rate", "fast"], "fast is not a rate"),
        (["up", "2", "--subnet", "here"], "--subnet: 'here' is not a network"),
        (["run", "--ranks-per-host", "2", "-n", "3", "true"], "there is no cluster"),
    ],
)
def test_refuses_what_cannot_be(passing_name: str, arguments: list[str], reason: str) -> None:
    command, *others = arguments
    refused = virtual_cluster(command, "--name", passing_name, *others, expect=2)
    assert_refused(refused, reason, passing_name)
