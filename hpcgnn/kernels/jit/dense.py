"""See :mod:`hpcgnn.kernels.dense`: torch's products are faster than any that numba could make."""

from hpcgnn.kernels.reference.dense import arithmetics, product, weight_gradient

__all__ = ["arithmetics", "product", "weight_gradient"]
