"""A folder imports only from the floors below it, and mpi4py has one importer (docs/ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import hpcgnn

PACKAGE = Path(hpcgnn.__file__).parent
FLOORS = [
    {"byte_sink", "errors", "memory", "stop", "version"},
    {"registry", "settings"},
    {"kernels", "plan"},
    {"comm", "data", "node_order"},
    {"shared_file"},
    {"graph", "partition", "policy"},
    {"nn"},
    {"study", "train"},
    {"cli"},
]
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}


def imports(path: Path) -> set[str]:
    """Dotted names that a module imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_imports_go_down():
    modules = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in FLOOR]
    assert len(modules) > 50
    for path in modules:
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for name in imports(path):
            other = name.split(".")[1] if name.startswith("hpcgnn.") else None
            if other in FLOOR and other != own:
                assert FLOOR[other] < FLOOR[own], f"{path} imports {name}"


def test_one_module_imports_mpi4py():
    importers = {path.name for path in PACKAGE.rglob("*.py") if any(n.startswith("mpi4py") for n in imports(path))}
    assert importers == {"mpi_world.py"}


def test_functions_and_modules_stay_readable():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"
