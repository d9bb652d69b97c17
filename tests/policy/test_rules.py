"""The groups of AdaQP, random bit-widths, and the times that policies see."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import exchanges

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.policy.adaqp import group_rows
from hpcgnn.policy.base import ExchangeFacts, Setup
from hpcgnn.policy.clock import Clock, read_log
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.policy.simple import UniformBits
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads, one_rank

# -- AdaQP -------------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), rows=st.integers(0, 40), size=st.integers(1, 7))
def test_groups_have_rows_of_one_receiver_and_similar_beta(seed, rows, size):
    random = np.random.default_rng(seed)
    receiver, beta = np.sort(random.integers(0, 4, rows)), random.lognormal(size=rows)
    seconds = np.array([0.0, 1, 2, 5])
    bits = random.choice([2.0, 4.0, 8.0], rows)
    of_row, columns = group_rows(beta, receiver, seconds, size, bits)
    counts = np.bincount(of_row)
    assert counts.sum() == rows
    for number, count in enumerate(counts):
        members = of_row == number
        (own,) = set(receiver[members])
        assert 1 <= count <= size
        wanted = own, beta[members].sum(), seconds[own] * count, bits[members].mean()
        assert tuple(columns[number]) == pytest.approx(wanted)
        # No row of another group of this receiver lies between two of these.
        others = beta[(receiver == own) & ~members]
        assert not ((others > beta[members].min()) & (others < beta[members].max())).any()
    for own in range(4):  # all groups of a receiver but the last one are full
        assert (counts[columns[:, 0] == own][:-1] == size).all()


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
