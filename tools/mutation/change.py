"""A change of one module of hpcgnn, made while Python imports it: no file is written, and modules that import a name from it get
the changed one.

A change is the name of a fault (:mod:`mutation.faults`) or of a mutant (:mod:`mutation.mutants`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from mutation import mutants
from mutation.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
NAME = "HPCGNN_MUTATION"  # the variable that tells started processes about the change


class _WithFault(SourceFileLoader):
    """Imports a module, and replaces some of its functions."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        FAULTS[os.environ[NAME]].put_into(module)


class _Mutated(SourceFileLoader):
    """Compiles a module with a mutant in it, past the cache of compiled files."""

    def get_code(self, fullname: str) -> CodeType:
        return mutants.compiled(os.environ[NAME], Path(self.path))


class _Finder:
    """Finds one module, and leaves all others to Python."""

    def __init__(self, module: str, loader: type[SourceFileLoader]) -> None:
        self._module, self._loader = module, loader

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Return the module's usual place, with a loader that changes it."""
        if name != self._module:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.origin is not None:
            spec.loader = self._loader(name, spec.origin)
        return spec


def source_of(name: str) -> Path:
    """The file that a change is about."""
    return ROOT / (FAULTS[name].module.replace(".", "/") + ".py" if name in FAULTS else mutants.file_of(name))


def install(name: str) -> None:
    """Make the change ``name`` in this process, before it imports hpcgnn, and in the processes that it starts."""
    os.environ[NAME] = name
    parts = source_of(name).relative_to(ROOT).with_suffix("").parts
    module = ".".join(parts).removesuffix(".__init__")
    assert module not in sys.modules, "the change comes too late"
    sys.meta_path.insert(0, _Finder(module, _WithFault if name in FAULTS else _Mutated))  # type: ignore[arg-type]


def import_path() -> str:
    """The PYTHONPATH of the processes that tests start."""
    tools = ROOT / "tools"
    return os.pathsep.join(map(str, (tools / "mutation" / "started", tools, ROOT, ROOT / "tests")))
