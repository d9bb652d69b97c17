"""Who turns matrices into 8-bit integers during a step, and remembers which it has turned already (Tango §3.4).

A tensor that several operators read is quantized once, whether they come in the same pass or one forward and one backward:
autograd hands out the same tensor each time, so a table by tensor finds what Tango finds in the graph of operators. An entry
lives as long as its tensor, and until the tensor is written to.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from hpcgnn.kernels import int8, keyed
from hpcgnn.kernels.int8 import Int8Rows


@dataclass
class CacheCounts:
    """quantized: matrices that were. reused: how often one was found. most_bytes: that the table's entries took at one time."""

    quantized: int = 0
    reused: int = 0
    most_bytes: int = 0


@dataclass(frozen=True)
class _Entry:
    tensor: weakref.ref[torch.Tensor]
    version: int
    factor: weakref.ref[torch.Tensor] | None
    rows: Int8Rows


class Quantizer:
    """Rows of 8-bit integers of float32 matrices, rounded with noise of its own for each of them.

    is_stochastic: with noise (Tango Eq. 3), or to the nearest. The noise is a function of the key that :meth:`begin` is given,
    and of how many keys were asked for since then.
    """

    def __init__(self, backend: str = "auto", *, is_stochastic: bool = True) -> None:
        self.backend, self.is_stochastic = backend, is_stochastic
        self.counts = CacheCounts()
        self._key, self._num_keys, self._bytes = 0, 0, 0
        self._known: dict[int, _Entry] = {}

    def begin(self, key: int) -> None:
        """What is drawn from now on is of another step; nothing of the last one is kept."""
        self._key, self._num_keys, self._bytes = key, 0, 0
        self._known.clear()

    def take_counts(self) -> CacheCounts:
        """Those since the last time."""
        counts, self.counts = self.counts, CacheCounts()
        return counts

    def next_key(self) -> int | None:
        """Of the noise for one matrix; None: to the nearest."""
        self._num_keys += 1
        return keyed.derive_key(self._key, self._num_keys) if self.is_stochastic else None

    def rows(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> Int8Rows:
        """``x`` (n, F), each row times its ``factor`` (n,): as it was quantized before, or now."""
        found = self.find(x, factor)
        return found or self.keep(x, int8.quantize_rows(x, factor, key=self.next_key(), backend=self.backend), factor)

    def find(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> Int8Rows | None:
        """As ``x`` was quantized before, if it was, and has not changed; which is counted."""
        rows = self.known(x, factor)
        self.counts.reused += rows is not None
        return rows

    def known(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> Int8Rows | None:
        """The same, not counted."""
        entry = self._known.get(id(x))
        if entry is None or entry.tensor() is not x or entry.version != x._version:
            return None
        is_same = factor is None if entry.factor is None else factor is not None and entry.factor() is factor
        return entry.rows if is_same else None

    def keep(self, x: torch.Tensor, rows: Int8Rows, factor: torch.Tensor | None = None) -> Int8Rows:
        """Remember that ``x`` became ``rows``."""
        self.counts.quantized += 1
        known, name = self._known, id(x)
        self._forget(name)

        def gone(reference: weakref.ref[torch.Tensor]) -> None:
            if name in known and known[name].tensor is reference:
                self._forget(name)

        known[name] = _Entry(weakref.ref(x, gone), x._version, None if factor is None else weakref.ref(factor), rows)
        self._bytes += rows.num_bytes
        self.counts.most_bytes = max(self.counts.most_bytes, self._bytes)
        return rows

    def _forget(self, name: int) -> None:
        entry = self._known.pop(name, None)
        if entry is not None:
            self._bytes -= entry.rows.num_bytes
