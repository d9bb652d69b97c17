"""AdaQP in a trainer: it measures the costs of links by itself, once, unless it is given a function for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_graphs
from rank_pool import ThreadPool

import hpcgnn
from hpcgnn.comm import World
from hpcgnn.policy import adaqp
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.stop import StopRequest

COSTS = LinkCosts({"node": 1e-9}, {"node": 1e-6})


def trained(world: World, path: Path, measure_costs: Any) -> dict[str, Any]:
    """The record of the third epoch, in which bit-widths are assigned for the second time."""
    graph = hpcgnn.load(path, world)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=8, dropout=0.0), graph)
    config = hpcgnn.TrainConfig(epochs=3, policy=hpcgnn.PolicyConfig("adaqp", bits_period=1))
    trainer = hpcgnn.Trainer(model, graph, config, stop=StopRequest(), measure_costs=measure_costs)
    return [trainer.run_epoch() for _ in range(3)][-1]


def test_links_are_measured_once_and_by_the_given_function_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, graph, calls = tmp_path / "parts.h5", small_graphs.random_multigraph(), list[int]()
    small_graphs.write_parts(path, graph, small_graphs.random_parts(graph.num_nodes, 2), 2)

    def measured(world: World) -> LinkCosts:
        calls.append(world.rank)
        return COSTS

    monkeypatch.setattr(adaqp, "measure_links", measured)
    by_itself = ThreadPool(2).run(trained, path, None)[0]
    assert sorted(calls) == [0, 1]
    given = ThreadPool(2).run(trained, path, lambda: COSTS)[0]
    assert sorted(calls) == [0, 1]
    assert by_itself["policy"] == given["policy"]
    assert "layer 2's boundary rows" in given["policy"]
