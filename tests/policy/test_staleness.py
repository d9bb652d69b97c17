"""Stale rows: distributed training equals one process that uses rows of the same epochs."""

from __future__ import annotations

import functools

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy", "policy"), [case for case in CASES if case[2] in ("pipeline", "uncorrected", "smoothed")]
)
def test_pipeline_is_stale_by_one_epoch_after_the_first(trained, model, strategy, policy):
    assert oldest(trained(model, strategy, policy)[1]) == [0] + [1] * 13


@pytest.mark.parametrize("model", MODELS)
def test_sylvie_switches_between_fresh_and_stale(trained, model):
    found = oldest(trained(model, "hybrid", "sylvie")[1])
    assert found[:3] == [0, 1, 1]
    assert set(found[3:]) == {0, 1}


@pytest.mark.parametrize("policy", ["pipeqs", "pipeqs-late"])
@pytest.mark.parametrize("model", MODELS)
def test_pipeqs_keeps_its_bound_on_staleness(trained, model, policy):
    assert ages_met(trained(model, "hybrid", policy)[1])[-1] == 3  # not 14, the number of late messages


@pytest.mark.parametrize("model", MODELS)
def test_pipeqs_uses_rows_for_as_long_as_it_may_where_they_change_little(trained, model):
    """A message is sent in every third epoch, once five were compared."""
    ages = [epoch.get("layer 2's boundary rows") for epoch in trained(model, "hybrid", "pipeqs")[1]]
    assert ages == [0, 1, 1, 1, 1, *[1, 2, 3] * 3][:EPOCHS]


@pytest.mark.parametrize("model", MODELS)
def test_sancus_sends_fresh_rows_or_none(trained, model):
    ages = [epoch.get("layer 2's boundary rows") for epoch in trained(model, "hybrid", "sancus")[1]]
    assert ages == [0] * 5 + [1, 2, 3, 0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("model", MODELS)
def test_pipeqs_waits_where_rows_changed(trained, model):
    assert max(ages_met(trained(model, "hybrid", "pipeqs-strict")[1])) == 1


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
