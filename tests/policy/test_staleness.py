"""Stale rows: distributed training equals one process that uses rows of the same epochs."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import small_graphs
import stale_reference
from rank_pool import ThreadPool
from ranks.staleness import EPOCHS, FEATURES, LR, MODELS, POLICIES, STRATEGIES, train
from requires import EVERYTHING

from hpcgnn.exchange import Messages

CASES = [
    (model, strategy, policy)
    for model in MODELS
    for policy in POLICIES
    for strategy in (STRATEGIES if policy in ("pipeline", "uncorrected") else STRATEGIES[:1])
]
RANKS = (2, 4)
BY_TURNS = [(ranks, *case) for turn, case in enumerate(CASES) for ranks in (RANKS if EVERYTHING else [RANKS[turn % 2]])]


@pytest.fixture(scope="module", params=RANKS)
def ranks(request):
    return request.param


@pytest.fixture(scope="module")
def trained(tmp_path_factory, ranks):
    """``trained(model, strategy, policy)``: the losses, and the ages of the rows."""
    path = small_graphs.in_parts(tmp_path_factory.mktemp("stale") / "parts.h5", small_graphs.random_multigraph(), ranks)
    return functools.cache(lambda *how: ThreadPool(ranks).run(train, path, *how)[0])


def oldest(ages):
    """The age of the oldest rows in each epoch."""
    return [max(epoch.values(), default=0) for epoch in ages]


def ages_met(ages):
    """The ages of all rows except features, which are the same in each epoch and need not be sent."""
    return sorted({age for epoch in ages for what, age in epoch.items() if what != FEATURES})


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "model", "strategy", "policy"), BY_TURNS, indirect=["ranks"])
def test_ranks_equal_one_process_with_the_same_stale_rows(trained, ranks, model, strategy, policy):
    """If any rows were stale, the loss differs from that without staleness."""
    losses, ages, first, state = trained(model, strategy, policy)
    graph = small_graphs.random_multigraph()
    part = small_graphs.random_parts(graph.num_nodes, ranks)
    settings = POLICIES[policy]
    decay = settings.smoothing_decay if settings.smoothing != "none" else None
    corrects = settings.stale_correction != "none"
    wanted = stale_reference.train(graph, part, MODELS[model], state, first, ages, LR, decay, corrects=corrects)
    fresh = stale_reference.train(graph, part, MODELS[model], state, first, [{}] * EPOCHS, LR)
    assert np.abs(np.subtract(losses, wanted)).max() <= 1e-10
    assert (np.abs(np.subtract(losses, fresh)).max() > 1e-4) == any(oldest(ages))


PIPELINE = [0] + [1] * (EPOCHS - 1)
# The age of the oldest rows in each epoch; and that of rows of the second layer, of policies that look at how far rows move.
OLDEST = {"pipeline": PIPELINE, "uncorrected": PIPELINE, "smoothed": PIPELINE}
OF_LAYER_2 = {
    "pipeqs": [0, 1, 1, 1, 1, *[1, 2, 3] * 3],  # a message is sent in every third epoch, once five were compared
    "sancus": [0] * 5 + [1, 2, 3, 0, 1, 2, 3, 0, 1],  # fresh rows or none
}
# The largest age of rows that are sent: a bound, and not 14, the number of late messages; and rows that move are waited for.
MOST = {"pipeqs": 3, "pipeqs-late": 3, "pipeqs-strict": 1}


ALL = [*itertools.product(RANKS, MODELS)]


@pytest.mark.parametrize(("ranks", "model"), ALL if EVERYTHING else ALL[:: len(MODELS) + 1], indirect=["ranks"])
def test_ages_are_those_of_the_policy(trained, model):
    def ages(policy):
        return trained(model, "hybrid", policy)[1]

    assert {policy: oldest(ages(policy)) for policy in OLDEST} == OLDEST
    assert {
        policy: [epoch.get("layer 2's boundary rows") for epoch in ages(policy)] for policy in OF_LAYER_2
    } == OF_LAYER_2
    assert {policy: ages_met(ages(policy))[-1] for policy in MOST} == MOST
    switching = oldest(ages("sylvie"))
    assert switching[:3] == [0, 1, 1]
    assert set(switching[3:]) == {0, 1}


@pytest.mark.parametrize(("policy", "age"), [("off", 0), ("pipeline", 1)])
def test_stale_rows_are_not_waited_for_in_the_epoch_in_which_they_leave(tmp_path, monkeypatch, policy, age):
    """They may arrive up to the same place of the next epoch. Those of the first epoch are waited for, as there are no others."""
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2)
    waits, wait = [], Messages.wait

    def recorded(self, message):
        if self.current_pass.is_training:
            waits.append((self.current_pass.epoch, self.current_pass.epoch - message.epoch))
        wait(self, message)

    monkeypatch.setattr(Messages, "wait", recorded)
    ThreadPool(2).run(train, path, "sage", "hybrid", policy)
    # An evaluation after every third epoch waits for everything under way.
    assert {ages for epoch, ages in waits if epoch and (epoch + 1) % 3} == {age}
    assert {ages for epoch, ages in waits if not epoch} == {0}
