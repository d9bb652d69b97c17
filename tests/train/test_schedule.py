"""Learning rates and early stopping, without a run."""

from __future__ import annotations

import pytest

from hpcgnn.errors import HpcgnnError
from hpcgnn.train.schedule import Best, ScheduleConfig, learning_rate_factor


def factors(config: ScheduleConfig, epochs: int = 10) -> list[float]:
    return [learning_rate_factor(config, epoch, epochs, Best()) for epoch in range(epochs)]


def test_constant_with_warmup():
    assert factors(ScheduleConfig(warmup=4))[:5] == [0.25, 0.5, 0.75, 1, 1]


def test_cosine_falls_from_one_towards_zero():
    found = factors(ScheduleConfig("cosine"))
    assert found[0] == 1
    assert found == sorted(found, reverse=True)
    assert found[5] == pytest.approx(0.5)


def test_step():
    assert factors(ScheduleConfig("step", decay=0.1, decay_every=4)) == pytest.approx([1] * 4 + [0.1] * 4 + [0.01] * 2)


def test_plateau_falls_when_nothing_improves():
    config, best, found = ScheduleConfig("plateau", decay=0.5, decay_every=2), Best(), []
    for epoch, metric in enumerate([0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.9, 0.8]):
        found.append(learning_rate_factor(config, epoch, 8, best))
        best.update(epoch, metric, metric, config.decay_every)
    assert found == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    assert (best.epoch, best.val_metric) == (6, 0.9)


def test_patience_counts_evaluations_only():
    best = Best()
    assert not best.is_exhausted(5)  # nothing was evaluated yet
    best.update(9, 0.5, 0.5, 100)
    assert not best.is_exhausted(5)
    best.update(19, 0.4, 0.4, 100)
    assert best.is_exhausted(10)
    assert not best.is_exhausted(11)
    assert not best.is_exhausted(0)


def test_of_equally_good_evaluations_the_last_is_best_and_patience_does_not_wait_for_it():
    best = Best()
    assert [best.update(epoch, metric, metric, 100) for epoch, metric in enumerate([0.5, 0.7, 0.6, 0.7])] == [
        1,
        1,
        0,
        1,
    ]
    assert (best.epoch, best.improved) == (3, 1)
    assert best.is_exhausted(2)
    assert not best.is_exhausted(3)


def test_a_state_that_is_older_than_patience_from_the_first_best_goes_on():
    state = {"epoch": 110, "val_metric": 0.7, "test_metric": 0.7, "plateaus": 0, "plateau_since": 0, "evaluated": 119}
    assert not Best.from_state(state).is_exhausted(50)
    assert Best.from_state(Best(3, improved=2).state()).improved == 2


def test_without_validation_nodes_the_latest_is_best():
    best = Best()
    assert best.update(0, None, 0.5, 1)
    assert best.update(1, None, 0.4, 1)
    assert best.epoch == 1


@pytest.mark.parametrize("wrong", [{"schedule": "none"}, {"decay": 0.0}, {"decay_every": 0}, {"warmup": -1}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(HpcgnnError):
        ScheduleConfig(**wrong).check()
