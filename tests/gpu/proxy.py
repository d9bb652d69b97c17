"""A backend for tensors of the host whose kernels run on a device, because tests of kernels have all tensors on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from hpcgnn import kernels
from hpcgnn.kernels.activation import DropoutMask, Norm, Shift
from hpcgnn.kernels.backend import FEATURES, Backend, choose
from hpcgnn.kernels.contract import OPERATORS, Operators
from hpcgnn.kernels.csr import Csr
from hpcgnn.kernels.messages import decode_rows, encode_rows, spmm_rows

NAME = "triton-on-gpu"


def converted(value: Any, tensor: Callable[[torch.Tensor], torch.Tensor], matrix: Callable[[Csr], Csr]) -> Any:
    """An argument of a kernel with its tensors, or its matrix, converted."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if isinstance(value, Csr):
        return matrix(value)
    if isinstance(value, Shift):
        return Shift(tensor(value.bias))
    if isinstance(value, Norm):
        return Norm(tensor(value.weight), tensor(value.bias), value.eps)
    if isinstance(value, DropoutMask):
        return DropoutMask(tensor(value.ids), value.key, value.probability)
    return value


class Redirected:
    """The functions of a backend's module, of which each call is ``call(function, *arguments)``; also of functions that they
    return."""

    def __init__(self, module: Any, call: Callable[..., Any]) -> None:
        self._module, self._call = module, call

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)

        @functools.wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            result = self._call(function, *given, **named)
            return functools.partial(self._call, result) if callable(result) else result

        return called


def call_there(torch_device: torch.device, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a kernel with its arguments on the device. A tensor that occurs twice is one tensor there, too."""
    tensors: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        key = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        return tensors.setdefault(key, (tensor, tensor.detach().to(torch_device)))[1]

    def there(value: Any) -> Any:
        return converted(value, moved, lambda csr: csr.to(torch_device))

    result = function(*map(there, given), **{name: there(value) for name, value in named.items()})
    for here, copy in tensors.values():  # tensors whose elements share memory are never written
        if all(stride or size < 2 for size, stride in zip(here.shape, here.stride(), strict=True)):
            here.data.copy_(copy)  # kernels write without autograd's knowledge, too
    return result.cpu() if isinstance(result, torch.Tensor) else result


def on_device(torch_device: torch.device, backend: str, name: str = NAME) -> Backend:
    """The kernels of ``backend`` on the device ``torch_device``, as a backend for tensors of the host."""

    def load() -> Operators:
        example = torch.empty(0, device=torch_device)
        call = functools.partial(call_there, torch_device)
        return Operators(**{each.name: Redirected(choose(each, backend, x=example), call) for each in OPERATORS})

    return Backend(name, load, dtypes=FEATURES)


def every_operator(backend: str, csr: Csr) -> list[torch.Tensor]:
    """The results of each function of hpcgnn.kernels that takes a backend, for a matrix of 2 rows and 2 columns; and gradients.
    One operand is a view, one row is not finite, and the elements of given gradients share memory.
    """
    torch.manual_seed(0)
    shapes = (csr.num_entries,), (4,), (4,), (4, 2), (2,)
    leaves = [leaf.requires_grad_() for leaf in (torch.randn(4, 2).t(), *map(torch.rand, shapes))]
    x, scores, scaling, shift, weight, bias = leaves
    index, ids = torch.tensor([1, 0]), torch.arange(2)
    results = [
        kernels.spmm(csr, x, scores, "mean", backend=backend),
        kernels.sddmm(csr, x, x, "dot", backend=backend),
        kernels.sddmm(csr, x, x, "add", backend=backend),
        kernels.edge_softmax(csr, scores, backend),
        kernels.edge_sum(csr, scores, backend),
        kernels.attention_weights(csr, x, x, 0.2, backend),
        kernels.gather_rows(x, index, backend),
        kernels.scatter_rows(index, x, 3, backend),
        kernels.dense_product(x, weight, bias, backend=backend),
        kernels.activation(x, Norm(scaling, shift, 1e-5), DropoutMask(ids, 1, 0.5), backend),
    ]
    torch.autograd.backward([result.sum() for result in results])
    plain, out, bits = x.detach(), torch.ones(2, 4), 2
    kernels.spmm(csr, plain, out=out, backend=backend)
    found = [kernels.dropout(plain, ids, 1, 0.5, backend), kernels.pack_bf16(plain, backend=backend)]
    found.append(kernels.unpack_bf16(found[-1], backend=backend))
    buffer, places = torch.zeros(16, dtype=torch.uint8), (ids, 8 + 4 * ids)
    rows = plain.contiguous()
    rows[1, 2] = torch.nan
    received, sums = torch.zeros(2, 4), torch.zeros(2, 4)
    sent = encode_rows(rows, ids, bits, 1, buffer, *places, backend=backend)
    came = decode_rows(buffer, *places, bits, received, ids, backend=backend)
    spmm_rows(csr, buffer, *places, bits, 4, sums, backend)
    found += [out, buffer, received, sums, torch.tensor([int(sent), int(came)])]
    return [
        *(result.detach() for result in results),
        *(leaf.grad for leaf in leaves),
        *(one.nan_to_num(9) for one in found),
    ]
