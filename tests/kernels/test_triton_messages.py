"""Tests of the GPU kernels for messages and for matrices between layers: counts, tiles, alignments.

``test_messages.py`` compares bytes.
"""

from __future__ import annotations

import drawn
import pytest
import torch
from plainly import make_wire
from under_test import TRITON

from hpcgnn.kernels import DropoutMask, Norm, activation, dense, dropout, keyed, pack_bf16
from hpcgnn.kernels.messages import decode_rows, encode_rows
from hpcgnn.kernels.triton import tiles, words

KEY = keyed.derive_key(7, 8, 9)


@pytest.fixture
def small_tiles(monkeypatch):
    """Use small tiles, so that a few rows need several programs, as on a GPU."""
    monkeypatch.setattr(tiles, "_INTERPRETED", 512)


def test_counts_stay_on_the_device():
    """Reading a number would wait for the device."""
    x, rows = torch.ones(3, 5), torch.arange(3)
    for bits in drawn.BITS:
        wire = make_wire(3, 5, bits, seed=0)
        sent = encode_rows(x, rows, bits, KEY, wire.buffer, *wire.at(bits), backend=TRITON)
        received = decode_rows(wire.buffer, *wire.at(bits), bits, x, rows, backend=TRITON)
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


def test_dropout_in_several_programs(small_tiles):
    ids = torch.randint(-(2**62), 2**62, (70,))
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(70, 33, dtype=dtype)
        for probability in (0.0, 1e-9, 0.999):
            found, expected = (dropout(x, ids, KEY, probability, backend=name) for name in (TRITON, "native"))
            assert torch.equal(found, expected)


def test_activation_in_several_programs_and_segments_repeats_bit_for_bit(small_tiles, monkeypatch):
    monkeypatch.setattr("hpcgnn.kernels.triton.activation._MOST_SEGMENTS", 3)
    monkeypatch.setattr("hpcgnn.kernels.triton.activation._SEGMENTS_TOGETHER", 2)
    x, dy, ids = torch.randn(200, 40).requires_grad_(), torch.randn(200, 40), torch.arange(200)  # three segments
    for norm in (Norm(torch.randn(40).requires_grad_(), torch.randn(40).requires_grad_(), 1e-5), None):
        leaves = [x, norm.weight, norm.bias] if norm else [x]

        def results(backend: str, norm: Norm | None = norm, leaves: list[torch.Tensor] = leaves) -> list[torch.Tensor]:
            y = activation(x, norm, DropoutMask(ids, KEY, 0.3), backend)
            return [y.detach(), *torch.autograd.grad(y, leaves, dy)]

        for one, again, native in zip(results(TRITON), results(TRITON), results("native"), strict=True):
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
