"""Rules for tests (CONTRIBUTING.md): no number is drawn without a seed, no process is ended by name, and folders are hpcgnn's."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import assert_none, modules, nodes_of, place
from rank_pool import ROOT
from requires import optional_packages

DRAWING = {"random", "randint", "randrange", "uniform", "choice", "choices", "sample", "shuffle", "gauss"}
GENERATORS = {"default_rng", "Random"}
BY_NAME = {"pkill", "killall", "pgrep"}
# Folders of tests that mirror no folder of hpcgnn/, and folders of hpcgnn/ whose tests stand in another one. CONTRIBUTING.md
# names both.
OTHER_ROOMS = {"gpu", "large_p", "native", "project"}
TESTED_ELSEWHERE = {"devices": "world", "pyg": "nn", "sources": "data"}


def offences(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """The violations in a module, with their lines."""
    # A generator with the name `random` has a seed.
    imports_random = any(isinstance(node, ast.Import) and node.names[0].name == "random" for node in nodes)
    drawing = ("np.random", "numpy.random", *(["random"] if imports_random else []))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in BY_NAME:
            yield node.lineno, node.value
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in {
            *DRAWING,
            *GENERATORS,
        }:
            name = ast.unparse(node.func)
            module, _, function = name.rpartition(".")
            unseeded = name.endswith(("default_rng", "random.Random")) and not node.args
            if unseeded or (module in drawing and function in DRAWING):
                yield node.lineno, name


def test_nothing_by_chance_or_by_name() -> None:
    paths = [path for path in (*modules("tests"), *modules("tools")) if path != Path(__file__)]
    assert_none(f"{place(path, line)}: {what}" for path in paths for line, what in offences(nodes_of(path)))


@pytest.mark.parametrize(
    "line",
    [
        "np.random.default_rng()",
        "import random\nrandom.randint(1, 2)",
        "np.random.choice(3)",
        "run(['pkill', '-f', name])",
    ],
)
def test_offences_are_found(line: str) -> None:
    assert len([*offences([*ast.walk(ast.parse(line))])]) == 1
    right = ast.parse("import random; np.random.default_rng(1); random.Random(2).randint(1, 2)")
    assert list(offences([*ast.walk(right)])) == []


def test_folders_of_tests_are_those_of_the_package() -> None:
    of_tests = {path.relative_to(ROOT / "tests").parts for path in (ROOT / "tests").rglob("test_*.py")}
    rooms = {parts[0] for parts in of_tests if len(parts) > 1}
    folders = {path.parent.name for path in (ROOT / "hpcgnn").glob("*/__init__.py")}
    assert_none(f"tests/{room} mirrors no folder of hpcgnn" for room in sorted(rooms - folders - OTHER_ROOMS))
    assert_none(f"hpcgnn/{folder} has no folder of tests" for folder in sorted(folders - rooms - {*TESTED_ELSEWHERE}))
    assert TESTED_ELSEWHERE.keys() <= folders - rooms
    assert set(TESTED_ELSEWHERE.values()) <= rooms
    alone = {parts[0].removeprefix("test_") for parts in of_tests if len(parts) == 1}
    assert_none(
        f"tests/test_{name} mirrors no module of hpcgnn" for name in alone if not (ROOT / "hpcgnn" / name).exists()
    )


def test_contributing_says_which_tests_are_whose() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("### Which tests to run\n")[2].partition("\n#")[0]
    assert_none(f"tests/{room} is not named" for room in sorted(OTHER_ROOMS) if f"`tests/{room}`" not in section)
    assert_none(f"hpcgnn/{name} is not named" for name in sorted(TESTED_ELSEWHERE) if f"`hpcgnn/{name}`" not in section)


WITHOUT_PACKAGES = """
import sys
import pytest
sys.modules |= dict.fromkeys(sys.argv[1:])  # `import` finds none of them
sys.exit(pytest.main(["-n0", "--collect-only", "-q", "tests"]))
"""


@pytest.mark.slow
def test_tests_are_collected_without_optional_packages() -> None:
    """Files that import such a package are skipped, and hide no others."""
    command = [sys.executable, "-c", WITHOUT_PACKAGES, *optional_packages()]
    environment = os.environ | {"HPCGNN_REQUIRE_ALL": "0"}  # which CI sets to 1, where such files fail
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=-1, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = {line.split("/")[1] for line in done.stdout.splitlines() if "::" in line}
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert_none(f"tests/{name} is hidden" for name in sorted(folders - found))
