"""See :mod:`hpcgnn.kernels.int8_messages`; no loop of numba would be faster: bytes are moved."""

from hpcgnn.kernels.reference.int8_messages import decode_codes, encode_codes

__all__ = ["decode_codes", "encode_codes"]
