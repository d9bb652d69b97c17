"""The change of an exchange's rows between its messages, measured by the sender before the rows are rounded.

Rows change because the model learns, and because dropout, and the rounding of other messages, draw new noise in each epoch.
Noise is independent from one message to the next, and learning is not. So three messages a, b and c of a row tell them apart: of
noise alone, c is as similar to a as to b, however the noise is distributed. If the row moves on evenly, c is more similar to b,
and if it swings between two values, to a. Similarity is the cosine between two messages. Its difference in one message is mostly
noise, of either sign, so the least difference of several messages counts, if all have one sign: a motion that begins shows after
five messages, or at once if it exceeds the noise by far, and its end at once. Of the steps of a random walk, a third is motion.
Rows that leap are as far from a as from b: then b is less similar to c than a was to b.
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
# Differences of similarities of which the least counts. Before there are so many as the first number, no change is known. Rows at
# rest look as if they swung if a few nodes have a large gradient by turns, which happens by chance for five messages, but hardly
# for twelve.
_KNOWN, _EVENLY, _BY_TURNS = 3, 5, 12
_STEP = 4  # A difference so many times as large as all before is not of their noise, and counts at once.


@dataclass(frozen=True)
class RowChange:
    """The change of the rows of one exchange since its last message, over the sampled rows of all ranks. Squares are relative to
    the squared norm of the rows as they are sent, with their noise."""

    # d of PipeQS' Eq. 6 as far as noise does not explain it: 1 minus the cosine between both messages, minus the noise
    distance: float
    # of all epochs between both messages, without noise, and without swings, which average out in the weights
    squared_change: float
    noise: float  # variance of the noise in one message
    # mean squared error of rounding at random to a grid with one step: F / 6 * (largest - least value)^2
    range_error: float
    epochs: int  # between both messages
    most: float = 0.0  # the largest distance that may be hidden by the noise of the last messages; 0 in older records

    def rounding_error(self, bits: int) -> float:
        """The mean squared error of rounding with ``bits`` bits (AdaQP's Eq. 11, with weights of one)."""
        return self.range_error / (2**bits - 1) ** 2 if bits <= 8 else 0.0


class KeptSample(msgspec.Struct):
    """The sampled rows of the last two messages, and their epochs; one row of values for each message."""

    rows: torch.Tensor  # (messages, k, F) float32, the last message first
    epochs: list[Count]


class ChangesState(msgspec.Struct):
    """The state of :class:`RowChanges`. kept: by number of the call and of columns. motions: as in :class:`RowChanges`."""

    kept: dict[tuple[Count, Count], KeptSample]
    motions: list[float] = msgspec.field(default_factory=list)  # files of earlier versions have none
    similar: float | None = None  # likewise


class RowChanges:
    """The sums by which the change of one exchange's rows is known, over a sample of this rank's rows.

    rows: number of rows that this rank sends. In each message, the same evenly spaced rows are looked at, of up to 32,768 values.
    every: messages of epochs that are no multiples of it are not looked at.
    A layer that a pass uses several times has messages of their own, whose sums are added.
    """

    def __init__(self, rows: int, torch_device: torch.device, every: int = 1) -> None:
        self._rows, self._torch_device, self._every = rows, torch_device, every
        self._picked: dict[int, torch.Tensor] = {}  # by number of columns
        self._kept: dict[tuple[int, int], KeptSample] = {}  # by number of the call and of columns
        self._sums: list[torch.Tensor] = []
        # between the last two messages, and its ratio to those between the two before
        self._epochs, self._ratio = 1, 1.0
        # by how much the last messages were more similar to the one before than to that before it, for one epoch
        self._motions: list[float] = []
        self._similar: float | None = None  # how similar the last two messages were

    def note(self, rows: torch.Tensor, given: QuantizedRows | None, call: int, epoch: int) -> None:
        """Compare ``rows`` (s, F), which are about to be sent, with those of the last two messages of the same call.

        given: the rows that are 8-bit integers already, which ``rows`` does not hold.
        """
        if epoch % self._every:
            return
        slot = call, rows.shape[1]
        sample, kept = self._sample(rows, given), self._kept.get(slot)
        if kept is None:
            self._kept[slot] = KeptSample(sample[None], [epoch])
            return
        self._epochs = epoch - kept.epochs[0]
        if len(kept.epochs) == 2:
            self._ratio = self._epochs / (kept.epochs[0] - kept.epochs[1])
            self._sums.append(self._compared(sample, kept))
        self._kept[slot] = KeptSample(torch.stack((sample, kept.rows[0])), [epoch, kept.epochs[0]])

    def _sample(self, rows: torch.Tensor, given: QuantizedRows | None) -> torch.Tensor:
        width = rows.shape[1]
        if width not in self._picked:
            count = self._count(width)
            self._picked[width] = torch.arange(count, device=self._torch_device) * self._rows // max(count, 1)
        picked = self._picked[width]
        found = rows.index_select(0, picked).float()
        if given is not None:
            sources = given.sources[picked]
            known = sources >= 0
            codes = given.rows.codes[sources[known]].float()
            found[known] = codes * given.rows.scale[sources[known], None]
        return found

    def _count(self, width: int) -> int:
        """The number of rows of ``width`` columns in the sample."""
        return min(self._rows, max(1, _VALUES // max(width, 1)))

    def _compared(self, now: torch.Tensor, kept: KeptSample) -> torch.Tensor:
        """(6,) float64: the squares of three messages, the first one first; the products of the first and the third, and of
        the second and the third; the error of rounding."""
        third, second, first = torch.stack((now, *kept.rows)).double()
        zeros = now.new_zeros(now.shape[0])
        least, largest = torch.aminmax(now, dim=1) if now.numel() else (zeros, zeros)
        spread = (largest - least).double()
        pairs = (first, first), (second, second), (third, third), (first, third), (second, third)
        return torch.stack([*(_sum(*pair) for pair in pairs), _sum(spread, spread) * now.shape[1] / 6])

    def take(self) -> np.ndarray:
        """(6,) float64 sums of the messages since the last call, to be summed over ranks for :meth:`of_ranks`."""
        sums, self._sums = self._sums, []
        return sum((each.cpu().numpy() for each in sums), np.zeros(SUMS))

    def of_ranks(self, sums: np.ndarray) -> RowChange | None:
        """The change by the sums over ranks of :meth:`take`, on each of them; None if they are of no message, or of zeros, and
        before noise is known from motion, which takes five messages."""
        if not (np.isfinite(sums).all() and min(sums[:3]) > 0):
            return None
        first, before, now, apart, late, error = sums.tolist()
        similar, apart = late / math.sqrt(before * now), apart / math.sqrt(first * now)
        further = self._epochs**2 * ((1 + 1 / self._ratio) ** 2 - 1)
        # the same rows again have a difference of 0, in spite of the rounding of sums
        motion = (similar - apart) / further if abs(similar - apart) > 1e-14 else 0.0
        # A leap may have been in a single epoch. Noise that only grows does not make rows several times as far apart.
        before, self._similar = 1 - (self._similar or 0.0), similar
        leap = 1 - similar - before if 1 - similar > (1 + _STEP) * before else 0.0
        fast = max(motion, leap / (3 * self._epochs**2))
        if len(self._motions) >= _KNOWN and fast > max(1e-14, _STEP * max(map(abs, self._motions))):
            self._motions = [max(motion, leap)] * _KNOWN
        else:
            self._motions = [*self._motions[1 - _BY_TURNS :], motion]
        if len(self._motions) < _KNOWN:
            return None
        evenly = max(0.0, min(1 - similar, self._epochs**2 * min(self._motions[-_EVENLY:])))
        distance = max(evenly, -further * max(self._motions))
        most = max(distance, self._epochs**2 * max(map(abs, self._motions[-_EVENLY:])))
        noise = max(0.0, 1 - similar - distance)
        return RowChange(distance, 2 * evenly, noise if noise > 1e-14 else 0.0, error / now, self._epochs, most)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The sampled rows and the noise, as tensors and plain values."""
        kept = {slot: {"rows": each.rows.cpu(), "epochs": each.epochs} for slot, each in self._kept.items()}
        return {"kept": kept, "motions": self._motions, "similar": self._similar}

    def check_state(self, state: Any, where: str) -> ChangesState:
        """The content of :meth:`state`. Raises HpcgnnError if it is not of these rows. where: its file and exchange."""
        found = typed.validated(state, ChangesState, where)
        for (_, width), kept in found.kept.items():
            shape = len(kept.epochs), self._count(width), width
            if tuple(kept.rows.shape) != shape or kept.rows.dtype != torch.float32 or len(kept.epochs) not in (1, 2):
                raise HpcgnnError(f"{where}: the sampled rows have the shape {tuple(kept.rows.shape)}, not {shape}")
        return found

    def load(self, state: Any, where: str) -> None:
        """Continue from :meth:`state`."""
        found = self.check_state(state, where)
        self._kept = {
            slot: KeptSample(each.rows.to(self._torch_device), each.epochs) for slot, each in found.kept.items()
        }
        self._motions, self._similar = found.motions, found.similar


def _sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum of the products, which is the same for any number of threads, because policies decide by it."""
    products = a * b
    # On the host in numpy's order, which is the same for any number of threads; torch's is not.
    return torch.tensor(products.numpy().sum()) if products.is_cpu else products.sum()
