"""The trainer in one process: requests to stop, states from a checkpoint, and learning rates; and the reduction of gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_graphs
import torch

import hpcgnn
from hpcgnn.comm import World
from hpcgnn.comm.thread_world import on_threads, one_rank
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.stop import StopRequest
from hpcgnn.train.gradients import GradientBucket
from hpcgnn.train.schedule import ScheduleConfig


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> hpcgnn.LocalGraph:
    path = tmp_path_factory.mktemp("one") / "parts.h5"
    return small_graphs.on_ranks(one_rank(), small_graphs.random_multigraph(), path)


def trainer(graph: hpcgnn.LocalGraph, epochs: int, **others: Any) -> hpcgnn.Trainer:
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=8), graph)
    return hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=epochs, **others.pop("config", {})), **others)


@pytest.mark.parametrize(("epochs", "reason"), [(3, "SIGUSR1"), (2, None)])
def test_a_request_to_stop_in_the_last_epoch_leaves_a_finished_run(
    graph: hpcgnn.LocalGraph, epochs: int, reason: str | None
) -> None:
    stop = StopRequest()
    made = trainer(graph, epochs, stop=stop, on_epoch=lambda record: setattr(stop, "requested", True))
    made.fit()
    assert made.next_epoch == 2
    assert made.stop_reason == reason


def test_resuming_needs_a_run_folder(graph: hpcgnn.LocalGraph, tmp_path: Path) -> None:
    with pytest.raises(hpcgnn.HpcgnnError, match=r"^resume\(\) needs a run folder"):
        trainer(graph, 1, stop=StopRequest()).resume()


def test_ranges_from_a_checkpoint_go_to_the_device_of_the_messages(graph: hpcgnn.LocalGraph) -> None:
    policy = {"policy": PolicyConfig.of_used({"bits": "adaqp"})}
    made = trainer(graph, 2, stop=StopRequest(), config=policy)
    made.fit()
    bits = made.policies._bits
    state, rank_state = bits.state(), bits.rank_state()
    for ranges in bits._ranges:
        ranges.squares = torch.zeros(0, device="meta")
    bits.load(state, rank_state)
    assert bits._ranges
    assert {ranges.squares.device.type for ranges in bits._ranges} == {"meta"}


def test_all_groups_of_parameters_have_the_scheduled_rate(graph: hpcgnn.LocalGraph) -> None:
    model = hpcgnn.build_model(hpcgnn.ModelConfig("appnp", layers=2, hidden=8, hops=2), graph)
    config = hpcgnn.TrainConfig(epochs=4, lr=0.1, dense_weight_decay=0.5, schedule=ScheduleConfig(warmup=4))
    made = hpcgnn.Trainer(model, graph, config, stop=StopRequest())
    for epoch, rate in enumerate((0.025, 0.05)):
        made.step(epoch)
        assert [group["lr"] for group in made.optimiser.param_groups] == pytest.approx([rate, rate])


def test_a_rank_without_a_gradient_counts_as_zeros_in_each_step() -> None:
    def program(world: World) -> list[float]:
        parameter, found = torch.nn.Parameter(torch.ones(1)), []
        bucket = GradientBucket(world, [parameter], 0)
        for step in range(2):  # in the second one, rank 1 has no gradient
            parameter.grad = None if step and world.rank else torch.full((1,), 8.0)
            bucket.reduce([], 1)
            found.append(float(parameter.grad[0]))
        return found

    assert on_threads(2, program) == [[8.0, 4.0]] * 2
