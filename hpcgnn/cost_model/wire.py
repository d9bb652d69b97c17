"""Messages whose rows do not all have the same bits, and epochs in which none travel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from hpcgnn.bit_widths import QUANTIZED_BITS
from hpcgnn.comm.layout import BLOCK_BYTES
from hpcgnn.cost_model.rows import Pairs, padded
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes

_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Wire:
    """What travels in the exchanges of an epoch.

    shares: (bits, share of the rows) each; they add up to 1. sends: whether anything travels; False: rows of an epoch before are
    used, and nothing is computed for others. reads_codes: whether receivers may add up codes as they came; not where rows have
    several bits, or are compared or added up before they are used. seed: of the draw of each row's bits.
    """

    shares: tuple[tuple[int, float], ...]
    sends: bool = True
    reads_codes: bool = True
    seed: int = 0

    def bytes(self, pairs: Pairs, width: int, *, is_backward: bool) -> sparse.csr_array:
        """(P, P) int64 bytes from rank to rank of one exchange, as :meth:`Pairs.bytes` has them.

        The bits of each row are drawn, so that messages of few rows are as uneven as those of a policy that draws them; which row
        a policy gives which bits is not known here. Where all rows have the same bits nothing is drawn.
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
    :func:`hpcgnn.comm.layout.make_layout` lays them out."""
    payload = padded(rows @ np.array([payload_bytes(width, each) for each in bits]), PARAMS_BYTES)
    params = rows[:, [each <= max(QUANTIZED_BITS) for each in bits]].sum(axis=1) * PARAMS_BYTES
    return padded(payload + params, BLOCK_BYTES)
