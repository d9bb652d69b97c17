"""Checks of the arguments of public functions, made first, so that a wrong one does not fail in the middle of the work."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hpcgnn.base.errors import WrongTypeError, WrongValueError, quoted

if TYPE_CHECKING:
    import torch

_LONGEST_PATH, _LONGEST_NAME = 4095, 255  # the limits of Linux, in bytes


def check_type(name: str, value: Any, *kinds: type) -> None:
    """Raise WrongTypeError, which names the argument, unless ``value`` is of one of ``kinds``; ``type(None)`` allows None."""
    if not isinstance(value, kinds):
        words = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise WrongTypeError(f"{name} must be {words}, not {_kind(value)}")


def check_tensors(**named: Any) -> None:
    """Raise an error, which names the argument, unless each is None or a dense tensor whose memory holds its own values."""
    import torch  # imported here, because the ranks of `hpcgnn partition` do not need it, and save its memory

    for name, value in named.items():
        if value is not None and not (isinstance(value, torch.Tensor) and value.layout == torch.strided):
            what = "a sparse tensor" if isinstance(value, torch.Tensor) else _kind(value)
            raise WrongTypeError(f"{name} must be a dense torch.Tensor, not {what}")
        if value is not None and not is_plain(value):
            raise WrongTypeError(f"{name} must be a torch.Tensor itself, not the subclass {type(value).__name__}")
        if value is not None and (value.is_neg() or value.is_conj()):  # values differ from those in its memory
            raise WrongValueError(f"{name} must not be a view that torch negates where it is read: give .resolve_neg()")


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is torch's own: subclasses such as ``torch_geometric.EdgeIndex`` may have no memory themselves."""
    import torch

    return type(tensor) is torch.Tensor or isinstance(tensor, torch.nn.Parameter)


def check_given(**named: Any) -> None:
    """Like :func:`check_tensors`, but None is refused, too."""
    for name, value in named.items():
        if value is None:
            raise WrongTypeError(f"{name} must be a dense torch.Tensor, not None")
    check_tensors(**named)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise an error, which names the argument, unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        kind = WrongValueError if isinstance(value, str) else WrongTypeError
        raise kind(f"{name} must be one of {', '.join(choices)}, not {quoted(value)}")


def check_whole(name: str, value: Any, least: int = 0, most: int = 2**63 - 1) -> None:
    """Raise an error, which names the argument, unless ``value`` is a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise WrongTypeError(f"{name} must be a whole number, not {quoted(value)}")
    if not least <= int(value) <= most:
        raise WrongValueError(f"{name} must be a whole number of at least {least}, and below 2^63, not {quoted(value)}")


def check_number(name: str, value: Any) -> None:
    """Raise an error, which names the argument, unless ``value`` is a finite number that fits into a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise WrongTypeError(f"{name} must be a number, not {_kind(value)}")
    with contextlib.suppress(OverflowError):
        if math.isfinite(value):
            return
    raise WrongValueError(f"{name} must be a finite number")


def check_callable(name: str, value: Any) -> None:
    """Raise WrongTypeError, which names the argument, unless ``value`` can be called."""
    if not callable(value):
        raise WrongTypeError(f"{name} must be a function, not {_kind(value)}")


def check_world(world: Any) -> None:
    """Raise WrongTypeError unless ``world`` is None or has the methods of a :class:`hpcgnn.world.World`."""
    if world is not None and not all(hasattr(world, name) for name in ("rank", "size", "allreduce")):
        raise WrongTypeError(f"world must be a hpcgnn.world.World, not {_kind(world)}")


def check_device(device: Any, *, may_be_name: bool) -> None:
    """Raise WrongTypeError unless ``device`` has the methods of a :class:`hpcgnn.devices.Device`, or may be and is a name."""
    if may_be_name and isinstance(device, str):
        return
    if not all(hasattr(device, name) for name in ("torch_device", "use", "synchronize")):
        names = "a name, such as cpu or cuda:0, or " if may_be_name else ""
        raise WrongTypeError(f"device must be {names}a hpcgnn.devices.Device, not {_kind(device)}")


def check_path(name: str, value: Any) -> None:
    """Raise an error, which names the argument, unless ``value`` is a path that a file can have."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise WrongTypeError(f"{name} must be a path, not {_kind(value)}")
    path = os.fspath(value)
    is_long = len(path) > _LONGEST_PATH or any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.split("/"))
    if is_long or "\0" in path:
        raise WrongValueError(
            f"{name} must be a path that a file can have, not {quoted(path)}: it is too long, or has a zero byte"
        )


def _kind(value: Any) -> str:
    return "None" if value is None else f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")


AUTO_DEVICE, HOST_DEVICE = "auto", "cpu"
_DEVICE_NAMES = re.compile(r"auto|cpu|cuda(:\d{1,4})?")


def check_device_name(asked: str) -> None:
    """Raise WrongValueError unless ``asked`` is one of the names that ``--device`` takes."""
    if not isinstance(asked, str) or not _DEVICE_NAMES.fullmatch(asked):
        raise WrongValueError(
            f"device must be auto, cpu, cuda or cuda:N (AMD's GPUs are called cuda too), not {asked!r}"
        )
