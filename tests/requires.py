"""Requirements of tests beyond the package itself."""

from __future__ import annotations

import configparser
import functools
import importlib
import os
import re
from pathlib import Path
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


@functools.cache
def optional_packages() -> set[str]:
    """The packages of setup.cfg that are for some users or platforms only, but for those without which no test runs."""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parent.parent / "setup.cfg")
    required = setup["options"]["install_requires"].splitlines()
    extras = "\n".join(setup["options.extras_require"].values()).splitlines()
    names = [re.match(r"[\w-]*", line)[0] for line in (*extras, *(line for line in required if ";" in line))]
    return {name.replace("-", "_") for name in names if name} - {"hypothesis", "pytest", "pytest_xdist"}
