"""Quantization of matrices to 8-bit integers during a step, with a table of those that are quantized already (Tango §3.3).

A tensor that several operators read is quantized once, even if one operator reads it in forward and another in backward. autograd
gives each of them the same tensor, so a table by tensor finds the reuse that Tango finds in the graph of operators. An entry
lives as long as its tensor, or until the tensor is written to.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from hpcgnn.kernels import int8, keyed
from hpcgnn.kernels.int8 import Int8Rows


@dataclass
class CacheCounts:
    """Counts of a :class:`Quantizer`. quantized: number of matrices quantized. reused: number of times that a matrix was found
    in the table. most_bytes: largest number of bytes that the table's entries took at one time."""

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
    """Quantizes float32 matrices to rows of 8-bit integers, each matrix with noise of its own.

    is_stochastic: round with noise (Tango Eq. 3); else to the nearest. The noise is a function of the key of :meth:`begin` and of
    the number of keys drawn since then.
    """

    def __init__(self, backend: str = "auto", *, is_stochastic: bool = True) -> None:
        self.backend, self.is_stochastic = backend, is_stochastic
        self.counts = CacheCounts()
        self._key, self._num_keys, self._bytes = 0, 0, 0
        self._known: dict[int, _Entry] = {}

    def begin(self, key: int) -> None:
        """Begin a step: draw noise from ``key`` from now on, and empty the table."""
        self._key, self._num_keys, self._bytes = key, 0, 0
        self._known.clear()

    def take_counts(self) -> CacheCounts:
        """The counts since the last call."""
        counts, self.counts = self.counts, CacheCounts()
        return counts

    def next_key(self) -> int | None:
        """The key of the noise for one more matrix; None: round to the nearest."""
        self._num_keys += 1
        return keyed.derive_key(self._key, self._num_keys) if self.is_stochastic else None

    def rows(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> Int8Rows:
        """``x`` (n, F) float32, with each row multiplied by its ``factor`` (n,), from the table or quantized now."""
        found = self.find(x, factor)
        return found or self.keep(x, int8.quantize_rows(x, factor, key=self.next_key(), backend=self.backend), factor)

    def fresh(self, x: torch.Tensor) -> Int8Rows:
        """``x`` (n, F) float32, quantized now, and not remembered."""
        self.counts.quantized += 1
        return int8.quantize_rows(x, key=self.next_key(), backend=self.backend)

    def repeatable(self, key: int) -> Quantizer:
        """A quantizer with a table of its own, which has the same noise whenever it is made with this key, and counts here."""
        other = Quantizer(self.backend, is_stochastic=self.is_stochastic)
        other.begin(key)
        other.counts = self.counts
        return other

    def find(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> Int8Rows | None:
        """The quantized ``x`` from the table, if it is there and ``x`` has not changed; the reuse is counted."""
        rows = self.known(x, factor)
        self.counts.reused += rows is not None
        return rows

    def known(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> Int8Rows | None:
        """The same as :meth:`find`, without counting."""
        entry = self._known.get(id(x))
        if entry is None or entry.tensor() is not x or entry.version != x._version:
            return None
        is_same = factor is None if entry.factor is None else factor is not None and entry.factor() is factor
        return entry.rows if is_same else None

    def keep(self, x: torch.Tensor, rows: Int8Rows, factor: torch.Tensor | None = None) -> Int8Rows:
        """Remember ``rows`` as the quantized ``x``, times ``factor`` if given."""
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
