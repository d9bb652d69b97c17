"""Compiled functions: with a place for numba's cache, without one, with a full disk, and with damaged files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import caching

from hpcgnn.base.compiled import clock, compile_seconds, njit

WITHOUT_A_PLACE = """
import sys
from numba.core import caching

def refused(self):
    raise PermissionError(13, "Permission denied")

caching._CacheLocator.ensure_cache_path = refused  # as in a read-only installation, for a user without a home
from hpcgnn.cli.main import main
main()
"""


def add(a: int, b: int) -> int:
    return a + b


def refused(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def compiled() -> Any:
    """A new function, as in another process."""
    return njit(cache=True, nogil=True)(add)


def hits(function: Any) -> int:
    return sum(function.stats.cache_hits.values())


def test_code_is_kept_for_later_processes(folder: Path) -> None:
    first, second = compiled(), compiled()
    assert (first(1, 2), second(1, 2)) == (3, 3)
    assert (hits(first), hits(second)) == (0, 1)
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".nbi", ".nbc"}


def test_without_a_place_code_is_compiled_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", refused)
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(add)
    assert compiled()(1, 2) == 3


def test_on_a_full_disk_nothing_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = compiled()
    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", refused)
    assert function(1, 2) == 3
    monkeypatch.undo()
    function = compiled()
    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_data", refused)
    assert function(1, 2) == 3


def test_compiling_counts_once_and_not_as_time_of_work(folder: Path) -> None:
    before, started = compile_seconds(), time.perf_counter()
    begun = clock()
    assert compiled()(1, 2) == 3
    spent = compile_seconds() - before
    assert 0 < spent <= time.perf_counter() - started
    assert clock() - begun <= time.perf_counter() - started - spent
    assert compiled()(1, 2) == 3  # from the disk
    assert compile_seconds() - before == spent


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_damaged_files_are_made_again(folder: Path, suffix: str) -> None:
    assert compiled()(1, 2) == 3
    (path,) = folder.rglob(f"*{suffix}")
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"not a pickle of numba"):
        path.write_bytes(damaged)
        again, last = compiled(), compiled()
        assert (again(1, 2), hits(again)) == (3, 0)
        assert (last(1, 2), hits(last)) == (3, 1)


@pytest.mark.slow
def test_a_command_works_without_a_place_for_compiled_code(tmp_path: Path) -> None:
    path = tmp_path / "graph.h5"
    words = ["convert", "sbm:nodes=12,blocks=2,degree=3,features=4", path, "--quiet"]
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "NUMBA_CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_PLACE, *map(str, words)], env=environment, check=False, stderr=-1
    )
    assert (done.returncode, done.stderr, path.exists()) == (0, b"", True)
