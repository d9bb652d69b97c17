"""Tools that examine hpcgnn at run time: its native kernels, its compiled loops and its MPI calls."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from campaign import processes
from campaign.processes import HPCGNN, Ended
from campaign.run import ROOT
from campaign.section import FAILED, LEFT_OUT, RIGHT, Case, Section, Session

COMPILER = os.environ.get("CXX", "") or "c++"
_FOUND = re.compile(r"(ERROR: AddressSanitizer|runtime error): ?(.*)")
_LEFT_OPEN = re.compile(r"WARNING:.*(still allocated|unfreed).*|.*not freed via MPI_FREE_MEM.*")
_FROM_PYTHON = (
    *("test_spmm", "test_messages", "test_quantize", "test_quantizer", "test_edge_kernels"),
    *("test_int8", "test_dense", "test_activation"),
)
_WITH_BOUNDS = (
    ("kernels/test_spmm.py", "jit"),
    ("kernels/test_messages.py", "jit"),
    ("kernels/test_quantize.py", "jit"),
    ("kernels/test_activation.py", "jit"),
    ("kernels/test_edge_kernels.py", "jit"),
    ("partition/test_hierarchy.py", ""),
    ("partition/test_rows.py", "not slow"),
    ("partition/test_fennel.py", ""),
    ("data/test_synthetic.py", ""),
    ("data/test_large_sources.py", "webgraph or bv"),
    ("graph/test_node_order.py", "not launches"),
)
_MPI = {
    "OMPI_MCA_mpi_param_check": "1",
    "OMPI_MCA_mpi_show_handle_leaks": "1",
    "OMPI_MCA_mpi_show_mpi_alloc_mem_leaks": "10",
}
_TRAINING = {
    "synchronous": "",
    "8 bits": "--bits 8",
    "AdaQP": "--bits adaqp --bits-period 2",
    "Sylvie": "--bits sylvie --staleness sylvie",
    "stale rows": "--staleness pipeline",
    "PipeQS": "--staleness pipeqs --bits pipeqs",
    "SANCUS": "--staleness sancus",
    "node-aware": "--node-aware on",
    "attention": "--model gat",
    "links": "--task link",
}
_LEAKS = """
import sys
from mpi4py import MPI
if sys.argv[1] == "window":
    left = MPI.Win.Allocate(64, comm=MPI.COMM_WORLD)
elif sys.argv[1] == "memory":
    left = MPI.Alloc_mem(100)
else:
    left = MPI.File.Open(MPI.COMM_WORLD, sys.argv[2], MPI.MODE_CREATE | MPI.MODE_RDWR)
"""


def verdict(said: str, exit_code: int | None) -> tuple[str, str]:
    """``(end, said)`` of a case. It is right if a program ended well, and no sanitizer reported anything."""
    report = _FOUND.search(said)
    if report:
        return FAILED, report[0][:300]
    if exit_code != 0:
        return FAILED, f"exit code {exit_code}: {' | '.join(said.splitlines()[-4:])[-400:]}"
    return RIGHT, ""


def passed(ended: Ended) -> tuple[str, str]:
    """The same for pytest, which must have run some test."""
    end, said = verdict(ended.stdout + ended.stderr, ended.exit)
    if end == RIGHT and not re.search(r"\b[1-9]\d* passed", ended.stdout):
        return FAILED, "no test has run"
    return end, said


def _run(session: Session) -> Iterator[Case]:
    yield from _with_bounds(session)
    if session.short:
        return
    yield from _from_python(session)
    yield from _mpi(session)
    reason = "it is built with Clang and an MPI of its own, and is in no package registry"
    yield Case("MPI under MUST", "train", LEFT_OUT, reason)


def _timed(group: str, name: str, check: Callable[[], tuple[str, str]]) -> Case:
    started = time.monotonic()
    try:
        end, said = check()
    except AssertionError as error:  # native_program raises this if the compiler fails
        end, said = FAILED, str(error)[:400]
    return Case(group, name, end, said, time.monotonic() - started)


# -- native kernels, called by Python ----------------------------------------------------------------------------------


def _from_python(session: Session) -> Iterator[Case]:
    from hpcgnn.kernels import library
    from native import native_program as native

    group = "kernels from Python under AddressSanitizer and UBSan"
    preloaded = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
    if not native.can_link(COMPILER, native.ADDRESSES) or not all(preloaded):
        yield Case(group, "all", LEFT_OUT, f"{COMPILER} has no AddressSanitizer here")
        return
    isas = [isa for isa in ("avx2", "avx512", "neon") if isa in library.isas()]  # as tests/native builds them
    built = native.build_library("sanitized", COMPILER, "", isas, native.ADDRESSES + native.FEW_TILES)
    tree = _copied(session, built)
    variables = {
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0",  # these are Python's own leaks
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(tree),
    }
    for name in _FROM_PYTHON:
        if session.wants(name):
            words = _pytest(tree / "tests" / "kernels" / f"{name}.py", "native", "-s")
            run = functools.partial(processes.run, words, folder=tree, variables=variables, seconds=900)
            yield _timed(group, name, lambda run=run: passed(run()))


def _runtime(name: str) -> str:
    """The compiler's own file with this name; empty if it has none."""
    found = subprocess.run([*COMPILER.split(), f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = found.stdout.strip()
    return path if os.path.isabs(path) and os.path.exists(path) else ""


def _copied(session: Session, library: Path) -> Path:
    """Copy the package and its tests, with another native library; the installed one is left alone."""
    tree = session.new_folder("tree") / "main"
    left_out = shutil.ignore_patterns("__pycache__", "_native*.so")
    for name in ("hpcgnn", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=left_out)
    (tree / "native").mkdir()
    shutil.copy(ROOT / "native" / "hpcgnn.h", tree / "native")
    shutil.copy(ROOT / "setup.cfg", tree)
    shutil.copy(library, tree / "hpcgnn" / "kernels" / "_native.so")
    (tree.parent / "shared").symlink_to(ROOT.parent / "shared")
    return tree


def _pytest(path: Path, chosen: str, *options: str) -> tuple[object, ...]:
    words = ("-k", chosen) if chosen else ()
    return (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, path, *words)


# -- compiled loops ----------------------------------------------------------------------------------------------------


def _with_bounds(session: Session) -> Iterator[Case]:
    group = "compiled loops with bounds checking"
    cache = session.new_folder("numba")
    variables = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    if session.wants(name := "an index that is out of bounds on purpose"):
        yield _timed(group, name, functools.partial(_sees_an_index, variables))
    for name, chosen in () if session.short else _WITH_BOUNDS:
        if session.wants(name):
            words = _pytest(ROOT / "tests" / name, chosen)
            run = functools.partial(processes.run, words, folder=ROOT, variables=variables, seconds=900)
            yield _timed(group, name, lambda run=run: passed(run()))


def _sees_an_index(variables: dict[str, str]) -> tuple[str, str]:
    program = "import numba, numpy; numba.njit(lambda a: a[a.size])(numpy.zeros(3))"
    ended = processes.run((sys.executable, "-c", program), variables=variables, seconds=120)
    return (RIGHT, "") if "IndexError" in ended.stderr else (FAILED, "it is not reported")


# -- MPI ---------------------------------------------------------------------------------------------------------------


def _mpi(session: Session) -> Iterator[Case]:
    group = "MPI calls with checked arguments, nothing left open"
    if "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout:
        yield Case(group, "all", LEFT_OUT, "mpirun is not Open MPI's, which can be asked what was left open")
        return
    folder = session.new_folder("mpi")
    program = folder / "leaks.py"
    program.write_text(_LEAKS)
    for kind in ("window", "memory", "file"):
        if session.wants(name := f"a {kind} that is left open on purpose"):
            command = (sys.executable, program, kind, folder / "left")
            yield _timed(group, name, functools.partial(_sees_what_is_left, command))
    graph, parts = folder / "g.h5", folder / "p.h5"
    source = "sbm:nodes=200,blocks=3,degree=6,features=8"
    for command in (("convert", source, graph, "--undirected"), ("partition", graph, parts, "--parts", 4)):
        processes.run((*HPCGNN, *command, "--quiet"), seconds=300)
    commands = {name: f"--epochs 4 --hidden 16 {flags}" for name, flags in _TRAINING.items()}
    for name, flags in commands.items():
        if session.wants(name):
            command = (*HPCGNN, "train", parts, "--out", folder / name.replace(" ", "-"), "--quiet", *flags.split())
            variables = _MPI | ({"HPCGNN_RANKS_PER_NODE": "2"} if name == "node-aware" else {})
            yield _timed(group, name, functools.partial(_leaves_nothing, command, variables))
    if session.wants(name := "partition on ranks"):
        command = (*HPCGNN, "partition", graph, folder / "q.h5", "--parts", 4, "--quiet")
        yield _timed(group, name, functools.partial(_leaves_nothing, command, _MPI))


def _leaves_nothing(command: tuple[object, ...], variables: dict[str, str]) -> tuple[str, str]:
    ended = processes.run(command, ranks=4, variables=variables, seconds=300)
    found = _LEFT_OPEN.search(ended.stdout + ended.stderr)
    return (FAILED, found[0]) if found else verdict(ended.stdout + ended.stderr, ended.exit)


def _sees_what_is_left(command: tuple[object, ...]) -> tuple[str, str]:
    end, said = _leaves_nothing(command, _MPI)
    return (RIGHT, "") if end == FAILED and _LEFT_OPEN.search(said) else (FAILED, f"it is not reported: {said}")


_ABOUT = """\
- The tests of the native kernels run under AddressSanitizer and UBSan, called from Python. (`make test-native` does the same from
  C++, and under ThreadSanitizer.)
- Compiled loops run with bounds checking.
- Open MPI checks the arguments of its calls, and reports the windows, files and memory that are left when a job ends.

Any report and any failing test is a failure. Cases with a deliberate error must be reported.
"""

SECTION = Section("sanitizers", "Sanitizers", _ABOUT, _run, share=1.0)
