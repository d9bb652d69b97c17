"""Memory that ranks exchange: an address, a size and a device. MPI and other means of moving bytes get nothing else."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hpcgnn.base.arguments import is_plain
from hpcgnn.base.errors import WrongTypeError

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs

    Values = TypeVar("Values", torch.Tensor, np.ndarray)
else:  # programs without tensors, such as `hpcgnn partition`, never import torch, and save the memory that it takes
    Values = TypeVar("Values")


@dataclass(frozen=True, eq=False)
class Buffer:
    """Contiguous rows of bytes.

    address: address of the first byte. rows, row_bytes: number of rows, and bytes of each. dtype: numpy's name of an element's
    type, for reductions. device: torch's name of the device ("cpu", "cuda:0"). owner: the tensor or array that holds the memory;
    this reference keeps it alive.
    """

    address: int
    rows: int
    row_bytes: int
    dtype: str
    device: str
    owner: Any

    @classmethod
    def of(cls, values: torch.Tensor | np.ndarray) -> Buffer:
        """The memory of a contiguous tensor or array; its rows are those of the first dimension.

        Raises:
            ValueError: where it is not contiguous: rows would arrive in a copy that the caller never sees.
        """
        shape = tuple(values.shape) or (1,)
        if is_tensor(values):
            if not is_plain(values):
                raise WrongTypeError(
                    f"only a torch.Tensor itself is exchanged, not the subclass {type(values).__name__}"
                )
            is_contiguous, address, device = values.is_contiguous(), values.data_ptr(), str(values.device)
            item_bytes, dtype = values.element_size(), str(values.dtype).removeprefix("torch.")
        else:
            is_contiguous, address, device = values.flags.c_contiguous, values.ctypes.data, "cpu"
            item_bytes, dtype = values.itemsize, values.dtype.name
        if not is_contiguous:
            raise ValueError(f"only contiguous memory can be exchanged, not a view of shape {shape}")
        return cls(address, shape[0], item_bytes * math.prod(shape[1:]), dtype, device, values)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    def on_host(self) -> np.ndarray:
        """(rows, row_bytes) uint8 view of the memory.

        Raises:
            ValueError: where it is the memory of a device.
        """
        if self.device != "cpu":
            raise ValueError(f"memory of {self.device} cannot be read here: copy it to the host first")
        if not self.num_bytes:
            return np.empty((self.rows, self.row_bytes), np.uint8)
        memory = (ctypes.c_uint8 * self.num_bytes).from_address(self.address)
        return np.ctypeslib.as_array(memory).reshape(self.rows, self.row_bytes)


def is_tensor(values: object) -> TypeIs[torch.Tensor]:
    """Return whether ``values`` is a torch tensor; this never imports torch, as no tensor exists before."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def on_host(values: Values) -> Values:
    """``values`` in memory of the host, copied if they are on a device: small collectives go through the host."""
    return values.cpu() if is_tensor(values) else values


def beside(values: Values, result: Values) -> Values:
    """``result`` on the device of ``values``."""
    return result.to(values.device) if is_tensor(values) and is_tensor(result) else result


def contiguous(values: Values) -> Values:
    """``values``, copied if they are not contiguous; with at least one dimension."""
    if is_tensor(values):
        return values.reshape(tuple(values.shape) or (1,)).contiguous()
    return np.ascontiguousarray(values)


def empty(values: Values, *shape: int) -> Values:
    """Uninitialised memory of this shape, with the type and on the device of ``values``."""
    return values.new_empty(shape) if is_tensor(values) else np.empty(shape, values.dtype)
