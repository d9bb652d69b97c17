"""The speed of bfloat16 on this device: whose products are the faster ones, and how much faster than float32.

It is measured, once a process, because instructions do not tell: AVX512_BF16 is 1.8 times as fast as float32 on AMD's Zen 4
and 5 and half as fast on Intel's CPUs, whose matrix units (AMX) are many times as fast (the study products). What lies far apart
on every CPU seen so far is told apart by limits in the middle, so that a CPU gives the same answer each time.
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
_FASTER, _SLOWER = 1.1, 0.9  # what a measurement must differ by to count
_AHEAD = 1.5  # torch's products round their results once more, so they must be this much faster than the kernels'
_ROWS, _WIDTH = 1024, 256  # of the product that is timed: large enough for its arithmetic to count
_ROWS_OF_GPUS = 1 << 17
_ROUNDS = 10
_CLEAR = 1.2  # a measurement that is this factor away from all limits ends early: a busy machine errs by less
# Those of oneDNN's instruction sets (ONEDNN_MAX_CPU_ISA) that have no bfloat16 products; all later ones have.
_WITHOUT_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")


@dataclass(frozen=True)
class Bfloat16:
    """way: whose products are taken, ``kernels`` (of our own) or ``torch``. speedup: of a product and its gradients over
    float32's; 0 where no one has the arithmetic, and torch emulates it."""

    way: str
    speedup: float

    @property
    def is_faster(self) -> bool:
        """Than float32, beyond doubt."""
        return self.speedup >= _FASTER

    @property
    def is_slower(self) -> bool:
        """Than float32, beyond doubt."""
        return self.speedup < _SLOWER


@functools.cache
def bfloat16(backend: str = "auto", where: torch.device = CPU.where) -> Bfloat16:
    """The speed of bfloat16 on a device, on the host with the threads that torch has; some 100 ms for a process's first call,
    then known. A GPU's kernels are torch's, with bfloat16 operands and float32 results."""
    ways = {KERNELS: dense.has_bf16(backend, where), TORCH: where.type == "cpu" and torch_has_it()}
    if not any(ways.values()):
        return Bfloat16(TORCH, 0.0)
    return best_of(_speedups(_seconds([way for way in ways if ways[way]], backend, where)))


def best_of(speedups: dict[str, float]) -> Bfloat16:
    """The kernels, unless torch is ahead of them by more than a measurement may err."""
    ours, torchs = speedups.get(KERNELS, 0.0), speedups.get(TORCH, 0.0)
    way = TORCH if torchs > _AHEAD * ours else KERNELS
    return Bfloat16(way, speedups[way])


def is_clear(speedups: dict[str, float]) -> bool:
    """Whether no limit is so near to the speedups that more turns of the measurement could change what follows from them."""
    compared = [(best_of(speedups).speedup, limit) for limit in (_FASTER, _SLOWER)]
    if len(speedups) > 1:
        compared.append((speedups[TORCH] / speedups[KERNELS], _AHEAD))
    return all(not limit / _CLEAR < speedup < limit * _CLEAR for speedup, limit in compared)


def is_native(where: torch.device = CPU.where) -> bool:
    """Whether this device multiplies bfloat16 in hardware, and our kernels or torch's libraries use it."""
    return dense.has_bf16("auto", where) or (where.type == "cpu" and torch_has_it())


def torch_has_it() -> bool:
    """Whether torch's products of bfloat16 are the CPU's own, as far as ``ONEDNN_MAX_CPU_ISA`` lets oneDNN use it."""
    if not torch.backends.mkldnn.is_available():
        return False
    if platform.machine() in ("x86_64", "AMD64"):
        allowed = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
        has_it = any(_cpu_has(name) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
        return has_it and allowed.upper() not in _WITHOUT_BF16
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a query without a promise, which may be gone in another torch
        return False


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of bfloat16 matrices by torch, widened to float32."""
    return unpack_bf16(torch.mm(a, b, out=buffers.empty(a.shape[0], b.shape[1], a.dtype, a.device)))


def _cpu_has(query: str) -> bool:
    return bool(getattr(torch.cpu, query, bool)())


def _seconds(ways: list[str], backend: str, where: torch.device) -> dict[str, float]:
    """The least time that a product and its two gradients take, by turns: in float32 (``""``), and each of ``ways``."""
    generator = torch.Generator().manual_seed(0)
    rows = _ROWS if where.type == "cpu" else _ROWS_OF_GPUS
    x, weight = (torch.randn(count, _WIDTH, generator=generator).to(where) for count in (rows, _WIDTH))
    calls = {"": lambda: multiply_and_back(x, weight, backend, "float32")}
    if KERNELS in ways:
        calls[KERNELS] = lambda: multiply_and_back(x, weight, backend, "bf16")
    if TORCH in ways:
        calls[TORCH] = lambda: _by_torch(x, weight)
    return least_seconds(calls, device_of(where), _ROUNDS, lambda seconds: is_clear(_speedups(seconds)))


def _speedups(seconds: dict[str, float]) -> dict[str, float]:
    """Of each way over float32, whose name is ""."""
    return {way: seconds[""] / spent for way, spent in seconds.items() if way}


def _by_torch(x: torch.Tensor, weight: torch.Tensor) -> None:
    """As a layer does them, conversions included."""
    rounded, rounded_weight = pack_bf16(x), pack_bf16(weight)
    dy = pack_bf16(multiply(rounded, rounded_weight))
    multiply(dy, rounded_weight.T)
    multiply(rounded.T, dy)
