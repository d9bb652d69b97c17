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

from checkout import assert_none, modules, nodes_of, place, text_of
from rank_pool import ROOT

import hpcgnn
from hpcgnn import kernels

# -- environment variables ---------------------------------------------------------------------------------------------

ENVIRONMENT = ROOT / "docs" / "reference" / "environment.md"
# What a function calls the environment that it is given.
_ENVIRONMENTS = ("os.environ", "variables")


def variables_of(path: Path) -> Iterator[str]:
    """The variables that a module names: ``os.environ["A"]``, ``.get("A")``, ``.setdefault("A")``, ``"A" in os.environ``, and
    ``envvar="A"`` of click. A name in place of ``"A"`` is that of a constant, or of a loop over constants."""
    values: dict[str, ast.expr] = {}
    for node in nodes_of(path):
        match node:
            case ast.Assign(targets=[ast.Name(id=name), *_], value=value):
                values[name] = value
            case (
                ast.For(target=ast.Name(id=name), iter=value) | ast.comprehension(target=ast.Name(id=name), iter=value)
            ):
                values.setdefault(name, value)
    for node in nodes_of(path):
        match node:
            case (
                ast.Subscript(value=ast.Attribute() as whose, slice=key)
                | ast.Call(func=ast.Attribute(attr="get" | "setdefault" | "pop", value=whose), args=[key, *_])
                | ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[whose], left=key)
            ) if ast.unparse(whose) in _ENVIRONMENTS:
                yield from _texts(key, values)
            case ast.keyword(arg="envvar", value=key):
                yield from _texts(key, values)


def _texts(node: ast.expr, values: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.Tuple):
        for each in node.elts:
            yield from _texts(each, values)
    else:
        assert ast.unparse(node) in values, f"cannot tell which variable {ast.unparse(node)} is"
        yield from _texts(values[ast.unparse(node)], values)


def test_the_page_has_every_variable_that_the_code_names() -> None:
    named = {
        name: place(path) for path in (*modules("hpcgnn"), ROOT / "native" / "build.py") for name in variables_of(path)
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
