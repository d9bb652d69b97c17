"""A backend for tensors of the host whose kernels run on a device, because tests of kernels have all their tensors
on the host.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from hpcgnn.kernels.backend import FEATURES, Backend, choose
from hpcgnn.kernels.contract import OPERATORS, Operators
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.operands import DropoutMask, Norm

NAME = "triton-on-gpu"


class Moved:
    """The arguments of one call on a device. A tensor that occurs twice is one tensor there, too."""

    def __init__(self, torch_device: torch.device) -> None:
        self._where = torch_device
        self._tensors: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def there(self, value: Any) -> Any:
        """The value with all of its tensors on the device."""
        if isinstance(value, torch.Tensor):
            key = value.data_ptr(), value.shape, value.stride(), value.dtype
            return self._tensors.setdefault(key, (value, value.detach().to(self._where)))[1]
        if isinstance(value, Csr):
            return value.to(self._where)
        if isinstance(value, Norm):
            return Norm(self.there(value.weight), self.there(value.bias), value.eps)
        if isinstance(value, DropoutMask):
            return DropoutMask(self.there(value.ids), value.key, value.probability)
        return value

    def copy_back(self) -> None:
        """Copy results back to the host. Tensors whose elements share memory are never written."""
        for here, there in self._tensors.values():
            if all(stride or size < 2 for size, stride in zip(here.shape, here.stride(), strict=True)):
                here.data.copy_(there)  # kernels write without autograd's knowledge, too


class OnDevice:
    """The functions of a backend's module, for tensors of the host."""

    def __init__(self, module: Any, torch_device: torch.device) -> None:
        self._module, self._where = module, torch_device

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)

        @functools.wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            moved = Moved(self._where)
            arguments = [moved.there(value) for value in given]
            result = function(*arguments, **{name: moved.there(value) for name, value in named.items()})
            moved.copy_back()
            return result.cpu() if isinstance(result, torch.Tensor) else result

        return called


def on_device(torch_device: torch.device, backend: str, name: str = NAME) -> Backend:
    """The kernels of ``backend`` on the device ``torch_device``, as a backend for tensors of the host."""

    def load() -> Operators:
        example = torch.empty(0, device=torch_device)
        return Operators(**{each.name: OnDevice(choose(each, backend, x=example), torch_device) for each in OPERATORS})

    return Backend(name, load, dtypes=FEATURES)
