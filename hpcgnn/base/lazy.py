"""Packages that import a public name when it is first used, because torch and MPI take seconds to import, and few commands
need both."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def attributes(package: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package (PEP 562), for the names that its source imports for type checkers. No name but a
    module's own may be a submodule's, by which the import system would replace it."""

    @functools.cache
    def homes() -> dict[str, str]:
        source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
        block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
        imports = (node for node in block.body if isinstance(node, ast.ImportFrom))
        return {each.name: str(node.module) for node in imports for each in node.names}

    def get(name: str) -> Any:
        home = homes().get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if home == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(home), name)

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
