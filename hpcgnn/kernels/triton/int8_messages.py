"""See :mod:`hpcgnn.kernels.int8_messages`; torch's operations move the bytes on the device."""

from hpcgnn.kernels.reference.int8_messages import decode_codes, encode_codes

__all__ = ["decode_codes", "encode_codes"]
