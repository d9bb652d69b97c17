"""Bit-widths of a value in a message."""

from __future__ import annotations

QUANTIZED_BITS = (1, 2, 4, 8)
MESSAGE_BITS = (*QUANTIZED_BITS, 16, 32)  # with bfloat16 and float32
