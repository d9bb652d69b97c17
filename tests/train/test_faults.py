"""The effects of faults on a training job, and its resumption: a cut link, a rank that stops answering, a rank that dies."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import small_graphs
import torch
import trainings
from rank_pool import ranks_of
from requires import EVERYTHING
from trainings import lines_so_far, losses, wait_for_epoch, weights
from virtual_clusters import LONGEST_SECONDS, ROOT, require_rights, start, virtual_cluster, wait_until

TIMEOUT_SECONDS = 5
SENTENCE = r"hpcgnn: error on rank (\d): rank \1 of \d waited 5 s for ([^:]+): a peer or a link has stopped"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """``parts(P)``: the path of a graph in P parts, whose boundary rows make up most of the communication."""
    folder, graph = tmp_path_factory.mktemp("graph"), small_graphs.even_graph(nodes=6000, edges=30_000)
    return functools.cache(lambda ranks: small_graphs.in_parts(folder / f"parts-{ranks}.h5", graph, ranks))


FLAGS = ("--hidden", 32, "--compute", "float32", "--quiet")  # "auto" measures, so two runs could multiply differently


def process_of(job: subprocess.Popen, rank: int) -> int:
    """The process of the rank, which the job's launcher, or a process that it started, has started."""
    found = ranks_of(job.pid)
    assert rank in found, found
    return found[rank]


def waited_for(stderr: str) -> dict[int, str]:
    """The operation for which each rank says that it waited."""
    found = re.findall(SENTENCE, stderr)
    assert len(found) == len({rank for rank, _ in found}), stderr
    return {int(rank): what for rank, what in found}


def assert_named(stderr: str, ranks: set[int]) -> None:
    """Check that each of ``ranks`` names the operation for which it waited, and that this is part of a training epoch."""
    found = waited_for(stderr)
    assert ranks <= found.keys(), stderr
    for what in found.values():
        assert re.fullmatch(
            r"layer \d's (boundary rows|gradients)|gradients|sums over nodes|the times of the epoch|metric counts|the metrics",
            what,
        )


# -- a rank that stops answering ---------------------------------------------------------------------------------------


@pytest.mark.mpi
@pytest.mark.launches
def test_a_stopped_rank_ends_the_job_and_all_others_say_what_they_waited_for(
    parts: Callable[[int], Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    job = trainings.start(parts(4), out, *FLAGS, "--epochs", 10**6, "--timeout", TIMEOUT_SECONDS, ranks=4)
    try:
        wait_for_epoch(out, 2, job)
        stopped = process_of(job, 2)
        os.kill(stopped, signal.SIGSTOP)
        _, stderr = job.communicate(timeout=LONGEST_SECONDS)
    finally:
        job.terminate()
    assert job.returncode != 0
    assert_named(stderr, {0, 1, 3})
    wait_until(lambda: not Path(f"/proc/{stopped}").exists(), "end of the stopped rank")


# -- on a virtual cluster ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The name of a cluster of four hosts with 1 Gbit/s links."""
    require_rights()
    name = f"faults{os.getpid()}"
    virtual_cluster("up", 4, "--rate", "1gbit", "--name", name)
    try:
        yield name
    finally:
        virtual_cluster("down", "--name", name)


def start_on(cluster: str, ranks: int, *words: object) -> subprocess.Popen[str]:
    train = [sys.executable, "-m", "hpcgnn", "train", *words, *FLAGS]
    return start("cluster", "run", "--name", cluster, "-n", ranks, "-t", 1, "--", *train)


@pytest.mark.virtual_cluster
def test_all_ranks_say_what_they_waited_for_when_a_link_is_cut(
    cluster: str, parts: Callable[[int], Path], tmp_path: Path
) -> None:
    """This includes the rank behind the cut link, whose output travels another way."""
    out = tmp_path / "run"
    job = start_on(cluster, 4, parts(4), "--out", out, "--epochs", 10**6, "--timeout", TIMEOUT_SECONDS)
    try:
        wait_for_epoch(out, 2, job)
        virtual_cluster("cut", 1, "--name", cluster)
        _, stderr = job.communicate(timeout=LONGEST_SECONDS)
    finally:
        job.terminate()
        virtual_cluster("heal", 1, "--name", cluster)
    assert job.returncode == 1, stderr
    assert_named(stderr, {0, 1, 2, 3})
    assert virtual_cluster("status", "--name", cluster).stdout.splitlines()[0].endswith(" 0 processes")


def most_of_it_exchanges(record: dict) -> bool:
    """Return whether boundary rows are under way for most of an epoch's time."""
    return record["communication_wait_seconds"] > max(0.3, 0.6 * record["seconds"])


# With differences, a checkpoint has more to restore than without them.
CODINGS = {"delta": ("--message-coding", "delta", "--dropout", 0)} | ({"plain": ()} if EVERYTHING else {})


@pytest.mark.virtual_cluster
@pytest.mark.parametrize("coding", CODINGS)
def test_a_rank_killed_in_mid_exchange_costs_no_more_than_the_last_epochs(
    cluster: str, parts: Callable[[int], Path], train: Callable, tmp_path: Path, coding: str
) -> None:
    """The resumed run and the undisturbed run used a fast network, which must not change any bit."""
    flags = ["--bits", 2, *CODINGS[coding], "--checkpoint-every", 3, "--eval-every", 4]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    job = start_on(cluster, 2, parts(2), "--out", broken, *flags, "--epochs", 10**6)
    try:
        wait_for_epoch(broken, 6, job)  # the last of two checkpoints was written after an evaluation
        virtual_cluster("rate", "1mbit", "--name", cluster)
        wait_until(lambda: most_of_it_exchanges(lines_so_far(broken)[-1]), "slow epoch")
        os.kill(process_of(job, 1), signal.SIGKILL)
        _, stderr = job.communicate(timeout=LONGEST_SECONDS)
    finally:
        job.terminate()
        virtual_cluster("rate", "1gbit", "--name", cluster)
    assert job.returncode > 0, stderr
    assert waited_for(stderr) == {}, "the launcher ends the job; nobody waits for --timeout"
    epochs = len(lines_so_far(broken)) + 3
    for name in ("last.pt", "best.pt"):
        assert 0 < torch.load(broken / "checkpoints" / name, weights_only=True)["next_epoch"] <= epochs - 3
    train("broken", "--resume", "--epochs", epochs, graph=parts(2))
    train("whole", *flags, "--epochs", epochs, graph=parts(2))
    assert losses(broken) == losses(whole)
    for name in ("last.pt", "best.pt"):
        assert weights(broken, name) == weights(whole, name)


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_cluster
def test_counted_bytes_are_those_that_the_interfaces_report(
    cluster: str, parts: Callable[[int], Path], tmp_path: Path
) -> None:
    """For training and evaluation, without the reduction of gradients, which is not a message and is measured separately."""
    program = ROOT / "tests" / "ranks" / "bytes_on_the_wire.py"
    output = virtual_cluster("run", "--name", cluster, "-n", 2, "-t", 1, "--", sys.executable, program, parts(2)).stdout
    found = json.loads(output)
    assert set(found) == {"32", "2", "2 delta"}
    for name, counted in found.items():
        for step in ("training", "evaluation"):
            bytes_sent, wire = counted[step]
            assert bytes_sent > 200_000, (name, step)
            assert wire == pytest.approx(bytes_sent, rel=0.02), (name, step)
