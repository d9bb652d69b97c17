"""Packages that import a public name when it is first used, because torch and MPI take seconds to import, and few commands
need both."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package (PEP 562). homes: the module of each public name; a name whose module is
    ``package.name`` stands for it. No other name may be a submodule's, by which the import system would replace it."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    return get


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import many modules without collections of garbage, which take a sixth of the time of torch's import and find hardly any;
    later ones do not look at these modules."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
