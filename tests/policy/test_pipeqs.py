"""PipeQS: what rows do decides whether they are sent, and in how many bits.

Ranks exchange rows whose course is known: at rest or moving, with and without the noise of dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from ranks import exchanges

from hpcgnn.exchange.changes import RowChange
from hpcgnn.policy.base import ExchangeFacts
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.policy.pipeqs import chance, enough_bits
from hpcgnn.policy.policies import Policies
from hpcgnn.world import World
from hpcgnn.world.thread_world import on_threads

_WIDTH, _RANKS, _KNOWN = 16384, 2, 5  # messages after which the change of rows is known
Course = Callable[[int], float]  # the angle of rows in each epoch, in radians


def change_of(distance: float = 0.0, squared: float = 0.0, range_error: float = 3.0, epochs: int = 1) -> RowChange:
    return RowChange(distance, squared, 0.0, range_error, epochs, distance)


# -- rules -------------------------------------------------------------------------------------------------------------


def test_the_printed_rule_never_lowers_bits_and_the_corrected_one_goes_by_the_drift_of_an_epoch():
    """Eq. 7's p is above 1/2 for any drift other than 0."""
    for drift, epochs in [(0.11, 1), (0.2, 4), (1e-9, 100)]:
        assert chance(drift, epochs, 0.1, "printed") == pytest.approx(1 / (1 + np.exp(-drift / epochs)))
        assert chance(drift, epochs, 0.1, "printed") > 0.5
    for drift, epochs in [(0.2, 1), (0.41, 4), (0.39, 4), (0.5, 4)]:
        assert chance(drift, epochs, 0.1, "corrected") == pytest.approx(1 / (1 + np.exp(0.1 - drift / epochs)))


def test_bits_rise_at_once_and_fall_by_steps():
    """With a range error of 3, the errors of rounding are 1/3, 1/75 and 1/21675 for 2, 4 and 8 bits."""
    at_rest, slow, fast, faster = (change_of(squared=moves) for moves in (0.0, 0.04, 0.13, 4.0))
    assert [enough_bits(at_rest, bits, 0.2) for bits in (2, 4, 8)] == [2, 2, 4]
    assert [enough_bits(slow, bits, 0.2) for bits in (2, 4, 8)] == [2, 4, 4]  # 0.115: neither too few nor too many
    assert [enough_bits(fast, bits, 0.2) for bits in (2, 4, 8)] == [4, 4, 4]
    assert [enough_bits(faster, bits, 0.2) for bits in (2, 4, 8)] == [8, 8, 8]


# -- exchanges of known rows -------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The course of an exchange."""

    sent: list[bool]  # in each epoch
    ages: list[int]  # of the rows in use
    bits: list[int]
    bytes_sent: int
    told: list[dict[str, float]]  # the details of each epoch's record


def rows_at(angle: float, epoch: int, layer: int, rank: int, count: int, dropout: float) -> torch.Tensor:
    """(count, width) float32 of rows that have turned by ``angle``, with the noise of dropout."""
    draw = torch.Generator().manual_seed(10 * layer + rank)
    first, second = torch.randn(2, count, _WIDTH, generator=draw)
    noise = torch.Generator().manual_seed(1000 * epoch + 10 * layer + rank)
    kept = (torch.rand(count, _WIDTH, generator=noise) >= dropout) / (1 - dropout)
    return (first * np.cos(angle) + second * np.sin(angle)) * kept


def run(
    courses: list[Course], policy: PolicyConfig, epochs: int = 24, *, bits: int = 8, dropout: float = 0.0
) -> list[Found]:
    """The course of one exchange for each of ``courses``."""

    def program(world: World) -> list[Found]:
        first = exchanges.make(world, bits=bits)
        messages = first.messages
        layers = [first.for_layer(layer) for layer in range(len(courses))]
        policies = Policies(world, messages, [ExchangeFacts(each, None, None) for each in layers], policy)  # type: ignore[arg-type]
        found: list[list[Any]] = [[] for _ in layers]
        told: list[dict[str, Any]] = []
        for epoch in range(epochs):
            messages.begin_epoch(epoch)
            policies.begin_epoch(epoch)
            for layer, exchange in enumerate(layers):
                step = exchange.step(_WIDTH, torch.float32)
                message = step.reused()
                if sends := message is None:
                    rows = step.rows_to_send()
                    rows.copy_(rows_at(courses[layer](epoch), epoch, layer, world.rank, rows.shape[0], dropout))
                    message = step.start()
                exchange.wait(message)
                now = bits if exchange.row_bits is None else int(exchange.row_bits.sent[0])
                found[layer].append((sends, epoch - message.epoch, now))
            sums = world.allreduce(np.array(policies.sums())).tolist()
            policies.observe(epoch, 1.0, 1.0, sums)
            told.append(policies.record().get("policy", {}))
        messages.drain()
        sizes = [sum(_WIDTH * of // 8 for sends, _, of in one if sends) for one in found]
        return [
            Found(*map(list, zip(*one, strict=True)), size, [each.get(exchange.name, {}) for each in told])
            for one, size, exchange in zip(found, sizes, layers, strict=True)
        ]

    of_ranks = on_threads(_RANKS, program)
    assert all(each == of_ranks[0] for each in of_ranks), "ranks decide alike"
    return of_ranks[0]


def at_rest(epoch: int) -> float:
    return 0.0


BOTH = PolicyConfig("pipeqs", "pipeqs")


def test_rows_at_rest_are_sent_as_rarely_as_the_bound_allows_at_any_bits():
    sent = {}
    for bits, dropout in ((4, 0.0), (2, 0.5), (4, 0.5), (8, 0.5)):
        (found,) = run([at_rest], PolicyConfig("fixed", "pipeqs"), bits=bits, dropout=dropout)
        assert sum(found.sent[_KNOWN + 3 :]) == (24 - _KNOWN - 3) // 4
        assert max(found.ages) == 4
        sent[bits] = found.bytes_sent
    assert [4 * sent[2], 2 * sent[4]] == [sent[8]] * 2


def test_noise_alone_moves_nothing_and_rows_that_swing_are_sent_in_each_epoch():
    """Rows that are drawn anew in each epoch have no motion to follow."""
    (drawn,) = run([at_rest], BOTH, dropout=0.97)
    assert drawn.bits[-1] == 2
    assert sum(drawn.sent[_KNOWN + 3 :]) == (24 - _KNOWN - 3) // 4
    (swings,) = run([lambda epoch: 1.0 * (epoch % 2)], BOTH, dropout=0.5)
    assert all(swings.sent)


def test_slower_rows_are_used_for_longer():
    """After k epochs the distance is 1 - cos(k * angle): ages of 1, 2, 3 and 4 are the last ones below 0.1."""
    angles = [0.4, 0.2, 0.145, 0.1]
    found = run([lambda epoch, angle=angle: angle * epoch for angle in angles], PolicyConfig("fixed", "pipeqs"))
    assert [max(each.ages) for each in found] == [1, 2, 3, 4]
    for angle, each in zip(angles, found, strict=True):
        assert 1 - np.cos(max(each.ages) * angle) < 0.1
    printed = PolicyConfig("fixed", "pipeqs", bypass="drift")  # rows are used up to the bound once they are close
    assert [max(each.ages) for each in run([lambda epoch: 0.2 * epoch], printed)] == [4]
