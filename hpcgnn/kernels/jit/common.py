"""Shared by the kernels in numba: threads, the rows of each task, random bits (the functions of :mod:`hpcgnn.kernels.keyed` for
one value at a time), and the processor's prefetch instruction."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hpcgnn.base.compiled import njit
from hpcgnn.kernels.csr import Csr

if "NUMBA_THREADING_LAYER" not in os.environ:
    # numba's OpenMP layer would load the system's runtime by file name, beside the one that torch brings. The threads of
    # "workqueue", numba's own pool, sleep while torch works.
    numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]


P = ParamSpec("P")
R = TypeVar("R")
_ONE_CALLER = threading.RLock()  # autograd runs backward on threads of its own


def on_torch_threads(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that calls parallel ones: they run on as many threads as torch uses, for one caller at a time, as the
    pool requires."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _ONE_CALLER:
            numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
            return function(*args, **kwargs)

    return call


_TASKS_A_THREAD = 16


def row_tasks(csr: Csr) -> np.ndarray:
    """(tasks, 2) int64 first row, and row after the last, of tasks with about equal work (entries plus rows)."""
    count = numba.get_num_threads() * _TASKS_A_THREAD

    def cut() -> np.ndarray:
        work = csr.indptr.numpy() + np.arange(csr.num_rows + 1)
        inner = np.searchsorted(work, np.arange(1, count) * work[-1] // count)
        cuts = np.unique([0, *inner, csr.num_rows])
        return np.stack((cuts[:-1], cuts[1:]), axis=1)

    return csr.kept(("tasks", count), cut)


@njit(nogil=True, cache=True)
def mix64(v):
    """The finaliser of splitmix64 for a uint64."""
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return v ^ (v >> np.uint64(31))


@njit(nogil=True, cache=True)
def mix32(v):
    """The hash function lowbias32 of a uint32."""
    v = np.uint32(np.uint32(v ^ (v >> np.uint32(16))) * np.uint32(0x7FEB352D))
    v = np.uint32(np.uint32(v ^ (v >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(v ^ (v >> np.uint32(16)))


@njit(nogil=True, cache=True)
def row_hash(key, row):
    """The 64-bit hash of one row's number, such as an original node id, under a key."""
    return mix64(key ^ mix64(np.uint64(row) + np.uint64(0x9E3779B97F4A7C15)))


@njit(nogil=True, cache=True)
def draw32(low, high, counter):
    """The 32-bit draw for one counter of a row, from the halves of the row's hash."""
    return np.uint32(mix32(np.uint32(low + np.uint32(counter) * np.uint32(0x9E3779B9))) ^ high)


_READ, _SECOND_LEVEL_CACHE, _DATA = 0, 2, 1


@intrinsic
def prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Start to fetch the cache line of ``array[row, column]`` into the second-level cache."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        values = context.make_array(array_type)(context, builder, arguments[0])
        place = [context.cast(builder, arguments[k], signature.args[k], types.intp) for k in (1, 2)]
        address = cgutils.get_item_pointer(context, builder, array_type, values, place, wraparound=False)
        address = builder.bitcast(address, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], function_type)
        builder.call(function, [address, number(_READ), number(_SECOND_LEVEL_CACHE), number(_DATA)])
        return context.get_dummy_value()

    return types.void(array, row, column), generate
