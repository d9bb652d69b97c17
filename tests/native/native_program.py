"""The C++ test program of the native kernels: it is built with the library under test, for this machine or another one, and
run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OPENMP = HERE / "openmp" / "runtime.cpp"  # an OpenMP that ThreadSanitizer can examine, unlike libgomp
BUILDS = ROOT / "build" / "native"  # kept, because compiling takes minutes and is skipped if nothing has changed


@dataclass(frozen=True)
class Report:
    """The output of a run.

    usable: the instruction sets that this CPU, or the one that qemu emulates, can run. digests: part of the program ->
    instruction set -> (number of results, digest of their bits).
    """

    usable: list[str]
    digests: dict[str, dict[str, tuple[int, str]]]

    @property
    def isas(self) -> set[str]:
        """The instruction sets that ran."""
        return {isa for found in self.digests.values() for isa in found}


def build_library(name: str, compiler: str, machine: str, isas: Sequence[str], flags: str) -> Path:
    """Build ``native/`` for ``machine``, in a folder called ``name``. isas: build only these, because each takes
    half a minute.
    """
    library = BUILDS / name / "_native.so"
    if not _is_newer(library, (path for path in (ROOT / "native").iterdir() if path.is_file())):
        command = [sys.executable, ROOT / "native" / "build.py", "--output", library, "--isas", ",".join(isas)]
        _compile([*command, "--compiler", compiler, "--machine", machine, f"--flags={flags}"])
    return library


def build_program(name: str, compiler: str, flags: str, others: Sequence[Path] = ()) -> Path:
    """Build the test program in a folder called ``name``. others: sources whose functions replace those that the
    library calls.
    """
    program = BUILDS / name / "test_kernels"
    sources = [*HERE.glob("*.cpp"), *HERE.glob("*.h"), *others]
    if not _is_newer(program, [*sources, *(ROOT / "native").glob("*.h"), Path(__file__)]):
        program.parent.mkdir(parents=True, exist_ok=True)
        strict = ["-O2", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
        command = [compiler, *strict, *flags.split()]
        units = [source for source in sources if source.suffix == ".cpp"]
        objects = [program.with_name(f"{unit.stem}.o") for unit in units]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda unit, made: _compile([*command, "-c", unit, "-o", made]), units, objects))
        _compile([*command, "-rdynamic", *objects, "-o", program, "-ldl"])
    return program


def is_built(name: str, others: Sequence[Path] = ()) -> bool:
    """Return whether library and program in the folder ``name`` exist, and are newer than their sources."""
    sources = [path for folder in (ROOT / "native", HERE) for path in folder.iterdir() if path.is_file()]
    return all(_is_newer(BUILDS / name / built, [*sources, *others]) for built in ("_native.so", "test_kernels"))


def run(
    program: Path, library: Path, isas: Sequence[str] = (), emulator: Sequence[str] = (), **environment: str
) -> Report:
    """Run the program, under ``emulator`` if given; if a kernel is wrong, the test fails with the program's output."""
    # There are more threads than cores in some places, and waiting threads must not spin there.
    inherited = {name: value for name, value in os.environ.items() if name not in ("HPCGNN_ISA", "HPCGNN_PART")}
    env = inherited | {"OMP_WAIT_POLICY": "passive"} | environment
    command = [*emulator, str(program), str(library), *isas]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, f"exit code {result.returncode}: {command}\n{result.stdout}{result.stderr}"
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[-1] == ["all", "passed"]
    digests: dict[str, dict[str, tuple[int, str]]] = {}
    for part, isa, results, digest in lines[1:-1]:
        digests.setdefault(part, {})[isa] = (int(results), digest)
    return Report(lines[0][1:], digests)


def can_link(compiler: str, flags: str) -> bool:
    """Return whether ``compiler`` exists and has the libraries that ``flags`` need."""
    command = [*compiler.split(), *flags.split(), "-x", "c++", "-", "-o", "/dev/null"]
    try:
        return subprocess.run(command, input="int main() {}", capture_output=True, text=True).returncode == 0
    except OSError:
        return False


def _is_newer(built: Path, sources: Iterable[Path]) -> bool:
    return built.exists() and all(source.stat().st_mtime < built.stat().st_mtime for source in sources)


def _compile(command: Sequence[str | Path]) -> None:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
