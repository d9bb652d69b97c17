"""`hpcgnn bench ranks`: a rank that trains alone does its work in a job, and an epoch follows from the seconds of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refusal, said, told
from small_graphs import in_parts, random_multigraph

from hpcgnn.data.graph_file import PartsFile
from hpcgnn.graph.local_graph import load
from hpcgnn.lab.bench.epochs import bare_trainer
from hpcgnn.lab.cost_model import job_of_ranks, profiles
from hpcgnn.lab.cost_model.predict import predict
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world.buffer import Segments
from hpcgnn.world.lone_world import LoneWorld
from hpcgnn.world.thread_world import ThreadWorld, on_threads

RANKS, BITS = 3, ("32", "2")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "parts.h5"
    in_parts(path, random_multigraph(), RANKS)
    said("plan", path, "--quiet")
    return path


def config(bits: str) -> RunConfig:
    return RunConfig.from_settings({"hidden": 8, "layers": 2, "bits": bits, "compute": "float32", "dropout": 0.0})


def sent_by(world: ThreadWorld, path: Path, bits: str) -> list[bytes]:
    """The bytes of each exchange of the first epoch of this rank."""
    sent: list[bytes] = []
    start = world.start_alltoallv

    def noting(send: Segments, *others: Any, **more: Any) -> Any:
        sent.append(send.buffer.on_host().tobytes())
        return start(send, *others, **more)

    graph = load(path, world)
    trainer = bare_trainer(graph, config(bits))
    world.start_alltoallv = noting  # type: ignore[method-assign]
    trainer.run_epoch()
    return sent


@pytest.mark.parametrize("bits", BITS)
def test_a_rank_alone_sends_what_it_sends_in_a_job(parts: Path, bits: str) -> None:
    together = on_threads(RANKS, lambda world: sent_by(world, parts, bits))
    for rank in range(RANKS):
        alone = sent_by(LoneWorld(rank, RANKS), parts, bits)
        assert [len(each) for each in alone] == [len(each) for each in together[rank]]
        assert alone[0] == together[rank][0]  # the rows of the input, which no other rank has changed
        assert any(alone[0])


def test_the_command_tells_of_each_rank_and_of_the_job(parts: Path) -> None:
    found = told("bench", "ranks", parts, "--hidden", 8, "--layers", 2, "--bits", 2, "--rounds", 2, "--json")
    assert sorted(found["measured"]) == [*range(RANKS)]
    seconds = np.array(found["seconds_of_ranks"])
    assert seconds.shape == (RANKS, 3)
    assert (seconds > 0).all()
    assert found["phases"]["all"]["seconds"] == pytest.approx(seconds.sum(axis=1).mean())
    assert found["epoch_seconds"] > seconds.sum(axis=1).max()
    assert "an epoch on the network of xeon-hdr" in said("bench", "ranks", parts, "--hidden", 8, "--rounds", 1)


def measured(told_seconds: np.ndarray, ranks: list[int]) -> dict[str, Any]:
    about = {"ranks": RANKS, "threads": 1, "compute": "float32", "heaviest": 0}
    return about | {"measured": ranks, "seconds_of_ranks": told_seconds[ranks].tolist()}


def test_an_epoch_follows_from_the_seconds_of_ranks(parts: Path) -> None:
    profile = profiles.find("xeon-hdr")
    model = profiles.model_of_profile(profile)
    run = config("2")
    with PartsFile(parts) as file:
        settings = run.settings() | {"threads": 1, "ranks_per_node": 1}
        predicted = predict(model, file, settings, profile=profile)
        seconds = job_of_ranks.computed_seconds(predicted)
        same = job_of_ranks.job_of(measured(seconds, [2, 0, 1]), file, run, model, profile)
        assert same["epoch_seconds"] == pytest.approx(predicted.epoch.total)
        assert same["phases"]["all"]["worst_error"] < 1e-9
        slow = seconds.copy()
        slow[1] *= 3.0
        later = job_of_ranks.job_of(measured(slow, [2, 0, 1]), file, run, model, profile)
        assert later["epoch_seconds"] - predicted.epoch.total == pytest.approx(2 * seconds[1].sum(), rel=0.5)
        assert later["phases"]["all"]["worst_error"] == pytest.approx(2 / 3)
        assert later["phases"]["all"]["median_error"] < 1e-9
        twice = job_of_ranks.job_of(measured(2 * seconds, [0, 2]), file, run, model, profile)
        every = job_of_ranks.job_of(measured(2 * seconds, [0, 1, 2]), file, run, model, profile)
        assert twice["epoch_seconds"] == pytest.approx(every["epoch_seconds"])  # the median stands for rank 1


def test_ranks_decide_nothing_together(parts: Path) -> None:
    assert "nothing may be decided by all ranks" in refusal("bench", "ranks", parts, "--bits", "adaqp")


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "parts.h5"
    in_parts(path, random_multigraph(), RANKS)
    assert f"hpcgnn plan {path} --strategy hybrid" in refusal("bench", "ranks", path)
