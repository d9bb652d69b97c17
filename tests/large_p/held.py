"""The bytes that an object holds, directly and through other objects."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

_OF_ALL = (ModuleType, type, FrameType, BuiltinFunctionType, torch.dtype, torch.device)


def held_bytes(thing: Any, *, without: tuple[type, ...] = ()) -> int:
    """The bytes of arrays, tensors, tables and numbers that can be reached from ``thing``, each counted once. Code, and objects
    of a type in ``without``, do not count.
    """
    seen: dict[int, Any] = {}  # keeps the objects alive: the id of a freed object could be reused
    memory: dict[int, int] = {}  # arrays and tensors by address, because several may be views of the same memory
    tables, left = 0, [thing]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, (*_OF_ALL, *without)):
            continue
        seen[id(each)] = each
        if isinstance(each, FunctionType):
            left += [each.__closure__, each.__defaults__]
        elif isinstance(each, torch.Tensor):
            storage = each.untyped_storage()
            memory[storage.data_ptr()] = max(memory.get(storage.data_ptr(), 0), storage.nbytes())
            left += [each.grad] if each.is_leaf else []
        elif isinstance(each, np.ndarray):
            if each.base is None:
                memory[each.ctypes.data] = max(memory.get(each.ctypes.data, 0), each.nbytes)
            left.append(each.base)
        else:
            tables += sys.getsizeof(each)
            left += gc.get_referents(each)
    return tables + sum(memory.values())
