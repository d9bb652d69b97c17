"""Requirements of tests beyond the package itself."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest

# `HPCGNN_TESTS=all`, as in the nightly workflow: the full products of cases in place of a budgeted choice of them.
EVERYTHING = os.environ.get("HPCGNN_TESTS") == "all"


def require(condition: object, what: str) -> None:
    """Skip the test unless ``condition`` holds; fail it if ``HPCGNN_REQUIRE_ALL=1`` promises that everything is installed."""
    if condition:
        return
    if os.environ.get("HPCGNN_REQUIRE_ALL") == "1":
        pytest.fail(f"needs {what}, and HPCGNN_REQUIRE_ALL=1 says that nothing is missing", pytrace=False)
    pytest.skip(f"needs {what}")


def require_module(name: str) -> ModuleType:
    """Import ``name``, a module of an optional package; if it is missing, skip or fail as :func:`require` does."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        require(False, f"{name} ({error})")
        raise
