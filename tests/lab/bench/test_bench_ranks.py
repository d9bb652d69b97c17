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
from hpcgnn.lab.cost_model.constants import write_model
from hpcgnn.train.run_config import RunConfig
from hpcgnn.world.buffer import Segments
from hpcgnn.world.lone_world import LoneWorld
from hpcgnn.world.thread_world import ThreadWorld, on_threads

RANKS, BITS = 3, ("32", "2")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "parts.h5"
    in_parts(path, random_multigraph(), RANKS)
    assert f"hpcgnn plan {path} --strategy hybrid" in refusal("bench", "ranks", path)
    said("plan", path, "--quiet")
    return path


def config(bits: str) -> RunConfig:
    return RunConfig.from_settings({"hidden": 8, "layers": 2, "bits": bits, "compute": "float32", "dropout": 0.0})


def traffic_of(world: ThreadWorld, path: Path, bits: str) -> tuple[list[bytes], list[bool]]:
    """The bytes that this rank sends in each exchange of the first epoch, and whether it receives zeros only."""
    sent: list[bytes] = []
    zeros: list[bool] = []
    start = world.start_alltoallv

    def noting(send: Segments, received: Segments, *others: Any, **more: Any) -> Any:
        sent.append(send.buffer.on_host().tobytes())
        pending = start(send, received, *others, **more)
        zeros.append(not received.buffer.on_host().any())
        return pending

    graph = load(path, world)
    trainer = bare_trainer(graph, config(bits))
    world.start_alltoallv = noting  # type: ignore[method-assign]
    trainer.run_epoch()
    return sent, zeros


@pytest.mark.parametrize("bits", BITS)
def test_a_rank_alone_sends_what_it_sends_in_a_job(parts: Path, bits: str) -> None:
    together = on_threads(RANKS, lambda world: traffic_of(world, parts, bits))
    for rank in range(RANKS):
        (alone, zeros), (others, _) = traffic_of(LoneWorld(rank, RANKS), parts, bits), together[rank]
        assert [len(each) for each in alone] == [len(each) for each in others]
        assert alone[0] == others[0]  # the rows of the input, which no other rank has changed
        assert any(alone[0])
        assert len(zeros) > 2
        assert all(zeros)


def test_the_command_tells_of_each_rank_and_of_the_job(parts: Path, tmp_path: Path) -> None:
    write_model(profiles.model_of_profile(profiles.find("epyc-slingshot")), tmp_path / "model.toml")
    given = ("bench", "ranks", parts, "--hidden", 8, "--layers", 2, "--bits", 2, "--rounds", 2)
    found = told(*given, "--against", tmp_path / "model.toml", "--json")
    assert sorted(found["measured"]) == [*range(RANKS)]
    seconds = np.array(found["seconds_of_ranks"])
    assert seconds.shape == (RANKS, 3)
    assert (seconds > 0).all()
    assert found["phases"]["all"]["seconds"] == pytest.approx(seconds.sum(axis=1).mean())
    assert found["epoch_seconds"] > seconds.sum(axis=1).max()
    parts_of_lines = {line["axes"]["part"]: line["figures"] for line in found["lines"]}
    assert parts_of_lines["all"]["median_error"] <= parts_of_lines["all"]["worst_error"]
    assert parts_of_lines["epoch, predicted"]["seconds"] == found["predicted_epoch_seconds"]
    plain = said("bench", "ranks", parts, "--hidden", 8, "--rounds", 1, "--ranks", 2)
    assert "3 ranks, 2 of them measured" in plain
    assert "an epoch on the network of xeon-hdr" in plain
    assert "must not be quoted" in plain


def measured(told_seconds: np.ndarray, order: list[int], heaviest: int = 0) -> dict[str, Any]:
    about = {"ranks": RANKS, "threads": 1, "compute": "float32", "heaviest": heaviest}
    return about | {"measured": order, "seconds_of_ranks": told_seconds[order].tolist()}


def test_an_epoch_follows_from_the_seconds_of_ranks(parts: Path) -> None:
    with PartsFile(parts) as file:
        predicted = job_of_ranks.predictor(None, profiles.find("xeon-hdr"), file, config("2"), 1)
        alone = predicted(compute="float32")
        seconds = job_of_ranks.computed_seconds(alone)

        def job(of_ranks: np.ndarray, order: list[int], heaviest: int = 0) -> dict[str, Any]:
            return job_of_ranks.job_of(measured(of_ranks, order, heaviest), predicted, is_fitted=True)

        same = job(seconds, [2, 0, 1])
        assert same["epoch_seconds"] == pytest.approx(alone.epoch.total)
        assert same["phases"]["all"]["worst_error"] < 1e-9
        slow = seconds.copy()
        slow[1] *= 30.0
        later = job(slow, [2, 0, 1])
        others = alone.epoch.total - seconds.sum(axis=1).max()  # waits, and the all-reduce
        assert 0 < later["epoch_seconds"] - 30 * seconds[1].sum() <= others + 1e-9
        assert later["phases"]["all"]["worst_error"] == pytest.approx(29 / 30)
        assert later["phases"]["all"]["median_error"] < 1e-9
        # The heaviest rank stands for itself only: rank 0 is like rank 2, which was drawn.
        as_drawn = job(np.stack((seconds[0], 30 * seconds[1], 2 * seconds[2])), [1, 2], 1)
        every = job(np.stack((2 * seconds[0], 30 * seconds[1], 2 * seconds[2])), [1, 2, 0], 1)
        assert as_drawn["epoch_seconds"] == pytest.approx(every["epoch_seconds"])
        assert as_drawn["phases"]["all"]["median_error"] == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--bits", "adaqp"), "nothing may be decided by all ranks"),
        (("--bits", 1, "--dropout", 0, "--message-coding", "delta"), "nothing may be decided by all ranks"),
        (("--memory-limit", "20GiB"), "one at a time"),
        (("--device", "cuda"), "one at a time"),
        (("--attention", "partial", "--model", "gat"), "the cost model covers the models"),
    ],
)
def test_what_a_rank_alone_cannot_do_is_refused(parts: Path, options: tuple[Any, ...], sentence: str) -> None:
    assert sentence in refusal("bench", "ranks", parts, *options)
