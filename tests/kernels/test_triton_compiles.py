"""All kernels in Triton compile for GPUs of NVIDIA and AMD as they are started. This needs a compiler, but no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {
    "_spmm", "_join", "_dot", "_add", "_softmax", "_join_softmax", "_softmax_backward", "_sum", "_gather",
    "quantize_rows", "dequantize_rows", "encode_words", "decode_words", "spmm_rows",
    "_forward", "_backward", "_add_segments", "_dropout", "_pack", "_unpack",
    "_quantize", "_quantize_columns", "_multiply", "_contract", "_add_in_order", "_dot_codes", "_add_codes",
}  # fmt: skip


TARGETS = ["cuda:90", "hip:gfx942"]


@pytest.mark.slow
def test_every_kernel_compiles_for_both_vendors(tmp_path):
    program = Path(__file__).with_name("compile_for_gpus.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # an empty cache, so that all kernels are compiled
    result = subprocess.run([sys.executable, program, *TARGETS], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    compiled = [line.split() for line in result.stdout.splitlines()]
    for target in TARGETS:
        assert {name for of, name, _ in compiled if of == target} >= KERNELS
    assert all(int(size) > 1000 for *_, size in compiled)
