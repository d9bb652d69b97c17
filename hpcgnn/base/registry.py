"""Classes and functions that are chosen by name. Each is in a module that is imported when it is first needed."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hpcgnn.base.errors import WrongTypeError, WrongValueError, quoted

T = TypeVar("T", bound=Any)  # a class, or a function


@dataclass(frozen=True)
class Known:
    """The description of a class or function of this package, which needs no import of its module, and so not of torch.

    module: the module that registers it. summary: a phrase for a command's help. settings: the dataclasses of its own settings.
    """

    module: str
    summary: str = ""
    settings: tuple[type, ...] = ()


class Registry(Generic[T]):
    """The classes of a ``kind`` by name: the ``known`` ones of this package, and those that other programs register.

    A command lists names, summaries and settings of all classes without importing the modules of any.
    """

    def __init__(self, kind: str, known: Mapping[str, Known]) -> None:
        self._kind, self._known = kind, known
        self._found: dict[str, T] = {}
        self._importing = threading.RLock()  # ranks may be threads

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class under ``name``. A known class gets its summary and settings from its
        :class:`Known`; other classes have them as class attributes."""

        def add(found: T) -> T:
            known = self._known.get(name)
            place = (found.__module__, found.__qualname__)
            before = self._found.get(name)
            if before is None and known is not None and found.__module__ != known.module:
                before = self[name]
            if before is not None and (before.__module__, before.__qualname__) != place:
                raise ValueError(f"there is a {self._kind} {name!r} already: {before.__module__}.{before.__qualname__}")
            if known is not None:
                found.summary, found.settings = known.summary, known.settings
            self._found[name] = found
            return found

        return add

    def __getitem__(self, name: str) -> T:
        """The class of this name.

        Raises:
            WrongValueError, WrongTypeError: where no class has this name, or it is not a string.
        """
        self._check(name)
        if name not in self._found:
            with self._importing:
                importlib.import_module(self._known[name].module)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        """The names in alphabetical order, so that the order of imports does not matter."""
        return iter(sorted({*self._known, *self._found}))

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._found

    def settings(self, name: str) -> tuple[type, ...]:
        """The dataclasses of the settings that a class has of its own. Raises as :meth:`__getitem__`."""
        self._check(name)
        return self._known[name].settings if name in self._known else self[name].settings

    def _check(self, name: str) -> None:
        if not isinstance(name, str) or name not in self:
            kind = WrongValueError if isinstance(name, str) else WrongTypeError
            raise kind(f"{self._kind} must be one of {', '.join(self)}, not {quoted(name)}")

    def summaries(self, but: str = "") -> str:
        """All names, except ``but``, each with its summary, for a command's help."""
        told = ((name, self._summary(name)) for name in self if name != but)
        return "; ".join(f"{name}: {summary}" if summary else name for name, summary in told)

    def _summary(self, name: str) -> str:
        return self._known[name].summary if name in self._known else self[name].summary
