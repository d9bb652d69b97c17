"""The choice of the backend that runs, from the device of the tensors and the name that was asked for; nothing else chooses."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hpcgnn.base.arguments import check_tensors, check_type, is_plain
from hpcgnn.base.errors import WrongValueError, quoted

K = TypeVar("K")
Tensors = dict[str, Tensor | None]
AUTO = "auto"
GROUP = "hpcgnn.backends"  # entry points of other packages, which map a name to a Backend
_CPU = torch.device("cpu")
FEATURES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.int8))  # all types of features


@dataclass(frozen=True, eq=False)
class Operator(Generic[K]):
    """An operator that :func:`choose` looks up: a field of :class:`hpcgnn.kernels.contract.Operators`, and its protocol.

    name: name of the field. protocol: the functions that a backend's module must have; their bodies are those of ``reference``,
    unless it has ``other_bodies``. native: the kernels of ``native``. of_features: whether a backend must take the type of the
    features to be chosen.
    """

    name: str
    protocol: type
    native: K
    of_features: bool = True
    other_bodies: K | None = None

    @cached_property
    def reference(self) -> K:
        """The kernels of ``reference``."""
        return self.other_bodies or type("Reference", (self.protocol,), {})()

    def of(self, backend: Backend) -> K | None:
        """The backend's module for this operator, or None."""
        return getattr(backend.operators, self.name)


@dataclass(frozen=True)
class Backend:
    """A set of kernels that the dispatcher may choose.

    Args:
        name: the value of ``backend=`` that asks for it.
        load: function that imports the kernels at their first use, and returns a ``hpcgnn.kernels.contract.Operators``.
        devices: types of torch devices whose tensors it takes.
        dtypes: types of features that it takes.
        rank: ``auto`` takes the usable backend of the highest rank, for each operator. None: only by name.
        missing: function that returns the reason why the backend cannot run here, a clause that follows "was asked for, but";
            None if it can. ``auto`` asks once.
    """

    name: str
    load: Callable[[], Any]
    devices: tuple[str, ...] = ("cpu",)
    dtypes: frozenset[torch.dtype] = FEATURES
    rank: int | None = None
    missing: Callable[[], str | None] = lambda: None

    @cached_property
    def operators(self) -> Any:
        """Its kernels, imported at the first access."""
        return self.load()


_registered: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Add a kernel backend to this process. Backends of installed packages are found by the entry point group
    ``hpcgnn.backends``.

    Args:
        backend: the backend; with a ``rank``, ``auto`` may choose it from now on.

    Raises:
        ValueError: if a backend of this name exists.
        TypeError: if ``backend`` is not a ``Backend``.
    """
    check_type("backend", backend, Backend)
    if backend.name == AUTO or backend.name in _found():
        raise WrongValueError(f"there is a backend called {backend.name!r} already: choose another name")
    _registered[backend.name] = backend
    forget()


def forget() -> None:
    """Find the backends again, and what ``auto`` chooses of them, where they are asked for the next time."""
    for kept in (_found, _ranked, _best):
        kept.cache_clear()


def backends() -> tuple[str, ...]:
    """The names of all backends, in the order in which ``auto`` prefers them; backends that cannot run here are included."""
    return tuple(_found())


def resolve(backend: str = AUTO, **tensors: Tensor | None) -> str:
    """Return the name of the backend that would take these tensors. Not collective.

    Args:
        backend: name of a backend, or ``auto``, which chooses the usable backend of the highest rank.
        tensors: tensors under names that errors may use; the first one decides the device.

    Raises:
        ValueError: in one sentence, for an unknown name, a backend that cannot run here, and tensors on a device that it does
            not take.
    """
    check_tensors(**tensors)
    return _select(None, backend, tensors).name


def choose(operator: Operator[K], backend: str = AUTO, **tensors: Tensor | None) -> K:
    """The kernels of an operator for these tensors.

    ``auto`` chooses the backend of the highest rank that can run here, has the operator, and takes device and type.

    Args:
        tensors: the operator's tensors under the names of their arguments, for errors; the first has the type of the features.

    Raises:
        ValueError: in one sentence, for an unknown name, a backend that cannot run here, and tensors of devices or types that it
            does not take.
    """
    kernels: K = getattr(_select(operator, backend, tensors).operators, operator.name)
    return kernels


def misfit(name: str, tensor: Tensor, wanted: str) -> WrongValueError:
    """The error for an argument whose type or shape is not as ``wanted``."""
    return WrongValueError(f"{name} must be {wanted}, not {tensor.dtype} of shape {tuple(tensor.shape)}")


def problem_on(kind: str) -> str | None:
    """The reason why no kernels run on devices of this type, a clause to follow "but"; None if some do."""
    reasons = [backend.missing() for backend in _found().values() if kind in backend.devices]
    if None in reasons:
        return None
    return next((reason for reason in reasons if reason), f"no backend has kernels for {kind}")


def _select(operator: Operator | None, backend: str, tensors: Tensors) -> Backend:
    device, dtype = _device_of(tensors), None
    if operator is not None and operator.of_features:
        first = next(iter(tensors.values()), None)
        dtype = None if first is None else first.dtype
    if isinstance(backend, str) and backend == AUTO:
        chosen = _best(operator, device.type, dtype) or _best_now(operator, device, dtype, tensors)
    else:
        chosen = _named(operator, backend, device, dtype, tensors)
    if device is not _CPU:
        for name, tensor in tensors.items():
            if tensor is not None and tensor.device != device:
                raise WrongValueError(
                    f"{name} must be on {device}, as {next(iter(tensors))} is, not on {tensor.device}"
                )
    return chosen


def _takes(backend: Backend, dtype: torch.dtype | None) -> bool:
    return dtype is None or dtype in backend.dtypes


def _device_of(tensors: Tensors) -> torch.device:
    """The device of the first tensor. The result is the object ``_CPU`` itself if all are on the CPU, or there are none: the
    caller then need not compare devices."""
    first = None
    for name, tensor in tensors.items():
        if tensor is not None:
            if type(tensor) is not Tensor and not is_plain(tensor):
                check_tensors(**{name: tensor})
            first = tensor if first is None else first
            if not tensor.is_cpu:
                return first.device
    return _CPU


def _best_now(operator: Operator | None, device: torch.device, dtype: torch.dtype | None, tensors: Tensors) -> Backend:
    """The backend that has become usable since the last call; else an error that says why there is none."""
    _best.cache_clear()
    if (best := _best(operator, device.type, dtype)) is not None:
        return best
    usable = [backend for backend in _ranked() if backend.missing() is None]
    devices = tuple(sorted({device for backend in usable for device in backend.devices}))
    if device.type not in devices:
        raise WrongValueError(_wrong_device(tensors, device, "the backends that run here", devices))
    names, what = ", ".join(backend.name for backend in usable), "" if operator is None else f" {operator.name}"
    raise WrongValueError(f"none of the backends that run here ({names}) has{what} kernels for {dtype} on {device}")


@functools.cache
def _best(operator: Operator | None, kind: str, dtype: torch.dtype | None) -> Backend | None:
    """The usable backend of the highest rank for a type of devices; None without one."""
    for backend in _ranked():
        if kind not in backend.devices or not _takes(backend, dtype) or backend.missing() is not None:
            continue
        if operator is None or operator.of(backend) is not None:
            return backend
    return None


def _named(
    operator: Operator | None, name: str, device: torch.device, dtype: torch.dtype | None, tensors: Tensors
) -> Backend:
    backend = _found().get(name) if isinstance(name, str) else None
    if backend is None:
        raise WrongValueError(f"backend must be one of {', '.join((AUTO, *_found()))}, not {quoted(name)}")
    reason = backend.missing()
    if reason is not None:
        raise WrongValueError(f"backend {name!r} was asked for, but {reason}")
    if device.type not in backend.devices:
        raise WrongValueError(_wrong_device(tensors, device, f"backend {name!r}", backend.devices))
    if operator is not None and operator.of(backend) is None:
        raise WrongValueError(f"backend {name!r} has no {operator.name} kernels: ask for another one, or for {AUTO!r}")
    if not _takes(backend, dtype):
        types = ", ".join(sorted(map(str, backend.dtypes)))
        raise WrongValueError(f"{next(iter(tensors))} must be {types} for backend {name!r}, not {dtype}")
    return backend


def _wrong_device(tensors: Tensors, device: torch.device, who: str, devices: tuple[str, ...]) -> str:
    places = " or ".join({"cpu": "the CPU"}.get(known, known) for known in devices)
    return f"{next(iter(tensors), 'a tensor')} must be on {places} for {who}, not on {device}"


@functools.cache
def _ranked() -> tuple[Backend, ...]:
    """The backends that ``auto`` may choose, the preferred one first."""
    return tuple(backend for backend in _found().values() if backend.rank is not None)


@functools.cache
def _found() -> dict[str, Backend]:
    """Every backend by name, in the order of ``auto``'s preference and then of their names."""
    found: dict[str, Backend] = {}
    for backend in (*_built_in(), *_installed(), *_registered.values()):
        found.setdefault(backend.name, backend)
    return dict(sorted(found.items(), key=lambda item: -1 if item[1].rank is None else item[1].rank, reverse=True))


def _built_in() -> Iterator[Backend]:
    """The backends whose kernels stand beside the contract, and those of this folder: every package in it is one."""
    contract = importlib.import_module(f"{__package__}.contract")  # now, because the operators import this module
    yield from (contract.NATIVE, contract.REFERENCE)
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.ispkg:
            yield importlib.import_module(f"{__package__}.{module.name}").BACKEND


def _installed() -> Iterator[Backend]:
    """The backends of other packages. One that cannot be imported becomes a backend that cannot run: it must not be an error for
    users who never ask for it."""
    for entry in entry_points(group=GROUP):
        try:
            yield entry.load()
        except Exception as error:
            reason = f"{entry.value} cannot be imported: {' '.join(str(error).split())}"
            yield Backend(entry.name, load=lambda: None, missing=functools.partial(str, reason))
