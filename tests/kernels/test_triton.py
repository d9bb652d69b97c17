"""The kernels in Triton: alignments, segments, counts on the device, and the reasons why they cannot run.

The tests of each operator compare their results.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import torch
import triton
from under_test import BITS, TRITON
from wires import make_wire

from hpcgnn.kernels import DropoutMask, Norm, activation, keyed
from hpcgnn.kernels.messages import decode_rows, encode_rows
from hpcgnn.kernels.triton import launch, words
from hpcgnn.kernels.triton import rows as row_kernels

KEY = keyed.derive_key(7, 8, 9)
of_the_host = pytest.mark.skipif(not launch.interprets(), reason="a GPU takes no tensors of the host")


@of_the_host
def test_rows_of_bytes_that_start_anywhere():
    index = torch.tensor([3, -1, 0, 3, 7], dtype=torch.int32)
    offsets = (0, 0), (1, 0), (0, 1), (2, 4), (4, 8), (8, 2)
    for num_bytes, (of_x, of_out) in product((1, 2, 3, 4, 6, 12, 16, 40, 400), offsets):
        x = torch.randint(0, 256, (8 * num_bytes + of_x,), dtype=torch.uint8)[of_x:].view(8, num_bytes)
        out = torch.full((5 * num_bytes + of_out,), 77, dtype=torch.uint8)[of_out:].view(5, num_bytes)
        row_kernels.gather_rows(x, index, out)
        expected = x[index.long()]
        expected[1] = 0
        assert torch.equal(out, expected)


def test_counts_stay_on_the_device():
    """Reading a number would wait for the device."""
    x, rows = torch.ones(3, 5), torch.arange(3)
    for bits in BITS:
        wire = make_wire(3, 5, bits, seed=0)
        sent = encode_rows(x, rows, bits, KEY, wire.buffer, *wire.at(bits), backend=TRITON)
        received = decode_rows(wire.buffer, *wire.at(bits), bits, x, rows, backend=TRITON)
        for count in (sent, received):
            assert (count.dtype, count.dim(), int(count)) == (torch.int64, 0, 0)


def test_alignments_are_found_once_and_again_after_a_change(monkeypatch):
    calls, find, before = [], words._alignment, len(words._known)
    monkeypatch.setattr(words, "_alignment", lambda offsets: calls.append(offsets.numel()) or find(offsets))
    buffer = torch.zeros(64, dtype=torch.uint8)
    offsets = torch.arange(9) * 12
    assert [words.alignment_of(offsets, buffer), words.alignment_of(offsets, buffer), len(calls)] == [4, 4, 1]
    offsets[3] = 7
    assert [words.alignment_of(offsets, buffer), words.alignment_of(offsets, buffer), len(calls)] == [1, 1, 2]
    nothing = torch.zeros(0, dtype=torch.int64)
    assert words.alignment_of(torch.arange(4) * 64, buffer) == words.MOST == words.alignment_of(nothing, buffer)
    assert [words.alignment_of(torch.arange(4) * 64, buffer[begin:]) for begin in (1, 2, 4)] == [1, 2, 4]
    del offsets, nothing
    assert len(words._known) == before, "nothing is kept longer than its tensor"


def test_activation_in_several_programs_and_segments_repeats_bit_for_bit(monkeypatch):
    monkeypatch.setattr(launch, "_INTERPRETED", 512)
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


@pytest.fixture
def asked_anew():
    launch.missing.cache_clear()
    yield
    launch.missing.cache_clear()


@pytest.mark.usefixtures("asked_anew")
def test_no_gpu_an_old_version_and_no_compiler_are_told(monkeypatch):
    """The reasons why kernels cannot run are words that follow "but"."""
    assert launch.missing() is None
    with monkeypatch.context() as changed:
        changed.setattr(triton, "__version__", "3.2.0")
        launch.missing.cache_clear()
        assert launch.missing() == "triton 3.2.0 is older than 3.3: torch 2.7 and later install a newer one"
    monkeypatch.setattr(launch, "interprets", lambda: False)
    if not torch.cuda.is_available():
        launch.missing.cache_clear()
        assert "no GPU that torch can use" in launch.missing()

    class Driver:
        @property
        def active(self):
            raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    said = launch._problem_of_the_driver(SimpleNamespace(runtime=SimpleNamespace(driver=Driver())))
    assert said.endswith("needs a C compiler and Python's headers (Failed to find C compiler. Please specify one.)")
