"""See :mod:`hpcgnn.kernels.int8_messages`: the kernels of ``reference``, because a loop in numba would move bytes no faster."""

from hpcgnn.kernels.reference.int8_messages import decode_codes, encode_codes

__all__ = ["decode_codes", "encode_codes"]
