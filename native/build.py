"""Builds the native library: the kernels once for each instruction set of the machine, linked into one file.

setup.py calls :func:`build`; run as a program it also cross-compiles and adds sanitizers:

    python native/build.py --output hpcgnn/kernels/_native.so
    python native/build.py --output build/arm.so --machine aarch64 --compiler aarch64-linux-gnu-g++ --isas neon,sve512
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

# No contraction into fused multiply-adds: every instruction set, and numba, must give the same bits. Dense products say
# where they fuse.
COMMON = ["-O3", "-std=c++17", "-fopenmp", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wno-psabi"]
# A kernel is declared in hpcgnn.h before it is defined: one that was forgotten there would be out of Python's reach.
COMMON += ["-Werror=missing-declarations"]

# Instruction set -> (bytes in a vector register, flags). A release has all those of its machine; isa.cpp chooses.
_SCALAR = {"scalar": (4, ["-fno-tree-vectorize", "-fno-tree-slp-vectorize"])}
ISAS: dict[str, dict[str, tuple[int, list[str]]]] = {
    "x86_64": {
        **_SCALAR,
        "avx2": (32, ["-mavx2", "-mbmi2", "-mfma"]),
        "avx512": (64, ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]),
    },
    "aarch64": {
        **_SCALAR,
        "neon": (16, []),
        **{f"sve{8 * n}": (n, ["-march=armv8.2-a+sve", f"-msve-vector-bits={8 * n}"]) for n in (16, 32, 64)},
    },
}


@dataclass(frozen=True)
class ExtraKernels:
    """Kernels that need more instructions than their instruction set has; isa.cpp checks the CPU for them.

    source: their file. flags: of the compiler. tells: the macro by which isa.cpp knows that they were compiled. needs: a
    program that uses the instructions; if the compiler (such as GCC before 10) or the assembler is too old for it, the kernels
    are left out.
    """

    source: str
    flags: tuple[str, ...]
    tells: str
    needs: str


def _dot(isa: str, flags: tuple[str, ...], needs: str) -> ExtraKernels:
    return ExtraKernels("int8_dot.cpp", flags, f"-DHPCGNN_HAS_DOT_{isa}", needs)


_X86, _SVE = "#include <immintrin.h>\n", "#include <arm_sve.h>\n"
_SVE_DOT = _SVE + "svint32_t f(svint32_t a, svint8_t b) { return svdot_s32(a, b, b); }\n"
EXTRA_KERNELS: dict[str, tuple[ExtraKernels, ...]] = {
    "avx2": (
        _dot("avx2", ("-mavxvnni",), _X86 + "__m256i f(__m256i a) { return _mm256_dpbusd_avx_epi32(a, a, a); }\n"),
    ),
    "avx512": (
        ExtraKernels(
            "dense_bf16.cpp",
            ("-mavx512bf16",),
            "-DHPCGNN_HAS_BF16",
            _X86 + "__m512 f(__m512 a, __m512bh b) { return _mm512_dpbf16_ps(a, b, b); }\n",
        ),
        _dot("avx512", ("-mavx512vnni",), _X86 + "__m512i f(__m512i a) { return _mm512_dpbusd_epi32(a, a, a); }\n"),
    ),
    "neon": (
        _dot(
            "neon",
            ("-march=armv8.2-a+dotprod",),
            "#include <arm_neon.h>\nint32x4_t f(int32x4_t a, int8x16_t b) { return vdotq_s32(a, b, b); }\n",
        ),
    ),
    **{f"sve{8 * n}": (_dot("sve", (), _SVE_DOT),) for n in (16, 32, 64)},
}
MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}


def sources() -> list[Path]:
    """All files from which the library is built."""
    return [*sorted(HERE.glob("*.cpp")), *sorted(HERE.glob("*.h")), Path(__file__)]


def build(
    output: Path, compiler: str = "", machine: str = "", flags: tuple[str, ...] = (), only: tuple[str, ...] = ()
) -> None:
    """Compile and link ``output``.

    Args:
        compiler: the C++ compiler and its arguments; default ``$CXX``, else ``c++``.
        machine: the target, as ``platform.machine()`` names it; default this one.
        flags: more flags, for compiling and linking.
        only: compile only these instruction sets, for a test that has little time.

    Raises:
        KeyError: if ``machine`` has no instruction set of a name in ``only``.
        subprocess.CalledProcessError: if the compiler fails; OSError if there is none.
    """
    command = shlex.split(compiler or os.environ.get("CXX", "") or "c++")
    machine = machine or platform.machine()
    known = ISAS.get(MACHINES.get(machine, machine), _SCALAR)
    unknown = set(only) - set(known)
    if unknown:
        raise KeyError(f"{machine} has no instruction set {', '.join(sorted(unknown))}: it has {', '.join(known)}")
    # The simplest instruction set first: of code that several objects contain (such as the standard library's), the linker
    # takes the first.
    isas = {name: flags for name, flags in known.items() if name in (only or known)}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        told = [f'-DHPCGNN_COMPILED="{" ".join(isas)}"']
        jobs = [(HERE / "isa.cpp", Path(folder, "isa.o"), told)]
        jobs.append((_interface(Path(folder, "interface.cpp")), Path(folder, "interface.o"), []))
        for name, (vector_bytes, isa_flags) in isas.items():
            defines = [f"-DHPCGNN_ISA={name}", f"-DHPCGNN_VECTOR_BYTES={vector_bytes}"]
            jobs.append((HERE / "kernels.cpp", Path(folder, f"{name}.o"), [*isa_flags, *defines]))
            for extra in EXTRA_KERNELS.get(name, ()):
                all_flags = [*isa_flags, *extra.flags]
                if _compiles(command, all_flags, extra.needs, Path(folder)):
                    told.append(extra.tells)
                    jobs.append((HERE / extra.source, Path(folder, f"{name}_{extra.source}.o"), [*all_flags, *defines]))
        list(pool.map(lambda job: _compile([*command, *COMMON, *job[2], *flags], job[0], job[1]), jobs))
        objects = [str(job[1]) for job in jobs]
        temporary = output.with_name(f".{output.name}.new")  # a running process may have the old file mapped
        output.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*command, "-shared", "-fopenmp", *flags, *objects, "-o", str(temporary)], check=True)
        temporary.replace(output)


def _interface(source: Path) -> Path:
    """Write a function that returns the text of hpcgnn.h, from which Python reads the arguments of the library's functions."""
    header = HERE / "hpcgnn.h"
    text = f'R"interface({header.read_text()})interface"'
    source.write_text(f'#include "{header}"\nconst char* hpcgnn_interface() {{\n    return {text};\n}}\n')
    return source


def _compiles(command: list[str], flags: list[str], program: str, folder: Path) -> bool:
    """Return whether the compiler and the assembler know the instructions of extra kernels."""
    source = folder / "needs.cpp"
    source.write_text(program)
    trial = [*command, *flags, "-c", str(source), "-o", str(folder / "needs.o")]
    return subprocess.run(trial, stderr=subprocess.DEVNULL).returncode == 0


def _compile(command: list[str], source: Path, output: Path) -> None:
    subprocess.run([*command, "-c", str(source), "-o", str(output)], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--compiler", default="", help="the compiler; default: $CXX, else c++")
    parser.add_argument("--machine", default="", help="the target, x86_64 or aarch64; default: this machine's")
    parser.add_argument("--isas", default="", help="only these instruction sets, separated by commas; default: all")
    parser.add_argument("--flags", default="", help='further compiler flags, for example "-g -fsanitize=address"')
    options = parser.parse_args()
    only = tuple(filter(None, options.isas.split(",")))
    build(options.output, options.compiler, options.machine, tuple(shlex.split(options.flags)), only)
