"""The rules of Sylvie and PipeQS, the groups of AdaQP, random bit-widths, and the times that policies see."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import exchanges

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.policy.adaqp import group_rows
from hpcgnn.policy.base import ExchangeFacts, Observation, Setup
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.policy.config import DescentSettings, PolicyConfig
from hpcgnn.policy.pipeqs import raises_bits
from hpcgnn.policy.simple import UniformBits
from hpcgnn.policy.sylvie import LossDescent, class_bits, distinct_degrees, importance
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank


def seen(loss: float, seconds: float = 1.0) -> Observation:
    return Observation(0, loss, seconds, {})


# -- Sylvie ------------------------------------------------------------------------------------------------------------


def slower(losses: list[float], rule: str = "corrected", seconds: list[float] | None = None) -> list[bool | None]:
    descent, found = LossDescent(None, []), []
    own = DescentSettings(loss_memory=0.5, loss_window=2, descent_rule=rule)
    for loss, duration in zip(losses, seconds or [1.0] * len(losses), strict=True):
        descent.add(seen(loss, duration), own)
        found.append(descent.is_slower(own))
    return found


def test_a_loss_that_levels_off_falls_more_slowly():
    """F of Sylvie's §V-A is 16, 12, 8, 5, 3.25, 2.25, so the rates are 4, 4, 3, 1.75, 1."""
    assert slower([16, 8, 4, 2, 1.5, 1.25]) == [None, None, None, True, True, True]
    assert slower([16, 8, 4, 2, 1.5, 1.25], "printed") == [None, None, None, False, False, False]
    assert slower([16, 15, 13, 9, 1]) == [None, None, None, False, False]


def test_the_same_descent_in_fewer_seconds_is_faster():
    losses = [16.0, 14.0, 13.0, 11.5]  # rates of F without seconds: 1, 1, 1.25
    assert slower(losses)[-1] is False
    assert slower(losses, seconds=[1, 1, 1, 2])[-1] is True


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


# -- PipeQS ------------------------------------------------------------------------------------------------------------


def test_the_printed_rule_never_lowers_bits():
    """Eq. 7's p is above 1/2 for any drift other than 0."""
    for drift, epochs in [(0.11, 1), (0.2, 4), (1e-9, 100)]:
        assert 1 / (1 + np.exp(-drift / epochs)) > 0.5
        assert raises_bits(drift, epochs, 0.1, "printed")


def test_the_corrected_rule_goes_by_the_drift_of_an_epoch():
    assert raises_bits(0.2, 1, 0.1, "corrected")
    assert raises_bits(0.41, 4, 0.1, "corrected")
    assert not raises_bits(0.39, 4, 0.1, "corrected")


# -- AdaQP -------------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), rows=st.integers(0, 40), size=st.integers(1, 7))
def test_groups_have_rows_of_one_receiver_and_similar_beta(seed, rows, size):
    random = np.random.default_rng(seed)
    receiver, beta = np.sort(random.integers(0, 4, rows)), random.lognormal(size=rows)
    seconds = np.array([0.0, 1, 2, 5])
    of_row, problem = group_rows(beta, receiver, seconds, size, np.zeros(8))
    counts = np.bincount(of_row)
    assert counts.sum() == rows
    for number, count in enumerate(counts):
        members = of_row == number
        (own,) = set(receiver[members])
        assert 1 <= count <= size
        assert problem.receiver[number] == own
        assert problem.beta[number] == pytest.approx(beta[members].sum())
        assert problem.seconds_per_bit[number] == seconds[own] * count
        # No row of another group of this receiver lies between two of these.
        others = beta[(receiver == own) & ~members]
        assert not ((others > beta[members].min()) & (others < beta[members].max())).any()
    for own in range(4):  # all groups of a receiver but the last one are full
        assert (counts[problem.receiver == own][:-1] == size).all()


# -- random bit-widths -------------------------------------------------------------------------------------------------


def test_random_bit_widths_differ_by_layer_direction_rank_and_period():
    def program(world: World) -> list[tuple[int, ...]]:
        first, found = exchanges.make(world), []
        all_facts = [ExchangeFacts(each, None, None) for each in (first, first.for_layer(1), first.reverse())]
        policy = UniformBits(Setup(world, all_facts, PolicyConfig("uniform", bits_period=2), Clock()))
        for epoch in (0, 2):
            policy.begin_epoch(epoch)
            found += [tuple(facts.exchange.row_bits.sent[:9].tolist()) for facts in all_facts]
        return found

    found = [bits for everyones in on_threads(4, program) for bits in everyones]
    assert len(set(found)) == len(found) == 24


# -- settings and time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("bits", "many"), ("staleness", "on"), ("bits_period", 0), ("variance_weight", 1.5), ("drift_threshold", np.nan),
     ("smoothing", "both")],
)  # fmt: skip
def test_wrong_settings_are_refused(name, wrong):
    with pytest.raises(HpcgnnError, match=name):
        PolicyConfig(**{name: wrong}).check()


def test_a_replay_sees_what_was_measured(tmp_path):
    clock = Clock()
    lines = []
    for epoch in range(3):
        clock.epoch = epoch
        assert clock.observe("seconds", lambda epoch=epoch: epoch / 3) == epoch / 3
        lines.append({"epoch": epoch, "observed": clock.take()})
    (tmp_path / "decisions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"epoch": 3, "obs')
    world = one_rank()
    again = Clock(read_log(world, tmp_path / "decisions.jsonl"))
    for epoch in range(3):
        again.epoch = epoch
        assert again.observe("seconds", pytest.fail) == epoch / 3
    again.epoch = 3
    with pytest.raises(HpcgnnError, match="no seconds of epoch 3"):
        again.observe("seconds", pytest.fail)


@pytest.mark.parametrize("text", ["[]\n", "not JSON\n", '{"loss": 1}\n'])
def test_a_log_of_something_else_is_refused(tmp_path, text):
    (tmp_path / "log").write_text(text)
    with pytest.raises(HpcgnnError, match=r"--replay needs the decisions\.jsonl"):
        read_log(one_rank(), tmp_path / "log")
