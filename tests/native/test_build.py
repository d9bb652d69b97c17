"""native/build.py: the files that are compiled, and the compilers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

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

specification = importlib.util.spec_from_file_location("build", ROOT / "native" / "build.py")
assert specification is not None
assert specification.loader is not None
build = importlib.util.module_from_spec(specification)  # it belongs to no package
sys.modules["build"] = build  # its dataclasses look up their annotations there
specification.loader.exec_module(build)


@pytest.mark.parametrize("isa", EXTRA)
def test_an_old_compiler_leaves_out_the_kernels_that_it_does_not_know(tmp_path: Path, isa: str) -> None:
    """Only these kernels are left out."""
    flags = [flag for _, flag, _ in EXTRA[isa] if "sve" not in flag]  # which all code for SVE needs
    for refused in ("nothing", "*/needs.cpp", *flags):
        compiler, log = tmp_path / "c++", tmp_path / "log"
        log.unlink(missing_ok=True)
        compiler.write_text(SCRIPT.format(refused=refused, log=log))
        compiler.chmod(0o755)
        machine = "x86_64" if isa in build.ISAS["x86_64"] else "aarch64"
        build.build(tmp_path / "made.so", str(compiler), machine, only=(isa,))
        commands = [line for line in log.read_text().splitlines() if "/needs.cpp" not in line]
        assert sum("kernels.cpp" in command for command in commands) == 1
        asks_the_cpu = next(command.split() for command in commands if "isa.cpp" in command)
        for source, flag, tells in EXTRA[isa]:
            compiled = [command.split() for command in commands if f"/{source} " in command]
            assert len(compiled) == (tells in asks_the_cpu) == (refused not in (flag, "*/needs.cpp")), refused
            assert all(flag in command and f"-DHPCGNN_ISA={isa}" in command for command in compiled)
        known = {tells for _, _, tells in EXTRA[isa]}
        assert {word for word in asks_the_cpu if word.startswith("-DHPCGNN_HAS_")} <= known
