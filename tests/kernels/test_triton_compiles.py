"""All kernels in Triton compile for GPUs of NVIDIA and AMD as the operators start them, on a machine without a GPU.

As a program, ``test_triton_compiles.py cuda:90 hip:gfx942`` calls the operators with tensors of the host; the kernels that they
start are compiled for these targets, and not run. Each kernel is compiled for the first types and shapes; with HPCGNN_TESTS=all,
for all of them. It prints a line for each compiled kernel: the target, its name, and the bytes of its machine code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from hpcgnn.kernels import Csr, DropoutMask, Norm, keyed
from hpcgnn.kernels.packing import PARAMS_BYTES, payload_bytes
from hpcgnn.kernels.triton import activation, dense, edges, int8, messages, rows, spmm, words

TARGETS = ["cuda:90", "hip:gfx942"]  # one of them by the commit, or both with HPCGNN_TESTS=all
NODES, WIDTH, HEADS = 70, 128, 8
KERNELS = {
    "_spmm", "add_parts", "_dot", "_add", "_softmax", "_join_softmax", "_softmax_backward", "_sum", "_gather",
    "quantize_rows", "dequantize_rows", "encode_words", "decode_words", "_spmm_rows",
    "_forward", "_backward", "_add_segments", "_pack", "_unpack",
    "_quantize", "_quantize_columns", "_multiply", "_contract", "_dot_codes", "_products", "_gradients",
}  # fmt: skip
RUN = JITFunction.run
EVERYTHING = os.environ.get("HPCGNN_TESTS") == "all"  # the program finds no module of tests


class Driver:
    """The part of a driver that compilation needs. Each target is another device, as Triton keeps kernels by device."""

    def __init__(self, target: GPUTarget, device: int) -> None:
        self._target, self._device = target, device

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def compile_in_place_of_running(name: str, device: int) -> None:
    """From now on, a start of a kernel compiles it for the target ``name``."""
    backend, arch = name.split(":")
    lanes, code = {"cuda": (32, "cubin"), "hip": (64, "hsaco")}[backend]
    triton.runtime.driver.set_active(Driver(GPUTarget(backend, int(arch) if arch.isdigit() else arch, lanes), device))
    compiled: dict[str, set[int]] = {}

    def run(self: JITFunction, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        sizes = compiled.setdefault(self.fn.__name__, set())
        if sizes and not EVERYTHING:
            return
        size = len(RUN(self, *given, grid=grid, warmup=True, **named).asm[code])
        if size not in sizes:
            sizes.add(size)
            print(name, self.fn.__name__, size, flush=True)

    JITFunction.run = run


def sparse(csr: Csr) -> None:
    x, entries = torch.zeros(NODES, WIDTH), csr.num_entries
    for dtype in (torch.int8, torch.float32, torch.float64, torch.bfloat16):
        out = torch.zeros(NODES, WIDTH, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        scale = torch.ones(NODES) if dtype == torch.int8 else None
        for weight in (torch.zeros(entries, HEADS, dtype=out.dtype), torch.zeros(entries, dtype=out.dtype), None):
            spmm.spmm(csr, weight, x.to(dtype), scale, weight is None, out)
    for dtype in (torch.float32, torch.float64):
        a, of_heads = x.to(dtype), torch.zeros(entries, HEADS, dtype=dtype)
        narrow_rows, out = a[:, :HEADS].contiguous(), torch.zeros_like(of_heads)
        edges.sddmm(csr, a, a, "dot", HEADS, out)
        edges.sddmm(csr, narrow_rows, narrow_rows, "add", 1, out)
        edges.sddmm(csr, narrow_rows, None, "left", 1, out)
        edges.edge_softmax(csr, of_heads, out)
        edges.edge_softmax_backward(csr, of_heads, of_heads, out)
        edges.edge_sum(csr, of_heads, torch.zeros_like(narrow_rows))
    index = torch.arange(NODES)
    for x_bytes in (
        x.view(torch.uint8),
        x[:, :3].contiguous().view(torch.uint8),
        x.view(torch.uint8)[:, :5].contiguous(),
    ):
        rows.gather_rows(x_bytes, index, torch.empty_like(x_bytes))
        rows.gather_rows(x_bytes, index.int(), torch.empty_like(x_bytes))


def wires(csr: Csr) -> None:
    x, index = torch.zeros(NODES, WIDTH), torch.arange(NODES)
    for bits in (1, 2, 4, 8, 16, 32):
        row_bytes = payload_bytes(WIDTH, bits)
        buffer = torch.zeros(NODES * (row_bytes + PARAMS_BYTES), dtype=torch.uint8)
        payload_at, params_at = index * row_bytes, NODES * row_bytes + index * PARAMS_BYTES
        for key in (7, None):
            messages.encode_rows(x, index, bits, key, buffer, payload_at, params_at)
        for accumulate in (True, False):
            messages.decode_rows(buffer, payload_at, params_at, bits, x, index, accumulate)
        for weighted in (csr.with_weight(torch.ones(csr.num_entries)), csr):
            messages.spmm_rows(weighted, buffer, payload_at, params_at, bits, x)


def dense_rows() -> None:
    ids = torch.arange(NODES)
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(NODES, WIDTH, dtype=dtype)
        norm, mask = Norm(x[0].clone(), x[1].clone(), 1e-5), DropoutMask(ids, 5, 0.5)
        for some_norm, some_mask in ((norm, mask), (norm, None), (None, mask), (None, None)):
            kept = activation.activate(x, some_norm, some_mask, torch.empty_like(x))
            weights = (None, None) if some_norm is None else (x[0].clone(), x[1].clone())
            if some_norm is None:
                activation.relu_backward(x, kept, 2.0 if some_mask else 1.0, torch.empty_like(x), None)
            activation.activate_backward(x, x, kept, some_norm, some_mask, torch.empty_like(x), *weights)
        activation.dropout(x, ids, 5, keyed.threshold(0.5), 2.0, torch.empty_like(x))
    x = torch.zeros(NODES, WIDTH)
    for parts in (1, 4):
        weights = torch.zeros(2, parts, WIDTH // parts, WIDTH // parts)
        dense.grouped_product(x, weights, (NODES - 1, 1), torch.empty_like(x))
        dense.grouped_product(x, weights.mT, (NODES - 1, 1), torch.empty_like(x))
        dense.grouped_gradient(x, x, (NODES - 1, 1), weights)
    words.pack_bf16(x, None, x.bfloat16())
    words.unpack_bf16(x.bfloat16(), x)


def integers(csr: Csr) -> None:
    x, scale, codes = torch.zeros(NODES, WIDTH), torch.ones(NODES), torch.zeros(NODES, WIDTH, dtype=torch.int8)
    weight, bias, out = torch.zeros(WIDTH, WIDTH), torch.zeros(WIDTH), torch.zeros(NODES, WIDTH)
    for key, factor, accumulate in ((7, scale, True), (None, None, False)):
        int8.quantize_rows(x, factor, key, codes, scale)
        int8.product(codes, scale, weight, key, bias if accumulate else None, accumulate, out)
        int8.weight_gradient(codes, scale, x, None, key, weight, bias)
    of_heads = torch.zeros(csr.num_entries, HEADS)
    int8.sddmm(csr, codes, scale, codes, scale, HEADS, of_heads)


def main(targets: list[str]) -> None:
    entries = torch.randint(0, NODES, (4000,), dtype=torch.int32)
    indptr = torch.cat((torch.tensor([0, 3000]), torch.linspace(3000, 4000, NODES).long()))  # a hub, and other rows
    csr = Csr(indptr, entries, NODES)
    for device, name in enumerate(targets):
        compile_in_place_of_running(name, device)
        sparse(csr)
        wires(csr)
        dense_rows()
        integers(csr)


@pytest.mark.slow
def test_every_kernel_compiles_without_a_gpu(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # an empty cache, so that all kernels are compiled
    from matrix import seed

    targets = TARGETS if EVERYTHING else [TARGETS[seed() % len(TARGETS)]]
    result = subprocess.run([sys.executable, __file__, *targets], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    compiled = [line.split() for line in result.stdout.splitlines()]
    for target in targets:
        assert {name for of, name, _ in compiled if of == target} >= KERNELS
    assert all(int(size) > 1000 for *_, size in compiled)


if __name__ == "__main__":
    main(sys.argv[1:])
