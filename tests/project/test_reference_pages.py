"""The pages in docs/reference: every environment variable that the code reads or sets has a line and no other one has, and every
public name is listed, with a docstring that names all arguments, errors, and whether a function is collective.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import assert_none, modules, place, text_of, tree_of
from rank_pool import ROOT

import hpcgnn
from hpcgnn import kernels

# -- environment variables ---------------------------------------------------------------------------------------------

ENVIRONMENT = ROOT / "docs" / "reference" / "environment.md"
# What a function calls the environment that it is given.
_ENVIRONMENTS = ("os.environ", "variables")


class Reader(ast.NodeVisitor):
    """The variables that a module names: ``os.environ["A"]``, ``.get("A")``, ``.setdefault("A")``, ``"A" in os.environ``, and
    ``envvar="A"`` of click. A name in place of ``"A"`` is that of a constant, or of a loop over constants."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: set[str] = set()
        self._values: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._values[node.targets[0].id] = node.value
            elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
                self._values.setdefault(node.target.id, node.iter)
        self.visit(tree)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Attribute) and ast.unparse(node.value) == "os.environ":
            self._add(node.slice)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for key in node.keywords:
            if key.arg == "envvar":
                self._add(key.value)
        function = node.func
        is_asked = isinstance(function, ast.Attribute) and function.attr in ("get", "setdefault", "pop")
        if is_asked and ast.unparse(function.value) in _ENVIRONMENTS:
            self._add(node.args[0])
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if isinstance(node.ops[0], ast.In | ast.NotIn) and ast.unparse(node.comparators[0]) in _ENVIRONMENTS:
            self._add(node.left)
        self.generic_visit(node)

    def _add(self, name: ast.expr) -> None:
        self.found |= set(self._texts(name))

    def _texts(self, node: ast.expr) -> Iterator[str]:
        if isinstance(node, ast.Constant):
            yield str(node.value)
        elif isinstance(node, ast.Tuple):
            for each in node.elts:
                yield from self._texts(each)
        else:
            assert isinstance(node, ast.Name), f"cannot tell which variable {ast.unparse(node)} is"
            assert node.id in self._values, f"cannot tell which variable {node.id} is"
            yield from self._texts(self._values[node.id])


@pytest.mark.slow
def test_the_page_has_every_variable_that_the_code_names() -> None:
    named = {
        name: place(path)
        for path in (*modules("hpcgnn"), ROOT / "native" / "build.py")
        for name in Reader(tree_of(path)).found
    }
    first_cells = [line.split("|")[1] for line in text_of(ENVIRONMENT).splitlines() if line.startswith("| `")]
    told = {name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    assert_none(f"{place(ENVIRONMENT)} does not tell {name}, of {named[name]}" for name in sorted(named.keys() - told))
    assert_none(
        f"{place(ENVIRONMENT)} tells {name}, which the code does not name" for name in sorted(told - named.keys())
    )


def test_native_code_reads_no_variable() -> None:
    sources = [path for path in (ROOT / "native").rglob("*") if path.suffix in (".cpp", ".h", ".c")]
    assert sources
    assert_none(place(path) for path in sources if "getenv" in text_of(path))


# -- Python ------------------------------------------------------------------------------------------------------------

PYTHON = text_of(ROOT / "docs" / "reference" / "python.md")
SHOWN = re.findall(r"^::: ([\w.]+)$", PYTHON, re.MULTILINE)
# Nothing is collective there, as the page says of the rest.
ON_ONE_RANK = ("hpcgnn.kernels.", "hpcgnn.world.thread_world.")


def found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_every_public_name_is_on_the_page() -> None:
    shown = [found(name) for name in SHOWN]
    public = {name: getattr(hpcgnn, name) for name in hpcgnn.__all__ if name not in ("kernels", "__version__")}
    public |= {name: getattr(kernels, name) for name in ("Csr", "spmm", "backends", "register", "resolve")}
    assert [name for name, value in public.items() if not any(value is each for each in shown)] == []
    assert [name for name in kernels.__all__ if name not in PYTHON] == []


def lacks(name: str) -> Iterator[str]:
    """The parts that the docstring of a function lacks."""
    function = found(name)
    text = inspect.getdoc(function) or ""
    arguments = [each for each in inspect.signature(function).parameters if each != "self"]
    if len(arguments) > 0 and not name.startswith("hpcgnn.world.thread_world."):
        listed = re.findall(r"^    (\w+): ", text.partition("\nArgs:\n")[2].partition("\n\n")[0], re.MULTILINE)
        if "\nRaises:\n" not in text:
            yield "the errors"
        if listed != arguments:
            yield f"the arguments {arguments}, and lists {listed}"
    if not name.startswith(ON_ONE_RANK) and not re.search(r"\b(C|Not c)ollective\b", text):
        yield "whether it is collective"


def test_functions_name_their_arguments_and_errors() -> None:
    functions = [name for name in SHOWN if not name.rpartition(".")[2][0].isupper()]
    assert len(functions) > 20
    code = {name: inspect.unwrap(found(name)).__code__ for name in functions}
    assert_none(
        f"{place(Path(code[name].co_filename), code[name].co_firstlineno)}: the docstring of {name} lacks {part}"
        for name in functions
        for part in lacks(name)
    )
