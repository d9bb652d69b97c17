"""A folder imports only from the layers below it, and only one module imports mpi4py (docs/ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import torch

import hpcgnn
from hpcgnn.host import index_array

PACKAGE = Path(hpcgnn.__file__).parent
FLOORS = [
    {"bit_widths", "byte_sink", "errors", "footprint", "host", "lazy", "memory", "processor", "stop", "version"},
    {"arguments", "devices", "registry", "typed", "whole_file"},
    {"settings"},
    {"kernels", "plan"},
    {"comm", "data", "node_order"},
    {"shared_file", "node_plan"},
    {"graph", "partition", "policy"},
    {"nn"},
    {"train"},
    {"bench"},
    {"launch"},
    {"doctor", "study"},
    {"cost_model"},
    {"report"},
    {"cli"},
]
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}


def imports(path: Path) -> set[str]:
    """The dotted names that a module imports, also inside functions."""
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


def module_name(path: Path) -> str:
    parts = ("hpcgnn", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, modules: dict[str, Path]) -> set[str]:
    """The files that a module imports. For ``from package import name`` this is the file of the name if it is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return found & modules.keys()


def test_no_file_imports_itself_in_a_circle():
    """This includes imports inside functions and imports for type checkers only."""
    modules = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    assert len(modules) > 150
    graph = {name: imported_modules(path, modules) - {name} for name, path in modules.items()}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_tensors_become_arrays_in_few_places():
    """Only kernels, the boundary to MPI, loaders of other libraries' files, and the two functions for indices and results may
    do it.
    """
    allowed = ("kernels/", "comm/", "data/sources/", "host.py")
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        assert where.startswith(allowed) or ".numpy()" not in path.read_text(), where


def test_an_index_is_no_feature():
    assert index_array(torch.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="an index is made of integers"):
        index_array(torch.zeros(2))


def test_one_module_imports_mpi4py():
    importers = {path.name for path in PACKAGE.rglob("*.py") if any(n.startswith("mpi4py") for n in imports(path))}
    assert importers == {"mpi_world.py"}


def lines_of_docstring(node: ast.AST) -> int:
    """Public docstrings list arguments, results and errors for the reference pages: they do not make code long."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) or ast.get_docstring(node) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def test_functions_and_modules_stay_readable():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        nodes = list(ast.walk(ast.parse(text)))
        lines = len(text.splitlines())
        assert lines <= 450, path
        assert lines - sum(map(lines_of_docstring, nodes)) <= 400, path
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                length = node.end_lineno - node.lineno + 1 - lines_of_docstring(node)
                assert length <= 60, f"{path}: {node.name}"
