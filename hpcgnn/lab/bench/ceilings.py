"""The limits (ceilings) of the machine: copy bandwidth, row-gather bandwidth with a graph's own indices, and multiply-adds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.devices import CPU, Device
from hpcgnn.kernels import Csr, library
from hpcgnn.kernels.int8 import dot_products
from hpcgnn.lab.bench.names import DIRECTIONS
from hpcgnn.lab.bench.problem import Call, Contender, Special, fastest

# Numbers of entries to prefetch ahead; the ceiling is the best of them.
_DISTANCES = (0, 4, 8, 12, 16, 24, 32, 48)
# Least number of multiply-adds in a call of an arithmetic ceiling, so that they take longer than the start of threads.
_LEAST_MULTIPLY_ADDS = 1 << 28


def gather_call(csr: Csr, x: torch.Tensor, device: Device = CPU) -> Call:
    """A call that reads the rows of ``x`` (columns, F) that the entries of ``csr`` name, in their order, and returns sums. The
    prefetch distance on the host, and the number of rows that a GPU reads at a time, is the fastest of several."""
    if device.torch_device.type != "cpu":
        from hpcgnn.lab.bench import device_ceilings  # needs Triton, which not every machine has

        return device_ceilings.gather_call(csr, x, device)
    if library.load() is None:
        raise HpcgnnError(
            "the row-gather ceiling needs the native kernels, and hpcgnn was installed without a C++ compiler"
        )
    best = best_distance(csr.indices, x)
    return lambda: gather_at(csr.indices, x, best)


def best_distance(indices: torch.Tensor, x: torch.Tensor) -> int:
    """The number of entries to prefetch ahead with which :func:`gather_at` is fastest."""
    return fastest(_DISTANCES, lambda distance: gather_at(indices, x, distance), CPU, tries=2)


def gather_at(indices: torch.Tensor, x: torch.Tensor, distance: int) -> torch.Tensor:
    """Read the rows of ``x`` (rows, F) that ``indices`` (entries,) name, and return their sum, to prefetch ``distance`` entries
    ahead."""
    given = {"entries": indices.numel(), "indices": indices, "x": x, "width": x.shape[1], "ahead": distance}
    total = library.native("gather_ceiling", torch.float32, **given)
    return torch.tensor([total], dtype=torch.float64)


def int8_sized(x: torch.Tensor) -> torch.Tensor:
    """float32 rows with as many bytes as the rows of ``x`` (n, F) have in 8-bit integers, to measure the ceiling of those."""
    return x[:, : math.ceil(x.shape[1] / 4)].contiguous()


def gathers(modules: tuple[str, ...], directions: tuple[str, ...] = DIRECTIONS) -> tuple[Contender, Contender]:
    """The contenders that only gather the rows of a problem's operand, in float32 and in 8 bits. modules: that they need."""

    def gather(problem: Any, direction: str) -> Call:
        csr, x = problem.operand(direction)
        return gather_call(csr, x, problem.device)

    def gather_int8(problem: Any, direction: str) -> Call:
        csr, x = problem.operand(direction)
        return gather_call(csr, int8_sized(x), problem.device)

    both: dict[str, Any] = {"modules": modules, "directions": directions, "tolerance": None}
    label = "row-gather ceiling"
    return (
        Contender("ceiling.gather", label, gather, **both),
        Contender("ceiling.gather.int8", f"{label}, int8 rows", gather_int8, dtype="int8", **both),
    )


def multiply_call(dtype: str, multiply_adds: int) -> Special:
    """A call with about ``multiply_adds`` multiply-adds of ``float32``, ``bf16`` or ``int8`` in registers, with the instructions
    that our kernels use on this machine."""
    names = {"float32": "f32", "bf16": "bf16", "int8": "int8" + "_dot" * dot_products()}
    name = f"multiply_ceiling_{names[dtype]}"
    native = library.load()
    is_missing = native is None or name not in native.interface.functions
    if is_missing or (dtype == "bf16" and not library.multiplies_bf16()):
        raise HpcgnnError("the ceiling of arithmetic needs the native kernels, which are missing here")
    function, threads = library.function(name), torch.get_num_threads()
    of_round = function(rounds=1, threads=threads)
    rounds = math.ceil(max(multiply_adds, _LEAST_MULTIPLY_ADDS) / of_round)

    def call() -> torch.Tensor:
        return torch.tensor([function(rounds=rounds, threads=threads)], dtype=torch.float64)

    return Special(call, multiply_adds=rounds * of_round)


def copy_call(x: torch.Tensor) -> Call:
    """A call that copies ``x`` into warm memory; its bytes count twice, as they are read and written."""
    target = torch.empty_like(x).fill_(0)
    return lambda: target.copy_(x)


def last_level_cache_bytes(device: str = "cpu") -> int:
    """Bytes of the largest cache of the first core, or of a GPU; 0 if the size is unknown."""
    where = torch.device(device)
    if where.type == "cuda":
        return torch.cuda.get_device_properties(where).L2_cache_size
    if where.type != "cpu":
        return 0
    sizes, units = [0], {"K": 1 << 10, "M": 1 << 20}
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text))
    return max(sizes)
