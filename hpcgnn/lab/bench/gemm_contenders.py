"""The contenders that multiply dense matrices: ours in every arithmetic, torch, and libraries that quantize.

A layer's products are ``y = x W``, ``dx = dy W^T`` and ``dW = x^T dy``; *layer* is all three, and *product* is y alone from
operands that are converted in advance. Times include conversions, with two exceptions: dW takes x as y has converted it, as in
training (Tango §3.3), and libraries for inference pack the weight in advance. In *layer*, products share converted operands.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import dense, dense_product, int8
from hpcgnn.lab.bench.ceilings import copy_call, multiply_call
from hpcgnn.lab.bench.names import HOST_NAME, PRODUCTS
from hpcgnn.lab.bench.problem import Call, Contender, Special, normal

_KEY, _WEIGHT_KEY = 1, 2  # keys of the rounding noise, which training uses as well
_TINY = 1e-30
Product = Callable[[], Tensor]
Calls = dict[str, Call]  # by direction


class GemmProblem:
    """``x`` (rows, depth), ``weight`` (depth, width) and ``dy`` (rows, width), float32 on ``device``. multiply_adds: of each of
    the three products."""

    def __init__(self, rows: int, depth: int, width: int, device: Device = CPU) -> None:
        self.width, self.multiply_adds = width, rows * depth * width
        shapes = (rows, depth), (depth, width), (rows, width)
        self.x, self.weight, self.dy = (normal(*shape, stream, device) for stream, shape in enumerate(shapes))

    def exact(self, direction: str) -> tuple[Tensor, ...]:
        """The exact results of a direction, in float64; *layer* has all three."""
        x, weight, dy = (each.double() for each in (self.x, self.weight, self.dy))
        products = {"y": lambda: x @ weight, "dx": lambda: dy @ weight.T, "dW": lambda: x.T @ dy}
        products["product"] = products["y"]
        return tuple(products[name]() for name in (("y", "dx", "dW") if direction == "layer" else (direction,)))


# -- functions that return a contender's calls -------------------------------------------------------------------------


def _calls(y: Product, dx: Product, dw: Product, **others: Call) -> Calls:
    calls: Calls = {"y": y, "dx": dx, "dW": dw, "layer": lambda: (y(), dx(), dw()), "product": y}
    return calls | others


def _of_floats(
    problem: GemmProblem,
    multiply: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
    weight_gradient: Callable[[Tensor, Tensor], Tensor] = lambda x, dy: x.T @ dy,
) -> Calls:
    """Products of float32 tensors, which ``multiply`` may convert."""
    x, weight, dy = problem.x, problem.weight, problem.dy
    return _calls(lambda: multiply(x, weight), lambda: multiply(dy, weight.T), lambda: weight_gradient(x, dy))


def _ours(problem: GemmProblem, compute: str) -> Calls:
    def weight_gradient(x: Tensor, dy: Tensor) -> Tensor:
        return dense.weight_gradient(x, dy, compute=compute)[0]

    return _of_floats(problem, partial(dense_product, compute=compute), weight_gradient)


def _native(problem: GemmProblem, compute: str) -> Calls:
    """Our native kernels at any size; :func:`_ours` leaves small products to torch."""
    if compute not in dense.DENSE.native.arithmetics():
        raise HpcgnnError(f"this CPU does not support {compute}")

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty(x.shape[0], weight.shape[1])
        dense.multiply(x, weight, None, False, out, compute)
        return out

    def weight_gradient(x: Tensor, dy: Tensor) -> Tensor:
        out = torch.empty_like(problem.weight)
        dense.contract(x, dy, out, None, compute)
        return out

    return _of_floats(problem, multiply, weight_gradient)


def _converting(
    x: Tensor,
    convert: Callable[[Tensor], Any],
    y: Callable[[Any], Tensor],
    dx: Product,
    dw: Callable[[Any], Tensor],
) -> Calls:
    """Calls of which y converts x, and dW takes x as y has converted it. y, dw: functions of the converted x."""
    kept = [convert(x)]

    def converted() -> Tensor:
        kept[0] = convert(x)
        return y(kept[0])

    return _calls(converted, dx, lambda: dw(kept[0]), product=lambda: y(kept[0]))


def _ours_int8(problem: GemmProblem) -> Calls:
    weight, dy, quantize = problem.weight, problem.dy, partial(int8.quantize_rows, key=_KEY)
    return _converting(
        problem.x,
        quantize,
        y=lambda kept: int8.product(kept, weight, weight_key=_WEIGHT_KEY),
        dx=lambda: int8.product(quantize(dy), weight.T, weight_key=_WEIGHT_KEY),
        dw=lambda kept: int8.weight_gradient(kept, dy, key=_KEY)[0],
    )


def _exact(problem: GemmProblem) -> Calls:
    """Keeps x in 8 bits from forward to backward, and multiplies in float32."""
    x, weight, dy = problem.x, problem.weight, problem.dy
    return _converting(
        x,
        partial(int8.quantize_rows, key=_KEY),
        y=lambda kept: dense_product(x, weight, compute="float32"),
        dx=lambda: dense_product(dy, weight.T, compute="float32"),
        dw=lambda kept: dense.weight_gradient(kept.float(), dy)[0],
    )


def _torch_bf16(problem: GemmProblem) -> Calls:
    x, weight, dy = problem.x, problem.weight, problem.dy
    given, given_weight = x.bfloat16(), weight.bfloat16()

    def layer() -> tuple[Tensor, ...]:
        kept, narrow, gradient = x.bfloat16(), weight.bfloat16(), dy.bfloat16()
        return (kept @ narrow).float(), (gradient @ narrow.T).float(), (kept.T @ gradient).float()

    return _converting(
        x,
        Tensor.bfloat16,
        y=lambda kept: (kept @ weight.bfloat16()).float(),
        dx=lambda: (dy.bfloat16() @ weight.bfloat16().T).float(),
        dw=lambda kept: (kept.T @ dy.bfloat16()).float(),
    ) | {"layer": layer, "product": Special(lambda: given @ given_weight, Tensor.float)}


def _torch_int8(problem: GemmProblem) -> Calls:
    """torch's products of 8-bit integers, rounded to the nearest, which is less work than noise. The weight is packed in its
    fastest form, with columns as rows."""
    x, weight, dy = problem.x, problem.weight, problem.dy

    def weight_of_y() -> tuple[Tensor, Tensor]:
        codes, scale = _quantized(weight.T.contiguous(), 1)
        return codes.T, scale.T

    def scaled(kept: tuple[Tensor, Tensor], packed: tuple[Tensor, Tensor]) -> Tensor:
        return torch._int_mm(kept[0], packed[0]).float().mul_(kept[1]).mul_(packed[1])

    def dx() -> Tensor:
        codes, scale = _quantized(weight, 1)
        return scaled(_quantized(dy, 1), (codes.T, scale.T))

    def dw(kept: tuple[Tensor, Tensor]) -> Tensor:
        codes, scale = kept
        dy_codes, dy_scale = _quantized(dy * scale, 0)
        return torch._int_mm(codes.T, dy_codes) * dy_scale

    (codes, scale), (weight_codes, weight_scale) = _quantized(x, 1), weight_of_y()
    product = Special(lambda: torch._int_mm(codes, weight_codes), lambda sums: sums.float() * scale * weight_scale)
    calls = _converting(x, partial(_quantized, axis=1), lambda kept: scaled(kept, weight_of_y()), dx, dw)
    return calls | {"product": product}


def _quantized(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """``x`` as 8-bit integers, and their scales, with one entry along ``axis``."""
    scale = x.abs().amax(axis, keepdim=True).clamp_(min=_TINY).div_(127)
    return (x / scale).round_().to(torch.int8), scale


def _dynamic(problem: GemmProblem, engine: str) -> Calls:
    """torch's dynamically quantized linear layer, with one scale for the whole of x."""
    if engine not in torch.backends.quantized.supported_engines:
        raise HpcgnnError(f"this build of torch does not have the engine {engine}")
    columns = problem.weight.T.contiguous()
    scale = columns.abs().amax(1).clamp(min=_TINY).double() / 127
    zeros = torch.zeros(problem.width, dtype=torch.long)
    usual = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        codes = torch.quantize_per_channel(columns, scale, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(codes, None)
    finally:
        torch.backends.quantized.engine = usual
    return {"y": lambda: torch.ops.quantized.linear_dynamic(problem.x, packed)}


def _peak(problem: GemmProblem, dtype: str) -> Calls:
    return dict.fromkeys(PRODUCTS, multiply_call(dtype, problem.multiply_adds))


# -- the contenders of a device ----------------------------------------------------------------------------------------


def _made(
    name: str, label: str, calls: Callable[..., Calls], directions: tuple[str, ...] = PRODUCTS, **others: Any
) -> Contender:
    return Contender(name, label, lambda problem, way: calls(problem)[way], directions=directions, **others)


_F32, _I8 = "ceiling.float32", "ceiling.int8"
_NO_PRODUCT = tuple(direction for direction in PRODUCTS if direction != "product")
# Without AVX-512, torch's engines use 7 of the 8 bits.
_OF_INT8: dict[str, Any] = {"tolerance": 7e-2, "dtype": "int8", "ceiling": _I8}
_OF_BF16: dict[str, Any] = {"tolerance": 2e-2, "dtype": "bf16"}
EVERYWHERE = (
    _made("ours", "ours float32", partial(_ours, compute="float32"), ceiling=_F32),
    _made("ours.bf16", "ours bf16", partial(_ours, compute="bf16"), _NO_PRODUCT, **_OF_BF16),
    _made("ours.int8", "ours int8", _ours_int8, **_OF_INT8),
    _made("ours.int8.quantize", "quantizing x",
          lambda problem: {"y": lambda: int8.quantize_rows(problem.x, key=_KEY).codes}, ("y",), tolerance=None, dtype="int8"),
    _made("exact", "EXACT-like storage", _exact, ("y", "dW", "layer"), **(_OF_INT8 | {"ceiling": _F32})),
    _made("torch", "torch float32", _of_floats, ceiling=_F32),
    _made("torch.bf16", "torch bf16", _torch_bf16, **_OF_BF16),
    _made("torch.int8", "torch._int_mm", _torch_int8, **_OF_INT8),
    _made("ceiling.copy", "copy of x", lambda problem: {"y": copy_call(problem.x)}, ("y",), tolerance=None),
)  # fmt: skip
_ENGINES = {"fbgemm": "FBGEMM, dynamic", "onednn": "oneDNN, dynamic"}
if platform.machine() == "aarch64":
    _ENGINES["qnnpack"] = "QNNPACK, dynamic quantization"
HOST = (
    *EVERYWHERE,
    _made("native", "native float32, any size", partial(_native, compute="float32"), ceiling=_F32),
    _made("native.bf16", "native bf16, any size", partial(_native, compute="bf16"), _NO_PRODUCT, **_OF_BF16),
    *(
        _made(f"torch.{engine}", label, partial(_dynamic, engine=engine), ("y",), **_OF_INT8)
        for engine, label in _ENGINES.items()
    ),
    *(
        _made(f"ceiling.{dtype}", f"peak of {dtype}", partial(_peak, dtype=dtype), tolerance=None, dtype=dtype)
        for dtype in ("float32", "int8")
    ),
)  # fmt: skip
DEVICE = (*EVERYWHERE, _made("ours.tf32", "ours tf32", partial(_ours, compute="tf32"), tolerance=2e-3, dtype="tf32"))


def by_name(device: str) -> dict[str, Contender]:
    """The contenders on a device, given by torch's name."""
    return {each.name: each for each in (HOST if device == HOST_NAME else DEVICE)}
