"""The native kernels compared with plain loops, bit for bit: on this CPU, under sanitizers, and on ARM in an emulator.

Other builds than this CPU's take a minute each: the commit draws one. All are made if native sources changed with it or since,
and every night.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import native_program
import pytest
from matrix import seed
from native_program import ADDRESSES, FEW_TILES, ROOT, THREADS, Report
from requires import EVERYTHING, require

from hpcgnn.kernels import library

pytestmark = pytest.mark.builds

COMPILER = os.environ.get("CXX", "") or "c++"
SEES_RACES = {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
ARM_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
NO_SVE = "cortex-a72"
ONLY_NEON = "max,sve=off"  # everything but SVE, including SDOT
# One length of SVE's registers, and one instruction set for AddressSanitizer, by the commit: each takes a minute.
SVE = ("sve128", "sve512") if EVERYTHING else (("sve128", "sve512")[seed() % 2],)
SANITIZED = {"x86_64": ("avx2", "avx512"), "aarch64": ("neon",)}[platform.machine()]
ARM_CPUS = [
    (NO_SVE, "neon", native_program.PARTS),
    (ONLY_NEON, "neon", ["dense_int8", "int8"]),  # bytes are multiplied by instructions that the other CPU lacks
    *((f"max,{isa}=on", isa, native_program.PARTS) for isa in SVE),
]
ARM_FLAGS = "" if EVERYTHING else "-O1"  # in place of a release's -O3, which takes twice as long to compile

Built = tuple[Path, Path]  # the program and the library


def build(
    name: str, compiler: str, machine: str, isas: Sequence[str], flags: str = "", others: Sequence[Path] = ()
) -> Built:
    """Build program and library at the same time; the flags are for both where they are for the linker, too."""
    linked = flags if "-fsanitize" in flags else ""
    with ThreadPoolExecutor() as pool:
        program = pool.submit(native_program.build_program, name, compiler, linked, others)
        built = pool.submit(native_program.build_library, name, compiler, machine, isas, flags + FEW_TILES)
        return program.result(), built.result()


def assert_same_bits(found: Report, here: Report, isas: set[str], parts: Sequence[str] = native_program.PARTS) -> None:
    assert found.isas == isas
    assert set(found.digests) == set(parts)
    for part, digests in found.digests.items():
        assert set(digests.values()) == set(here.digests[part].values()), part


@pytest.fixture(scope="module")
def here() -> Report:
    """The library that Python uses, on this CPU."""
    program = native_program.build_program("here", COMPILER, "")
    loaded = library.load()
    assert loaded is not None, "the package was installed without its native kernels"
    return native_program.run(program, loaded.path)


def test_all_instruction_sets_of_this_cpu_give_the_same_bits(here: Report) -> None:
    assert here.usable == library.isas()
    assert_same_bits(here, here, set(here.usable))
    for part, found in here.digests.items():
        assert len(set(found.values())) == 1, part
        assert all(results > 10 for results, _ in found.values())


def test_every_kernel_is_compared(here: Report) -> None:
    loaded = library.load()
    assert loaded is not None
    known = {name for name in loaded.interface.functions if not name.startswith("hpcgnn_")}
    # Not every CPU can run these.
    assert {name for name in known - here.kernels if not name.endswith("_dot")} <= {
        f"{each}_bf16" for each in ("dense", "dense_gradient", "multiply_ceiling")
    }


def sanitizers_find_nothing(here: Report) -> None:
    """Buffers have exactly the needed size, so that reading or writing one value too many is detected."""
    require(native_program.can_link(COMPILER, ADDRESSES), f"AddressSanitizer for {COMPILER}")
    isas = tuple(isa for isa in SANITIZED if isa in here.usable)
    isas = isas if EVERYTHING else (isas[seed() % len(isas)],)
    built = build("sanitized", COMPILER, "", isas, ADDRESSES)
    assert_same_bits(native_program.run(*built, UBSAN_OPTIONS="print_stacktrace=1"), here, set(isas))


def threads_do_not_race(here: Report) -> None:
    """ThreadSanitizer sees no race, but sees those of kernels without barriers."""
    require(native_program.can_link(COMPILER, THREADS), f"ThreadSanitizer for {COMPILER}")
    isa = {"x86_64": "avx2", "aarch64": "neon"}[platform.machine()]
    built = build("threads", COMPILER, "", [isa], THREADS, [native_program.OPENMP])
    assert_same_bits(native_program.run(*built, [isa], **SEES_RACES), here, {isa})
    with pytest.raises(AssertionError, match="data race"):
        native_program.run(*built, [isa], HPCGNN_PART="rows", WITHOUT_BARRIERS="1", **SEES_RACES)


def arm_gives_the_same_bits_as_this_cpu(here: Report) -> None:
    require(native_program.can_link(ARM_COMPILER, "-fopenmp"), ARM_COMPILER)
    require(shutil.which(EMULATOR), EMULATOR)
    built = build("aarch64", ARM_COMPILER, "aarch64", ("neon", *SVE), ARM_FLAGS)
    for cpu, isa, parts in ARM_CPUS:
        emulator = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-cpu", cpu]
        found = native_program.run(*built, [isa], emulator, HPCGNN_PART=" ".join(parts))
        assert found.usable == (["neon"] if isa == "neon" else ["neon", isa])
        assert_same_bits(found, here, {isa}, parts)
        assert ("dense_int8_dot" in found.kernels) == (cpu != NO_SVE)


def chosen(builds: Sequence[Callable[[Report], None]]) -> list[Callable[[Report], None]]:
    """All builds, or one that the commit draws if it changed none of their sources, and nothing has since."""
    command = ["git", "diff", "--quiet", "HEAD~1", "--", "native", "tests/native"]
    unchanged = subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode != 1
    return random.Random(seed()).sample(builds, 1) if unchanged and not EVERYTHING else list(builds)


@pytest.mark.emulator
@pytest.mark.parametrize(
    "other_build", chosen([sanitizers_find_nothing, threads_do_not_race, arm_gives_the_same_bits_as_this_cpu])
)
def test_other_builds_give_the_same_bits(here: Report, other_build: Callable[[Report], None]) -> None:
    other_build(here)
