"""The work of one call of a native kernel, or of one operation of torch: the bytes that it must move at least, its multiply-adds,
and the rows that it gathers. Together with the ceilings of the machine, the work gives the least time of the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

PRODUCTS, AGGREGATION, QUANTIZATION, ELEMENTWISE = "products", "aggregation", "quantization", "elementwise"
LOSSES, OPTIMISER = "losses", "optimiser"
PHASES = (PRODUCTS, AGGREGATION, QUANTIZATION, ELEMENTWISE, LOSSES, OPTIMISER)
_FLOAT = 4
_ITEM_BYTES = {"f32": 4, "f64": 8, "bf16": 2, "i8": 1}


@dataclass(frozen=True, eq=False)
class Work:
    """num_bytes: read and written, each matrix once. arithmetic: of ``multiply_adds``, float32, bf16 or int8. indices: (entries,)
    int32 rows that are gathered, each of ``row_bytes`` bytes, or None."""

    phase: str
    shape: tuple[int, ...]
    num_bytes: float
    multiply_adds: float = 0.0
    arithmetic: str = "float32"
    indices: Tensor | None = None
    row_bytes: float = 0.0

    @property
    def row_floats(self) -> int:
        """The number of float32 in as many bytes as a gathered row has: at least a cache line, which memory moves as a whole."""
        return max(16, math.ceil(self.row_bytes / _FLOAT))


Arguments = Mapping[str, Any]


def _dense(name: str, given: Arguments) -> Work:
    rows, depth, width = given["rows"], given["depth"], given["width"]
    is_int8 = "int8" in name
    of_x = rows * depth * (1 if is_int8 else _FLOAT)  # bfloat16 products round float32 as they read it
    of_y = rows * width * _FLOAT
    if name.startswith("dense_gradient") and is_int8 and given["dy"] is None:
        of_y = rows * width
    passes = 2 if given.get("accumulate") else 1
    arithmetic = "int8" if is_int8 else "bf16" if "bf16" in name else "float32"
    num_bytes = of_x + passes * of_y + depth * width * _FLOAT
    return Work(PRODUCTS, (rows, depth, width), num_bytes, rows * depth * width, arithmetic)


def _spmm(name: str, given: Arguments) -> Work:
    csr, width, item = given["csr"], given["width"], _ITEM_BYTES[name.rsplit("_", 1)[1]]
    written = csr.rows * width * (8 if item == 8 else _FLOAT)
    return _gathering(csr, width, width * item, written)


def _spmm_rows(name: str, given: Arguments) -> Work:
    return _gathering(given["csr"], given["width"], given["width"] * given["bits"] / 8, 0)


def _gathering(csr: Any, width: int, row_bytes: float, other_bytes: float) -> Work:
    indices = csr.tensors[1]  # as hpcgnn_csr has its fields
    shape = csr.rows, indices.numel(), width
    return Work(AGGREGATION, shape, other_bytes, indices=indices, row_bytes=row_bytes)


def _sddmm(name: str, given: Arguments) -> Work:
    csr, width = given["csr"], given["width"]
    item = 1 if "int8" in name else _ITEM_BYTES[name.rsplit("_", 1)[1]]
    entries = csr.tensors[1].numel()
    of_a = csr.rows * width * item
    if given.get("b", True) is None:  # rows of a are copied to the entries
        return Work(AGGREGATION, (csr.rows, entries, width), of_a + entries * width * item)
    written = entries * (width if given.get("op", 0) else given["heads"]) * max(item, _FLOAT)
    return _gathering(csr, width, width * item, of_a + written)


def _of_entries(passes: int) -> Callable[[str, Arguments], Work]:
    def work(name: str, given: Arguments) -> Work:
        entries, width = given["csr"].tensors[1].numel(), given["width"]
        return Work(AGGREGATION, (entries, width), passes * entries * width * _ITEM_BYTES[name.rsplit("_", 1)[1]])

    return work


def _of_values(phase: str, bytes_of_a_value: float, *sizes: str) -> Callable[[str, Arguments], Work]:
    """Work on matrices whose shape the arguments ``sizes`` say."""

    def work(name: str, given: Arguments) -> Work:
        job = given.get("job")
        shape = tuple(given[each] if job is None else getattr(job, each) for each in sizes or ("rows", "width"))
        return Work(phase, shape, math.prod(shape) * bytes_of_a_value)

    return work


def _messages(name: str, given: Arguments) -> Work:
    count, width = given["count"], given["width"]
    return Work(QUANTIZATION, (count, width), count * width * (_FLOAT + given["bits"] / 8))


# By the beginning of the kernel's name; the longest one that fits counts.
_KERNELS: dict[str, Callable[[str, Arguments], Work]] = {
    "dense_": _dense,
    "spmm_": _spmm,
    "spmm_rows": _spmm_rows,
    "spmm_pack": lambda name, given: Work(
        AGGREGATION,
        (given["num_hot"], given["width"]),
        2 * given["num_hot"] * given["width"] * _ITEM_BYTES[name.rsplit("_", 1)[1]],
    ),
    "sddmm_": _sddmm,
    "edge_softmax": _of_entries(2),
    "edge_softmax_backward": _of_entries(3),
    "edge_sum": _of_entries(1),
    "gather_rows": lambda name, given: Work(
        AGGREGATION, (given["count"], given["row_bytes"]), 2 * given["count"] * given["row_bytes"]
    ),
    "cluster": lambda name, given: Work(AGGREGATION, (given["count"],), 8 * given["count"]),
    "quantize_int8": _of_values(QUANTIZATION, _FLOAT + 1),
    "encode_rows": _messages,
    "decode_rows": _messages,
    "encode_int8": _of_values(QUANTIZATION, 2, "count", "width"),
    "decode_int8": _of_values(QUANTIZATION, 2, "count", "width"),
    "pack_bf16": _of_values(QUANTIZATION, _FLOAT + 2),
    "unpack_bf16": _of_values(QUANTIZATION, _FLOAT + 2, "count"),
    "activate": _of_values(ELEMENTWISE, 2 * _FLOAT),
    "activate_backward": _of_values(ELEMENTWISE, 3 * _FLOAT),
    "relu_backward": _of_values(ELEMENTWISE, 2 * _FLOAT),
    "column_sums": _of_values(ELEMENTWISE, _FLOAT),
    "dropout": _of_values(ELEMENTWISE, 2 * _FLOAT),
}
# Kernels that measure the machine, and functions that compute nothing.
NO_WORK = ("hpcgnn_", "spmm_packed_columns", "gather_ceiling", "multiply_ceiling")


def of_kernel(name: str, given: Arguments) -> Work | None:
    """The work of a call of the kernel ``name`` of ``native/hpcgnn.h``; None for a function that is no part of training."""
    if name.startswith(NO_WORK):
        return None
    return _KERNELS[max(filter(name.startswith, _KERNELS), key=len)](name, given)


def of_torch(name: str, arguments: Iterable[Any], result: Any, section: str) -> Work | None:
    """The work of an operation of torch, such as ``aten.mm.default``, in a section of the epoch: its phase, or "". None if it
    only makes views or memory."""
    operation = name.split(".")[1]
    given, made = list(_tensors(arguments)), list(_tensors((result,)))
    memory = {each.untyped_storage().data_ptr() for each in given}
    writes = operation.endswith("_") or name.endswith("out")
    is_view = not writes and any(each.untyped_storage().data_ptr() in memory for each in made)
    if is_view or "empty" in operation:
        return None
    phase = section or ELEMENTWISE
    if "mm" in operation and (factors := [each for each in given if each.dim() >= 2][-2:]) and made:
        depth = factors[0].shape[-1]
        count = made[0].numel() * depth
        return Work(section or PRODUCTS, (*made[0].shape, depth), sum(each.nbytes for each in given + made), count)
    if "index" in operation or "gather" in operation or "embedding" in operation:  # some rows of an argument
        given = made
    num_bytes = sum(each.nbytes for each in given + made)
    return Work(phase, tuple(made[0].shape) if made else (), num_bytes)


def _tensors(found: Iterable[Any]) -> Iterator[Tensor]:
    for each in found:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)
