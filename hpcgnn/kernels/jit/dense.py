"""See :mod:`hpcgnn.kernels.dense`: torch computes these products, as numba's would be slower."""

from hpcgnn.kernels.reference.dense import arithmetics, product, weight_gradient

__all__ = ["arithmetics", "product", "weight_gradient"]
