"""Policies in a trainer: AdaQP measures links by itself, once; PipeQS decides about models with any number of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_graphs
from rank_pool import ThreadPool

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.policy import adaqp
from hpcgnn.policy.link_costs import LinkCosts
from hpcgnn.world import World

COSTS = LinkCosts({"node": 1e-9}, {"node": 1e-6})


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2)


def after_three_epochs(
    world: World, path: Path, policy: hpcgnn.PolicyConfig, layers: int = 2, **how: Any
) -> tuple[hpcgnn.Trainer, dict[str, Any]]:
    """A trainer and the record of its third epoch."""
    graph = hpcgnn.load(path, world)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=layers, hidden=8, dropout=0.0), graph)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=5, policy=policy), stop=StopRequest(), **how)
    return trainer, [trainer.run_epoch() for _ in range(3)][-1]


def test_links_are_measured_once_and_by_the_given_function_if_there_is_one(
    parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, policy = list[int](), hpcgnn.PolicyConfig("adaqp", bits_period=1)

    def measured(world: World) -> LinkCosts:
        calls.append(world.rank)
        return COSTS

    def decided(world: World, measure_costs: Any) -> dict[str, Any]:
        return after_three_epochs(world, parts, policy, measure_costs=measure_costs)[1]["policy"]

    monkeypatch.setattr(adaqp, "measure_links", measured)
    by_itself, given = (ThreadPool(2).run(decided, how)[0] for how in (None, lambda: COSTS))
    assert sorted(calls) == [0, 1]
    assert by_itself == given
    assert "layer 2's boundary rows" in given


@pytest.mark.parametrize("layers", [2, 4])
def test_models_of_any_number_of_layers_decide_about_each_exchange(parts: Path, layers: int) -> None:
    """The sums of ranks hold the change of each exchange, and then its lateness."""
    policy = hpcgnn.PolicyConfig(staleness="pipeqs", bypass="late", drift_threshold=2.0)

    def program(world: World) -> tuple[dict[str, int], set[str]]:
        trainer, _ = after_three_epochs(world, parts, policy, layers)
        for _ in range(2):  # the change of rows is known after five messages
            trainer.run_epoch()
        policies = trainer.policies
        names = {facts.name for facts in policies.all_facts if not facts.exchange.is_backward}
        return policies.state()["staleness"]["oldest"], names

    decided, names = ThreadPool(2).run(program)[0]
    assert set(decided.values()) == {4}  # no rows are farther apart than 2
    assert names - decided.keys() <= {"layer 1's boundary rows"}  # features are sent once
