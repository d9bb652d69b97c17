"""Training in 8-bit integers: where, and by which rules (Tango §3.2).

- Products, aggregations and attention's weighted sums in training passes, where they are large enough to be faster for it
  (:func:`multiplies`, :meth:`Int8.aggregates`) and this processor is faster at it, by a short measurement (:func:`measured`).
- Weights, their gradients' sums and their update are float32 (Eq. 5, 6), and so is all between two layers.
- The layer before the softmax is float32, and so are attention's scores (Eq. 7, 8).
- A model whose first layer's output 8 bits do not hold (Eq. 4) goes on in float32.
- Evaluations and predictions are float32: their results do not depend on what multiplied in training.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import Messages, together
from hpcgnn.comm.mailbox import Message
from hpcgnn.devices import CPU, device_of
from hpcgnn.kernels import Csr, buffers, dense, dense_product, int8, keyed, spmm
from hpcgnn.kernels import int8_autograd as integers
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.quantizer import Quantizer
from hpcgnn.kernels.spmm import spmm as plain_spmm
from hpcgnn.nn.compute_config import STOCHASTIC, Int8Config
from hpcgnn.nn.timed import least_seconds, multiply_and_back

_LOG = logging.getLogger("hpcgnn")
_NOISE = 0x18  # beside the words of other keys
_FASTER = 1.1  # what a measurement must differ by to count
# Below these, an aggregation may be slower than in float32, quantization counted, by the study products.
_LEAST_ENTRIES_A_ROW = 8
_LEAST_BYTES_AGGREGATED = 8 << 20
_LEAST_WIDTH_AGGREGATED = 128
_LEAST_WIDTH_OF_A_HEAD = 32
_ROUNDS = 5
_ROWS, _WIDTH, _DEGREE = 1 << 15, 256, 16  # of the aggregation that is timed, and
_ROWS_MULTIPLIED = 1 << 13  # of the product


@dataclass(frozen=True)
class Limits:
    """Below these a product and its gradients may be slower than in float32, quantization counted, by the study products;
    whatever the number of threads, so that bits do not depend on it. multiplications: of it. narrow, wide: its two widths."""

    multiplications: int
    narrow: int
    wide: int


# With instructions that add four products, and without.
LIMITS = {True: Limits(1 << 23, 64, 128), False: Limits(1 << 25, 128, 256)}


@dataclass(frozen=True)
class Uses:
    """The operations that are done in 8-bit integers. products: dense ones. sums: aggregation, and what attention adds up.
    always: also where that is slower."""

    products: bool
    sums: bool
    always: bool = False

    def __str__(self) -> str:
        """As a checkpoint has it."""
        return " ".join(name for name in ("products", "sums", "always") if getattr(self, name))

    @classmethod
    def of(cls, text: str) -> Uses:
        """The inverse."""
        return cls("products" in text, "sums" in text, "always" in text)


class Int8:
    """The integer arithmetic that the layers of a model share, in place of the name of an arithmetic."""

    def __init__(self, config: Int8Config, uses: Uses, messages: Messages, backend: str) -> None:
        self.config, self.uses, self.messages = config, uses, messages
        self.quantizer = Quantizer(backend, is_stochastic=config.rounding == STOCHASTIC)
        self.limits = limits_of(backend, messages.device.where)
        self.is_checked = False  # whether 8 bits hold what the first layer makes

    @property
    def is_useful(self) -> bool:
        """Whether anything is faster for it on these processors."""
        return self.uses.products or self.uses.sums

    @property
    def is_on(self) -> bool:
        """Whether the present pass is one of training."""
        return self.messages.present.is_training

    def begin_epoch(self, epoch: int) -> None:
        """Begin a training step: roundings draw for it from now on."""
        present = self.messages.present
        self.quantizer.begin(keyed.derive_key(present.seed, epoch, self.messages.world.rank, _NOISE))

    def multiplies(self, rows: int, in_width: int, out_width: int) -> bool:
        """Whether the product (rows, in_width) x (in_width, out_width) and its gradients are done in integers, in this pass."""
        if not (self.is_on and self.uses.products):
            return False
        fits = 0 < in_width <= int8.MOST_TERMS and 0 < out_width <= int8.MOST_TERMS
        return fits if self.uses.always else multiplies(rows, in_width, out_width, self.limits)

    def aggregates(self, csr: Csr, x: torch.Tensor) -> bool:
        """Whether ``csr @ x`` reads 8-bit integers, in this pass."""
        if not (self.is_on and self.uses.sums and x.dtype == torch.float32):
            return False
        return self.uses.always or aggregates(csr, x.shape[1])

    def weighs(self, x: torch.Tensor) -> bool:
        """Whether attention's sums of rows ``x`` (n, F) read 8-bit integers, as far as can be told without its edges."""
        return self.is_on and self.uses.sums and (self.uses.always or _are_large(*x.shape))

    def extend(self, x: torch.Tensor | Int8Rows, message: Message, extended: torch.Tensor) -> None:
        """``extended`` (n + h, F) is known as 8-bit integers: ``x`` (n, F), and below it the rows that came as such."""
        own = self.quantizer.find(x) if isinstance(x, torch.Tensor) else x
        if not self.is_on or own is None:
            return
        width, where = extended.shape[1], extended.device
        codes = buffers.empty(extended.shape[0], width, torch.int8, where)
        rows = Int8Rows(codes, torch.empty(extended.shape[0], device=where))
        owned = own.shape[0]
        if message.codec.received_codes(message.received, Int8Rows(codes[owned:], rows.scale[owned:])):
            codes[:owned], rows.scale[:owned] = own.codes, own.scale
            self.quantizer.keep(extended, rows)

    def spmm(self, csr: Csr, x: torch.Tensor, weight: torch.Tensor, backend: str) -> torch.Tensor:
        """:func:`hpcgnn.kernels.spmm`, differentiable in x (C, F) and weight (entries, H)."""
        head_width = x.shape[1] // (weight.shape[1] if weight.dim() == 2 else 1)
        if self.aggregates(csr, x) and (self.uses.always or head_width >= _LEAST_WIDTH_OF_A_HEAD):
            return integers.spmm(csr, x, weight, self.quantizer)
        return spmm(csr, x, weight, backend=backend)

    def operand(self, x: torch.Tensor) -> Int8Operand:
        """``x`` (n, F) for several products."""
        return Int8Operand(x, self)

    def record(self) -> dict[str, int]:
        """The work of the quantizer in an epoch on this rank: matrices quantized, found again, and the most bytes kept for
        that."""
        counts = self.quantizer.take_counts()
        return {
            "int8_quantized": counts.quantized,
            "int8_reused": counts.reused,
            "int8_kept_bytes": counts.most_bytes,
        }

    def go_on(self, before: dict[str, str] | None) -> None:
        """As in the run that is continued, so that its bits are those of one that was not interrupted."""
        if before is not None and before["asked"].startswith("int8"):
            self.uses, self.is_checked = Uses.of(before.get("int8", "")), True

    # -- how many bits the model needs ----------------------------------------------------------------------------------

    def watch(self, first_layer: torch.nn.Module | None, give_up: Callable[[], None]) -> None:
        """Look at a layer's output in the first training pass, and ``give_up`` where 8 bits are too few for it.

        A collective will be in that pass.
        """
        if first_layer is None or self.is_checked:
            return

        def look(module: torch.nn.Module, given: Any, output: torch.Tensor) -> None:
            if self.is_on and not self.is_checked:
                handle.remove()
                self._check_bits(output, give_up)

        handle = first_layer.register_forward_hook(look)

    def _check_bits(self, output: torch.Tensor, give_up: Callable[[], None]) -> None:
        """Collective."""
        self.is_checked = True
        world, most = self.messages.world, self.config.most_error
        mine, count = errors(output)
        total = world.allreduce(np.array([*mine, float(count)]), what="the error of 8-bit integers")
        needed, error = bits_needed(total[:-1], total[-1], most)
        if world.rank == 0:
            enough = "8 bits are too few" if needed is None else f"{needed} bits are enough"
            _LOG.info("int8: the first layer's output has a relative error of %.3f in 8 bits; %s", error, enough)
        if needed is None and most < 1:
            if world.rank == 0:
                _LOG.warning(
                    "8-bit integers are too coarse for this model: the relative error of its first layer's output is %.3f, and "
                    "--int8-most-error is %g; training goes on in float32",
                    error,
                    most,
                )
            give_up()


class Int8Operand:
    """A float32 matrix (n, F) whose products are done in 8-bit integers where that is faster."""

    def __init__(self, x: torch.Tensor, owner: Int8) -> None:
        self.x, self._int8 = x, owner
        self._rows: Int8Rows | None = None

    def times(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        plus: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> torch.Tensor:
        """As :meth:`hpcgnn.nn.compute.Rounded.times`."""
        if not self._int8.multiplies(self.x.shape[0], *weight.shape):
            return dense_product(self.x, weight, bias, plus, backend)
        y = integers.dense(self.x, weight, bias, plus, self._int8.quantizer)
        self._rows = self._int8.quantizer.known(self.x)
        return y

    def factor(self) -> Int8Operand | Int8Factor:
        """The operand that the gradient of a weight needs: of integers, these alone, so that the floats need not be kept."""
        return self if self._rows is None else Int8Factor(self._rows, self._int8.quantizer)

    def weight_gradient(self, dy: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        """As :meth:`hpcgnn.nn.compute.Rounded.weight_gradient`, where products are float32."""
        return dense.weight_gradient(self.x.detach(), dy, backend=backend)[0]


@dataclass(frozen=True)
class Int8Factor:
    """The matrix (n, F) of a product that was one of integers."""

    rows: Int8Rows
    quantizer: Quantizer

    def weight_gradient(self, dy: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        """As :meth:`hpcgnn.nn.compute.Rounded.weight_gradient`."""
        return int8.weight_gradient(self.rows, dy.contiguous(), key=self.quantizer.next_key(), backend=backend)[0]


# -- where it pays -----------------------------------------------------------------------------------------------------


def limits_of(backend: str = "auto", where: torch.device = CPU.where) -> Limits:
    """Those of a device."""
    return LIMITS[int8.dot_products(backend, where)]


def multiplies(rows: int, in_width: int, out_width: int, limits: Limits = LIMITS[True]) -> bool:
    """Whether a product and its two gradients are large enough for 8-bit integers, and small enough for sums of int32."""
    narrowest, widest = min(in_width, out_width), max(in_width, out_width)
    is_large = rows * in_width * out_width >= limits.multiplications
    return is_large and narrowest >= limits.narrow and limits.wide <= widest <= int8.MOST_TERMS


def aggregates(csr: Csr, width: int) -> bool:
    """Whether a matrix names rows so often, and they are so many and wide, that quantizing them first pays."""
    return csr.num_entries >= _LEAST_ENTRIES_A_ROW * csr.num_cols and _are_large(csr.num_cols, width)


def _are_large(rows: int, width: int) -> bool:
    """Whether rows are so many and wide that sums of them are bound by memory."""
    return width >= _LEAST_WIDTH_AGGREGATED and 4 * rows * width >= _LEAST_BYTES_AGGREGATED


@dataclass(frozen=True)
class Measured:
    """How many times as fast as in float32: a product and its gradients, and an aggregation; quantization counted."""

    products: float
    sums: float

    @property
    def uses(self) -> Uses:
        """The operations that are faster beyond doubt."""
        return Uses(self.products >= _FASTER, self.sums >= _FASTER)


@functools.cache
def measured(backend: str = "auto", where: torch.device = CPU.where) -> Measured:
    """The speed of integers on a device, with the threads that torch has; about half a second for a process's first
    call."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(count, _WIDTH, generator=generator).to(where) for count in (_ROWS, _WIDTH))
    skewed = torch.rand(_ROWS * _DEGREE, generator=generator, dtype=torch.float64) ** 2  # some rows are named often
    indices = (skewed * _ROWS).to(torch.int32)
    csr = Csr(torch.arange(0, _ROWS * _DEGREE + 1, _DEGREE), indices, _ROWS, check=False).to(where)
    few = x[:_ROWS_MULTIPLIED]

    def products() -> None:
        y, rows = int8.product(few, weight, key=0, weight_key=0, backend=backend)
        int8.product(y, weight.T, key=0, weight_key=0, backend=backend)
        int8.weight_gradient(rows, y, key=0, backend=backend)

    def sums() -> None:
        own = int8.quantize_rows(x, key=0, backend=backend)
        plain_spmm(csr, own.codes, scale=own.scale, backend=backend)

    calls: dict[str, Callable[[], object]] = {
        "products": products,
        "float32 products": lambda: multiply_and_back(few, weight, backend),
        "sums": sums,
        "float32 sums": lambda: plain_spmm(csr, x, backend=backend),
    }
    least = least_seconds(calls, device_of(where), _ROUNDS)
    return Measured(*(least[f"float32 {what}"] / least[what] for what in ("products", "sums")))


def usable(backend: str = "auto", where: torch.device = CPU.where) -> Uses:
    """The operations that are faster on a device: by the measurement here, and by those of the study products."""
    found = measured(backend, where).uses
    return Uses(found.products, found.sums and int8.gathers_bytes(backend, where))


def make_int8(config: Int8Config, messages: Messages, backend: str = "auto", *, always: bool = False) -> Int8:
    """The integer arithmetic that the layers of a model share. All ranks use it for the same operations: those that are faster
    on each of them. Collective."""
    world = messages.world
    if always:
        return Int8(config, Uses(products=True, sums=True, always=True), messages, backend)
    with together(world, "measure products of 8-bit integers"):
        config.check()
        found = usable(backend, messages.device.where)
    mine = torch.tensor([int(found.products), int(found.sums)])
    products, sums = world.allreduce(mine, "min", "what is done in 8-bit integers").tolist()
    made = Int8(config, Uses(bool(products), bool(sums)), messages, backend)
    if world.rank == 0 and not made.is_useful:
        _LOG.warning("8-bit integers are not faster than float32 here: all is computed in float32")
    elif world.rank == 0:
        _LOG.info("int8: faster, and so done in 8-bit integers, are %s", " and ".join(str(made.uses).split()))
    return made


# -- how many bits a model needs ---------------------------------------------------------------------------------------

BITS = (4, 5, 6, 7, 8)
_EPSILON = 0.0005  # Tango's, of Eq. 4


def errors(x: torch.Tensor) -> tuple[list[float], int]:
    """The sum over the elements of ``x`` (n, F) of their relative errors (Tango Eq. 4), for each of :data:`BITS`; and how many
    elements there are. Rounded to the nearest, with a scale for each row."""
    x = x.detach().float()
    largest = x.abs().amax(1, keepdim=True) if x.numel() else x
    found = []
    for bits in BITS:
        step = (largest / (2 ** (bits - 1) - 1)).clamp(min=torch.finfo(torch.float32).tiny)
        near = torch.round(x / step) * step
        found.append(float(((x - near).abs() / ((x + near).abs() + _EPSILON)).double().sum()))
    return found, x.numel()


def bits_needed(totals: np.ndarray, count: float, most_error: float) -> tuple[int | None, float]:
    """The fewest bits whose error is below ``most_error``, None where 8 are too few; and the error of 8 bits."""
    means = totals / max(count, 1)
    return next((bits for bits, mean in zip(BITS, means, strict=True) if mean < most_error), None), float(means[-1])
