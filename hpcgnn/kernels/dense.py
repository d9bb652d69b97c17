"""Products of tall, narrow matrices with weights, and the gradients of the weights.

``native`` has a kernel of its own for large float32 products. It sums each element in the order of the columns of ``x``, so its
bits depend neither on threads nor on the instruction set. torch computes all other products. bf16 needs :func:`has_bf16`, and
tf32 :func:`has_tf32`; the bits of bf16 do not depend on the number of threads.

:func:`hpcgnn.kernels.autograd.dense` is the product, with gradients. These functions are not differentiable. They raise
ValueError, which names the argument, where one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_choice
from hpcgnn.base.errors import WrongValueError
from hpcgnn.kernels import buffers
from hpcgnn.kernels.backend import Operator, choose, misfit
from hpcgnn.kernels.library import isa, multiplies_bf16, native

_ARITHMETICS = ("float32", "bf16", "tf32")
_DTYPES = (torch.float32, torch.float64)


class DenseKernels(Protocol):
    """All tensors of a call are float32, or all float64."""

    def arithmetics(self) -> tuple[str, ...]:
        """The values of ``compute`` that work here: ``float32`` (the tensors' own type), and maybe ``bf16``, ``tf32``."""
        return ("float32",)

    def product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: bool, out: Tensor, compute: str
    ) -> None:
        """Write ``x`` (n, F) times ``weight`` (F, H; any strides), plus ``bias`` (H,), to ``out`` (n, H), or add it."""
        if accumulate:
            if bias is not None:
                out += bias
            torch.addmm(out, x, weight, out=out)
        elif bias is not None:
            torch.addmm(bias, x, weight, out=out)
        else:
            torch.mm(x, weight, out=out)

    def weight_gradient(self, x: Tensor, dy: Tensor, dweight: Tensor, sums: Tensor | None, compute: str) -> None:
        """Write ``x.T @ dy``, of ``x`` (n, F) and ``dy`` (n, H), to ``dweight`` (F, H), and column sums of ``dy`` to ``sums``."""
        torch.mm(x.T, dy, out=dweight)
        if sums is not None:
            torch.sum(dy, 0, out=sums)

    def grouped_product(self, x: Tensor, weights: Tensor, sizes: Sequence[int], out: Tensor) -> None:
        """Write the product of each block of ``sizes`` rows of ``x`` (n, F) with the block-diagonal matrix of its own in
        ``weights`` (R, K, F / K, H / K; any strides) to the same rows of ``out`` (n, H)."""
        for place, of_x, of_y in blocks_of(weights, sizes):
            y = out[of_y]
            product = y if y.is_contiguous() else y.new_empty(y.shape)
            self.product(x[of_x].contiguous(), weights[place], None, False, product, "float32")
            if product is not y:
                y.copy_(product)

    def grouped_gradient(self, x: Tensor, dy: Tensor, sizes: Sequence[int], dweights: Tensor) -> None:
        """Write the gradient of such weights, from ``x`` (n, F) and ``dy`` (n, H), to ``dweights`` (R, K, F / K, H / K)."""
        dweights.zero_()
        for place, of_x, of_y in blocks_of(dweights, sizes):
            self.weight_gradient(x[of_x].contiguous(), dy[of_y].contiguous(), dweights[place], None, "float32")


_Part = tuple[slice, slice]


def blocks_of(weights: Tensor, sizes: Sequence[int]) -> Iterator[tuple[tuple[int, int], _Part, _Part]]:
    """For each part of a matrix (R, K, F / K, H / K) whose block has rows: the numbers of matrix and part, and the rows and
    columns in (n, F) and in (n, H)."""
    _, parts, depth, width = weights.shape
    for matrix, (begin, end) in enumerate(pairwise((0, *accumulate(sizes)))):
        for part in range(parts if begin < end else 0):
            of_x, of_y = (slice(part * each, (part + 1) * each) for each in (depth, width))
            yield (matrix, part), (slice(begin, end), of_x), (slice(begin, end), of_y)


# Below these sizes torch's product is as fast, by the study `products`. The limits do not depend on the number of threads, so
# that results do not, either.
_LEAST_MULTIPLICATIONS = 1 << 22
_LEAST_WIDTH = 8
# torch's ``x.T @ dy`` takes 3 to 15 times as long as the native kernel for 2 to 7 columns of dy and an x of this size.
_LEAST_VALUES_BESIDE_FEW_COLUMNS = 1 << 20
_SUFFIX = {"float32": "f32", "bf16": "bf16"}


def pays(rows: int, in_width: int, out_width: int) -> bool:
    """Return whether native kernels are faster than torch's for the product (rows, in_width) x (in_width, out_width)."""
    is_large = rows * in_width * out_width >= _LEAST_MULTIPLICATIONS and min(in_width, out_width) >= _LEAST_WIDTH
    return is_large and isa() != "scalar"


def _pays_for_gradient(rows: int, in_width: int, out_width: int) -> bool:
    """The same for the gradient of the weight."""
    has_few = 2 <= out_width < _LEAST_WIDTH and rows * in_width >= _LEAST_VALUES_BESIDE_FEW_COLUMNS
    return (has_few and isa() != "scalar") or pays(rows, in_width, out_width)


class _Native(DenseKernels):
    def arithmetics(self) -> tuple[str, ...]:
        return ("float32", "bf16") if multiplies_bf16() else ("float32",)

    def product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: bool, out: Tensor, compute: str
    ) -> None:
        if compute != "float32" or (x.dtype == torch.float32 and pays(x.shape[0], *weight.shape)):
            multiply(x, weight, bias, accumulate, out, compute)
        else:
            super().product(x, weight, bias, accumulate, out, compute)

    def weight_gradient(self, x: Tensor, dy: Tensor, dweight: Tensor, sums: Tensor | None, compute: str) -> None:
        if compute != "float32" or (x.dtype == torch.float32 and _pays_for_gradient(x.shape[0], *dweight.shape)):
            contract(x, dy, dweight, sums, compute)
        else:
            super().weight_gradient(x, dy, dweight, sums, compute)


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, accumulate: bool, out: Tensor, compute: str = "float32"
) -> None:
    """:meth:`DenseKernels.product` by the native kernel of ``compute``, at any size; float32 tensors."""
    (rows, depth), width, (row_stride, column_stride) = x.shape, weight.shape[1], weight.stride()
    native(
        f"dense_{_SUFFIX[compute]}", rows=rows, depth=depth, width=width, x=x, weight=weight, row_stride=row_stride,
        column_stride=column_stride, bias=bias, accumulate=accumulate, y=out,
    )  # fmt: skip


def contract(x: Tensor, dy: Tensor, dweight: Tensor, sums: Tensor | None, compute: str = "float32") -> None:
    """:meth:`DenseKernels.weight_gradient` by the native kernel of ``compute``, at any size; float32 tensors."""
    (rows, depth), width = x.shape, dy.shape[1]
    name = f"dense_gradient_{_SUFFIX[compute]}"
    native(name, rows=rows, depth=depth, width=width, x=x, dy=dy, dweight=dweight, sums=sums)


DENSE: Operator[DenseKernels] = Operator("dense", DenseKernels, _Native())


def has_bf16(backend: str = "auto", torch_device: torch.device | str = "cpu") -> bool:
    """Return whether ``compute="bf16"`` works on a device: on GPUs it does; on CPUs it needs native kernels and AVX512_BF16."""
    return "bf16" in kernels_for(torch.empty(0, device=torch_device), backend).arithmetics()


def has_tf32(torch_device: torch.device | str, backend: str = "auto") -> bool:
    """Return whether ``compute="tf32"`` works on a device: it does on NVIDIA's GPUs from Ampere on."""
    return "tf32" in kernels_for(torch.empty(0, device=torch_device), backend).arithmetics()


def kernels_for(x: Tensor, backend: str) -> DenseKernels:
    """The kernels for matrices of the type and on the device of ``x``."""
    return choose(DENSE, backend, x=x)


def checked_kernels(
    x: Tensor, weight: Tensor, bias: Tensor | None, plus: Tensor | None, backend: str, compute: str
) -> DenseKernels:
    """The kernels for ``x @ weight + bias + plus``."""
    _check_matrix("x", x, x.dtype)
    _check_matrix("weight", weight, x.dtype)
    if weight.shape[0] != x.shape[1]:
        raise WrongValueError(f"weight must have a row for each of the {x.shape[1]} columns of x, not {len(weight)}")
    if bias is not None and (bias.shape != weight.shape[1:] or bias.dtype != x.dtype):
        raise misfit("bias", bias, f"{x.dtype} of shape ({weight.shape[1]},)")
    shape = x.shape[0], weight.shape[1]
    if plus is not None and (plus.shape != shape or plus.dtype != x.dtype):
        raise misfit("plus", plus, f"{x.dtype} of shape {shape}")
    kernels = choose(DENSE, backend, x=x, weight=weight, bias=bias, plus=plus)
    _check_compute(compute, x.dtype, kernels, backend)
    return kernels


def run_product(
    kernels: DenseKernels, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None, compute: str
) -> Tensor:
    """``x @ weight + bias``, added to ``out`` (n, H; contiguous) if given; arguments were checked."""
    accumulate = out is not None
    if out is None:
        out = buffers.empty(x.shape[0], weight.shape[1], x.dtype, x.device)
    bias = None if bias is None else bias.contiguous()
    kernels.product(x.contiguous(), weight, bias, accumulate, out, compute)
    return out


def weight_gradient(
    x: Tensor, dy: Tensor, *, sums: bool = False, backend: str = "auto", compute: str = "float32"
) -> tuple[Tensor, Tensor | None]:
    """``x.T @ dy`` (F, H), from ``x`` (n, F) and ``dy`` (n, H), and the sums of the columns of ``dy`` (H,) if ``sums`` is set.

    ``native`` sums segments of 1,024 rows and adds these sums in order, so the bits are the same for any number of threads.
    ``compute="bf16"`` rounds ``x`` and ``dy`` for the product, but not for the sums of columns.
    """
    _check_matrix("x", x, x.dtype)
    _check_matrix("dy", dy, x.dtype)
    if dy.shape[0] != x.shape[0]:
        raise WrongValueError(f"dy must have as many rows as x, {x.shape[0]}, not {dy.shape[0]}")
    kernels = choose(DENSE, backend, x=x, dy=dy)
    _check_compute(compute, x.dtype, kernels, backend)
    return run_weight_gradient(kernels, x, dy, sums, compute)


def run_weight_gradient(
    kernels: DenseKernels, x: Tensor, dy: Tensor, sums: bool = False, compute: str = "float32"
) -> tuple[Tensor, Tensor | None]:
    """:func:`weight_gradient` of arguments that were checked, by ``kernels``."""
    dweight = x.new_empty(x.shape[1], dy.shape[1])
    column_sums = x.new_empty(dy.shape[1]) if sums else None
    kernels.weight_gradient(x.contiguous(), dy.contiguous(), dweight, column_sums, compute)
    return dweight, column_sums


def _check_compute(compute: str, dtype: torch.dtype, kernels: DenseKernels, backend: str) -> None:
    check_choice("compute", compute, _ARITHMETICS)
    if compute != "float32" and not (dtype == torch.float32 and compute in kernels.arithmetics()):
        needs = {"bf16": "native kernels and AVX512_BF16, or a GPU", "tf32": "a GPU of NVIDIA"}[compute]
        raise WrongValueError(
            f"compute must be float32 here: {compute} takes {needs}, and float32 tensors; got {dtype} for backend {backend!r}"
        )


def _check_matrix(name: str, matrix: Tensor, dtype: torch.dtype) -> None:
    if matrix.dim() != 2 or matrix.dtype not in _DTYPES or matrix.dtype != dtype:
        raise misfit(name, matrix, f"two-dimensional {dtype if dtype in _DTYPES else 'float32 or float64'}")
