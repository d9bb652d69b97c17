"""See :mod:`hpcgnn.kernels.int8`: the kernels of ``reference``, because numba has no instructions for 8-bit integers."""

from hpcgnn.kernels.reference.int8 import dot_products, gathers_bytes, product, quantize_rows, sddmm, weight_gradient

__all__ = ["dot_products", "gathers_bytes", "product", "quantize_rows", "sddmm", "weight_gradient"]
