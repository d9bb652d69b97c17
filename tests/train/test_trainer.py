"""The trainer in one process: requests to stop, and states that come from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_graphs
import torch

import hpcgnn
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.stop import StopRequest


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
