"""Packages whose public names are imported at first use: torch and MPI take seconds to start, and few commands need both."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package (PEP 562).

    homes: for each public name the module that defines it; a name whose module is ``package.name`` is that module itself. A name
    must not be that of another submodule, which the import system would put in its place.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    return get
