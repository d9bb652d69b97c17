"""The native kernels compared with plain loops, bit for bit: on this CPU, under sanitizers, and on ARM in an emulator."""

from __future__ import annotations

import os
import platform
import shutil

import native_program
import pytest
from requires import require

from hpcgnn.kernels.native import library

pytestmark = pytest.mark.builds

COMPILER = os.environ.get("CXX", "") or "c++"
SANITIZERS = "-g1 -O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
THREAD_SANITIZER = "-g1 -O1 -fsanitize=thread"
SEES_RACES = {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
ARM_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ARM_ISAS = ("neon", "sve128", "sve512")
NO_SVE = "cortex-a72"
ONLY_NEON = "max,sve=off"  # everything but SVE, including SDOT
FEW_TILES = " -DHPCGNN_MAX_VECTORS=3"  # code for fewer sizes of tiles compiles faster


@pytest.fixture(scope="module")
def here():
    """The library that Python uses, on this CPU."""
    program = native_program.build_program("here", COMPILER, "")
    loaded = library.load()
    assert loaded is not None, "the package was installed without its native kernels"
    return native_program.run(program, loaded.path)


def test_all_instruction_sets_of_this_cpu_give_the_same_bits(here):
    assert here.usable == library.isas()
    assert here.isas == set(here.usable)
    for part, found in here.digests.items():
        assert len(set(found.values())) == 1, part
        assert all(results > 100 for results, _ in found.values())


def test_sanitizers_find_nothing(here):
    """Buffers have exactly the needed size, so that reading or writing one value too many is detected."""
    require(native_program.can_link(COMPILER, SANITIZERS), f"AddressSanitizer for {COMPILER}")
    isas = {"x86_64": ("avx2", "avx512"), "aarch64": ("neon",)}[platform.machine()]
    isas = tuple(isa for isa in isas if isa in here.usable)
    sanitized = native_program.build_library("sanitized", COMPILER, "", isas, SANITIZERS + FEW_TILES)
    program = native_program.build_program("sanitized", COMPILER, SANITIZERS)
    found = native_program.run(program, sanitized, UBSAN_OPTIONS="print_stacktrace=1")
    assert found.isas == set(isas)
    for part, digests in found.digests.items():
        assert set(digests.values()) == set(here.digests[part].values())


@pytest.fixture(scope="module")
def watched():
    """The test program and the library under ThreadSanitizer, and their instruction set."""
    require(native_program.can_link(COMPILER, THREAD_SANITIZER), f"ThreadSanitizer for {COMPILER}")
    isa = {"x86_64": "avx2", "aarch64": "neon"}[platform.machine()]
    library = native_program.build_library("threads", COMPILER, "", [isa], THREAD_SANITIZER + FEW_TILES)
    return native_program.build_program("threads", COMPILER, THREAD_SANITIZER, [native_program.OPENMP]), library, isa


def test_threads_do_not_race(here, watched):
    program, built, isa = watched
    found = native_program.run(program, built, [isa], **SEES_RACES)
    for part, digests in found.digests.items():
        assert set(digests.values()) == set(here.digests[part].values())


def test_races_are_seen(watched):
    program, built, isa = watched
    with pytest.raises(AssertionError, match="data race"):
        native_program.run(program, built, [isa], HPCGNN_PART="rows", WITHOUT_BARRIERS="1", **SEES_RACES)


@pytest.fixture(scope="module")
def arm_build():
    """The test program and the library for ARM."""
    require(native_program.can_link(ARM_COMPILER, "-fopenmp"), ARM_COMPILER)
    require(shutil.which(EMULATOR), EMULATOR)
    built = native_program.build_library("aarch64", ARM_COMPILER, "aarch64", ARM_ISAS, FEW_TILES)
    return native_program.build_program("aarch64", ARM_COMPILER, ""), built


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("cpu", "isa"),
    [(NO_SVE, "neon"), ("max,sve128=on", "sve128"), ("max,sve512=on", "sve512")],
)
def test_arm_gives_the_same_bits_as_this_cpu(here, arm_build, cpu, isa):
    emulator = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-cpu", cpu]
    found = native_program.run(*arm_build, [isa], emulator)
    assert found.usable == (["neon"] if cpu == NO_SVE else ["neon", isa])
    assert found.isas == {isa}
    for part, digests in here.digests.items():
        assert set(found.digests[part].values()) == set(digests.values())


@pytest.mark.emulator
def test_arm_multiplies_bytes_with_neon_where_it_has_instructions_for_it(here, arm_build):
    emulator = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-cpu", ONLY_NEON]
    found = native_program.run(*arm_build, ["neon"], emulator, HPCGNN_PART="int8")
    assert set(found.digests) == {"int8"}
    assert set(found.digests["int8"].values()) == set(here.digests["int8"].values())
