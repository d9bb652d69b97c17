"""The package loads values only, from files of NumPy and torch, and loads no library but those named here (SECURITY.md).

ruff's security rules, which `make check` applies, find the other ways to run what was read: pickle, eval, a shell, yaml.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from checkout import assert_none, modules, nodes_of, place
from rank_pool import ROOT

PACKAGE = ROOT / "hpcgnn"
LIBRARIES = {
    "base/process.py": {"None"},  # the C library that Python runs on
    "kernels/library.py": {"str(path)"},  # of the package's own folder
    "lab/bench/worker.py": {"None"},
    "partition/library_run.py": {"None"},
    "partition/metis.py": {"None", "name", "path"},  # METIS and ParMETIS, by names of the system's
    "train/account.py": {"None"},
    "world/job.py": {"None"},
    "world/transport.py": {"mpi.__file__"},  # mpi4py, which is imported already
}


def calls(source: list[ast.AST]) -> Iterator[tuple[int, str, str, dict[str | None, str]]]:
    """``(line, function, first argument, arguments by name)`` of each call in a module."""
    for node in source:
        if isinstance(node, ast.Call):
            named = {each.arg: ast.unparse(each.value) for each in node.keywords}
            yield node.lineno, ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else "", named


def offences(source: list[ast.AST], allowed: set[str]) -> Iterator[tuple[int, str]]:
    for line, function, first, named in calls(source):
        if named.get("allow_pickle", "False") != "False":
            yield line, f"{function} with allow_pickle"
        if function == "torch.load" and named.get("weights_only") != "True":
            yield line, "torch.load without weights_only=True"
        if function.rpartition(".")[2] in ("CDLL", "PyDLL", "LoadLibrary") and first not in allowed:
            yield line, f"{function}({first})"


def test_files_hold_values_only_and_libraries_are_known() -> None:
    known = {path: LIBRARIES.get(str(path.relative_to(PACKAGE)), set()) for path in modules("hpcgnn")}
    assert_none(
        f"{place(path, line)}: {what}" for path in known for line, what in offences(nodes_of(path), known[path])
    )
    loaded = {path: {first for _, name, first, _ in calls(nodes_of(path)) if name == "ctypes.CDLL"} for path in known}
    assert {name: names for name, names in LIBRARIES.items() if names - loaded[PACKAGE / name]} == {}


def test_offences_are_found() -> None:
    for text in ("np.load(p, allow_pickle=True)", "torch.load(p)", "ctypes.CDLL(p)"):
        assert len([*offences([*ast.walk(ast.parse(text))], set())]) == 1
