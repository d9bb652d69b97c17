"""Rules for tests (CONTRIBUTING.md): no test draws numbers without a seed, or ends processes by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DRAWING = {"random", "randint", "randrange", "uniform", "choice", "choices", "sample", "shuffle", "gauss"}
BY_NAME = {"pkill", "killall", "pgrep"}


def offences(source: str) -> list[str]:
    """The violations in a module, by line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in BY_NAME:
            found.append(f"line {node.lineno}: {node.value}")
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        unseeded = name.endswith(("default_rng", "random.Random")) and not node.args
        module, _, function = name.rpartition(".")
        if unseeded or (module in ("random", "np.random", "numpy.random") and function in DRAWING):
            found.append(f"line {node.lineno}: {name}")
    return found


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_nothing_by_chance_or_by_name(path):
    names = {"random"} if "import random\n" in path.read_text() else set()
    found = [each for each in offences(path.read_text()) if "random." not in each or names or "np." in each]
    # A generator named `random` has a seed.
    assert [each for each in found if path != Path(__file__)] == []


@pytest.mark.parametrize(
    "line",
    ["np.random.default_rng()", "random.randint(1, 2)", "np.random.choice(3)", "run(['pkill', '-f', name])"],
)
def test_offences_are_found(line):
    assert len(offences(line)) == 1
    assert offences("np.random.default_rng(1); random.Random(2).randint(1, 2)") == []
