"""Training in 8-bit integers: the operations that use them, and the rules (Tango §3.2).

- Products, aggregations and attention's weighted sums of training passes use 8-bit integers if they are large enough
  (:func:`multiplies`, :meth:`Int8.aggregates`) and if a short measurement finds integers faster on this processor
  (:func:`measured`).
- Weights, sums of their gradients and their update are float32 (Eq. 5, 6), and so is everything between two layers.
- The layer before the softmax is float32, and so are attention's scores (Eq. 7, 8).
- If 8 bits are too few for the output of a model's first layer (Eq. 4), training continues in float32.
- Evaluations and predictions are float32, so their results do not depend on the arithmetic of training.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.process import return_free_memory
from hpcgnn.devices import CPU, device_of
from hpcgnn.exchange import Messages, QuantizedRows
from hpcgnn.exchange.codecs import Codec
from hpcgnn.exchange.mailbox import Message
from hpcgnn.kernels import Csr, buffers, dense, int8, keyed, spmm
from hpcgnn.kernels import int8_autograd as integers
from hpcgnn.kernels.autograd import layer_product
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.kernels.quantizer import Quantizer
from hpcgnn.kernels.spmm import multiply, products_by_blocks
from hpcgnn.kernels.spmm import spmm as plain_spmm
from hpcgnn.nn.compute import ROWS_OF_GPUS, least_seconds, multiply_and_back
from hpcgnn.nn.config import STOCHASTIC, TENSOR, Int8Config
from hpcgnn.nn.linear_map import FloatRows, LinearMap, RowKind
from hpcgnn.world import raise_on_all_ranks

_LOG = logging.getLogger("hpcgnn")
_NOISE = 0x18  # distinguishes these keys from other keys
_FASTER = 1.1  # speedups below this do not count as faster
# Smaller aggregations may be slower than in float32, quantization included, according to the study `products`.
_LEAST_ENTRIES_A_ROW = 8
_LEAST_BYTES_AGGREGATED = 8 << 20
_LEAST_WIDTH_AGGREGATED = 128
_LEAST_WIDTH_OF_A_HEAD = 32
_ROUNDS = 5
_ROWS, _WIDTH, _DEGREE = 1 << 15, 256, 16  # shape of the aggregation that is timed
_ROWS_MULTIPLIED = 1 << 13  # rows of the product that is timed; on GPUs, both have compute.ROWS_OF_GPUS


@dataclass(frozen=True)
class Limits:
    """The sizes below which a product and its gradients may be slower than in float32, quantization included.

    They are from the study `products`, and are the same for any number of threads, so that results do not depend on it.
    multiplications: of the product. narrow, wide: its smaller and its larger width.
    """

    multiplications: int
    narrow: int
    wide: int


# With instructions that add four products at once, and without.
LIMITS = {True: Limits(1 << 23, 64, 128), False: Limits(1 << 25, 128, 256)}
# Those of an H100. Integers need more kernels, and epochs with smaller products are limited by the host, which starts them.
LIMITS_OF_GPUS = Limits(1 << 34, 100, 128)


@dataclass(frozen=True)
class Uses:
    """The operations that are computed in 8-bit integers. products: dense products. sums: aggregations and attention's sums.
    always: use integers also where they are slower.
    """

    products: bool
    sums: bool
    always: bool = False

    def __str__(self) -> str:
        """The text that a checkpoint stores."""
        return " ".join(name for name in ("products", "sums", "always") if getattr(self, name))

    @classmethod
    def of(cls, text: str) -> Uses:
        """The inverse of ``str``."""
        return cls("products" in text, "sums" in text, "always" in text)


class Int8:
    """The integer arithmetic that the layers of a model share; it takes the place of the name of an arithmetic."""

    def __init__(self, config: Int8Config, uses: Uses, messages: Messages, backend: str) -> None:
        self.config, self.uses, self.messages = config, uses, messages
        self.quantizer = Quantizer(backend, is_stochastic=config.rounding == STOCHASTIC)
        self.limits = limits_of(backend, messages.device.torch_device)
        self.is_checked = False  # whether the error of the first layer's output was checked

    @property
    def is_useful(self) -> bool:
        """Return whether any operation is faster in integers on these processors."""
        return self.uses.products or self.uses.sums

    @property
    def is_training_pass(self) -> bool:
        """Return whether the present pass is a training pass."""
        return self.messages.current_pass.is_training

    def begin_epoch(self, epoch: int) -> None:
        """Begin a training step: rounding uses random numbers of this epoch from now on."""
        present = self.messages.current_pass
        self.quantizer.begin(keyed.derive_key(present.seed, epoch, self.messages.world.rank, _NOISE))

    def multiplies(self, rows: int, in_width: int, out_width: int) -> bool:
        """Return whether the product (rows, in_width) x (in_width, out_width) and its gradients use integers in this pass."""
        if not (self.is_training_pass and self.uses.products):
            return False
        fits = 0 < in_width <= int8.MOST_TERMS and 0 < out_width <= int8.MOST_TERMS
        return fits if self.uses.always else multiplies(rows, in_width, out_width, self.limits)

    def aggregates(self, csr: Csr, x: Tensor) -> bool:
        """Return whether ``csr @ x`` reads 8-bit integers in this pass."""
        if not (self.is_training_pass and self.uses.sums and x.dtype == torch.float32):
            return False
        return self.uses.always or aggregates(csr, x.shape[1])

    def weighs(self, csr: Csr, width: int, heads: int) -> bool:
        """Return whether attention's sums over ``csr``, of rows of ``width`` columns, read 8-bit integers in this pass."""
        if not (self.is_training_pass and self.uses.sums):
            return False
        return self.uses.always or (aggregates(csr, width) and width >= heads * _LEAST_WIDTH_OF_A_HEAD)

    def weighs_in_int8(self, shape: Sequence[int]) -> bool:
        """Return whether attention sums rows of this shape as 8-bit integers, as far as this is known without the edges."""
        return self.is_training_pass and self.uses.sums and (self.uses.always or _are_large(*shape))

    def spmm(self, csr: Csr, x: Tensor, weight: Tensor, backend: str) -> Tensor:
        """:func:`hpcgnn.kernels.spmm`, differentiable in x (C, F) and weight (entries, H)."""
        if x.dtype == torch.float32 and self.weighs(csr, x.shape[1], weight.shape[1] if weight.dim() == 2 else 1):
            return integers.spmm(csr, x, weight, self.quantizer)
        return spmm(csr, x, weight, backend=backend)

    def record(self) -> dict[str, int]:
        """Counters of the quantizer for this epoch and rank: quantized matrices, reused matrices, and the most bytes kept for
        reuse.
        """
        counts = self.quantizer.take_counts()
        return {
            "int8_quantized": counts.quantized,
            "int8_reused": counts.reused,
            "int8_kept_bytes": counts.most_bytes,
        }

    def resume_choice(self, before: dict[str, str] | None) -> None:
        """Continue with the operations of the run that is resumed, so that its results are the same bits as without
        interruption.
        """
        if before is not None and before["asked"].startswith("int8"):
            self.uses, self.is_checked = Uses.of(before.get("int8", "")), True

    # -- sufficient bits for a model ------------------------------------------------------------------------------------

    def watch(self, first_layer: torch.nn.Module | None, give_up: Callable[[], None]) -> None:
        """Check a layer's output in the first training pass, and call ``give_up`` if 8 bits are too few for it.

        That pass then contains one more collective.
        """
        if first_layer is None or self.is_checked:
            return

        def look(module: torch.nn.Module, given: Any, output: Tensor) -> None:
            if self.is_training_pass and not self.is_checked:
                handle.remove()
                self._check_bits(output, give_up)

        handle = first_layer.register_forward_hook(look)

    def _check_bits(self, output: Tensor, give_up: Callable[[], None]) -> None:
        """Compare the error of ``output`` with the largest one allowed. Collective."""
        self.is_checked = True
        world, most = self.messages.world, self.config.most_error
        largest = None
        if self.config.error_scale == TENSOR:
            own = output.detach().abs().amax() if output.numel() else torch.zeros(())
            largest = world.allreduce(own.float().cpu().view(1), "max", what="the largest magnitude of the output")
        mine, count = errors(output, largest)
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


class SummedRows(FloatRows):
    """Rows that are added up: quantized before they are aggregated, where that is faster. Copies of them are sent as the
    integers that they are, if messages have 8 bits."""

    is_repeatable = False

    def __init__(self, linear: LinearMap, int8: Int8) -> None:
        super().__init__(linear)
        self.int8 = int8
        self._factor = None if linear.right is None else linear.right.view(-1)

    @functools.cached_property
    def sources(self) -> tuple[Tensor, bool]:
        """(s,) int64, the row of x that each sent row copies, or -1 if it is a sum or is weighted; and whether there are such
        other rows.
        """
        send = self.linear.plan.send
        is_copy = send.indptr.diff() == 1
        first = send.indptr[:-1].clamp(max=max(send.num_entries - 1, 0))
        if send.weight is not None and send.num_entries:
            is_copy &= send.weight[first] == 1
        sources = send.indices[first].long() if send.num_entries else torch.zeros_like(first)
        return torch.where(is_copy, sources, -1), not bool(is_copy.all())

    def scaled(self, x: Tensor, *, overwrites: bool = False) -> Tensor | Int8Rows:
        """See :meth:`FloatRows.scaled`."""
        if self.int8.aggregates(self.linear.plan.local, x):
            return self.int8.quantizer.rows(x, self._factor)
        return super().scaled(x, overwrites=overwrites)

    def multiply(
        self, matrix: Csr, x: Tensor | Int8Rows, out: Tensor | None = None, *, accumulate: bool = False
    ) -> Tensor:
        """See :meth:`FloatRows.multiply`."""
        if isinstance(x, Tensor):
            return super().multiply(matrix, x, out, accumulate=accumulate)
        return multiply(matrix, x.codes, out, self.linear.backend, scale=x.scale, accumulate=accumulate)

    def in_blocks(self, matrix: Csr, x: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
        """See :meth:`FloatRows.in_blocks`."""
        if not self.int8.aggregates(matrix, x):
            return super().in_blocks(matrix, x, rows)
        given = self.int8.quantizer.rows(x)  # whose products use the same integers: no row is sent, so scales are free
        scale = given.scale if self._factor is None else given.scale * self._factor
        return products_by_blocks(matrix, given.codes, rows, self.linear.backend, scale=scale)

    def pre_aggregate(self, x: Tensor | Int8Rows, rows: Tensor, codec: Codec) -> QuantizedRows | None:
        """See :meth:`FloatRows.pre_aggregate`."""
        integers = self.integers(x) if codec.sends_int8_rows and self.int8.is_training_pass else None
        if integers is None:
            return super().pre_aggregate(x, rows, codec)
        sources, has_sums = self.sources
        if codec.sends_other_rows or has_sums:
            super().pre_aggregate(x, rows, codec)
        return QuantizedRows(integers, sources)

    def integers(self, x: Tensor | Int8Rows) -> Int8Rows | None:
        """The integers of ``x`` (n, F), if it is aggregated as integers."""
        return x if isinstance(x, Int8Rows) else None


class HaloRows(SummedRows):
    """Rows that are copied to the halo, and weighed there by attention: the integers that are sent are those that are weighed,
    on both sides."""

    is_repeatable = True

    def scaled(self, x: Tensor, *, overwrites: bool = False) -> Tensor:
        """``x``: the copies of a rank's own rows are floats."""
        return x.contiguous()

    def integers(self, x: Tensor | Int8Rows) -> Int8Rows | None:
        """The integers of ``x`` (n, F), if attention weighs integers."""
        return self.int8.quantizer.rows(x) if isinstance(x, Tensor) and self.int8.weighs_in_int8(x.shape) else None

    def note(self, x: Tensor, message: Message, z: Tensor) -> None:
        """Remember the integers of ``z`` (n + h, F): those of ``x`` (n, F), followed by rows that came as integers."""
        own = self.int8.quantizer.find(x)
        if not self.int8.is_training_pass or own is None:
            return
        if z.shape == own.shape:  # no rows came
            self.int8.quantizer.keep(z, own)
            return
        codes = buffers.empty(z.shape[0], z.shape[1], torch.int8, z.device)
        rows, owned = Int8Rows(codes, torch.empty(z.shape[0], device=z.device)), own.shape[0]
        if message.codec.received_codes(message.received, Int8Rows(codes[owned:], rows.scale[owned:])):
            codes[:owned], rows.scale[:owned] = own.codes, own.scale
            self.int8.quantizer.keep(z, rows)


SUMMED = RowKind(SummedRows, SummedRows, are_summed=True)
COPIED_TO_HALO = RowKind(HaloRows)  # gradients of copies are added up as floats


class Int8Operand:
    """A float32 matrix (n, F) whose products are computed in 8-bit integers where that is faster."""

    def __init__(self, x: Tensor, owner: Int8, of_rows: int | None = None, integers: Int8Rows | None = None) -> None:
        self.x, self._int8, self._of_rows = x, owner, x.shape[0] if of_rows is None else of_rows
        self._rows = integers

    @property
    def integers(self) -> Tensor | Int8Rows:
        """The integers if they exist, else the floats."""
        return self.x if self._rows is None else self._rows

    def times(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        plus: Tensor | None = None,
        backend: str = "auto",
    ) -> Tensor:
        """See :meth:`hpcgnn.nn.compute.Rounded.times`."""
        if not self._int8.multiplies(self._of_rows, *weight.shape):
            return layer_product(self.x, weight, bias, plus, backend)
        y = integers.dense(self.x, weight, bias, plus, self._int8.quantizer)
        self._rows = self._int8.quantizer.known(self.x)
        return y

    def write(self, out: Tensor, weight: Tensor, bias: Tensor | None, *, adds: bool) -> bool:
        """Write the product, plus the ``bias``, to ``out`` (contiguous), or add it; return False where it is not computed in
        integers. Not differentiable."""
        if not self._int8.multiplies(self._of_rows, *weight.shape):
            return False
        quantizer = self._int8.quantizer
        self._rows = self._rows or quantizer.rows(self.x)
        key, backend = quantizer.next_key(), quantizer.backend
        int8.product(self._rows, weight, bias, out, weight_key=key, backend=backend, accumulate=adds)
        return True

    def kept(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Int8Operand | Int8Factor]]:
        """The tensors from which the second makes the operand for the gradient of a weight: the integers, if the product used
        them, and not the floats."""
        owner, quantizer = self._int8, self._int8.quantizer  # a function that refers to self would keep x
        if self._rows is None:
            return [self.x], lambda tensors: Int8Operand(tensors[0], owner)
        return [self._rows.codes, self._rows.scale], lambda tensors: Int8Factor(Int8Rows(*tensors), quantizer)

    def coded(self, out_width: int) -> Int8Operand:
        """This operand, with its integers if a product with so many columns, or the gradient of its weight, reads them."""
        if self._rows is None and self._int8.multiplies(self._of_rows, self.x.shape[1], out_width):
            self._rows = self._int8.quantizer.rows(self.x)
        return self

    def rows(self, place: slice) -> Int8Operand:
        """See :meth:`hpcgnn.nn.compute.Rounded.rows`."""
        integers = None if self._rows is None else self._rows.rows(place)
        return Int8Operand(self.x[place], self._int8, self._of_rows, integers)

    def weight_gradient(self, dy: Tensor, backend: str = "auto") -> Tensor:
        """See :meth:`hpcgnn.nn.compute.Rounded.weight_gradient`; for products that were computed in float32."""
        x = self.x.detach()
        return dense.run_weight_gradient(dense.kernels_for(x, backend), x, dy)[0]


@dataclass(frozen=True)
class Int8Factor:
    """The 8-bit integers (n, F) of a matrix whose product was computed in integers."""

    integers: Int8Rows
    quantizer: Quantizer

    def times(
        self, weight: Tensor, bias: Tensor | None = None, plus: Tensor | None = None, backend: str = "auto"
    ) -> Tensor:
        """See :meth:`hpcgnn.nn.compute.Rounded.times`; not differentiable."""
        key = self.quantizer.next_key()
        return int8.product(self.integers, weight.detach(), bias, plus, weight_key=key, backend=backend)

    def rows(self, place: slice) -> Int8Factor:
        """See :meth:`hpcgnn.nn.compute.Rounded.rows`."""
        return Int8Factor(self.integers.rows(place), self.quantizer)

    def weight_gradient(self, dy: Tensor | Int8Rows, backend: str = "auto") -> Tensor:
        """See :meth:`hpcgnn.nn.compute.Rounded.weight_gradient`. dy: floats, or the integers that another product read."""
        return int8.weight_gradient(self.integers, dy, key=self.quantizer.next_key(), backend=backend)[0]


# -- conditions for integers -------------------------------------------------------------------------------------------


def limits_of(backend: str = "auto", torch_device: torch.device = CPU.torch_device) -> Limits:
    """The limits of a device."""
    return LIMITS_OF_GPUS if torch_device.type == "cuda" else LIMITS[int8.dot_products(backend, torch_device)]


def multiplies(rows: int, in_width: int, out_width: int, limits: Limits = LIMITS[True]) -> bool:
    """Return whether a product and its two gradients are large enough for 8-bit integers, and small enough for sums in int32."""
    narrowest, widest = min(in_width, out_width), max(in_width, out_width)
    is_large = rows * in_width * out_width >= limits.multiplications
    return is_large and narrowest >= limits.narrow and limits.wide <= widest <= int8.MOST_TERMS


def aggregates(csr: Csr, width: int) -> bool:
    """Return whether a matrix has so many entries for each row of x, and x is so large and wide, that quantizing x first is
    faster.
    """
    return csr.num_entries >= _LEAST_ENTRIES_A_ROW * csr.num_cols and _are_large(csr.num_cols, width)


def _are_large(rows: int, width: int) -> bool:
    """Return whether there are so many rows, and they are so wide, that memory limits the speed of their sums."""
    return width >= _LEAST_WIDTH_AGGREGATED and 4 * rows * width >= _LEAST_BYTES_AGGREGATED


@dataclass(frozen=True)
class Measured:
    """Speedups over float32, quantization included, of a product with its gradients and of an aggregation."""

    products: float
    sums: float

    @property
    def uses(self) -> Uses:
        """The operations that are clearly faster."""
        return Uses(self.products >= _FASTER, self.sums >= _FASTER)


@functools.cache
def measured(backend: str = "auto", torch_device: torch.device = CPU.torch_device) -> Measured:
    """The speedups of integers on a device, with torch's present number of threads. The first call of a process takes about
    half a second.
    """
    generator = torch.Generator().manual_seed(0)
    rows, multiplied = (ROWS_OF_GPUS,) * 2 if torch_device.type == "cuda" else (_ROWS, _ROWS_MULTIPLIED)
    x, weight = (torch.randn(count, _WIDTH, generator=generator).to(torch_device) for count in (rows, _WIDTH))
    # Some rows are used by many entries.
    skewed = torch.rand(rows * _DEGREE, generator=generator, dtype=torch.float64) ** 2
    indices = (skewed * rows).to(torch.int32)
    csr = Csr(torch.arange(0, rows * _DEGREE + 1, _DEGREE), indices, rows, check=False).to(torch_device)
    few = x[:multiplied]

    def products() -> None:
        codes = int8.quantize_rows(few, key=0, backend=backend)
        y = int8.product(codes, weight, weight_key=0, backend=backend)
        int8.product(int8.quantize_rows(y, key=0, backend=backend), weight.T, weight_key=0, backend=backend)
        int8.weight_gradient(codes, y, key=0, backend=backend)

    def sums() -> None:
        own = int8.quantize_rows(x, key=0, backend=backend)
        plain_spmm(csr, own.codes, scale=own.scale, backend=backend)

    calls: dict[str, Callable[[], object]] = {
        "products": products,
        "float32 products": lambda: multiply_and_back(few, weight, backend),
        "sums": sums,
        "float32 sums": lambda: plain_spmm(csr, x, backend=backend),
    }
    least = least_seconds(calls, device_of(torch_device), _ROUNDS)
    if (pool := buffers.default_pool()) is not None:
        pool.clear()  # a training has results of other sizes
    return Measured(*(least[f"float32 {what}"] / least[what] for what in ("products", "sums")))


def usable(backend: str = "auto", torch_device: torch.device = CPU.torch_device) -> Uses:
    """The operations that are faster on a device, both by the measurement here and according to the study `products`."""
    found = measured(backend, torch_device).uses
    return_free_memory()
    return Uses(found.products, found.sums and int8.gathers_bytes(backend, torch_device))


def make_int8(
    config: Int8Config, messages: Messages, backend: str = "auto", *, always: bool = False, otherwise: str = "float32"
) -> Int8:
    """The integer arithmetic that the layers of a model share. Collective.

    All ranks use it for the same operations: those that are faster on every rank. otherwise: the arithmetic that a warning names
    if there are none.
    """
    world = messages.world
    if always:
        return Int8(config, Uses(products=True, sums=True, always=True), messages, backend)
    with raise_on_all_ranks(world, "measure products of 8-bit integers"):
        config.check()
        found = usable(backend, messages.device.torch_device)
    mine = torch.tensor([int(found.products), int(found.sums)])
    products, sums = world.allreduce(mine, "min", "the operations in 8-bit integers").tolist()
    made = Int8(config, Uses(bool(products), bool(sums)), messages, backend)
    if world.rank == 0 and not made.is_useful:
        _LOG.warning("8-bit integers are not faster than float32 here: everything is computed in %s", otherwise)
    elif world.rank == 0:
        _LOG.info(
            "int8: these operations are faster in 8-bit integers, and use them: %s",
            " and ".join(str(made.uses).split()),
        )
    return made


# -- sufficient bits for a matrix -------------------------------------------------------------------------------------

BITS = (4, 5, 6, 7, 8)
_EPSILON = 0.0005  # the epsilon of Tango's Eq. 4
_ROWS_AT_ONCE = 1 << 12  # limits memory of temporaries


def errors(x: Tensor, largest: Tensor | None = None) -> tuple[list[float], int]:
    """The sum of the relative errors of the elements of ``x`` (n, F) (Tango Eq. 4) for each of :data:`BITS`, and the number of
    elements.

    Values are rounded to the nearest, with a scale for each row, or one for all rows if the ``largest`` magnitude (1,) of a value
    on any rank is given.
    """
    found = torch.zeros(len(BITS), dtype=torch.float64, device=x.device)
    for rows in x.detach().split(_ROWS_AT_ONCE) if x.numel() else ():
        rows = rows.float()
        most = rows.abs().amax(1, keepdim=True) if largest is None else largest.to(x.device)
        for place, bits in enumerate(BITS):
            step = (most / (2 ** (bits - 1) - 1)).clamp(min=torch.finfo(torch.float32).tiny)
            near = torch.round(rows / step) * step
            found[place] += ((rows - near).abs() / ((rows + near).abs() + _EPSILON)).sum(dtype=torch.float64)
    return found.tolist(), x.numel()


def bits_needed(totals: np.ndarray, count: float, most_error: float) -> tuple[int | None, float]:
    """The smallest bit-width whose error is below ``most_error``, or None if 8 bits are too few; and the error of 8 bits."""
    means = totals / max(count, 1)
    return next((bits for bits, mean in zip(BITS, means, strict=True) if mean < most_error), None), float(means[-1])
