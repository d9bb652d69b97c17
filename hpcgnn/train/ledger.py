"""The memory of tensors while a program runs: what is allocated and freed, in order, and to what it belongs.

A :class:`Ledger` sees the results of torch's operations and those of our kernels (:func:`hpcgnn.kernels.buffers.empty`).
:func:`held` finds the memory that objects keep, tensors and arrays.
"""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpcgnn.devices import Device
from hpcgnn.kernels import buffers
from hpcgnn.world import World

Place = tuple[tuple[int, int], ...]
Key = tuple[Place, str, tuple[int, ...], str]


@dataclass(frozen=True)
class Block:
    """Memory that was allocated. key: the place in the program, the operation, the shape of a row (of tensors with several) and
    the type, by which the same block of another run in this process is known. rows: the first dimension of its tensor.
    is_result: whether a kernel asked for it."""

    key: Key
    num_bytes: int
    rows: int
    is_result: bool


class Ledger(TorchDispatchMode):
    """Records, in its context and on its thread, the memory of tensors on this machine.

    blocks: all memory allocated, in order. events: the number k of a block where it is allocated, and ``~k`` where it is freed.
    marks: the number of events that came before each :meth:`mark`, by name. least_bytes: smaller memory is not recorded. new:
    makes the results of kernels; None: as without a ledger.
    """

    def __init__(self, least_bytes: int = 1, new: buffers.Provider | None = None) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.events: list[int] = []
        self.marks: list[tuple[str, int]] = []
        self.live: dict[int, int] = {}  # the number of the block at each address
        self._least, self._new = least_bytes, new or buffers.provided
        self._known: set[int] = set()  # addresses of memory that is older
        # Epochs repeat their blocks. Each is kept once, because memory of the ledger would be taken for that of arrays.
        self._alike: dict[Block, Block] = {}
        self._stack, self._is_making = contextlib.ExitStack(), False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's default imports its compiler, which takes seconds and 180 MB."""
        return False

    def know(self, *roots: object) -> None:
        """The memory that ``roots`` keep is not new where an operation returns a view of it."""
        self._known |= {address for address, _ in held(roots, {})}

    def mark(self, name: str) -> None:
        """Remember this moment by ``name``."""
        self.marks.append((name, len(self.events)))

    def __enter__(self) -> Ledger:
        self._stack.enter_context(buffers.provided_by(self._result))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch's documentation of ``TorchDispatchMode``."""
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, Tensor):
                self._see(each, str(func), is_result=False)
        return result

    def _result(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        self._is_making = True  # the operations by which it is made do not count
        made = self._new(rows, width, dtype)
        self._is_making = False
        self._see(made, "a kernel", is_result=True)
        return made

    def _see(self, tensor: Tensor, name: str, *, is_result: bool) -> None:
        if self._is_making or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        address, num_bytes = storage.data_ptr(), storage.nbytes()
        if num_bytes < self._least or not address or address in self.live or address in self._known:
            return
        number = len(self.blocks)
        rows = tensor.shape[0] if tensor.dim() else 1
        key = _place(), name, tuple(tensor.shape[1:]) if rows > 1 else (), str(tensor.dtype)
        block = Block(key, num_bytes, rows, is_result)
        self.blocks.append(self._alike.setdefault(block, block))
        self.events.append(number)
        self.live[address] = number
        weakref.finalize(storage, self._end, address, number).atexit = False

    def _end(self, address: int, number: int) -> None:
        if self.live.get(address) == number:
            del self.live[address]
            self.events.append(~number)


def _place() -> Place:
    """The functions that are running on this thread, and their lines."""
    frame: types.FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        found.append((id(frame.f_code), frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.FunctionType, types.MethodType,
           torch.dtype, torch.device, np.dtype, np.generic, World, Device)  # fmt: skip
_CONTAINERS = (list, tuple, set, frozenset)


def held(root: object, seen: dict[object, object]) -> Iterator[tuple[int, int]]:
    """The memory that ``root`` keeps, each once: its address and bytes.

    seen: objects by ``id``, and addresses, that are not looked at; those that are found are added. It keeps the objects, so that
    no other one gets their ``id``.
    """
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if isinstance(found, _LEAVES) or id(found) in seen:
            continue
        seen[id(found)] = found
        if isinstance(found, Tensor):
            waiting.append(found.grad if found.is_leaf else None)
            memory: Any = _of_tensor(found)
        elif isinstance(found, np.ndarray):
            memory = _of_array(found)
        else:
            waiting += _parts_of(found)
            continue
        if memory is not None and memory[:1] not in seen:
            seen[memory[:1]] = None
            yield memory


def _of_tensor(tensor: Tensor) -> tuple[int, int] | None:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _of_array(array: np.ndarray) -> tuple[int, int] | None:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return None if isinstance(array.base, Tensor) else (array.__array_interface__["data"][0], array.nbytes)


def _parts_of(found: object) -> list[Any]:
    if isinstance(found, dict):
        return [*found.keys(), *found.values()]
    if isinstance(found, _CONTAINERS):
        return [*found]
    slots = [getattr(found, name, None) for name in getattr(type(found), "__slots__", ())]
    return [*slots, *getattr(found, "__dict__", {}).values()]


def kept(ledger: Ledger, begin: int, end: int) -> set[int]:
    """The numbers of the blocks that were allocated after event ``begin`` and not freed before event ``end``."""
    found = ledger.events[begin:end]
    return {each for each in found if each >= 0} - {~each for each in found if each < 0}
