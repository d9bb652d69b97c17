"""`--bits auto` and `--staleness auto`: the decisions that are right where the facts are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool

import hpcgnn
from hpcgnn.exchange.changes import RowChange
from hpcgnn.exchange.layout import RowBits, RowRanges
from hpcgnn.policy.auto import _BLOCK, _FAR_SLOWER, AutoBits, AutoStaleness, Trial
from hpcgnn.policy.base import Observation, Setup
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.world import World
from hpcgnn.world.thread_world import one_rank


def tried(*seconds: float, tolerance: float = 1.03, early: Mapping[int, float] = _FAR_SLOWER) -> tuple[int | None, int]:
    """The option that a trial chooses if epochs take these seconds, and the number of epochs that it took."""
    trial, epochs = Trial(), 0
    while trial.chosen is None:
        trial.add(seconds[trial.current], len(seconds), tolerance, 30, early)
        epochs += 1
    return trial.chosen, epochs


@pytest.mark.parametrize(
    ("seconds", "chosen", "epochs"),
    [
        ((1.0, 1.1, 2.0), 0, 2 * _BLOCK),  # a slow network gets the fewest bits after two blocks
        ((1.0, 1.4, 2.0), 0, _BLOCK + 3),  # the trial of far slower bits ends early
        ((1.0, 1.9, 3.7), 0, _BLOCK + 2),
        ((1.9, 1.0, 1.0), 2, 3 * _BLOCK),  # options that are faster are tried to the end
        ((1.0, 1.01, 1.02), 2, 3 * _BLOCK),  # where bits cost no time, rows get the most
        ((1.0, 1.0, 1.4), 1, 2 * _BLOCK + 3),
        ((1.0, 0.9, 0.95), 1, 3 * _BLOCK),  # the second is faster than the first, and the third more than 3 % slower
    ],
)
def test_a_trial_takes_the_most_bits_that_cost_no_time(seconds, chosen, epochs):
    assert tried(*seconds) == (chosen, epochs)
    assert tried(1.0, 1.9, early={}) == (0, 2 * _BLOCK)


class _Facts:
    """Stands for the facts about an exchange of three rows, and for the exchange itself."""

    weights_change = False

    def __init__(self, name: str) -> None:
        self.name, self.exchange = name, self
        self.freshness = ""
        self.send_counts = self.receive_counts = np.array([3])
        self.row_bits = self.uniform_bits(8)
        self.ranges = RowRanges(3, torch.device("cpu"))

    def uniform_bits(self, bits: int) -> RowBits:
        return RowBits(*[np.full(3, bits, np.uint8)] * 2)

    def square_weights(self) -> np.ndarray:
        return np.ones(3)

    def trace_ranges(self) -> RowRanges:
        return self.ranges

    def sends(self, *squares: float) -> None:
        """Add a message with these squared ranges of the rows, or with ranges of 1."""
        self.ranges.squares += torch.tensor(squares or (1.0, 1.0, 1.0))
        self.ranges.messages, self.ranges.width = self.ranges.messages + 1, 8


def setup(*names: str) -> tuple[list[Any], Setup]:
    facts: list[Any] = [_Facts(name) for name in names]
    return facts, Setup(one_rank(), facts, PolicyConfig("auto", "auto", bits_period=30), Clock())


def change(squared: float, noise: float = 0.0) -> RowChange:
    return RowChange(squared / 2, squared, noise, 0.0, 1)


def test_a_trial_begins_when_rows_have_an_order():
    """Also after a checkpoint of other parts, and after that of a run with other bits, which has no state of the policy."""
    facts, arguments = setup("a")
    policy = AutoBits(arguments)
    policy.load({"trial": msgspec.to_builtins(Trial([[1.0], [1.0]], 1, 90))}, None)
    for epoch in range(40, 50):
        policy.begin_epoch(epoch)
        assert (epoch > 42) == (len(set(facts[0].row_bits.sent)) > 1)
        policy.observe(Observation(epoch, 1.0, 1.0, {}))
        facts[0].sends(1.0, 8.0, 1e5)
        if epoch < 42:
            facts[0].ranges.messages = 0
    assert policy.trial.seconds == [[1.0] * 5, [1.0] * 2]


def freshness(epochs: int, of_rows: dict[str, RowChange], seconds: dict[str, float]) -> list[dict[str, str]]:
    """The freshness of each exchange in each epoch, whose seconds follow from the freshness of exchange a."""
    facts, arguments = setup(*of_rows)
    policy, found = AutoStaleness(arguments), []
    for epoch in range(epochs):
        policy.begin(facts)
        found.append({each.name: each.freshness for each in facts})
        policy.observe(Observation(epoch, 1.0, seconds[found[-1]["a"]], of_rows))
    return found


def test_the_layer_that_moves_is_fresh_and_the_others_are_stale():
    found = freshness(45, {"a": change(0.0), "b": change(0.01), "c": change(0.4)}, {"fresh": 2.0, "stale": 1.0})
    assert found[-1] == {"a": "stale", "b": "stale", "c": "fresh"}


def test_training_decides_alike_on_all_ranks_and_is_replayed(tmp_path: Path):
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2)
    config = hpcgnn.TrainConfig(epochs=24, eval_every=24, policy=PolicyConfig("auto", "auto"))

    def program(world: World, log: dict[int, dict[str, Any]] | None) -> list[dict[str, Any]]:
        graph = hpcgnn.load(path, world)
        model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=8), graph)
        trainer, seen = hpcgnn.Trainer(model, graph, config, clock=Clock(log)), []
        for _ in range(24):
            record = trainer.run_epoch()
            decision = trainer.policies.decisions(record) or {}
            told = {name: decision.get(name) for name in ("observed", "changes")}
            seen.append({"loss": record["loss"], "bits": record["bits"], **told})
        return seen

    first, second = ThreadPool(2).run(program, None)
    assert first == second
    of_gradients = [record["bits"]["layer 2's gradients"] for record in first]
    assert max(map(len, of_gradients)) > 1  # rows differ by their errors
    assert len({*map(str, of_gradients)}) > 1
    assert [epoch for epoch, record in enumerate(first) if record["changes"]] == [16, 20]
    log = {epoch: record["observed"] for epoch, record in enumerate(first)}
    assert ThreadPool(2).run(program, log)[0] == first
