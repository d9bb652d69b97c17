"""Bit-widths that a value in a message can have."""

from __future__ import annotations

QUANTIZED_BITS = (1, 2, 4, 8)
MESSAGE_BITS = (*QUANTIZED_BITS, 16, 32)  # 16 bits are bfloat16, 32 bits are float32
