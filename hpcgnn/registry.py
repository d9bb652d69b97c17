"""What can be chosen by name, each a class in a module of its own that nothing else need name."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from hpcgnn.errors import WrongTypeError, WrongValueError, told

T = TypeVar("T", bound=type)


class Registry(Generic[T]):
    """The classes of a ``kind`` by name: those of all modules of ``package``, and what other programs register.

    The package's modules are imported when names are asked for first.
    """

    def __init__(self, kind: str, package: str) -> None:
        self._kind, self._package = kind, package
        self._found: dict[str, T] = {}
        self._is_scanned, self._scanning = False, threading.RLock()

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator of a class that is chosen by ``name``."""

        def add(found: T) -> T:
            before = self._found.setdefault(name, found)
            if (before.__module__, before.__qualname__) != (found.__module__, found.__qualname__):
                raise ValueError(f"there is a {self._kind} {name!r} already: {before.__module__}.{before.__qualname__}")
            self._found[name] = found
            return found

        return add

    def _all(self) -> dict[str, T]:
        with self._scanning:  # ranks may be threads; a module of the package may ask for names while it is imported
            if not self._is_scanned:
                self._is_scanned = True
                for module in pkgutil.iter_modules(importlib.import_module(self._package).__path__):
                    importlib.import_module(f"{self._package}.{module.name}")
        return self._found

    def __getitem__(self, name: str) -> T:
        """The class.

        Raises:
            WrongValueError, WrongTypeError: where there is none.
        """
        if not isinstance(name, str) or name not in self._all():
            kind = WrongValueError if isinstance(name, str) else WrongTypeError
            raise kind(f"{self._kind} must be one of {', '.join(self)}, not {told(name)}")
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        """Names, in alphabetical order: which module comes first says nothing."""
        return iter(sorted(self._all()))

    def summaries(self, but: str = "") -> str:
        """All names but one, each with its class's ``summary``, for a command's help."""
        told = ((name, self[name].summary) for name in self if name != but)  # type: ignore[attr-defined]
        return "; ".join(f"{name}: {summary}" if summary else name for name, summary in told)

    def __contains__(self, name: object) -> bool:
        return name in self._all()
