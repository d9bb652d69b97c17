"""Quantized rows: unbiased, within the proven variance, and without noise a good start for error feedback; and bfloat16.

``test_messages.py`` shows that all backends write the bytes of the definition, so one of them stands for all here. The draws are
functions of fixed keys, so that a statistical test gives the same verdict every time. Its limits are five standard deviations:
about one in two million samples of a fair coin exceeds them, and no test looks at more than 2000.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from under_test import random_rows
from wires import assert_same, encoded

from hpcgnn.kernels import keyed, pack_bf16, unpack_bf16
from hpcgnn.kernels.messages import decode_rows, encode_rows

BITS = [1, 2, 4, 8]
KEY = keyed.derive_key(1, 2, 3)


def quantize(x: torch.Tensor, bits: int, key: int | None) -> tuple[torch.Tensor, ...]:
    """uint8 payload (n, bytes) and bfloat16 parameters (n, 2) of ``x`` (n, F), and the decoded rows."""
    payload, params, decoded = encoded(x, torch.arange(x.shape[0]), bits, key)
    return payload, params.view(torch.bfloat16), decoded


def there_and_back(x: torch.Tensor, bits: int, key: int | None) -> tuple[torch.Tensor, ...]:
    """float64: (n, F) decoded rows, (n, 1) zero-points and (n, 1) scales."""
    _, params, decoded = quantize(x, bits, key)
    return decoded.double(), params.double()[:, :1], params.double()[:, 1:]


def test_without_a_key_the_rest_of_a_sum_shrinks_to_nothing() -> None:
    """Error feedback: each message carries the difference of a row to the sum that the receiver holds."""
    places = torch.arange(50)
    for bits, rounds in ((1, 40), (2, 20), (4, 12), (8, 8)):
        for width, offset in ((40, 0), (256, 100)):
            x = random_rows(50, width, seed=bits) + offset
            buffer, kept = torch.zeros(50 * (width + 4), dtype=torch.uint8), torch.zeros(50, width)
            wire = buffer, places * width, 50 * width + places * 4
            rest, noise = x.abs().max(), 4 * x.abs().max() * 2**-24  # the error of float32 in the running sum
            for _ in range(rounds):
                encode_rows(x - kept, places, bits, None, *wire)
                decode_rows(*wire, bits, kept, places, True)
                before, rest = rest, (x - kept).abs().max()
                assert rest <= before * (2**-bits * (1 + 1 / 64) + 2**-8) + noise
            assert rest <= noise


@pytest.mark.parametrize("bits", BITS)
def test_decoded_rows_are_unbiased_and_their_variance_is_at_most_a_quarter_of_the_squared_scale(bits: int) -> None:
    keys, copies, width = 24, 25, 50
    draws = keys * copies
    x = random_rows(7, width, seed=bits)
    x[2:6] **= 3
    x[6] = 0.5
    x[6, :2] = torch.tensor([0, 2**bits - 1])  # half-way between two steps, the worst case
    mean, squares = torch.zeros(2, 7, width, dtype=torch.float64)
    for key in range(keys):
        decoded, zero, scale = there_and_back(x.repeat(copies, 1), bits, key)
        error = decoded.view(copies, 7, width) - x
        mean += error.sum(0) / draws
        squares += (error**2).sum(0) / draws
    zero, scale = zero[:7], scale[:7]
    fraction = ((x - zero) / scale) % 1
    deviation = scale * (fraction * (1 - fraction) / draws).sqrt()
    assert (mean.abs() <= 5 * deviation + scale / 2**16).all()
    assert deviation.max() < scale.max() / 45  # precise enough: rounding to the nearest would be off by up to scale / 2
    # (error / scale)**2 is (1 - f)**2 or f**2: its standard deviation is |1 - 2f| * sqrt(f * (1 - f)), at most 1/4
    spread = 5 * (1 - 2 * fraction).abs() * (fraction * (1 - fraction) / draws).sqrt()
    assert (squares <= scale**2 * (fraction * (1 - fraction) + spread + 1e-4)).all()
    assert (squares <= scale**2 * (1 / 4 + spread + 1e-4)).all()
    assert squares[6, 2:].numpy() == pytest.approx(0.25, abs=1e-3)


@pytest.mark.parametrize("bits", BITS)
def test_variance_of_a_row_is_a_sixth_of_its_squared_scale_an_element(bits: int) -> None:
    x = torch.rand(400, 256, generator=torch.Generator().manual_seed(bits)) * (2**bits - 1)
    x[:, 0], x[:, 1] = 0, 2**bits - 1
    decoded, zero, scale = there_and_back(x, bits, KEY)
    assert (zero.unique().tolist(), scale.unique().tolist()) == ([0.0], [1.0])
    squares = ((decoded - x) ** 2)[:, 2:]
    # A squared error has mean 1/6 and variance 1/15 - 1/36.
    assert abs(squares.mean() - 1 / 6) < 5 * ((1 / 15 - 1 / 36) / squares.numel()) ** 0.5


def rounded_up(key: int, rows: int, width: int, bits: int) -> torch.Tensor:
    """(rows, width) fair coins, -1 or 1: whether a value half-way between two steps was rounded up."""
    x = torch.full((rows, width + 2), 0.5)
    x[:, width], x[:, width + 1] = 0, 2**bits - 1  # zero-point 0, scale 1
    return (there_and_back(x, bits, key)[0][:, :width] > 0.5) * 2.0 - 1


def test_noise_is_fair_and_shared_by_no_two_elements() -> None:
    up = rounded_up(KEY, 400, 300, 2)  # its standard deviation is 1
    assert up.mean(1).abs().max() < 5 / 300**0.5
    assert up.mean(0).abs().max() < 5 / 400**0.5
    between_rows = up @ up.T / 300
    between_columns = up.T @ up / 400
    assert between_rows.fill_diagonal_(0).abs().max() < 6 / 300**0.5  # 80,000 pairs: 6 standard deviations
    assert between_columns.fill_diagonal_(0).abs().max() < 6 / 400**0.5
    for key in (KEY + 1, KEY ^ 1 << 63, keyed.derive_key(1, 2, 4)):
        assert abs((up * rounded_up(key, 400, 300, 2)).mean()) < 5 / (400 * 300) ** 0.5
    for bits in BITS:
        assert torch.equal(rounded_up(KEY, 20, 200, bits), up[:20, :200])


def test_noise_follows_key_row_and_column_alone() -> None:
    x = random_rows(60, 100, seed=0)
    payload, params, _ = quantize(x, 4, KEY)
    assert torch.equal(quantize(x, 4, KEY)[0], payload)
    assert torch.equal(quantize(x[:20], 4, KEY)[0], payload[:20])
    moved_payload, moved_params, _ = quantize(x.roll(1, 0), 4, KEY)
    assert torch.equal(moved_params, params.roll(1, 0))
    assert (moved_payload != payload.roll(1, 0)).any(1).all()
    assert torch.equal(rounded_up(KEY, 20, 33, 2), rounded_up(KEY, 20, 200, 8)[:, :33])


def test_bf16_equals_torch(backend: str) -> None:
    patterns = np.random.default_rng(0).integers(0, 2**32, (300, 101), dtype=np.uint32)
    x = torch.from_numpy(patterns.view(np.float32))
    x[0] = 1 + torch.arange(101) / 256  # every other value is a tie
    assert x.isnan().any()
    packed = pack_bf16(x, backend=backend)
    assert_same(packed, x.to(torch.bfloat16))
    assert packed.view(torch.int16)[x.isnan()].unique().tolist() == [0x7FC0]
    factor = torch.randn(300)
    assert_same(pack_bf16(x, factor, backend=backend), (x * factor[:, None]).to(torch.bfloat16))
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).view(256, 256)
    unpacked = unpack_bf16(every, backend=backend)
    assert torch.equal(unpacked.view(torch.int32), every.view(torch.int16).int() << 16)
    for other in (torch.randn(21, 9).T, *(torch.ones(shape) for shape in ((0, 7), (5, 0), (0, 0), (1, 1)))):
        assert torch.equal(pack_bf16(other, backend=backend), other.bfloat16())
