"""Tools that examine hpcgnn at run time and its source: its native kernels, its compiled loops, its MPI calls, its code."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from campaign import processes
from campaign.processes import HPCGNN, Ended
from campaign.run import ROOT
from campaign.section import FAILED, LEFT_OUT, RIGHT, Case, Section, Session

COMPILER = os.environ.get("CXX", "") or "c++"
_FOUND = re.compile(r"(ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error): ?(.*)")
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
_RACE = "a race that is there on purpose"
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


def verdict(said: str, exit_code: int | None, *, wanted: str = "") -> tuple[str, str]:
    """``(end, said)`` of a case. It is right if a program ended well, printed ``wanted``, and no sanitizer reported anything."""
    report = _FOUND.search(said)
    if report:
        return FAILED, report[0][:300]
    if exit_code != 0:
        return FAILED, f"exit code {exit_code}: {' | '.join(said.splitlines()[-4:])[-400:]}"
    return (RIGHT, "") if wanted in said else (FAILED, f"it did not print {wanted!r}")


def passed(ended: Ended) -> tuple[str, str]:
    """The same for pytest, which must have run some test."""
    end, said = verdict(ended.stdout + ended.stderr, ended.exit)
    if end == RIGHT and not re.search(r"\b[1-9]\d* passed", ended.stdout):
        return FAILED, "no test has run"
    return end, said


def _run(session: Session) -> Iterator[Case]:
    yield from _rules(session)
    yield from _pins(session)
    yield from _native(session)
    if session.short:
        return
    yield from _from_python(session)
    yield from _with_bounds(session)
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


# -- native kernels ----------------------------------------------------------------------------------------------------


def _native(session: Session) -> Iterator[Case]:
    from native import native_program as native

    isas = {"x86_64": ("avx2", "avx512"), "aarch64": ("neon",)}.get(platform.machine(), ())
    for sanitizer, folder, flags, others in (
        ("AddressSanitizer and UBSan", "sanitized", native.ADDRESSES, []),
        ("ThreadSanitizer", "threads", native.THREADS, [native.OPENMP]),
    ):
        group = f"native kernels under {sanitizer}"
        if not isas or not native.can_link(COMPILER, flags):
            yield Case(group, "all", LEFT_OUT, f"{COMPILER} has no {sanitizer} here")
            continue
        built = tuple(isa for isa in isas if isa in native_isas())  # as tests/native builds them
        built = built if folder == "sanitized" else isas[:1]
        if session.short and not native.is_built(folder):
            yield Case(group, "all", LEFT_OUT, "make test-native, which takes minutes, has not built it yet")
            continue
        parts, chosen = (("rows",), built[:1]) if session.short else (native.PARTS, built)
        names = [(part, isa) for part in parts for isa in chosen if isa in native_isas()]
        wanted = [each for each in names if session.wants(" ".join(each))]
        if not wanted and not session.wants(_RACE):
            continue
        try:
            library = native.build_library(folder, COMPILER, "", built, flags + native.FEW_TILES)
            program = native.build_program(folder, COMPILER, flags, others)
        except AssertionError as error:  # with the compiler's output
            yield Case(group, "it compiles", FAILED, str(error)[-400:])
            continue
        for part, isa in wanted:
            if session.has_time():
                check = functools.partial(_program, (program, library, isa), HPCGNN_PART=part)
                yield _timed(group, f"{part} {isa}", check)
        if folder == "threads" and session.wants(_RACE):
            yield _timed(group, _RACE, functools.partial(_sees_a_race, (program, library, built[0])))


@functools.cache
def native_isas() -> list[str]:
    """The instruction sets that this CPU can run."""
    from hpcgnn.kernels import library

    return library.isas()


def _program(command: tuple[object, ...], **variables: str) -> tuple[str, str]:
    ended = processes.run(command, variables=variables | {"UBSAN_OPTIONS": "print_stacktrace=1"}, seconds=600)
    return verdict(ended.stdout + ended.stderr, ended.exit, wanted="all passed")


def _sees_a_race(command: tuple[object, ...]) -> tuple[str, str]:
    """The verdict on ThreadSanitizer itself: it must report the race of kernels without barriers, because its silence about
    other kernels means nothing otherwise.
    """
    end, said = _program(command, HPCGNN_PART="rows", WITHOUT_BARRIERS="1")
    return (RIGHT, "") if "data race" in said else (FAILED, f"it is not reported: {end} {said}")


# -- the same kernels, called by Python --------------------------------------------------------------------------------


def _from_python(session: Session) -> Iterator[Case]:
    from native import native_program as native

    group = "kernels from Python under AddressSanitizer and UBSan"
    library = native.BUILDS / "sanitized" / "_native.so"
    preloaded = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
    if not native.is_built("sanitized") or not all(preloaded):
        yield Case(group, "all", LEFT_OUT, f"{COMPILER} has no AddressSanitizer here")
        return
    tree = _copied(session, library)
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
    for name, chosen in _WITH_BOUNDS:
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


# -- the source and its dependencies -----------------------------------------------------------------------------------


def _rules(session: Session) -> Iterator[Case]:
    group = "ruff's security rules"
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        yield Case(group, "all", LEFT_OUT, "ruff is not installed")
        return
    if session.wants("ruff.toml"):
        selected = "S" in tomllib.loads((ROOT / "ruff.toml").read_text())["lint"]["select"]
        yield Case(group, "ruff.toml", *((RIGHT, "") if selected else (FAILED, "it does not select them")))
    for name in ("hpcgnn", "native", "tests", "tools", "setup.py"):
        if session.wants(name):
            yield _timed(group, name, functools.partial(_checked_by_ruff, ruff, name))


def _checked_by_ruff(ruff: Path, name: str) -> tuple[str, str]:
    command = [ruff, "check", "--no-cache", "--output-format", "json", name]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [each for each in json.loads(ended.stdout) if re.fullmatch(r"S\d+", each["code"] or "")]
    told = [f"{Path(each['filename']).name}:{each['location']['row']} {each['code']}" for each in found]
    return (FAILED, ", ".join(told)[:400]) if found else (RIGHT, "")


def _pins(session: Session) -> Iterator[Case]:
    group = "requirements at pinned versions"
    pins = pinned((ROOT / "constraints.txt").read_text())
    for line in importlib.metadata.requires("hpcgnn") or []:
        requirement = Requirement(line)
        if session.wants(name := line.partition(";")[0].strip()):
            yield Case(group, name, *is_pinned(requirement, pins))
    for name, reason in (
        ("pip-audit", "it asks a service on the network for advisories: SECURITY.md has the command"),
    ):
        yield Case("known vulnerabilities of pinned versions", name, LEFT_OUT, reason)


def pinned(text: str) -> dict[str, str]:
    """Exact versions by name, from the text of a file of constraints."""
    found = {}
    for line in text.splitlines():
        if requirement := line.partition("#")[0].strip():
            name, _, version = requirement.partition("==")
            found[_plain(name)] = version.partition(";")[0].strip()
    return found


def is_pinned(requirement: Requirement, pins: dict[str, str]) -> tuple[str, str]:
    """``(end, said)``: whether there is one exact version, which is in the wanted range, and is installed."""
    version = pins.get(_plain(requirement.name), "")
    if not version:
        return FAILED, "constraints.txt has no version of it"
    if Version(version) not in requirement.specifier:
        return FAILED, f"constraints.txt has {version}, setup.cfg wants {requirement.specifier}"
    try:
        installed = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return LEFT_OUT, "it is not part of this environment"
    # A version of torch has several builds, such as 2.13.0+cpu.
    if Version(installed).public != Version(version).public:
        return FAILED, f"{installed} is installed, constraints.txt has {version}"
    return RIGHT, ""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.partition("[")[0].strip()).lower()


_ABOUT = """\
- The tests of the native kernels run under AddressSanitizer and UBSan, called from C++ and from Python.
- They also run under ThreadSanitizer, with an OpenMP runtime that ThreadSanitizer understands: with libgomp it would report
  every barrier.
- Compiled loops run with bounds checking.
- Open MPI checks the arguments of its calls, and reports the windows, files and memory that are left when a job ends.
- The source must pass ruff's security rules, and each requirement has one pinned version, which must be installed.

Any report and any failing test is a failure. Cases with a deliberate error must be reported.
"""

SECTION = Section(
    "sanitizers",
    "Sanitizers and static checks",
    _ABOUT,
    _run,
    share=1.0,
)
