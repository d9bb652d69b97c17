"""The speed of bfloat16 on this device: which implementation of its products is faster, and its speedup over float32.

The speed is measured once in each process, because the instruction set does not tell it: with AVX512_BF16, products are 1.8
times as fast as in float32 on AMD's Zen 4 and 5, but half as fast on Intel's CPUs, whose matrix units (AMX) in turn are many
times as fast (the study `products`). The measured speedups of the CPUs seen so far lie far from the limits that are used here.
A busy machine may still disturb a measurement, so a resumed run keeps its arithmetic without measuring on the same CPU
(:func:`hpcgnn.nn.compute.resumed_compute`), and the implementation is measured only where it is in question: our kernels are as
fast as torch's products (the study `products`) except where torch uses matrix units.
"""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass

import torch

from hpcgnn.devices import CPU, device_of
from hpcgnn.kernels import buffers, dense, pack_bf16, unpack_bf16
from hpcgnn.nn.timed import least_seconds, multiply_and_back

KERNELS, TORCH = "kernels", "torch"
_FASTER, _SLOWER = 1.1, 0.9  # speedups between these two count as equal
_AHEAD = 1.5  # torch's products round their results once more, so they must be this much faster than our kernels
_ROWS, _WIDTH = 1024, 256  # shape of the product that is timed: large enough for its arithmetic to dominate
_ROWS_OF_GPUS = 1 << 17
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
    ways = {KERNELS: has_kernels, TORCH: in_question}
    if not any(ways.values()):
        return Bfloat16(TORCH, 0.0)
    return best_of(_speedups(_seconds([way for way in ways if ways[way]], backend, torch_device)))


def best_of(speedups: dict[str, float]) -> Bfloat16:
    """Our kernels, unless torch is faster by more than the error of a measurement."""
    ours, torchs = speedups.get(KERNELS, 0.0), speedups.get(TORCH, 0.0)
    way = TORCH if torchs > _AHEAD * ours else KERNELS
    return Bfloat16(way, speedups[way])


def is_clear(speedups: dict[str, float]) -> bool:
    """Return whether the speedups are so far from every limit that further rounds of the measurement cannot change the
    decision.
    """
    compared = [(best_of(speedups).speedup, limit) for limit in (_FASTER, _SLOWER)]
    if len(speedups) > 1:
        compared.append((speedups[TORCH] / speedups[KERNELS], _AHEAD))
    return all(not limit / _CLEAR < speedup < limit * _CLEAR for speedup, limit in compared)


def is_native(torch_device: torch.device = CPU.torch_device) -> bool:
    """Return whether this device multiplies bfloat16 in hardware, and our kernels or torch's libraries use it."""
    return dense.has_bf16("auto", torch_device) or (torch_device.type == "cpu" and torch_has_it())


def torch_has_it() -> bool:
    """Return whether torch multiplies bfloat16 with the CPU's instructions, as far as ``ONEDNN_MAX_CPU_ISA`` lets oneDNN use
    them.
    """
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


def _seconds(ways: list[str], backend: str, torch_device: torch.device) -> dict[str, float]:
    """The least seconds of a product and its two gradients, measured in turns: in float32 (``""``), and by each of ``ways``."""
    generator = torch.Generator().manual_seed(0)
    rows = _ROWS if torch_device.type == "cpu" else _ROWS_OF_GPUS
    x, weight = (torch.randn(count, _WIDTH, generator=generator).to(torch_device) for count in (rows, _WIDTH))
    calls = {"": lambda: multiply_and_back(x, weight, backend, "float32")}
    if KERNELS in ways:
        calls[KERNELS] = lambda: multiply_and_back(x, weight, backend, "bf16")
    if TORCH in ways:
        calls[TORCH] = lambda: _by_torch(x, weight)
    return least_seconds(calls, device_of(torch_device), _ROUNDS, lambda seconds: is_clear(_speedups(seconds)))


def _speedups(seconds: dict[str, float]) -> dict[str, float]:
    """The speedup of each way over float32, whose key is ""."""
    return {way: seconds[""] / spent for way, spent in seconds.items() if way}


def _by_torch(x: torch.Tensor, weight: torch.Tensor) -> None:
    """A product and its two gradients as a layer computes them by torch, conversions included."""
    rounded, rounded_weight = pack_bf16(x), pack_bf16(weight)
    dy = pack_bf16(multiply(rounded, rounded_weight))
    multiply(dy, rounded_weight.T)
    multiply(rounded.T, dy)
