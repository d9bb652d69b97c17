"""What public functions ask of what a program gives them, before it fails in the middle of something else."""

from __future__ import annotations

import numbers
import os
from collections.abc import Collection
from typing import Any

import torch

from hpcgnn.errors import WrongTypeError, WrongValueError


def check_type(name: str, value: Any, *kinds: type) -> None:
    """Raise WrongTypeError, which names the argument, unless ``value`` is of one of ``kinds``; ``type(None)`` for None."""
    if not isinstance(value, kinds):
        words = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise WrongTypeError(f"{name} must be {words}, not {_kind(value)}")


def check_tensors(**named: Any) -> None:
    """Raise WrongTypeError, which names the argument, unless each is a dense tensor or None."""
    for name, value in named.items():
        if value is not None and not (isinstance(value, torch.Tensor) and value.layout == torch.strided):
            what = "a sparse tensor" if isinstance(value, torch.Tensor) else _kind(value)
            raise WrongTypeError(f"{name} must be a dense torch.Tensor, not {what}")


def check_given(**named: Any) -> None:
    """As :func:`check_tensors`, of those that must not be None."""
    for name, value in named.items():
        if value is None:
            raise WrongTypeError(f"{name} must be a dense torch.Tensor, not None")
    check_tensors(**named)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise an error, which names the argument, unless ``value`` is one of ``choices``."""
    if not isinstance(value, str):
        raise WrongTypeError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    if value not in choices:
        raise WrongValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def check_whole(name: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> None:
    """Raise an error, which names the argument, unless ``value`` is a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise WrongTypeError(f"{name} must be a whole number, not {value!r}")
    if not least <= int(value) <= most:
        raise WrongValueError(f"{name} must be a whole number of at least {least}, and below 2^63, not {value!r}")


def check_callable(name: str, value: Any) -> None:
    """Raise WrongTypeError, which names the argument, unless ``value`` can be called."""
    if not callable(value):
        raise WrongTypeError(f"{name} must be a function, not {_kind(value)}")


def check_world(world: Any) -> None:
    """Raise WrongTypeError unless it is a :class:`hpcgnn.comm.World`, whoever made it, or None."""
    if world is not None and not all(hasattr(world, name) for name in ("rank", "size", "allreduce")):
        raise WrongTypeError(f"world must be a hpcgnn.comm.World, not {_kind(world)}")


def check_path(name: str, value: Any) -> None:
    """Raise WrongTypeError, which names the argument, unless ``value`` is a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise WrongTypeError(f"{name} must be a path, not {_kind(value)}")


def _kind(value: Any) -> str:
    return "None" if value is None else f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
