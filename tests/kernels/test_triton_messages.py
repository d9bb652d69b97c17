"""Tests of the GPU kernels for messages and for matrices between layers: bits, tiles, alignments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from under_test import TRITON

from hpcgnn.kernels import Csr, DropoutMask, Norm, activation, dense, dropout, keyed, pack_bf16, spmm
from hpcgnn.kernels.messages import decode_rows, encode_rows, spmm_rows
from hpcgnn.kernels.packing import payload_bytes
from hpcgnn.kernels.triton import tasks, tiles, words

BITS = [1, 2, 4, 8, 16, 32]
WIDTHS = [1, 33, 129, 1500]  # the others: full blocks of 16 * (8 / bits) columns and one more column
KEY = keyed.derive_key(7, 8, 9)


@pytest.fixture
def small_tiles(monkeypatch):
    """Use small tiles, so that a few rows need several programs, as on a GPU."""
    monkeypatch.setattr(tiles, "_INTERPRETED", 512)


def rows_of_every_size(count: int, width: int) -> torch.Tensor:
    """(count, width) rows, among them rows of the largest, of tiny and of equal values, and one with a NaN."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(width))
    x *= torch.logspace(-30, 30, count)[:, None]
    x[1], x[2], x[3] = 3.4e38, -0.0, 1e-45
    x[4] = torch.where(torch.arange(width) % 2 == 0, 3.4e38, -3.4e38)
    x[5, width // 2] = torch.nan
    return x


def places(count: int, width: int, bits: int, gap: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The offsets of payloads, with ``gap`` bytes between them, and of parameters; and the size of a buffer for them."""
    step = payload_bytes(width, bits) + gap
    start = -(-count * step // 4) * 4
    return torch.arange(count) * step, start + torch.arange(count) * (4 + gap), start + count * (4 + gap)


@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_several_programs_write_and_read_the_bytes_of_the_native_kernels(small_tiles, width, bits, gap):
    x, rows = rows_of_every_size(7, width), torch.randperm(7)
    payload_at, params_at, size = places(7, width, bits, gap)
    for key in (2**64 - 1 - gap, None):
        buffers = []
        for backend in ("native", TRITON):
            buffers.append(torch.full((size,), 0xA5, dtype=torch.uint8))
            assert encode_rows(x, rows, bits, key, buffers[-1], payload_at, params_at, backend=backend) == 1
        assert torch.equal(*buffers)
    results = []
    for backend in ("native", TRITON):
        results.append(torch.ones(7, width))
        found = decode_rows(buffers[0], payload_at, params_at, bits, results[-1], rows, True, backend=backend)
        assert found == (3 if bits == 16 else 1)  # bfloat16 cannot hold 3.4e38
    assert torch.equal(results[0].isnan(), results[1].isnan())
    assert torch.equal(results[0].nan_to_num(), results[1].nan_to_num())


def test_counts_stay_on_the_device():
    """Reading a number would wait for the device."""
    x, rows = torch.ones(3, 5), torch.arange(3)
    for bits in BITS:
        payload_at, params_at, size = places(3, 5, bits, 0)
        buffer = torch.zeros(size, dtype=torch.uint8)
        sent = encode_rows(x, rows, bits, KEY, buffer, payload_at, params_at, backend=TRITON)
        received = decode_rows(buffer, payload_at, params_at, bits, x, rows, backend=TRITON)
        for count in (sent, received):
            assert (count.dtype, count.dim(), int(count)) == (torch.int64, 0, 0)


def test_alignments_are_found_once_and_again_after_a_change(monkeypatch):
    calls, find = [], words._alignment
    monkeypatch.setattr(words, "_alignment", lambda offsets: calls.append(offsets.numel()) or find(offsets))
    buffer = torch.zeros(64, dtype=torch.uint8)
    alignments = words.Alignments()
    offsets = torch.arange(9) * 12
    assert [alignments.of(offsets, buffer), alignments.of(offsets, buffer), len(calls)] == [4, 4, 1]
    offsets[3] = 7
    assert [alignments.of(offsets, buffer), alignments.of(offsets, buffer), len(calls)] == [1, 1, 2]
    assert (
        alignments.of(torch.arange(4) * 64, buffer)
        == words.MOST
        == alignments.of(torch.zeros(0, dtype=torch.int64), buffer)
    )
    assert [alignments.of(torch.arange(4) * 64, buffer[begin:]) for begin in (1, 2, 4)] == [1, 2, 4]
    del offsets
    assert len(alignments._found) == 0, "nothing is kept longer than its tensor"


@pytest.mark.parametrize("bits", BITS)
def test_sums_of_rows_in_few_bits_are_those_of_decoded_rows_with_hubs(monkeypatch, bits):
    """The rows of hubs are cut into parts; other rows lie in between."""
    monkeypatch.setattr(tasks, "SEGMENT", 8)
    rng, width = np.random.default_rng(bits), 70
    lengths = [0, 9, 3, 8, 40, 0, 17, 1]
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    weight = rng.standard_normal(indptr[-1]).astype(np.float32)
    csr = Csr(indptr, rng.integers(0, 12, indptr[-1]), 12, weight)
    x, rows = torch.randn(12, width), torch.arange(12)
    payload_at, params_at, size = places(12, width, bits, 3)
    buffer = torch.zeros(size, dtype=torch.uint8)
    encode_rows(x, rows, bits, KEY, buffer, payload_at, params_at)
    decoded, out = torch.empty(12, width), torch.randn(len(lengths), width)
    decode_rows(buffer, payload_at, params_at, bits, decoded, rows)
    expected = spmm(csr, decoded, out=out.clone(), backend=TRITON)
    spmm_rows(csr, buffer, payload_at, params_at, bits, width, out, backend=TRITON)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_in_several_programs(small_tiles, dtype):
    x, ids = torch.randn(70, 33, dtype=dtype), torch.randint(-(2**62), 2**62, (70,))
    for probability in (0.0, 1e-9, 0.999):
        found, expected = (dropout(x, ids, KEY, probability, backend=name) for name in (TRITON, "native"))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("with_norm", [True, False])
def test_activation_in_several_programs_and_segments_repeats_bit_for_bit(small_tiles, monkeypatch, with_norm):
    monkeypatch.setattr("hpcgnn.kernels.triton.activation._MOST_SEGMENTS", 3)
    monkeypatch.setattr("hpcgnn.kernels.triton.activation._SEGMENTS_TOGETHER", 2)
    x, dy, ids = torch.randn(200, 40), torch.randn(200, 40), torch.arange(200)
    norm = Norm(torch.randn(40), torch.randn(40), 1e-5) if with_norm else None
    leaves = [x, *((norm.weight, norm.bias) if norm else ())]
    for leaf in leaves:
        leaf.requires_grad_()

    def results(backend: str) -> list[torch.Tensor]:
        y = activation(x, norm, DropoutMask(ids, KEY, 0.3), backend)
        return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

    found = results(TRITON)
    for one, again, native in zip(found, results(TRITON), results("native"), strict=True):
        assert torch.equal(one, again)
        torch.testing.assert_close(one, native, rtol=1e-4, atol=1e-4)


def test_bfloat16_in_several_programs(monkeypatch):
    monkeypatch.setattr(tiles, "_INTERPRETED", 64)
    for count in (63, 64, 65, 500):
        x = 1 + torch.arange(count)[None] / 256  # every other value is a tie
        assert torch.equal(pack_bf16(x, backend=TRITON), x.bfloat16())


def test_products_in_bfloat16_add_what_it_holds_in_float32():
    x, weight, bias, out = torch.randn(50, 33), torch.randn(33, 8), torch.randn(8), torch.randn(50, 8)
    exact = x.bfloat16().double() @ weight.bfloat16().double()
    kwargs = {"backend": TRITON, "compute": "bf16"}
    torch.testing.assert_close(dense.product(x, weight, **kwargs).double(), exact, rtol=1e-5, atol=1e-5)
    found = dense.product(x, weight, bias, out.clone(), **kwargs)
    torch.testing.assert_close(found.double(), exact + bias + out, rtol=1e-5, atol=1e-5)
    dweight, sums = dense.weight_gradient(x, out, sums=True, **kwargs)
    exact = x.bfloat16().double().T @ out.bfloat16().double()
    torch.testing.assert_close(dweight.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums, out.sum(0))
