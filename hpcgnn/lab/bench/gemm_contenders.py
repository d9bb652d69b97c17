"""The contenders that multiply dense matrices: ours in every arithmetic, torch, and libraries that quantize.

A layer's products are ``y = x W``, ``dx = dy W^T`` and ``dW = x^T dy``; *layer* is all three, and *product* is y alone from
operands that are converted in advance. The time of a contender includes its conversions, with two exceptions: dW takes x as y has
converted it, as in training (Tango §3.3), and libraries for inference pack the weight in advance. In *layer*, each operand is
converted once for all products that can share it.
"""

from __future__ import annotations

import platform
from functools import partial
from typing import Any

import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import dense, dense_product, int8
from hpcgnn.lab.bench.ceilings import copy_call, multiply_call
from hpcgnn.lab.bench.names import HOST_NAME, PRODUCTS
from hpcgnn.lab.bench.problem import Call, Contender, Prepare, Result, Special, normal

_KEY, _WEIGHT_KEY = 1, 2  # keys of the rounding noise, which training uses as well
_TINY = 1e-30


class GemmProblem:
    """``x`` (rows, depth), ``weight`` (depth, width) and ``dy`` (rows, width), float32 on ``device``. multiply_adds: of each of
    the three products."""

    def __init__(self, rows: int, depth: int, width: int, device: Device = CPU) -> None:
        self.width, self.multiply_adds = width, rows * depth * width
        shapes = (rows, depth), (depth, width), (rows, width)
        self.x, self.weight, self.dy = (normal(*shape, stream, device) for stream, shape in enumerate(shapes))

    def exact(self, direction: str) -> tuple[torch.Tensor, ...]:
        """The exact results of a direction, in float64; *layer* has all three."""
        x, weight, dy = (each.double() for each in (self.x, self.weight, self.dy))
        products = {"y": lambda: x @ weight, "dx": lambda: dy @ weight.T, "dW": lambda: x.T @ dy}
        products["product"] = products["y"]
        return tuple(products[name]() for name in (("y", "dx", "dW") if direction == "layer" else (direction,)))


class _Products:
    """One way to compute the products. A subclass has a method, in lower case, for each direction that it can compute, and
    perhaps a method ``finish_...``, which is not timed, to make the result comparable."""

    def __init__(self, problem: GemmProblem) -> None:
        self.x, self.weight, self.dy = problem.x, problem.weight, problem.dy

    def layer(self) -> Result:
        """All three products."""
        return self.y(), self.dx(), self.dw()  # type: ignore[attr-defined]


class _Plain(_Products):
    """Products of float32 tensors, which a subclass multiplies, or converts and multiplies."""

    def multiply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight

    def y(self) -> torch.Tensor:
        return self.multiply(self.x, self.weight)

    def dx(self) -> torch.Tensor:
        return self.multiply(self.dy, self.weight.T)

    def dw(self) -> torch.Tensor:
        return self.x.T @ self.dy

    product = y


class _Ours(_Plain):
    compute = "float32"

    def multiply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return dense_product(x, weight, compute=self.compute)

    def dw(self) -> torch.Tensor:
        return dense.weight_gradient(self.x, self.dy, compute=self.compute)[0]


class _OursBf16(_Ours):
    compute = "bf16"


class _OursTf32(_Ours):
    compute = "tf32"


class _Native(_Plain):
    """Our native kernels at any size; :class:`_Ours` leaves small products to torch."""

    compute = "float32"

    def __init__(self, problem: GemmProblem) -> None:
        super().__init__(problem)
        if self.compute not in dense.DENSE.native.arithmetics():
            raise HpcgnnError(f"this CPU does not support {self.compute}")

    def multiply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape[0], weight.shape[1])
        dense.multiply(x, weight, None, False, out, self.compute)
        return out

    def dw(self) -> torch.Tensor:
        out = torch.empty_like(self.weight)
        dense.contract(self.x, self.dy, out, None, self.compute)
        return out


class _NativeBf16(_Native):
    compute = "bf16"


class _OursInt8(_Products):
    def __init__(self, problem: GemmProblem) -> None:
        super().__init__(problem)
        self.kept = int8.quantize_rows(self.x, key=_KEY)

    def y(self) -> torch.Tensor:
        self.kept = int8.quantize_rows(self.x, key=_KEY)
        return self.product()

    def dx(self) -> torch.Tensor:
        return int8.product(int8.quantize_rows(self.dy, key=_KEY), self.weight.T, weight_key=_WEIGHT_KEY)

    def dw(self) -> torch.Tensor:
        return int8.weight_gradient(self.kept, self.dy, key=_KEY)[0]

    def product(self) -> torch.Tensor:
        return int8.product(self.kept, self.weight, weight_key=_WEIGHT_KEY)


class _Exact(_Ours):
    """Keeps x in 8 bits from forward to backward, and multiplies in float32."""

    def __init__(self, problem: GemmProblem) -> None:
        super().__init__(problem)
        self.kept = int8.quantize_rows(self.x, key=_KEY)

    def y(self) -> torch.Tensor:
        self.kept = int8.quantize_rows(self.x, key=_KEY)
        return super().y()

    def dw(self) -> torch.Tensor:
        return dense.weight_gradient(self.kept.float(), self.dy)[0]


class _TorchBf16(_Products):
    def __init__(self, problem: GemmProblem) -> None:
        super().__init__(problem)
        self.kept, self.weight_kept = self.x.bfloat16(), self.weight.bfloat16()

    def y(self) -> torch.Tensor:
        self.kept = self.x.bfloat16()
        return (self.kept @ self.weight.bfloat16()).float()

    def dx(self) -> torch.Tensor:
        return (self.dy.bfloat16() @ self.weight.bfloat16().T).float()

    def dw(self) -> torch.Tensor:
        return (self.kept.T @ self.dy.bfloat16()).float()

    def layer(self) -> Result:
        self.kept, weight, dy = self.x.bfloat16(), self.weight.bfloat16(), self.dy.bfloat16()
        return (self.kept @ weight).float(), (dy @ weight.T).float(), (self.kept.T @ dy).float()

    def product(self) -> torch.Tensor:
        return self.kept @ self.weight_kept

    def finish_product(self, out: torch.Tensor) -> torch.Tensor:
        return out.float()


class _TorchInt8(_Products):
    """torch's products of 8-bit integers, rounded to the nearest, which is less work than noise. The weight is packed in its
    fastest form, with columns as rows."""

    def __init__(self, problem: GemmProblem) -> None:
        super().__init__(problem)
        self.kept = _quantized(self.x, 1)
        self.weight_kept = self._weight_of_y()

    def y(self) -> torch.Tensor:
        self.kept = _quantized(self.x, 1)
        return self._scaled(*self.kept, *self._weight_of_y())

    def dx(self) -> torch.Tensor:
        codes, scale = _quantized(self.weight, 1)
        return self._scaled(*_quantized(self.dy, 1), codes.T, scale.T)

    def dw(self) -> torch.Tensor:
        codes, scale = self.kept
        dy_codes, dy_scale = _quantized(self.dy * scale, 0)
        return torch._int_mm(codes.T, dy_codes) * dy_scale

    def product(self) -> torch.Tensor:
        return torch._int_mm(self.kept[0], self.weight_kept[0])

    def _weight_of_y(self) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scale = _quantized(self.weight.T.contiguous(), 1)
        return codes.T, scale.T

    @staticmethod
    def _scaled(
        codes: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor
    ) -> torch.Tensor:
        return torch._int_mm(codes, weight).float().mul_(scale).mul_(weight_scale)

    def finish_product(self, sums: torch.Tensor) -> torch.Tensor:
        return sums.float() * self.kept[1] * self.weight_kept[1]


def _quantized(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` as 8-bit integers, and their scales, with one entry along ``axis``."""
    scale = x.abs().amax(axis, keepdim=True).clamp_(min=_TINY).div_(127)
    return (x / scale).round_().to(torch.int8), scale


def _by(products: type[_Products]) -> Prepare:
    def prepare(problem: GemmProblem, direction: str) -> Call:
        made = products(problem)
        call, finish = getattr(made, direction.lower()), getattr(made, f"finish_{direction.lower()}", None)
        return call if finish is None else Special(call, finish)

    return prepare


def _dynamic(engine: str) -> Prepare:
    """torch's dynamically quantized linear layer, with one scale for the whole of x."""

    def prepare(problem: GemmProblem, direction: str) -> Call:
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
        return lambda: torch.ops.quantized.linear_dynamic(problem.x, packed)

    return prepare


def _peak(problem: GemmProblem, direction: str, dtype: str) -> Call:
    return multiply_call(dtype, problem.multiply_adds)


def _quantize_alone(problem: GemmProblem, direction: str) -> Call:
    return lambda: int8.quantize_rows(problem.x, key=_KEY).codes


_F32, _I8 = "ceiling.float32", "ceiling.int8"


def _made(name: str, label: str, products: type[_Products], **changes: Any) -> Contender:
    return Contender(name, label, name, _by(products), **({"directions": PRODUCTS} | changes))


_NO_PRODUCT = tuple(direction for direction in PRODUCTS if direction != "product")
_OF_INT8: dict[str, Any] = {"tolerance": 5e-2, "dtype": "int8", "ceiling": _I8}
_OF_BF16: dict[str, Any] = {"tolerance": 2e-2, "dtype": "bf16"}
EVERYWHERE = (
    _made("ours", "ours float32", _Ours, ceiling=_F32),
    _made("ours.bf16", "ours bf16", _OursBf16, directions=_NO_PRODUCT, **_OF_BF16),
    _made("ours.int8", "ours int8", _OursInt8, **_OF_INT8),
    Contender("ours.int8.quantize", "quantizing x", "ours.int8", _quantize_alone, directions=("y",), tolerance=None,
              dtype="int8"),
    _made("exact", "EXACT-like storage", _Exact, directions=("y", "dW", "layer"), **(_OF_INT8 | {"ceiling": _F32})),
    _made("torch", "torch float32", _Plain, ceiling=_F32),
    _made("torch.bf16", "torch bf16", _TorchBf16, **_OF_BF16),
    _made("torch.int8", "torch._int_mm", _TorchInt8, **_OF_INT8),
    Contender("ceiling.copy", "copy of x", "ceiling", lambda problem, _: copy_call(problem.x), directions=("y",),
              tolerance=None),
)  # fmt: skip
_ENGINES = {"fbgemm": "FBGEMM, dynamic", "onednn": "oneDNN, dynamic"}
if platform.machine() == "aarch64":
    _ENGINES["qnnpack"] = "QNNPACK, dynamic quantization"
HOST = (
    *EVERYWHERE,
    _made("native", "native float32, any size", _Native, ceiling=_F32),
    _made("native.bf16", "native bf16, any size", _NativeBf16, directions=_NO_PRODUCT, **_OF_BF16),
    *(
        Contender(f"torch.{engine}", label, f"torch.{engine}", _dynamic(engine), directions=("y",), **_OF_INT8)
        for engine, label in _ENGINES.items()
    ),
    *(
        Contender(f"ceiling.{dtype}", f"peak of {dtype}", "ceiling", partial(_peak, dtype=dtype), directions=PRODUCTS,
                  tolerance=None, dtype=dtype)
        for dtype in ("float32", "int8")
    ),
)  # fmt: skip
DEVICE = (*EVERYWHERE, _made("ours.tf32", "ours tf32", _OursTf32, tolerance=2e-3, dtype="tf32"))


def by_name(device: str) -> dict[str, Contender]:
    """The contenders on a device, given by torch's name."""
    return {each.name: each for each in (HOST if device == HOST_NAME else DEVICE)}
