"""The choice between two ways to add up the rows of a message: straight from their codes, or after all were decoded.

Rows that are decoded first are decoded once, and gathered as floats. Rows that are added from their codes are decoded once for
each entry of the matrix that names them, but a gathered row has a fraction of the bytes, and no matrix of floats is written.

The choice follows a model of both times, not a measurement, because it can change the last bits of a sum: ``spmm`` orders the
entries of large matrices by hot columns. So a run chooses the same each time, for any number of threads, and where an order is
possible, with any instruction set.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.base.typed import QUANTIZED_BITS
from hpcgnn.kernels import library
from hpcgnn.kernels.packing import GROUP, PARAMS_BYTES
from hpcgnn.kernels.sizes import scaled
from hpcgnn.kernels.spmm import LEAST_BYTES_TO_PACK

_FLOAT_BYTES, _OFFSET_BYTES, _LINE_BYTES = 4, 8, 64
_NEAR_BYTES, _FAR_BYTES = 1 << 20, 32 << 20  # of a core's caches, and of those that cores share


@dataclass(frozen=True)
class _Costs:
    """Nanoseconds on one core: those that choose the faster way most often in tests/kernels/fusing_grid.csv.

    lanes: floats in a register. call: of a kernel. decoded_row, decoded_value: of decoding. decoded_rest: of a value behind the
    last whole block of codes, in addition. entry, value: of a decoded row that is gathered. near_miss, far_miss: of a cache line
    that is not in a core's caches, and not in any. code_entry, word_entry: of a row that is gathered in up to 8 bits, and in
    more. rest_entry: of codes that do not fill the last register, in addition. code_value: of a value, by bit-width.
    """

    lanes: int
    call: int
    decoded_row: float
    decoded_value: float
    decoded_rest: float
    entry: float
    value: float
    near_miss: float
    far_miss: float
    code_entry: float
    word_entry: float
    rest_entry: float
    code_value: dict[int, float]

    def decoded_first(self, bits: int, entries: int, rows: int, width: int) -> float:
        """Nanoseconds of decoding ``rows`` rows and adding those that ``entries`` entries name."""
        rest = width % (GROUP * 8 // bits) if bits < 8 else 0
        decoded = self.decoded_row + width * self.decoded_value + rest * self.decoded_rest
        row_bytes = width * _FLOAT_BYTES
        gathered = self.entry + width * self.value + self._missed(max(row_bytes / _LINE_BYTES, 1), rows * row_bytes)
        return 2 * scaled(self.call) + rows * decoded + entries * gathered

    def from_codes(self, bits: int, entries: int, rows: int, width: int) -> float:
        """Nanoseconds of adding the rows from their codes."""
        is_quantized = bits in QUANTIZED_BITS
        places = -(-width * bits // 8) if is_quantized else width  # of which a register takes as many as it has lanes
        registers = -(-places // self.lanes)
        gathered = self.code_entry if is_quantized else self.word_entry
        gathered += registers * self.lanes * max(8 // bits, 1) * self.code_value[bits]
        gathered += self.rest_entry if bits < 8 and places % self.lanes else 0
        payload_bytes = width * bits / 8
        lines = max(payload_bytes / _LINE_BYTES, 1) + (3 if is_quantized else 1)  # parameters, and the two offsets
        table_bytes = rows * (payload_bytes + _OFFSET_BYTES + is_quantized * (PARAMS_BYTES + _OFFSET_BYTES))
        return scaled(self.call) + entries * (gathered + self._missed(lines, table_bytes))

    def _missed(self, lines: float, table_bytes: float) -> float:
        """Nanoseconds of the part of ``lines`` cache lines that no cache holds, in a table of ``table_bytes`` bytes."""
        near, far = (max(0.0, 1 - scaled(size) / max(table_bytes, 1)) for size in (_NEAR_BYTES, _FAR_BYTES))
        return lines * (near * self.near_miss + far * self.far_miss)


_AVX512 = _Costs(
    lanes=16, call=5960, decoded_row=1.41, decoded_value=0.102, decoded_rest=0.703, entry=0.192, value=0.0399, near_miss=0.954,
    far_miss=10.1, code_entry=1.23, word_entry=0.454, rest_entry=0.227,
    code_value={1: 0.0308, 2: 0.0308, 4: 0.0309, 8: 0.0457, 16: 0.0327, 32: 0.0389},
)  # fmt: skip
_AVX2 = _Costs(
    lanes=8, call=14_400, decoded_row=1.1, decoded_value=0.111, decoded_rest=0.312, entry=0.217, value=0.0337, near_miss=0.538,
    far_miss=8.45, code_entry=1.2, word_entry=0.561, rest_entry=12.5,
    code_value={1: 0.0314, 2: 0.0314, 4: 0.0646, 8: 0.058, 16: 0.0688, 32: 0.0411},
)  # fmt: skip


def adds_from_codes(bits: int, entries: int, rows: int, width: int) -> bool:
    """Return whether native kernels add rows of ``bits`` bits and ``width`` columns faster from their codes than decoded first.

    entries: of the matrix; each names one of the ``rows`` rows. CPUs without AVX-512 count as one with AVX2.
    """
    may_be_ordered = rows * width * _FLOAT_BYTES >= scaled(LEAST_BYTES_TO_PACK)
    has_avx512 = not may_be_ordered and library.load() is not None and library.isa() == "avx512"
    costs, sizes = _AVX512 if has_avx512 else _AVX2, (bits, entries, rows, width)
    return costs.from_codes(*sizes) < costs.decoded_first(*sizes)
