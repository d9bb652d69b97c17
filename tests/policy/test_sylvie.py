"""Sylvie's rules, and the decisions that are right for a loss of a known course."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from hpcgnn.exchange.mailbox import FRESH, STALE
from hpcgnn.policy.base import Observation, Setup
from hpcgnn.policy.clock import Clock
from hpcgnn.policy.config import DescentSettings, PolicyConfig
from hpcgnn.policy.loss_trend import LossTrend
from hpcgnn.policy.row_errors import LEVELS, bits_of_levels
from hpcgnn.policy.sylvie import SylvieBits, SylvieStaleness, class_bits, distinct_degrees, importance
from hpcgnn.world.thread_world import on_threads, one_rank

EPOCHS = 200


def noise(seed: int, size: float) -> np.ndarray:
    return size * np.random.default_rng(seed).standard_normal(EPOCHS)


def decisions(losses: np.ndarray, **settings: object) -> np.ndarray:
    """The base bits after each epoch."""
    policy = SylvieBits(Setup(one_rank(), [], PolicyConfig("sylvie", **settings), Clock()))
    found = []
    for epoch, loss in enumerate(losses):
        policy.begin_epoch(epoch)
        policy.observe(Observation(epoch, float(loss), 1.0, {}))
        found.append(policy.base)
    return np.array(found)


def stalls(losses: np.ndarray, rule: str = "corrected", window: int = 5) -> list[bool | None]:
    """The answer of :meth:`LossTrend.is_slower` after each epoch."""
    trend, own, found = LossTrend(), DescentSettings(0.5, window, rule), []
    for loss in losses:
        trend.add(float(loss), own)
        found.append(trend.is_slower(own))
    return found


# -- the descent of the loss -------------------------------------------------------------------------------------------


# Courses of the loss that call for no more bits than the fewest, and the share of epochs in which noise may be taken for a stall.
QUIET = {
    "a frozen model": (lambda seed: np.full(EPOCHS, 1.7), 0.0),
    "noise around a loss that stays": (lambda seed: 1 + noise(seed, 0.05), 0.12),
    "a noisy loss that goes on falling": (lambda seed: 3 - 0.01 * np.arange(EPOCHS) + noise(seed, 0.01), 0.0),
    # The rate of the paper is always below that of some epochs ago.
    "a loss that levels off slowly": (lambda seed: np.exp(-np.arange(EPOCHS) / (12, 30, 100)[seed % 3]), 0.0),
    "a stall within the noise": (
        lambda seed: np.maximum(4 - 0.001 * np.arange(EPOCHS), 3.95) + noise(seed, 0.05),
        0.12,
    ),
    "losses whose squares overflow": (lambda seed: 1e200 * np.random.default_rng(seed).random(20), 0.0),
}


@pytest.mark.parametrize("course", QUIET)
@pytest.mark.parametrize("seed", range(5))
def test_losses_without_a_clear_stall_have_the_fewest_bits(course, seed):
    loss, most = QUIET[course]
    assert np.mean(decisions(loss(seed)) > 2) <= most
    assert set(decisions(np.full(EPOCHS, 1.7), least_bits=1)) == {1}


@pytest.mark.parametrize("seed", range(5))
def test_a_stall_above_the_noise_raises_bits_until_it_is_over(seed):
    """The loss falls by 0.05 an epoch up to epoch 50, and stays. A raise is judged once it can have shown in the loss."""
    found = decisions(np.maximum(4 - 0.05 * np.arange(EPOCHS), 1.5) + noise(seed, 0.005))
    assert set(found[:50]) == {2}
    assert max(found[50:60]) >= 4
    assert found[79] == 2
    first = found.tolist().index(4)
    assert set(found[first : first + 6]) == {4}


def test_the_printed_rule_compares_changes_of_the_running_average():
    """F of Sylvie's §V-A is 16, 12, 8, 5, 3.25, 2.25, so (F_t - F_t-1) is -4, -4, -3, -1.75, -1."""
    assert stalls(np.array([16, 8, 4, 2, 1.5, 1.25]), "printed", 2) == [None, None, None, False, False, False]
    assert stalls(np.array([16, 15, 13, 9, 1]), "printed", 2) == [None, None, None, True, True]


def test_states_of_earlier_versions_are_loaded():
    policy = SylvieBits(Setup(one_rank(), [], PolicyConfig("sylvie"), Clock()))
    policy.load({"base": 1, "descent": {"average": 0.7, "rates": [0.1, 0.2]}}, {})
    assert (policy.base, policy.due, policy.trend) == (2, None, LossTrend())


# -- staleness ---------------------------------------------------------------------------------------------------------


def freshness(losses: np.ndarray) -> list[str]:
    """The freshness of the epoch after each one."""
    exchange = SimpleNamespace(freshness="")
    policy = SylvieStaleness(Setup(one_rank(), [], PolicyConfig(staleness="sylvie"), Clock()))
    found = []
    for epoch, loss in enumerate(losses):
        policy.observe(Observation(epoch, float(loss), 1.0, {}))
        policy.begin([SimpleNamespace(exchange=exchange)])
        found.append(exchange.freshness)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_stale_while_the_loss_clearly_falls(seed):
    """The loss falls up to epoch 100, and then stays."""
    found = np.array(freshness(np.maximum(4 - 0.05 * np.arange(EPOCHS), -1) + noise(seed, 0.01)))
    assert (found[:10] == FRESH).all()  # too few losses to tell
    assert (found[10:100] == STALE).all()
    assert (found[106:] == FRESH).mean() > 0.95


# -- importance --------------------------------------------------------------------------------------------------------


def test_importance_is_the_place_among_distinct_degrees():
    """In a power law, most rows have low importance, whatever their share."""
    degrees = np.array([1] * 1000 + [2] * 100 + [3, 50, 1000])
    everyones = on_threads(2, lambda world: distinct_degrees(world, degrees if world.rank else degrees[:5]))
    assert (everyones[0] == everyones[1]).all()
    assert everyones[0].tolist() == [1, 2, 3, 50, 1000]
    places = importance(degrees, everyones[0])
    assert places[[0, 1000, -3, -2, -1]].tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert class_bits(places, 1)[[0, 1000, -3, -2, -1]].tolist() == [1, 2, 4, 8, 8]
    assert class_bits(places, 4)[[0, 1000, -3, -2, -1]].tolist() == [4, 4, 8, 8, 8]
    assert set(class_bits(places, 8)) == {8}
    assert importance(np.array([7, 7]), np.array([7])).tolist() == [1, 1], "of one degree, all are important"


@pytest.mark.parametrize("seed", range(5))
def test_bits_of_levels_have_the_least_error_that_their_bits_allow(seed):
    """Compared with all choices of four levels."""
    chance = np.random.default_rng(seed)
    places, rows = np.sort(chance.choice(LEVELS, 4, replace=False)), np.zeros(LEVELS, np.int64)
    rows[places] = chance.integers(1, 50, 4)
    assert set(bits_of_levels(rows, 8)[places]) == {8}
    assert set(bits_of_levels(rows, 1)[places]) == {1}
    for mean in (2, 4):
        found = bits_of_levels(rows, mean)[places]
        sent = (rows[places] * found).sum()
        assert sent <= mean * rows.sum()
        beta = rows[places] * 2.0 ** (places / 8)
        each = [np.array(bits) for bits in product((1, 2, 4, 8), repeat=4)]
        least = min((beta / (2.0**bits - 1) ** 2).sum() for bits in each if (rows[places] * bits).sum() <= sent)
        assert (beta / (2.0**found - 1) ** 2).sum() == pytest.approx(least)
