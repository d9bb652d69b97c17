"""Every instruction set gives the same bits on any number of threads, and ``HPCGNN_ISA`` is obeyed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from test_activation import Layer, gradients
from test_dense import by_kernel, operands
from under_test import Case, numbers

from hpcgnn.kernels import Csr, edge_softmax, edge_sum, int8, sddmm, spmm
from hpcgnn.kernels.edges import edge_softmax_backward
from hpcgnn.kernels.native import library
from hpcgnn.kernels.rows import cluster

FLOATS = (torch.float32, torch.float64)


def sums(csr: Csr) -> Iterator[torch.Tensor]:
    draw = numbers(1)
    for width in (1, 19, 64):
        for dtype in (*FLOATS, torch.bfloat16):
            x = draw(csr.num_cols, width).to(dtype)
            weight = draw(csr.num_entries).to(torch.float64 if dtype == torch.float64 else torch.float32)
            for reduce in ("sum", "mean"):
                yield from (spmm(csr, x, values, reduce, backend="native") for values in (None, weight))


def entries(csr: Csr) -> Iterator[torch.Tensor]:
    draw = numbers(2)
    for dtype in FLOATS:
        for width, heads in ((1, 1), (7, 1), (30, 5), (40, 8), (102, 3), (36, 18)):
            a, b = draw(csr.num_rows, width).to(dtype), draw(csr.num_cols, width).to(dtype)
            scores = sddmm(csr, a, b, heads=heads, backend="native")
            alpha = edge_softmax(csr, scores, "native")
            wide = sddmm(csr, a, b, "add", backend="native")
            yield from (scores, alpha, wide, edge_softmax_backward(csr, alpha, scores, "native"))
            yield from (edge_sum(csr, values, "native") for values in (alpha, wide))
    yield from cluster(csr.indices, csr.num_cols, "native")


def dense_products(csr: Csr) -> Iterator[torch.Tensor]:
    for shape in ((2100, 67, 130), (13, 8, 17), (1025, 600, 40)):  # every size of tile
        yield from by_kernel(shape, *operands(shape))


def activations(csr: Csr) -> Iterator[torch.Tensor]:
    for width in (1, 19, 256):
        for with_norm in (True, False):
            for probability in (0, 0.4):
                yield from gradients(*Layer(301, width, with_norm, probability).arguments(), "native")
    yield from gradients(*Layer(9000, 256).arguments(), "native")  # is stored past the caches


def integers(csr: Csr) -> Iterator[torch.Tensor]:
    draw = numbers(3)
    for width in (1, 19, 64):
        x, out = draw(csr.num_rows, width).float(), draw(csr.num_rows, 30).float()
        b = int8.quantize_rows(draw(csr.num_cols, width).float(), key=3, backend="native")
        y, a = int8.product(x, draw(30, width).float().T, key=1, weight_key=2, backend="native")
        yield from (y, a.codes, a.scale, int8.weight_gradient(a, out, key=4, backend="native")[0])
        yield from (int8.sddmm(csr, a, b, op, backend="native") for op in ("dot", "add"))
        yield spmm(csr, b.codes, scale=b.scale, backend="native")


@pytest.fixture
def choose_isa(monkeypatch):
    """``choose_isa(name)``: kernels are those of another instruction set, as in a new process."""
    caches = [library.isa, library.function, library.has_dot_products]

    def choose(name: str) -> None:
        monkeypatch.setenv("HPCGNN_ISA", name)
        for cache in caches:
            cache.cache_clear()

    yield choose
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("results", [sums, entries, dense_products, activations, integers])
def test_bits_depend_neither_on_threads_nor_on_the_instruction_set(
    choose_isa, results: Callable[[Csr], Iterator[torch.Tensor]]
):
    csr, _, _ = Case(300, 200, 6000, hubs=True).build()
    csr.transpose()
    expected: list[torch.Tensor] = []
    for isa in library.isas():
        choose_isa(isa)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = list(results(csr))
            assert library.last_isa() == isa
            expected = expected or found
            assert len(found) == len(expected)
            assert all(map(torch.equal, found, expected)), (isa, threads)


def test_the_best_one_runs_by_default_and_another_one_if_it_is_forced(choose_isa):
    choose_isa("")
    assert library.isa() == library.isas()[-1]
    program = (
        "import torch\nfrom hpcgnn import kernels\nfrom hpcgnn.kernels.native import library\n"
        "before = library.last_isa()\n"
        "kernels.spmm(kernels.Csr(torch.tensor([0, 1]), torch.tensor([0]), 1), torch.ones(1, 1))\n"
        "print([before, library.last_isa()])\n"
    )
    forced = library.isas()[0]
    environment = os.environ | {"HPCGNN_ISA": forced}
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert ran.stdout.strip() == str(["", forced])
