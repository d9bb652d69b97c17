"""PipeQS with the exchanges that were late: the sums of ranks hold the drift and then the lateness of each exchange."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_graphs
from rank_pool import ThreadPool

import hpcgnn
from hpcgnn.comm import World
from hpcgnn.stop import StopRequest


def trained(world: World, path: Path, layers: int) -> tuple[dict[str, bool], set[str]]:
    """The decision about each exchange after three epochs, and the names of the exchanges of boundary rows."""
    graph = hpcgnn.load(path, world)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=layers, hidden=8, dropout=0.0), graph)
    policy = hpcgnn.PolicyConfig(staleness="pipeqs", bypass="late", drift_threshold=2.0)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=3, policy=policy), stop=StopRequest())
    for _ in range(3):
        trainer.run_epoch()
    names = {channel.name for channel in trainer.policies.channels if not channel.exchange.is_backward}
    return trainer.policies.state()["staleness"]["may_skip"], names


@pytest.mark.parametrize("layers", [2, 4])
def test_models_of_any_number_of_layers_decide_about_each_exchange(tmp_path: Path, layers: int) -> None:
    path, graph = tmp_path / "parts.h5", small_graphs.random_multigraph()
    small_graphs.write_parts(path, graph, small_graphs.random_parts(graph.num_nodes, 2), 2)
    decided, names = ThreadPool(2).run(trained, path, layers)[0]
    assert set(decided.values()) == {True}  # no rows are farther apart than 2
    assert names - decided.keys() <= {"layer 1's boundary rows"}  # features are sent once
