"""The reference of Python lists every public name, and the docstrings that it shows name all arguments, errors, and whether a
function is collective.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checkout import assert_none, place, text_of
from rank_pool import ROOT

import hpcgnn
from hpcgnn import kernels

PAGE = text_of(ROOT / "docs" / "reference" / "python.md")
SHOWN = re.findall(r"^::: ([\w.]+)$", PAGE, re.MULTILINE)
# Nothing is collective there, as the page says of the rest.
ON_ONE_RANK = ("hpcgnn.kernels.", "hpcgnn.comm.thread_world.")


def found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_every_public_name_is_on_the_page() -> None:
    shown = [found(name) for name in SHOWN]
    public = {name: getattr(hpcgnn, name) for name in hpcgnn.__all__ if name not in ("kernels", "__version__")}
    public |= {name: getattr(kernels, name) for name in ("Csr", "spmm", "backends", "register", "resolve")}
    assert [name for name, value in public.items() if not any(value is each for each in shown)] == []
    assert [name for name in kernels.__all__ if name not in PAGE] == []


def lacks(name: str) -> Iterator[str]:
    """The parts that the docstring of a function lacks."""
    function = found(name)
    text = inspect.getdoc(function) or ""
    arguments = [each for each in inspect.signature(function).parameters if each != "self"]
    if len(arguments) > 0 and not name.startswith("hpcgnn.comm.thread_world."):
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
