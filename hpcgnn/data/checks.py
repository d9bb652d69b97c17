"""Checks of stored values against their :class:`hpcgnn.data.schema.Rule`, in pieces that are still in the cache."""

from __future__ import annotations

import numpy as np

from hpcgnn.data.schema import Rule


class ValueCheck:
    """Checks the values of an array from row ``first`` on, piece by piece in order.

    name: of the array, for messages. whole_slab: the rows are all of one slab, so rules that hold within slabs are checked, too.
    """

    def __init__(self, name: str, rule: Rule, first: int, *, whole_slab: bool) -> None:
        self._name, self._rule = name, rule
        self._at = first * rule.row_size
        self._step = None if rule.within_slabs and not whole_slab else rule.step
        self._before: int | None = None

    def look(self, values: np.ndarray) -> str | None:
        """A phrase about the first wrong value, or None. values: (m,) of the stored dtype, the next ones; may be empty."""
        problem = None
        if values.size:
            problem = self._not_finite(values) if values.dtype.kind == "f" else self._wrong_integer(values)
        self._at += values.size
        return problem

    def _not_finite(self, values: np.ndarray) -> str | None:
        finite = np.isfinite(values)
        return None if finite.all() else self._bad(~finite, values, "and neither NaN nor Inf is a number to train on")

    def _wrong_integer(self, values: np.ndarray) -> str | None:
        rule, numbers = self._rule, values.view(np.uint8) if values.dtype == np.bool_ else values
        if not in_range(numbers, rule.low, rule.high):
            return self._bad(
                (numbers < rule.low) | (numbers > rule.high), numbers, f"outside {rule.low} to {rule.high}"
            )
        if rule.below and int(numbers.view(np.uint64).min()) < rule.below:  # as unsigned, -1 is huge
            wrong = (numbers >= 0) & (numbers < rule.below)
            return self._bad(wrong, numbers, f"neither -1 nor from {rule.below} to {rule.high}")
        if rule.ends is not None and (problem := self._wrong_end(numbers)):
            return problem
        return None if self._step is None else self._falls(numbers, self._step)

    def _falls(self, numbers: np.ndarray, step: int) -> str | None:
        falls = bool((numbers[1:] < numbers[:-1] + step).any() if step else (numbers[1:] < numbers[:-1]).any())
        falls = falls or (self._before is not None and int(numbers[0]) < self._before + step)
        self._before = int(numbers[-1])
        return f"{self._name} is not a rising list near row {self._at}" if falls else None

    def _wrong_end(self, numbers: np.ndarray) -> str | None:
        assert self._rule.ends is not None
        first, last = self._rule.ends
        if self._at == 0 and numbers[0] != first:
            return f"{self._name} begins with {numbers[0]}, not with {first}"
        if self._at + numbers.size == self._rule.shape[0] and numbers[-1] != last:
            return f"{self._name} ends with {numbers[-1]}, not with {last}"
        return None

    def _bad(self, wrong: np.ndarray, values: np.ndarray, what: str) -> str:
        place = int(np.flatnonzero(wrong)[0])
        row, column = divmod(self._at + place, self._rule.row_size)
        where = f"row {row}" if len(self._rule.shape) == 1 else f"row {row}, column {column}"
        return f"{self._name} holds {values[place]} in {where}, {what}"


def in_range(values: np.ndarray, low: int, high: int) -> bool:
    """Return whether integers (m,), m > 0, are from ``low`` to ``high``. One pass is enough for ``low`` 0: as unsigned numbers,
    negative ones are huge."""
    if low == 0 and values.dtype.kind == "i":
        return int(values.view(f"u{values.dtype.itemsize}").max()) <= high
    return bool(low <= values.min() and values.max() <= high)


def tiles_problem(offsets: np.ndarray) -> str | None:
    """A phrase if ``offsets`` (slabs + 1,) or (slabs + 1, k) do not begin with 0 or if they fall somewhere, else None."""
    if offsets[0].any():
        return "does not begin with 0"
    if (offsets[1:] < offsets[:-1]).any():
        return "falls"
    return None


def sum_of_hashes(ids: np.ndarray) -> int:
    """The sum, modulo 2**64, of the 64-bit hashes (those of splitmix64) of all ids."""
    total = 0
    for begin in range(0, ids.size, _IDS_AT_A_TIME):
        mixed = (ids[begin : begin + _IDS_AT_A_TIME].view(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        total += int(mixed.sum())
    return total % 2**64


_IDS_AT_A_TIME = 1 << 14  # 128 KiB of ids stay in the cache
