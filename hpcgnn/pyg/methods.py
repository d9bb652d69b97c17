"""Methods of a model's modules that are replaced by ones for many ranks, and that can be recognised and put back."""

from __future__ import annotations

import copy
import functools
from typing import Any, NoReturn

import torch

from hpcgnn.base.errors import HpcgnnError


class OnRanks(functools.partial[Any]):
    """A method for many ranks, with the module and the exchanges that it uses, in the place of a method of a module.

    It belongs to one module. A copy of the module alone would run the original, so it is refused.
    """

    module_name: str
    before: Any  # the entry of the module's __dict__ that was replaced, or None

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise self._refusal("copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._refusal("saved")

    def _refusal(self, done: str) -> HpcgnnError:
        return HpcgnnError(
            f"this {self.module_name} is a part of a distributed model and cannot be {done} alone: it is {done} with the whole "
            "model, or as a part of the model that was given to hpcgnn.distribute"
        )


def replace_method(module: torch.nn.Module, name: str, method: OnRanks) -> None:
    """Let ``module.name`` be ``method`` until :func:`restore_methods`."""
    method.module_name, method.before = type(module).__name__, vars(module).get(name)
    setattr(module, name, method)


def methods_of(module: torch.nn.Module) -> dict[str, OnRanks]:
    """The replaced methods of ``module`` by name."""
    return {name: value for name, value in vars(module).items() if isinstance(value, OnRanks)}


def restore_methods(module: torch.nn.Module, memo: dict[int, Any]) -> None:
    """Undo :func:`replace_method` on a copy of a module. memo: of ``copy.deepcopy``, for methods that users had replaced."""
    for name, method in methods_of(module).items():
        before: Any = method
        while isinstance(before, OnRanks):
            before = before.before
        if before is None:
            delattr(module, name)
        else:
            setattr(module, name, copy.deepcopy(before, memo))
