"""The files that rules are about, each of which is read and parsed once, and the way in which a rule reports its offenders."""

from __future__ import annotations

import ast
import functools
import importlib
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import matrix
from rank_pool import ROOT
from requires import EVERYTHING


@functools.cache
def text_of(path: Path) -> str:
    """The text of a file."""
    return path.read_text()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(text_of(path), str(path))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a module's syntax tree."""
    return list(ast.walk(tree_of(path)))


@functools.cache
def modules(folder: str) -> list[Path]:
    """The modules in a folder of the checkout and in the folders below it."""
    return sorted((ROOT / folder).rglob("*.py"))


def drawn(paths: Sequence[Path], count: int) -> list[Path]:
    """Those of ``paths`` that changed with the last commit or since, and ``count`` others that the commit draws (matrix.py);
    all with ``HPCGNN_TESTS=all``."""
    command = ["git", "diff", "--name-only", "HEAD~1"]  # in a clone of one commit, nothing has changed
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    changed = {path for path in paths if place(path) in told}
    others = [path for path in paths if path not in changed]
    of_seed = random.Random(matrix.seed()).sample(others, min(count, len(others)))
    return list(paths) if EVERYTHING else [path for path in paths if path in changed.union(of_seed)]


def tool(name: str) -> ModuleType:
    """A module of tools/."""
    if str(ROOT / "tools") not in sys.path:
        sys.path.append(str(ROOT / "tools"))
    return importlib.import_module(name)


def place(path: Path, line: int | None = None) -> str:
    """A path in the checkout, and a line there, as editors and terminals know them: ``docs/gpu.md:12``."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    return name if line is None else f"{name}:{line}"


def line_at(text: str, offset: int) -> int:
    """The number of the line that holds a character of a text."""
    return text.count("\n", 0, offset) + 1


def assert_none(offenders: Iterable[str]) -> None:
    """Fail with all offenders against a rule at once, each of which says its place."""
    found = list(offenders)
    assert not found, "\n".join([f"{len(found)} offend against this rule:", *found])
