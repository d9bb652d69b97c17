"""See :mod:`hpcgnn.kernels.int8`: numba has no instructions for 8-bit integers, so these are the plain ones."""

from hpcgnn.kernels.reference.int8 import dot_products, gathers_bytes, product, quantize_rows, sddmm, weight_gradient

__all__ = ["dot_products", "gathers_bytes", "product", "quantize_rows", "sddmm", "weight_gradient"]
