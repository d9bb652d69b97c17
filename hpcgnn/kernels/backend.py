"""Which implementation of the kernels runs: ``native`` (C++), ``jit`` (numba) or ``reference`` (torch)."""

from __future__ import annotations

import importlib
from types import ModuleType

from hpcgnn.kernels.native import library

BACKENDS = ("auto", "native", "jit", "reference")


def resolve(backend: str = "auto") -> str:
    """The backend that will run: ``auto`` is native where it was built, else jit.

    Raises:
        ValueError: for an unknown name, or ``native`` where the library is missing.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if backend == "native" and library.load() is None:
        raise ValueError("backend 'native' was asked for, but hpcgnn was installed without a C++ compiler")
    if backend == "auto":
        return "jit" if library.load() is None else "native"
    return backend


def implementation(operators: str, backend: str) -> ModuleType:
    """The module ``hpcgnn.kernels.<backend>.<operators>``; the three have the same functions."""
    return importlib.import_module(f"hpcgnn.kernels.{resolve(backend)}.{operators}")
