"""In which arithmetic dense products are done: ``float32``, or ``bf16`` with weights and everything else in float32.

A bfloat16 product rounds its operands to 8 bits of mantissa and adds in float32. Kernels of our own do so on CPUs with
AVX512_BF16 (:func:`hpcgnn.kernels.dense.has_bf16`), from float32 matrices to float32 results. Elsewhere torch multiplies
rounded matrices; its result is rounded once more and widened: with 32768 rows its values differ from float32's by 0.3 % (root
mean square).
"""

from __future__ import annotations

import platform
from typing import Any

import torch

from hpcgnn.errors import HpcgnnError
from hpcgnn.kernels import buffers, dense, dense_product, pack_bf16, unpack_bf16

COMPUTES = ("float32", "bf16")
# Below these a product and its gradients together may be slower than in float32, conversions counted, by docs/compute.md: by
# kernels of our own, and by torch. They leave out some small gains on one thread, so that what is computed does not depend
# on the number of threads.
_LEAST_MULTIPLICATIONS = 1 << 20
_LEAST_WIDTH = 8
_LEAST_MULTIPLICATIONS_BY_TORCH = 1 << 25
_LEAST_WEIGHTS_BY_TORCH = 1 << 10


class Rounded:
    """A float32 matrix (n, F) whose products are done in bfloat16 where that is faster.

    Gradients need x itself where kernels of our own multiply, which round it as they read it; for torch it is rounded once
    for all products, and that is what autograd keeps.
    """

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self._rounded: torch.Tensor | None = None

    def times(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        plus: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> torch.Tensor:
        """``x @ weight + bias + plus``, (n, F) times (F, H), see :func:`hpcgnn.nn.linear.matmul`; differentiable."""
        arithmetic = self._arithmetic(weight.shape[0], weight.shape[1], backend)
        if arithmetic == "torch":
            return sum_of(_Product.apply(self.x, self._by_torch(), weight), bias, plus)
        return dense_product(self.x, weight, bias, plus, backend, arithmetic)

    def weight_gradient(self, dy: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        """``x.T @ dy`` (F, H), from dy (n, H)."""
        arithmetic = self._arithmetic(self.x.shape[1], dy.shape[1], backend)
        if arithmetic == "torch":
            return _multiply(self._by_torch().T, pack_bf16(dy))
        return dense.weight_gradient(self.x.detach(), dy, backend=backend, compute=arithmetic)[0]

    def _arithmetic(self, in_width: int, out_width: int, backend: str) -> str:
        """``float32`` or ``bf16`` by the kernels, or ``torch``: bfloat16 by torch."""
        if not pays(self.x.shape[0], in_width, out_width, backend):
            return "float32"
        return "bf16" if dense.has_bf16(backend) else "torch"

    def _by_torch(self) -> torch.Tensor:
        if self._rounded is None:
            self._rounded = pack_bf16(self.x)
        return self._rounded


def sum_of(y: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
    """``y`` plus those of the others that there are."""
    for other in others:
        y = y if other is None else y + other
    return y


def pays(rows: int, in_width: int, out_width: int, backend: str = "auto") -> bool:
    """Whether bfloat16 is faster for the product (rows, in_width) x (in_width, out_width) and its two gradients."""
    weights = in_width * out_width
    if dense.has_bf16(backend):
        return min(in_width, out_width) >= _LEAST_WIDTH and rows * weights >= _LEAST_MULTIPLICATIONS
    return weights >= _LEAST_WEIGHTS_BY_TORCH and rows * weights >= _LEAST_MULTIPLICATIONS_BY_TORCH


class _Product(torch.autograd.Function):
    """``y = x W``, ``dx = dy Wᵀ``, ``dW = xᵀ dy`` by torch; only the rounded x (n, F) and W (F, H) are kept for gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounded: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rounded_weight = pack_bf16(weight)
        ctx.save_for_backward(rounded, rounded_weight)
        return _multiply(rounded, rounded_weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, torch.Tensor | None]:
        rounded, rounded_weight = ctx.saved_tensors
        dy = pack_bf16(gradients[0])
        dx = _multiply(dy, rounded_weight.T) if ctx.needs_input_grad[0] else None
        dweight = _multiply(rounded.T, dy) if ctx.needs_input_grad[2] else None
        return dx, None, dweight


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return unpack_bf16(torch.mm(a, b, out=buffers.empty(a.shape[0], b.shape[1], a.dtype, a.device)))


def check_compute(compute: str, dtype: torch.dtype) -> str | None:
    """A sentence to warn with where ``compute`` works but is slow, else None.

    Raises:
        HpcgnnError: where it does not work.
    """
    if compute not in COMPUTES:
        raise HpcgnnError(f"compute must be one of {', '.join(COMPUTES)}, not {compute!r}")
    if compute == "float32":
        return None
    if dtype != torch.float32:
        raise HpcgnnError(f"compute bf16 is for models in float32, not in {dtype}: leave out --compute")
    if not _multiplies():
        raise HpcgnnError(f"torch {torch.__version__} has no bfloat16 products on this CPU: leave out --compute bf16")
    if not is_native():
        return "this CPU has no bfloat16 arithmetic: --compute bf16 emulates it and may be slower than float32"
    return None


def is_native() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware and our kernels or torch's oneDNN use it."""
    if dense.has_bf16():
        return True
    if not torch.backends.mkldnn.is_available():
        return False
    if platform.machine() in ("x86_64", "AMD64"):
        return any(_cpu_has(name) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a query without a promise, which may be gone in another torch
        return False


def _cpu_has(query: str) -> bool:
    return bool(getattr(torch.cpu, query, bool)())


def _multiplies() -> bool:
    ones = torch.ones(32, 32, dtype=torch.bfloat16)
    try:
        return bool((ones @ ones == 32).all())
    except RuntimeError:
        return False
