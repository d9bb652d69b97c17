"""The errors that the rounding of rows causes, and bit-widths in the order in which they help, at a given mean number of bits.

A row that travels with b bits adds beta / (2^b - 1)^2 to the mean squared error of the sums (AdaQP's Eq. 11), where beta is the
sum of the squared weights with which its receiver adds it, times F / 6 times the square of its range. Bits that are added where
they take away the largest error for each bit give the least error that so many bits allow. Ranks agree on the numbers of rows
with each beta, in 256 levels of its logarithm, and so on the bit-width of each level. A receiver is told about its rows once in a
period, by one byte for each: it has the bit-widths for all means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.host import host_values, index_array
from hpcgnn.base.typed import QUANTIZED_BITS, Count
from hpcgnn.exchange.layout import RowBits
from hpcgnn.policy.base import BitsPolicy, ExchangeFacts, Observation, Setup
from hpcgnn.policy.config import PeriodSettings
from hpcgnn.world import World

LEVELS, PER_OCTAVE = 256, 8  # beta of a level and of the one below differ by a factor of 2^(1/8)
_MIXED = QUANTIZED_BITS[1:-1]  # means at which rows differ; the least and the largest bit-width leave no choice
_SIDES = "sent", "received"


class RowErrors:
    """The betas of the rows of all exchanges: their square weights, which are asked for anew where layers learn them, and their
    ranges since the last time. Making one is collective."""

    def __init__(self, all_facts: Sequence[ExchangeFacts]) -> None:
        self.all_facts = all_facts
        self.ranges = [facts.exchange.trace_ranges() for facts in all_facts]
        self._weights = [facts.square_weights() for facts in all_facts]
        self._has_stepped = True  # False: since a checkpoint was loaded, no layer has had new weights

    def observe(self) -> None:
        """Note that a training step has ended, so that layers have new weights."""
        self._has_stepped = True

    def take(self, number: int) -> np.ndarray:
        """(s,) float64 betas of the rows of an exchange, which sent some since the last call. Collective where weights change."""
        ranges = self.ranges[number]
        return self._renewed(number) * (ranges.width or 0) * ranges.take() / 6  # Eq. 11

    def _renewed(self, number: int) -> np.ndarray:
        if self.all_facts[number].weights_change and self._has_stepped:
            self._weights[number] = self.all_facts[number].square_weights()
        return self._weights[number]

    def row_state(self, number: int) -> dict[str, Any]:
        """The state of the rows of an exchange for a checkpoint. Collective where weights change."""
        weights = torch.from_numpy(self._renewed(number)) if self.all_facts[number].weights_change else None
        return {"weights": weights} | self.ranges[number].state()

    def load_rows(self, number: int, kept: Mapping[str, Any]) -> None:
        """Continue from :meth:`row_state`; states of earlier versions have no weights."""
        if kept.get("weights") is not None:
            self._weights[number], self._has_stepped = host_values(kept["weights"]), False
        self.ranges[number].load(kept)


class RowState(msgspec.Struct):
    """Numbers for the rows of one exchange on one rank, in a checkpoint: (s,) and (r,) uint8 for the rows sent and received, and
    the state of :class:`RowErrors`."""

    sent: torch.Tensor
    received: torch.Tensor
    squares: torch.Tensor
    messages: Count
    width: Count | None
    weights: torch.Tensor | None = None  # (s,) float64 square weights, if they are learned


def check_rows(found: Mapping[str, RowState], all_facts: Iterable[ExchangeFacts], where: str) -> None:
    """Raise HpcgnnError unless there is a state, by name, for each exchange and with a number for each row. where: the file."""
    by_name = {facts.name: facts for facts in all_facts}
    if found.keys() != by_name.keys():
        raise HpcgnnError(f"{where}: policies: the exchanges are not those of this model")
    for name, facts in by_name.items():
        kept = found[name]
        rows = [(int(counts.sum()),) for counts in (facts.exchange.send_counts, facts.exchange.receive_counts)]
        tensors = kept.sent, kept.received, kept.squares
        shapes, types = [tuple(each.shape) for each in tensors], [each.dtype for each in tensors]
        if shapes != [*rows, rows[0]] or types != [torch.uint8, torch.uint8, torch.float32]:
            raise HpcgnnError(f"{where}: policies: {rows_differ(name)}")
        is_known = kept.weights is None or (kept.weights.shape, kept.weights.dtype) == (kept.sent.shape, torch.float64)
        if not is_known or (kept.weights is not None and not facts.weights_change):
            raise HpcgnnError(f"{where}: policies: the square weights of {name} do not match its rows")


def rows_differ(name: str) -> str:
    """The sentence about a state that does not fit the rows of the exchange ``name``."""
    return f"the bit-widths and ranges of {name} do not match its rows"


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


class BitsByError(RowErrors):
    """The bit-widths of the rows of all exchanges, for each mean of 1, 2, 4 and 8 bits; all rows have the mean until their ranges
    are known. Collective.
    """

    def __init__(self, world: World, all_facts: Sequence[ExchangeFacts]) -> None:
        super().__init__(all_facts)
        self._world, self.is_ordered = world, False  # is_ordered: whether rows differ by their errors
        self._codes: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # by exchange, (s,) and (r,) uint8
        self._bits: dict[str, dict[int, RowBits]] = {}
        for facts in all_facts:
            counts = facts.exchange.send_counts, facts.exchange.receive_counts
            self._keep(facts.name, *(np.full(each.sum(), _code(np.array(_MIXED)), np.uint8) for each in counts))

    def set(self, mean: int) -> None:
        """Give the rows of all exchanges their bit-widths. Not collective."""
        for facts in self.all_facts:
            facts.exchange.row_bits = self.of(facts, mean)

    def of(self, facts: ExchangeFacts, mean: int) -> RowBits:
        """The bit-widths of an exchange's rows."""
        return self._bits[facts.name][mean] if mean in _MIXED else facts.exchange.uniform_bits(mean)

    def renew(self) -> bool:
        """Put rows into their order by the ranges since the last call; false where there are none. Collective."""
        known = [number for number, each in enumerate(self.ranges) if each.messages]
        if not known:  # on no rank, because all ranks send messages in the same epochs
            return False
        betas = [self.take(number) for number in known]
        largest = self._world.allreduce(np.array([beta.max(initial=0.0) for beta in betas]), "max")
        levels = [levels_of(*each) for each in zip(betas, largest.tolist(), strict=True)]
        rows = self._world.allreduce(np.stack([np.bincount(each, minlength=LEVELS) for each in levels]))
        for number, of_rows, counts in zip(known, levels, rows, strict=True):
            sent = _code(np.stack([bits_of_levels(counts, mean) for mean in _MIXED]))[of_rows]
            facts = self.all_facts[number]
            received, _ = self._world.alltoallv(sent, facts.exchange.send_counts)
            self._keep(facts.name, sent, received)
        self.is_ordered = True
        return True

    def _keep(self, name: str, sent: np.ndarray, received: np.ndarray) -> None:
        self._codes[name] = sent, received
        self._bits[name] = {
            mean: RowBits(*(1 << (code >> 2 * place & 3) for code in (sent, received)))
            for place, mean in enumerate(_MIXED)
        }

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def rank_state(self) -> dict[str, Any]:
        """The bit-widths of all rows, and their errors since these were chosen. Collective where weights change."""
        return {
            facts.name: dict(zip(_SIDES, map(torch.from_numpy, self._codes[facts.name]), strict=True))
            | self.row_state(number)
            for number, facts in enumerate(self.all_facts)
        }

    def check_rank_state(self, state: dict[str, Any], where: str) -> None:
        """As :meth:`BitsPolicy.check_rank_state`."""
        check_rows(typed.validated(state, dict[str, RowState], f"{where}: policies"), self.all_facts, where)

    def load(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`rank_state`."""
        for number, facts in enumerate(self.all_facts):
            kept = state[facts.name]
            self._keep(facts.name, *(index_array(kept[name]) for name in _SIDES))
            self.load_rows(number, kept)
        self.is_ordered = True


class OrderedBits(BitsPolicy):
    """A policy that chooses the mean bits of all rows: rows get theirs in the order in which they help, if ``by_error``.

    With delta coding, ranges are those of differences between messages, because these are what is rounded.
    """

    def __init__(self, setup: Setup, *, by_error: bool = True) -> None:
        super().__init__(setup)
        self._errors = BitsByError(setup.world, setup.all_facts) if by_error else None
        self.due: int | None = None  # the epoch in which rows are ordered anew
        self._period = setup.config.section(PeriodSettings).bits_period

    def _set_bits(self, epoch: int, mean: int) -> None:
        """Give rows ``mean`` bits. They are ordered in the epoch after the first one, when ranges are known but change fast, then
        after twice as many epochs each time, and at last once in a period. Collective."""
        assert self._errors is not None
        if self.due is None:
            self.due = epoch + 1
        elif epoch >= self.due and self._errors.renew():
            self.due = epoch + min(max(epoch, 1), self._period)
        self._errors.set(mean)

    def observe(self, seen: Observation) -> None:
        """Note that weights are new."""
        if self._errors is not None:
            self._errors.observe()

    def rank_state(self) -> dict[str, Any]:
        """As :meth:`BitsPolicy.rank_state`. Collective."""
        return {} if self._errors is None else self._errors.rank_state()

    def check_rank_state(self, state: dict[str, Any], where: str) -> None:
        """As :meth:`BitsPolicy.check_rank_state`; checkpoints of earlier versions have none."""
        if self._errors is not None and state:
            self._errors.check_rank_state(state, where)

    def load(self, state: dict[str, Any], rank_state: dict[str, Any] | None = None) -> None:
        """Continue from the states; without ranges of these very rows, all have the mean bits."""
        super().load(state)
        self.due = self.due if rank_state else None
        if self._errors is not None and rank_state:
            self._errors.load(rank_state)


def _code(bits: np.ndarray) -> np.ndarray:
    """(n,) uint8 codes of bit-widths (2, n) uint8 for both means at which rows differ: two bits of the code for each."""
    places = np.log2(bits).astype(np.uint8)
    return places[0] | places[1] << 2
