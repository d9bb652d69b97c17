"""Bit-widths for the rows of an exchange in the order in which they help, at a given mean number of bits.

A row that travels with b bits adds beta / (2^b - 1)^2 to the mean squared error of the sums (AdaQP's Eq. 11), where beta is the
sum of the squared weights with which its receiver adds it, times F / 6 times the square of its range. Bits that are added where
they take away the largest error for each bit give the least error that so many bits allow. Ranks agree on the numbers of rows
with each beta, in 256 levels of its logarithm, and so on the bit-width of each level. A receiver is told about its rows once in a
period, by one byte for each: it has the bit-widths for all means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hpcgnn.base import typed
from hpcgnn.base.host import index_array
from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.exchange.layout import RowBits, RowRanges
from hpcgnn.policy.base import ExchangeFacts, RowState, check_rows
from hpcgnn.world import World

LEVELS, PER_OCTAVE = 256, 8  # beta of a level and of the one below differ by a factor of 2^(1/8)
_MIXED = QUANTIZED_BITS[1:-1]  # means at which rows differ; the least and the largest bit-width leave no choice
_SIDES = "sent", "received"


def levels_of(beta: np.ndarray, largest: float) -> np.ndarray:
    """(s,) uint8 level of each row: 255 for the ``largest`` beta of all ranks, and 8 less where beta (s,) is half as large."""
    with np.errstate(divide="ignore"):
        found = LEVELS - 1 + PER_OCTAVE * np.log2(beta / largest) if largest > 0 else np.zeros(beta.size)
    return np.clip(np.round(found), 0, LEVELS - 1).astype(np.uint8)


def bits_of_levels(rows: np.ndarray, mean: int) -> np.ndarray:
    """(256,) uint8 bit-width of each level, with the least error of those that have up to ``mean`` bits on average over all rows.

    rows: (256,) int64 number of rows of each level, over all ranks.
    """
    choices = np.array(QUANTIZED_BITS)
    errors, more = 1 / (2.0**choices - 1) ** 2, np.diff(choices)
    # log2 of the error that one more bit takes away; (levels, steps)
    gains = np.log2(-np.diff(errors) / more) + np.arange(LEVELS)[:, None] / PER_OCTAVE
    costs = np.multiply.outer(rows, more)
    order = np.argsort(-gains, axis=None, kind="stable")
    spent = np.cumsum(costs.ravel()[order])
    taken = np.zeros(gains.size, np.int64)
    taken[order] = spent <= (mean - choices[0]) * rows.sum()
    return choices[taken.reshape(gains.shape).sum(axis=1)].astype(np.uint8)


class BitsByError:
    """The bit-widths of the rows of all exchanges, for each mean of 1, 2, 4 and 8 bits; all rows have the mean until their ranges
    are known. Collective.
    """

    def __init__(self, world: World, all_facts: Sequence[ExchangeFacts]) -> None:
        self._world, self._all_facts = world, all_facts
        self._weights = [facts.square_weights() for facts in all_facts]
        self._ranges = [facts.exchange.trace_ranges() for facts in all_facts]
        self._codes: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # by exchange, (s,) and (r,) uint8
        self._bits: dict[str, dict[int, RowBits]] = {}
        for facts in all_facts:
            counts = facts.exchange.send_counts, facts.exchange.receive_counts
            self._keep(facts.name, *(np.full(each.sum(), _code(np.array(_MIXED)), np.uint8) for each in counts))

    def of(self, facts: ExchangeFacts, mean: int) -> RowBits:
        """The bit-widths of an exchange's rows."""
        return self._bits[facts.name][mean] if mean in _MIXED else facts.exchange.uniform_bits(mean)

    def renew(self) -> None:
        """Put rows into their order by the ranges since the last call. Collective."""
        world = self._world
        known = [each for each in self._facts() if each[1].messages]
        if not known:  # on no rank, because all ranks send messages in the same epochs
            return
        betas = [weights * (ranges.width or 0) * ranges.take() / 6 for _, ranges, weights in known]
        largest = world.allreduce(np.array([beta.max(initial=0.0) for beta in betas]), "max")
        levels = [levels_of(*each) for each in zip(betas, largest.tolist(), strict=True)]
        rows = world.allreduce(np.stack([np.bincount(each, minlength=LEVELS) for each in levels]))
        for (facts, *_), of_rows, counts in zip(known, levels, rows, strict=True):
            sent = _code(np.stack([bits_of_levels(counts, mean) for mean in _MIXED]))[of_rows]
            received, _ = world.alltoallv(sent, facts.exchange.send_counts)
            self._keep(facts.name, sent, received)

    def _facts(self) -> Iterator[tuple[ExchangeFacts, RowRanges, np.ndarray]]:
        return zip(self._all_facts, self._ranges, self._weights, strict=True)

    def _keep(self, name: str, sent: np.ndarray, received: np.ndarray) -> None:
        self._codes[name] = sent, received
        self._bits[name] = {
            mean: RowBits(*(1 << (code >> 2 * place & 3) for code in (sent, received)))
            for place, mean in enumerate(_MIXED)
        }

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def rank_state(self) -> dict[str, Any]:
        """The bit-widths of all rows, and their ranges since these were chosen."""
        return {
            facts.name: dict(zip(_SIDES, map(torch.from_numpy, self._codes[facts.name]), strict=True)) | ranges.state()
            for facts, ranges, _ in self._facts()
        }

    def check_rank_state(self, state: dict[str, Any], where: str) -> None:
        """As :meth:`BitsPolicy.check_rank_state`."""
        check_rows(typed.validated(state, dict[str, RowState], f"{where}: policies"), self._all_facts, where)

    def load(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`rank_state`."""
        for facts, ranges, _ in self._facts():
            kept = state[facts.name]
            self._keep(facts.name, *(index_array(kept[name]) for name in _SIDES))
            ranges.load(kept)


def _code(bits: np.ndarray) -> np.ndarray:
    """(n,) uint8 codes of bit-widths (2, n) uint8 for both means at which rows differ: two bits of the code for each."""
    places = np.log2(bits).astype(np.uint8)
    return places[0] | places[1] << 2
