"""The reference of Python lists every public name, and the docstrings that it shows name all arguments, errors, and whether a
function is collective."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
from rank_pool import ROOT

import hpcgnn
from hpcgnn import kernels

PAGE = (ROOT / "docs" / "reference" / "python.md").read_text()
SHOWN = re.findall(r"^::: ([\w.]+)$", PAGE, re.MULTILINE)
FUNCTIONS = [name for name in SHOWN if not name.rpartition(".")[2][0].isupper()]
ON_ONE_RANK = (
    "hpcgnn.kernels.",
    "hpcgnn.comm.thread_world.",
)  # where nothing is collective, as the page says of the rest


def found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_every_public_name_is_on_the_page():
    shown = [found(name) for name in SHOWN]
    public = {name: getattr(hpcgnn, name) for name in hpcgnn.__all__ if name not in ("kernels", "__version__")}
    public |= {name: getattr(kernels, name) for name in ("Csr", "spmm", "backends", "register", "resolve")}
    assert [name for name, value in public.items() if not any(value is each for each in shown)] == []
    assert [name for name in kernels.__all__ if name not in PAGE] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_names_its_arguments_and_errors(name):
    function = found(name)
    text = inspect.getdoc(function) or ""
    arguments = [each for each in inspect.signature(function).parameters if each != "self"]
    if len(arguments) > 0 and not name.startswith("hpcgnn.comm.thread_world."):
        assert "\nRaises:\n" in text
        listed = re.findall(r"^    (\w+): ", text.partition("\nArgs:\n")[2].partition("\n\n")[0], re.MULTILINE)
        assert listed == arguments
    if not name.startswith(ON_ONE_RANK):
        assert re.search(r"\b(C|Not c)ollective\b", text)
