"""Records the intermediate results of a model, so that the first call with a wrong result can be named."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from torch_geometric.nn import MessagePassing

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.pyg import norms
from hpcgnn.pyg.distribution import distribution_of, is_distributed
from hpcgnn.pyg.rows import DROPOUTS, called_by, line_of_user, name_of

_DROPOUT_MODULES = torch.nn.modules.dropout._DropoutNd
_OPAQUE = (MessagePassing, *norms.GLOBAL, _DROPOUT_MODULES)  # their inner calls are this package's responsibility


@dataclass
class Call:
    """A call of a layer, or of a torch function outside of layers: its result, and its place in the code."""

    name: str
    where: str
    result: torch.Tensor


class PartError(Exception):
    """An error that a model raised, with its place in the code."""


class Recorder(TorchFunctionMode):
    """Records the calls made in its context. Meanwhile, dropouts do nothing; those of ``model`` do nothing afterwards, too."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._inside: list[str] = []
        self._last = "it"
        self._hooks: list[RemovableHandle] = []
        for name, module in model.named_modules():
            if isinstance(module, _OPAQUE):
                self._listen(module, f"{name or 'the model'} ({type(module).__name__})")
        if is_distributed(model):
            distribution_of(model).bridge.drops = False

    def _listen(self, module: torch.nn.Module, described: str) -> None:
        def enter(*_: Any) -> None:
            self._inside.append(described)

        def leave(module: torch.nn.Module, _: Any, result: Any) -> None:
            if len(self._inside) == 1 and isinstance(result, torch.Tensor) and not isinstance(module, _DROPOUT_MODULES):
                self.calls.append(Call(described, "", result.detach()))
            self._inside.pop()

        self._hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def stop(self) -> None:
        """Stop recording."""
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch's documentation of ``__torch_function__``: torch calls it instead of each of its functions."""
        if func in DROPOUTS:
            return args[0] if args else (kwargs or {})["input"]
        name, is_models = name_of(func), not self._inside and called_by() != "ours"
        if is_models:
            self._last = f"{name} ({line_of_user()})"
        result = func(*args, **(kwargs or {}))
        if is_models:
            for tensor in result if isinstance(result, tuple) else (result,):
                # inside torch.vmap, a tensor is a column of others, and may not be looked at afterwards
                if isinstance(tensor, torch.Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                    self.calls.append(Call(name, line_of_user(), tensor.detach()))
        return result

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        refused = isinstance(error, HpcgnnError) and not isinstance(error, (ValueError, TypeError))
        if isinstance(error, Exception) and not refused and not isinstance(error, threading.BrokenBarrierError):
            where = self._inside[0] if self._inside else self._last
            raise PartError(f"{where} raised {type(error).__name__}: {error}") from error
