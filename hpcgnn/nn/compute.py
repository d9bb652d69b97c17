"""The arithmetic of dense products: ``float32``, or ``bf16`` for products, with weights in float32. With ``bf16``, aggregations
gather bfloat16 rows as well, where that is faster (:func:`hpcgnn.nn.linear_map.gathers_bf16`), and everything else is float32.

A bfloat16 product rounds its operands to 8 bits of mantissa and adds in float32. On CPUs with AVX512_BF16
(:func:`hpcgnn.kernels.dense.has_bf16`) our own kernels do so, from float32 matrices to float32 results. Otherwise torch
multiplies rounded matrices, and its result is rounded once more and widened: with 32768 rows its values differ from float32's
by 0.3 % (root mean square).

- ``auto``: ``bf16`` where it is faster on every rank's CPU, else ``float32``.
- ``bf16``: bfloat16; refused where it is slower than float32.
- ``bf16-emulated``: bfloat16 at any speed, to study its effect on training on any CPU.
- ``tf32``: operands with 10 bits of mantissa, on NVIDIA's GPUs, whose tensor cores read float32 operands directly.
- ``int8``: 8-bit integers, also for aggregations (:mod:`hpcgnn.nn.int8`), where they are faster; ``int8-always`` uses them at
  any speed, to study their effect on training on any graph. ``int4`` is refused, because no library that this package can call
  multiplies 4-bit integers.

The speed of bfloat16 is measured once in each process, because the instruction set does not tell it: with AVX512_BF16, products
are 1.8 times as fast as in float32 on AMD's Zen 4 and 5, but half as fast on Intel's CPUs, whose matrix units (AMX) in turn are
many times as fast (the study `products`). All speedups seen so far lie far from the limits used here. A busy machine may still
disturb a measurement, so a resumed run keeps its arithmetic on the same CPU (:func:`resumed_compute`), and the implementation
is measured only where torch uses matrix units: elsewhere our kernels are as fast as torch's products.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn.base.arguments import check_choice
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import processor
from hpcgnn.devices import CPU, Device, device_of
from hpcgnn.kernels import buffers, dense, dense_product, pack_bf16, unpack_bf16
from hpcgnn.kernels.autograd import Gradients, layer_product, recorded
from hpcgnn.nn.config import AUTO, BF16, COMPUTES, EMULATED, FLOAT32, INT4, INTEGERS, TF32
from hpcgnn.world import World, raise_on_all_ranks

_LEAST_ROUNDS = 3
_REPEATS = 1.1  # the two least times of a call differ by a smaller factor, unless other work disturbs the measurement


def least_seconds(
    calls: Mapping[str, Callable[[], object]],
    device: Device,
    rounds: int,
    is_clear: Callable[[dict[str, float]], bool] = lambda _: False,
) -> dict[str, float]:
    """The least seconds of each call, in at most ``rounds`` rounds after an uncounted one that also fills caches.

    is_clear: returns whether the seconds so far decide the question, so that the remaining rounds can be skipped. It is called
    from the third round on, once the two least times of each call are about equal: on a busy machine, they are not.
    """
    least = dict.fromkeys(calls, float("inf"))
    second = dict(least)
    for turn in range(1 + rounds):
        for name, call in calls.items():
            started = device.mark()
            call()
            seconds = device.seconds_between(started, device.mark())
            if turn > 0:
                least[name], second[name] = sorted((least[name], second[name], seconds))[:2]
        repeats = all(second[name] <= _REPEATS * least[name] for name in calls)
        if turn >= _LEAST_ROUNDS and repeats and is_clear(least):
            break
    return least


def multiply_and_back(x: torch.Tensor, weight: torch.Tensor, backend: str, arithmetic: str = "float32") -> None:
    """A product (n, F) x (F, F) and its two gradients, by the kernels of an arithmetic."""
    y = dense_product(x, weight, backend=backend, compute=arithmetic)
    dense_product(y, weight.T, backend=backend, compute=arithmetic)
    dense.weight_gradient(x, y, backend=backend, compute=arithmetic)


KERNELS, TORCH = "kernels", "torch"
_FASTER, _SLOWER = 1.1, 0.9  # speedups between these two count as equal
_AHEAD = 1.5  # torch's products round their results once more, so they must be this much faster than our kernels
_ROWS, _WIDTH = 1024, 256  # shape of the product that is timed: large enough for its arithmetic to dominate
ROWS_OF_GPUS = 1 << 17  # the same on GPUs
_ROUNDS = 10
_CLEAR = 1.2  # a measurement that is this factor away from all limits ends early: even a busy machine errs by less
# oneDNN's instruction sets (ONEDNN_MAX_CPU_ISA) without bfloat16 products; all later ones have them.
_WITHOUT_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")


@dataclass(frozen=True)
class Bfloat16:
    """The faster implementation of bfloat16. way: ``kernels`` (of this package) or ``torch``. speedup: of a product and its two
    gradients over float32; 0 where the hardware has no bfloat16 and torch emulates it.
    """

    way: str
    speedup: float

    @property
    def is_faster(self) -> bool:
        """Return whether it is clearly faster than float32."""
        return self.speedup >= _FASTER

    @property
    def is_slower(self) -> bool:
        """Return whether it is clearly slower than float32."""
        return self.speedup < _SLOWER


@functools.cache
def bfloat16(backend: str = "auto", torch_device: torch.device = CPU.torch_device) -> Bfloat16:
    """The speed of bfloat16 on a device; on the host, with torch's present number of threads.

    The first call of a process takes some 100 ms, and later calls return the same result. On a GPU, torch multiplies bfloat16
    operands with float32 results.
    """
    has_kernels = dense.has_bf16(backend, torch_device)
    in_question = torch_device.type == "cpu" and torch_has_it() and (has_matrix_units() or not has_kernels)
    if not (has_kernels or in_question):
        return Bfloat16(TORCH, 0.0)
    generator = torch.Generator().manual_seed(0)
    rows = _ROWS if torch_device.type == "cpu" else ROWS_OF_GPUS
    x, weight = (torch.randn(count, _WIDTH, generator=generator).to(torch_device) for count in (rows, _WIDTH))
    calls = {"": lambda: multiply_and_back(x, weight, backend, "float32")}
    if has_kernels:
        calls[KERNELS] = lambda: multiply_and_back(x, weight, backend, "bf16")
    if in_question:
        calls[TORCH] = lambda: _by_torch(x, weight)
    seconds = least_seconds(calls, device_of(torch_device), _ROUNDS, lambda so_far: is_clear(_speedups(so_far)))
    return best_of(_speedups(seconds))


def best_of(speedups: dict[str, float]) -> Bfloat16:
    """Our kernels, unless torch is faster by more than the error of a measurement."""
    ours, torchs = speedups.get(KERNELS, 0.0), speedups.get(TORCH, 0.0)
    way = TORCH if torchs > _AHEAD * ours else KERNELS
    return Bfloat16(way, speedups[way])


def is_clear(speedups: dict[str, float]) -> bool:
    """Return whether the speedups are so far from every limit that further rounds cannot change the decision."""
    compared = [(best_of(speedups).speedup, limit) for limit in (_FASTER, _SLOWER)]
    if len(speedups) > 1:
        compared.append((speedups[TORCH] / speedups[KERNELS], _AHEAD))
    return all(not limit / _CLEAR < speedup < limit * _CLEAR for speedup, limit in compared)


def is_native(torch_device: torch.device = CPU.torch_device) -> bool:
    """Return whether this device multiplies bfloat16 in hardware, and our kernels or torch's libraries use it."""
    return dense.has_bf16("auto", torch_device) or (torch_device.type == "cpu" and torch_has_it())


def torch_has_it() -> bool:
    """Return whether torch multiplies bfloat16 with the CPU's instructions, as far as ``ONEDNN_MAX_CPU_ISA`` allows them."""
    if not torch.backends.mkldnn.is_available():
        return False
    if platform.machine() in ("x86_64", "AMD64"):
        allowed = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
        has_it = has_matrix_units() or _cpu_has("_is_avx512_bf16_supported")
        return has_it and allowed.upper() not in _WITHOUT_BF16
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    # this query is not part of torch's public interface, and may be missing in other versions
    except (AttributeError, RuntimeError):
        return False


def has_matrix_units() -> bool:
    """Return whether torch multiplies bfloat16 in the matrix units (AMX) of this CPU, which our kernels do not use."""
    return _cpu_has("_is_amx_tile_supported")


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of bfloat16 matrices by torch, widened to float32."""
    return unpack_bf16(torch.mm(a, b, out=buffers.empty(a.shape[0], b.shape[1], a.dtype, a.device)))


def _cpu_has(query: str) -> bool:
    return bool(getattr(torch.cpu, query, bool)())


def _speedups(seconds: dict[str, float]) -> dict[str, float]:
    """The speedup of each way over float32, whose key is ""."""
    return {way: seconds[""] / spent for way, spent in seconds.items() if way}


def _by_torch(x: torch.Tensor, weight: torch.Tensor) -> None:
    """A product and its two gradients as a layer computes them by torch, conversions included."""
    rounded, rounded_weight = pack_bf16(x), pack_bf16(weight)
    dy = pack_bf16(multiply(rounded, rounded_weight))
    multiply(dy, rounded_weight.T)
    multiply(rounded.T, dy)


_LOG = logging.getLogger("hpcgnn")
# Products smaller than these may be slower in bfloat16 than in float32, gradients and conversions included, according to the
# study `products`: with our own kernels, and with torch. Some small gains on one thread are left out, so that the arithmetic
# does not depend on the number of threads.
_LEAST = {KERNELS: (8, 1 << 20), TORCH: (40, 1 << 25)}  # the smaller width, and the number of multiplications
# The same on an H100, where smaller products are limited by the host, which starts kernels, or by the conversions.
_LEAST_ON_GPUS = (100, 1 << 32)


class Rounded:
    """A float32 matrix (n, F) whose products are computed in bfloat16 where that is faster, or in TF32.

    compute: one of :data:`COMPUTES`. of_rows: number of rows of the matrix of which x is a block, and whose size decides; None: x
    is whole. Our own kernels round x when they read it, so autograd keeps x itself for the gradients.
    For torch, x is rounded once for all products, and autograd keeps the rounded matrix.
    """

    def __init__(
        self, x: torch.Tensor, compute: str = BF16, *, is_rounded: bool = False, of_rows: int | None = None
    ) -> None:
        self.x, self._compute, self._of_rows = x, compute, x.shape[0] if of_rows is None else of_rows
        self._rounded: torch.Tensor | None = x if is_rounded else None

    def times(
        self, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None, backend: str
    ) -> torch.Tensor:
        """``x @ weight + bias + plus``, (n, F) times (F, H); differentiable. See :func:`hpcgnn.nn.linear.matmul`."""
        arithmetic = self._arithmetic(weight.shape[0], weight.shape[1], backend)
        if arithmetic == "torch":
            return sum_of(_product_by_torch(self.x, self._by_torch(), weight), bias, plus)
        return layer_product(self.x, weight, bias, plus, backend, arithmetic)

    def kept(self) -> tuple[list[torch.Tensor], Callable[[Sequence[torch.Tensor]], Rounded]]:
        """The tensors from which the second makes the operand for the gradient of a weight: the rounded ones if there are any,
        and not the floats."""
        compute, is_rounded = self._compute, self._rounded is not None  # a function that refers to self would keep x
        tensors = [self.x if self._rounded is None else self._rounded]
        return tensors, lambda given: Rounded(given[0], compute, is_rounded=is_rounded)

    def rows(self, place: slice) -> Rounded:
        """The operand of some rows of x."""
        rounded = self._rounded
        given = self.x if rounded is None else rounded
        return Rounded(given[place], self._compute, is_rounded=rounded is not None, of_rows=self._of_rows)

    def weight_gradient(self, dy: torch.Tensor, backend: str = "auto") -> torch.Tensor:
        """``x.T @ dy`` (F, H), for dy (n, H)."""
        arithmetic = self._arithmetic(self.x.shape[1], dy.shape[1], backend)
        if arithmetic == "torch":
            return multiply(self._by_torch().T, pack_bf16(dy))
        x = self.x.detach()
        return dense.run_weight_gradient(dense.kernels_for(x, backend), x, dy, compute=arithmetic)[0]

    def _arithmetic(self, in_width: int, out_width: int, backend: str) -> str:
        """``float32``, ``tf32`` or ``bf16`` by our kernels, or ``torch`` for bfloat16 by torch."""
        if self._compute == TF32:
            return TF32
        device = self.x.device
        if self._compute != EMULATED and not pays(self._of_rows, in_width, out_width, backend, device):
            return "float32"
        return "bf16" if bfloat16(backend, device).way == KERNELS else "torch"

    def _by_torch(self) -> torch.Tensor:
        if self._rounded is None:
            self._rounded = pack_bf16(self.x)
        return self._rounded


def sum_of(y: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
    """``y`` plus those of the other summands that are not None."""
    for other in others:
        y = y if other is None else y + other
    return y


def pays(
    rows: int, in_width: int, out_width: int, backend: str = "auto", torch_device: torch.device = CPU.torch_device
) -> bool:
    """Return whether the product (rows, in_width) x (in_width, out_width) and its two gradients are large enough for bfloat16."""
    on_gpu = torch_device.type == "cuda"
    narrowest, multiplications = _LEAST_ON_GPUS if on_gpu else _LEAST[bfloat16(backend, torch_device).way]
    return min(in_width, out_width) >= narrowest and rows * in_width * out_width >= multiplications


def _product_by_torch(x: torch.Tensor, rounded: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``y = x W``, ``dx = dy Wᵀ``, ``dW = xᵀ dy`` by torch; autograd keeps only the ``rounded`` x (n, F) and W (F, H)."""

    def run(ctx: Any, _: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rounded_weight = pack_bf16(weight)
        ctx.save_for_backward(rounded, rounded_weight)
        return multiply(rounded, rounded_weight)

    def back(ctx: Any, dy: torch.Tensor) -> Gradients:
        (rounded, rounded_weight), (needs_x, needs_weight) = ctx.saved_tensors, ctx.needs_input_grad[-2:]
        dy = pack_bf16(dy)
        return multiply(dy, rounded_weight.T) if needs_x else None, multiply(rounded.T, dy) if needs_weight else None

    return recorded(run, back, x, weight)


def check_compute(compute: str, dtype: torch.dtype, device: Device = CPU) -> None:
    """Raise HpcgnnError where ``compute`` does not work here, or is ``bf16`` and slower than float32."""
    check_choice("compute", compute, COMPUTES)
    if compute in (AUTO, FLOAT32):
        return
    if dtype != torch.float32:
        raise HpcgnnError(f"compute {compute} is for models in float32, not in {dtype}: leave out --compute")
    if compute == INT4:
        raise HpcgnnError(
            f"this {device.name} does not multiply 4-bit integers (of GPUs, only some old ones do): pass --compute int8"
        )
    if compute in INTEGERS:
        return
    if compute == TF32:
        if not dense.has_tf32(device.torch_device):
            raise HpcgnnError(
                f"--compute tf32 is for GPUs of NVIDIA from Ampere on, not for this {device.name}: leave it out"
            )
        return
    if not _multiplies(device.torch_device):
        raise HpcgnnError(
            f"torch {torch.__version__} has no bfloat16 products on this {device.name}: leave out --compute {compute}"
        )
    if compute == BF16 and not is_native(device.torch_device):
        raise HpcgnnError(
            f"this {device.name} has no bfloat16 arithmetic that may be used (HPCGNN_ISA, ONEDNN_MAX_CPU_ISA), and --compute "
            "bf16 would be many times slower than float32: leave it out, or pass --compute bf16-emulated if that is wanted"
        )
    if compute == BF16 and (found := bfloat16("auto", device.torch_device)).is_slower:
        raise HpcgnnError(
            f"on this {device.name} products in bfloat16 take {1 / found.speedup:.1f} times as long as in float32: leave out "
            "--compute bf16, or pass --compute bf16-emulated to take them nonetheless"
        )


def choose_compute(world: World, compute: str, dtype: torch.dtype, device: Device = CPU) -> str:
    """The arithmetic of a model for which the user asked for ``compute``: the same on all ranks, and never ``auto``. Collective.

    Raises:
        HpcgnnError: on all ranks, if ``compute`` does not work on one of them (:func:`check_compute`).
    """
    with raise_on_all_ranks(world, "choose the arithmetic of dense products"):
        check_compute(compute, dtype, device)
        is_faster = compute == AUTO and dtype == torch.float32 and bfloat16("auto", device.torch_device).is_faster
    if compute != AUTO:
        return compute
    return BF16 if _on_all(world, is_faster) else FLOAT32


def resumed_compute(world: World, asked: str, chosen: str, before: dict[str, str] | None, device: Device = CPU) -> str:
    """The arithmetic with which a resumed run continues. Collective.

    If possible, the run keeps its earlier arithmetic, so that it has one arithmetic from beginning to end. This holds for a
    choice of ``auto``, and for the operations that a run with ``int8`` computed in integers. On the hardware on which the run
    was begun, no measurement is compared with the earlier one: other work on the machine may disturb either.

    Args:
        asked: the setting of the resumed run. chosen: the arithmetic that was chosen for it now.
        before: ``asked``, ``chosen`` and ``hardware`` in the checkpoint (older versions wrote no hardware); None in checkpoints
            of still older versions. The same on all ranks.
    """
    if before is None or asked != before["asked"] or asked not in (AUTO, *INTEGERS):
        return chosen
    if asked in INTEGERS and before["chosen"] != BF16:
        return before["chosen"]
    if before["chosen"] in (chosen, FLOAT32):
        return before["chosen"]
    is_known, torch_device = before.get("hardware") == hardware(device), device.torch_device
    keeps = is_native(torch_device) and (is_known or not bfloat16("auto", torch_device).is_slower)
    if _on_all(world, keeps):
        return before["chosen"]
    _LOG.warning(
        "the run was begun with products in bfloat16, which are slower than float32 here: it goes on in float32"
    )
    return FLOAT32


def hardware(device: Device) -> str:
    """The name of the processor or of the GPU that multiplies."""
    return processor() if device.torch_device.type == "cpu" else device.name


def _on_all(world: World, answer: bool) -> bool:
    return bool(world.allreduce(torch.tensor([int(answer)]), "min", "the arithmetic of dense products")[0])


def _multiplies(torch_device: torch.device) -> bool:
    ones = torch.ones(32, 32, dtype=torch.bfloat16, device=torch_device)
    try:
        return bool((ones @ ones == 32).all())
    except RuntimeError:
        return False
