"""native/build.py: the files that are compiled, and the compilers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from native_program import ROOT

SCRIPT = """#!/bin/sh
for argument; do
    case $argument in {refused}) exit 1 ;; esac
    [ "$before" = -o ] && touch "$argument"
    before=$argument
done
echo "$@" >> {log}
"""

# For each instruction set: the source, the flag that it needs, and the macro by which isa.cpp knows that it was compiled.
EXTRA = {
    "avx2": [("int8_dot.cpp", "-mavxvnni", "-DHPCGNN_HAS_DOT_avx2")],
    "avx512": [
        ("dense_bf16.cpp", "-mavx512bf16", "-DHPCGNN_HAS_BF16"),
        ("int8_dot.cpp", "-mavx512vnni", "-DHPCGNN_HAS_DOT_avx512"),
    ],
    "neon": [("int8_dot.cpp", "-march=armv8.2-a+dotprod", "-DHPCGNN_HAS_DOT_neon")],
    "sve256": [("int8_dot.cpp", "-msve-vector-bits=256", "-DHPCGNN_HAS_DOT_sve")],
}


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """The module native/build.py, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("build", ROOT / "native" / "build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look up their annotations there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("refused", ["nothing", "*/needs.cpp", "-mavx512bf16", "-mavx512vnni", "-mavxvnni"])
@pytest.mark.parametrize("isa", EXTRA)
def test_an_old_compiler_leaves_out_the_kernels_that_it_does_not_know(
    build: ModuleType, tmp_path: Path, isa: str, refused: str
) -> None:
    """Only these kernels are left out."""
    compiler, log = tmp_path / "c++", tmp_path / "log"
    compiler.write_text(SCRIPT.format(refused=refused, log=log))
    compiler.chmod(0o755)
    machine = "x86_64" if isa in build.ISAS["x86_64"] else "aarch64"
    build.build(tmp_path / "made.so", str(compiler), machine, only=(isa,))
    assert (tmp_path / "made.so").exists()
    commands = [line for line in log.read_text().splitlines() if "/needs.cpp" not in line]
    assert sum("kernels.cpp" in command for command in commands) == 1
    asks_the_cpu = next(command.split() for command in commands if "isa.cpp" in command)
    for source, flag, tells in EXTRA[isa]:
        compiled = [command.split() for command in commands if f"/{source} " in command]
        assert len(compiled) == (tells in asks_the_cpu) == (refused not in (flag, "*/needs.cpp"))
        assert all(flag in command and f"-DHPCGNN_ISA={isa}" in command for command in compiled)
    known = {tells for _, _, tells in EXTRA[isa]}
    assert {word for word in asks_the_cpu if word.startswith("-DHPCGNN_HAS_")} <= known
