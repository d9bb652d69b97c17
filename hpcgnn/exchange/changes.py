"""The change of an exchange's rows between its messages, measured by the sender before the rows are rounded.

Rows change because the model learns, and because dropout, and the rounding of other messages, draw new noise in each epoch.
Noise is independent from one message to the next, and learning is not. So three messages a, b and c of a row tell them apart: if
the row moves on evenly, ``c - (1 + r) b + r a``, with r the ratio of both distances in epochs, consists of noise only, whose
variance is that of c, ``(1 + r)^2`` times that of b, and ``r^2`` times that of a. Noise is taken to be the same share of each
message's square. The motion of erratic rows beyond their trend counts as noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.typed import Count
from hpcgnn.exchange.codecs import QuantizedRows

# Values of a rank's sample of one exchange. With dropout of 0.5, four ranks then see changes of about 1 % of the rows' squares.
_VALUES = 1 << 15
SUMS = 6  # numbers of a RowChange that are summed over ranks


@dataclass(frozen=True)
class RowChange:
    """The change of the rows of one exchange since its last message, over the sampled rows of all ranks. Squares are relative to
    the squared norm of the rows without noise."""

    distance: float  # d of PipeQS' Eq. 6: 1 minus the cosine between both messages, without noise
    squared_change: float  # of all epochs between both messages, without noise
    noise: float  # variance of the noise in one message
    range_error: (
        float  # mean squared error of rounding at random to a grid with one step: F / 6 * (largest - least value)^2
    )
    epochs: int  # between both messages

    def rounding_error(self, bits: int) -> float:
        """The mean squared error of rounding with ``bits`` bits (AdaQP's Eq. 11, with weights of one)."""
        return self.range_error / (2**bits - 1) ** 2 if bits <= 8 else 0.0

    @classmethod
    def of(cls, sums: np.ndarray, epochs: int) -> RowChange | None:
        """The change by the sums of :meth:`RowChanges.take` over ranks; None if they are of no message, or of zeros."""
        product, before, now, off_trend, weights, error = (float(value) for value in sums)
        if not (np.isfinite(sums).all() and min(before, now) > 0):
            return None
        share = min(1.0, off_trend / weights)
        first, last = (1 - share) * before, (1 - share) * now
        # Rows that are nothing but noise have no direction of their own.
        square = max(min(first, last), 1e-3 * min(before, now))
        cosine = product / math.sqrt(max(first, square) * max(last, square))
        change = max(0.0, first + last - 2 * product)
        # rows that changed at all have a distance above 0
        least = 1e-12 if product < math.sqrt(before) * math.sqrt(now) * (1 - 1e-15) else 0.0
        return cls(max(least, 1 - cosine), change / square, share * now / square, error / square, epochs)


class KeptSample(msgspec.Struct):
    """The sampled rows of the last two messages, and their epochs; one row of values for each message."""

    rows: torch.Tensor  # (messages, k, F) float32, the last message first
    epochs: list[Count]


class RowChanges:
    """The sums by which the change of one exchange's rows is known, over a sample of this rank's rows.

    rows: number of rows that this rank sends. In each message, the same evenly spaced rows are looked at, of up to 32,768 values.
    A layer that a pass uses several times has messages of their own, whose sums are added.
    """

    def __init__(self, rows: int, torch_device: torch.device) -> None:
        self._rows, self._torch_device = rows, torch_device
        self._picked: dict[int, torch.Tensor] = {}  # by number of columns
        self._kept: dict[tuple[int, int], KeptSample] = {}  # by number of the call and of columns
        self._sums: list[torch.Tensor] = []
        self.epochs = 1  # between the two messages that :meth:`take` compares

    def note(self, rows: torch.Tensor, given: QuantizedRows | None, call: int, epoch: int) -> None:
        """Compare ``rows`` (s, F), which are about to be sent, with those of the last two messages of the same call.

        given: the rows that are 8-bit integers already, which ``rows`` does not hold.
        """
        slot = call, rows.shape[1]
        sample, kept = self._sample(rows, given), self._kept.get(slot)
        if kept is None:
            self._kept[slot] = KeptSample(sample[None], [epoch])
            return
        self.epochs = epoch - kept.epochs[0]
        if len(kept.epochs) == 2:
            self._sums.append(self._compared(sample, kept))
        self._kept[slot] = KeptSample(torch.stack((sample, kept.rows[0])), [epoch, kept.epochs[0]])

    def _sample(self, rows: torch.Tensor, given: QuantizedRows | None) -> torch.Tensor:
        width = rows.shape[1]
        if width not in self._picked:
            count = min(self._rows, max(1, _VALUES // max(width, 1)))
            places = torch.arange(count, device=self._torch_device) * self._rows // max(count, 1)
            self._picked[width] = places
        picked = self._picked[width]
        found = rows.index_select(0, picked).float()
        if given is not None:
            sources = given.sources[picked]
            known = sources >= 0
            codes = given.rows.codes[sources[known]].float()
            found[known] = codes * given.rows.scale[sources[known], None]
        return found

    def _compared(self, now: torch.Tensor, kept: KeptSample) -> torch.Tensor:
        """(6,) float64: the product of the last two messages, and their squares; the square of what is off the trend, and the
        squares whose noise it has; the error of rounding."""
        (before, first), (later, earlier) = kept.rows, kept.epochs
        ratio = self.epochs / (later - earlier)
        off_trend = now - before - (before - first) * ratio
        least, largest = (
            torch.aminmax(now, dim=1) if now.numel() else (now.new_zeros(now.shape[0]), now.new_zeros(now.shape[0]))
        )
        product, square_before, square = _sum(now, before), _sum(before, before), _sum(now, now)
        weights = square + (1 + ratio) ** 2 * square_before + ratio**2 * _sum(first, first)
        spread = largest - least
        error = _sum(spread, spread) * now.shape[1] / 6
        return torch.stack([product, square_before, square, _sum(off_trend, off_trend), weights, error])

    def take(self) -> np.ndarray:
        """(6,) float64 sums of the messages since the last call, to be summed over ranks for :meth:`RowChange.of`."""
        sums, self._sums = self._sums, []
        return sum((each.cpu().numpy() for each in sums), np.zeros(SUMS))

    def of_ranks(self, sums: np.ndarray) -> RowChange | None:
        """The change by the sums over ranks of :meth:`take`."""
        return RowChange.of(sums, self.epochs)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The sampled rows, as tensors and plain values."""
        return {slot: {"rows": each.rows.cpu(), "epochs": each.epochs} for slot, each in self._kept.items()}

    def check_state(self, state: Any, where: str) -> dict[tuple[int, int], KeptSample]:
        """The samples of :meth:`state`. Raises HpcgnnError if it is not of these rows. where: its file and exchange."""
        found = typed.validated(state, dict[tuple[Count, Count], KeptSample], where)
        for (_, width), kept in found.items():
            count = min(self._rows, max(1, _VALUES // max(width, 1)))
            shape = len(kept.epochs), count, width
            if tuple(kept.rows.shape) != shape or kept.rows.dtype != torch.float32 or len(kept.epochs) not in (1, 2):
                raise HpcgnnError(f"{where}: the sampled rows have the shape {tuple(kept.rows.shape)}, not {shape}")
        return found

    def load(self, state: Any, where: str) -> None:
        """Continue from :meth:`state`."""
        kept = self.check_state(state, where)
        self._kept = {slot: KeptSample(each.rows.to(self._torch_device), each.epochs) for slot, each in kept.items()}


def _sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum of the products, which is the same for any number of threads, because policies decide by it."""
    products = a.double() * b.double()
    # On the host in numpy's order, which is the same for any number of threads; torch's is not.
    return torch.tensor(products.numpy().sum()) if products.is_cpu else products.sum()
