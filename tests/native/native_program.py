"""The C++ test program of the native kernels: it is built with the library, for this machine or another one, and run."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OPENMP = HERE / "openmp" / "runtime.cpp"  # an OpenMP that ThreadSanitizer can examine, unlike libgomp
BUILDS = ROOT / "build" / "native"  # kept, because compiling takes minutes; a build is used until its sources change
PARTS = [part for path in sorted(HERE.glob("*.cpp")) for part in re.findall(r"^PART\((\w+)\)", path.read_text(), re.M)]
# Flags of the sanitizers. Without optimisation, AddressSanitizer's checks compile three times as fast.
ADDRESSES = "-g1 -O0 -fsanitize=address,undefined -fno-sanitize-recover=all"
THREADS = "-g1 -O1 -fsanitize=thread"
STRICT = "-O1 -std=c++17 -ffp-contract=off -D_GLIBCXX_ASSERTIONS -Wall -Wextra -Werror -Wno-psabi"
FEW_TILES = " -DHPCGNN_MAX_VECTORS=3"  # code for fewer sizes of tiles compiles faster

_ONE_OBJECT = threading.Lock()  # which several programs link


@dataclass(frozen=True)
class Report:
    """The output of a run.

    usable: the instruction sets that this CPU, or the one that qemu emulates, can run. digests: part of the program ->
    instruction set -> (number of results, digest of their bits). kernels: the names of those that ran.
    """

    usable: list[str]
    digests: dict[str, dict[str, tuple[int, str]]]
    kernels: set[str]

    @property
    def isas(self) -> set[str]:
        """The instruction sets that ran."""
        return {isa for found in self.digests.values() for isa in found}


def build_library(name: str, compiler: str, machine: str, isas: Sequence[str], flags: str) -> Path:
    """Build ``native/`` for ``machine``, in a folder called ``name``. isas: only these, because each takes half a minute."""
    library = BUILDS / name / "_native.so"
    command = [sys.executable, ROOT / "native" / "build.py", "--output", library, "--isas", ",".join(isas)]
    _make(library, [*command, "--compiler", compiler, "--machine", machine, f"--flags={flags}"], _library_sources())
    return library


def build_program(name: str, compiler: str, flags: str, others: Sequence[Path] = ()) -> Path:
    """Build the test program in a folder called ``name``. flags: for linking, and for compiling ``others``, sources whose
    functions replace those that the library calls. All programs of a compiler link the same object: only the library is
    to be examined by a sanitizer.
    """
    made = BUILDS / compiler.replace("/", "_") / "test_kernels.o"
    program = BUILDS / name / "test_kernels"
    with _ONE_OBJECT:
        source = HERE / "test_kernels.cpp"
        _make(made, [*compiler.split(), *STRICT.split(), "-c", source, "-o", made], _program_sources())
    link = [*compiler.split(), "-std=c++17", *flags.split(), "-rdynamic", made, *others, "-o", program, "-ldl"]
    _make(program, link, _program_sources())
    return program


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
    usable, *found, kernels, end = [line.split() for line in result.stdout.splitlines()]
    assert end == ["all", "passed"]
    digests: dict[str, dict[str, tuple[int, str]]] = {}
    for part, isa, results, digest in found:
        digests.setdefault(part, {})[isa] = (int(results), digest)
    return Report(usable[1:], digests, set(kernels[1:]))


def can_link(compiler: str, flags: str) -> bool:
    """Return whether ``compiler`` exists and has the libraries that ``flags`` need."""
    command = [*compiler.split(), *flags.split(), "-x", "c++", "-", "-o", "/dev/null"]
    try:
        return subprocess.run(command, input="int main() {}", capture_output=True, text=True).returncode == 0
    except OSError:
        return False


def _library_sources() -> list[Path]:
    return sorted(path for path in (ROOT / "native").iterdir() if path.is_file())


def _program_sources() -> list[Path]:
    headers = [ROOT / "native" / name for name in ("hpcgnn.h", "keyed.h")]
    return [*headers, *sorted(HERE.glob("*.cpp")), *sorted(HERE.glob("*.h")), OPENMP]


def _digest(sources: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _make(made: Path, command: Sequence[str | Path], sources: Sequence[Path]) -> None:
    """Run ``command`` unless it has made the file of the present sources before."""
    words, stamp = [str(word) for word in command], made.with_name(f"{made.name}.made-of")
    made_of = f"{_digest(sources)}\n{words}"
    if made.exists() and stamp.exists() and stamp.read_text() == made_of:
        return
    made.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, f"{words}\n{result.stdout}{result.stderr}"
    stamp.write_text(made_of)
