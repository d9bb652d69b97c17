"""Messages whose rows have different bit-widths, and epochs without messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.exchange.layout import BLOCK_BYTES
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.lab.cost_model.rows import Pairs, padded

_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Wire:
    """The messages of an epoch's exchanges.

    shares: (bits, share of the rows) pairs, which add up to 1. sends: whether messages are sent; False: rows of an earlier
    epoch are used again, and nothing is computed for other ranks. reads_codes: whether receivers may add up codes without
    decoding; not if rows have several bit-widths, or are compared or changed before. seed: seed of the draw of each row's
    bit-width.
    """

    shares: tuple[tuple[int, float], ...]
    sends: bool = True
    reads_codes: bool = True
    seed: int = 0

    def bytes(self, pairs: Pairs, width: int, *, is_backward: bool) -> sparse.csr_array:
        """(P, P) int64 bytes from rank to rank of one exchange, as in :meth:`Pairs.bytes`.

        The bit-width of each row is drawn, so messages of few rows are as uneven as those of a policy. If all rows have the
        same bit-width, nothing is drawn.
        """
        shape = pairs.num_ranks, pairs.num_ranks
        if not self.sends:
            return sparse.csr_array(shape, dtype=np.int64)
        if len(self.shares) == 1:
            return pairs.bytes(width, self.shares[0][0], is_backward=is_backward)
        ends = (pairs.receiver, pairs.sender) if is_backward else (pairs.sender, pairs.receiver)
        draws, sizes = np.random.default_rng((self.seed, int(is_backward))), np.empty(len(pairs.rows), np.int64)
        for first in range(0, len(sizes), _PAIRS_AT_ONCE):
            some = slice(first, first + _PAIRS_AT_ONCE)
            rows = draws.multinomial(pairs.rows[some], [share for _, share in self.shares])
            sizes[some] = mixed_bytes(rows, width, [bits for bits, _ in self.shares])
        return sparse.csr_array((sizes, ends), shape, dtype=np.int64)


def mixed_bytes(rows: np.ndarray, width: int, bits: list[int]) -> np.ndarray:
    """(pairs,) int64 bytes of a segment with (pairs, k) int64 rows of each of k ``bits``, as
    :func:`hpcgnn.exchange.layout.make_layout` lays them out."""
    payload = padded(rows @ np.array([payload_bytes(width, each) for each in bits]), PARAMS_BYTES)
    params = rows[:, [each <= max(QUANTIZED_BITS) for each in bits]].sum(axis=1) * PARAMS_BYTES
    return padded(payload + params, BLOCK_BYTES)
