"""native/build.py: what is compiled by which compiler."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from native_program import ROOT

SCRIPT = """#!/bin/sh
for argument; do
    [ "$argument" = "{refused}" ] && exit 1
    [ "$before" = -o ] && touch "$argument"
    before=$argument
done
echo "$@" >> {log}
"""


@pytest.mark.parametrize("refused", ["-mavx512bf16", "nothing"])
def test_an_old_compiler_leaves_bfloat16_products_out(tmp_path: Path, refused: str) -> None:
    compiler, log = tmp_path / "c++", tmp_path / "log"
    compiler.write_text(SCRIPT.format(refused=refused, log=log))
    compiler.chmod(0o755)
    spec = importlib.util.spec_from_file_location("build", ROOT / "native" / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    build.build(tmp_path / "made.so", str(compiler), "x86_64", only=("avx512",))
    assert (tmp_path / "made.so").exists()
    commands = log.read_text()
    assert "kernels.cpp" in commands
    is_new = refused == "nothing"
    assert [("dense_bf16.cpp" in commands), ("-DHPCGNN_HAS_BF16" in commands)] == [is_new, is_new]
