"""Rows of a wire buffer: the bytes of the reference for whole matrices, at any places, while other bytes stay unchanged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from quantized_rows import dequantize, quantize
from under_test import BACKENDS

from hpcgnn.kernels import Csr, keyed, pack_bf16, spmm
from hpcgnn.kernels.messages import decode_rows, encode_rows, spmm_rows
from hpcgnn.kernels.native.library import segment_entries
from hpcgnn.kernels.packing import payload_bytes
from hpcgnn.kernels.triton import tasks

BITS = [1, 2, 4, 8, 16, 32]
WIDTHS = [1, 3, 16, 40, 100, 256, 602]
KEY = keyed.derive_key(4, 5, 6)
UNTOUCHED = 0xA5


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@dataclass
class Wire:
    """A buffer, and the places of rows in it."""

    buffer: torch.Tensor
    payload_at: torch.Tensor
    params_at: torch.Tensor

    def at(self, bits: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.payload_at, self.params_at if bits <= 8 else None

    def gaps(self, width: int, bits: int) -> torch.Tensor:
        """The bytes that belong to no row."""
        free = torch.ones(self.buffer.numel(), dtype=torch.bool)
        free[self.payload_at[:, None] + torch.arange(payload_bytes(width, bits))] = False
        if bits <= 8:
            free[self.params_at[:, None] + torch.arange(4)] = False
        return self.buffer[free]


def make_wire(count: int, width: int, bits: int, seed: int = 0) -> Wire:
    """Places for ``count`` rows in random order with random gaps; the last payload ends with the buffer."""
    rng = np.random.default_rng(seed)
    starts = 4 * rng.permutation(count * 3)[:count]  # parameters come first, at multiples of 4, with gaps
    begin = 12 * count + 3  # payloads begin at an odd place
    steps = payload_bytes(width, bits) + rng.integers(0, 9, count)
    places = begin + np.cumsum(steps) - payload_bytes(width, bits)
    size = int(places[-1]) + payload_bytes(width, bits) if count else begin
    buffer = torch.full((size,), UNTOUCHED, dtype=torch.uint8)
    return Wire(buffer, torch.from_numpy(rng.permutation(places)), torch.from_numpy(starts))


def some_rows(width: int, count: int = 30) -> torch.Tensor:
    """(count, width) rows of every kind, with NaNs and infinities in rows 3, 8 and 13."""
    x = (
        torch.randn(count, width, generator=torch.Generator().manual_seed(width))
        * torch.logspace(-9, 9, count)[:, None]
    )
    for row, bad in ((3, torch.nan), (8, torch.inf), (13, -torch.inf)):
        x[row, row % width] = bad
    x[5] = 0.1
    x[6, 0] = -0.0
    return x


def encoded(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The reference's results for all rows: payload and parameters (as bytes), and the decoded rows."""
    if bits == 32:
        return x.view(torch.uint8), torch.empty(0), x
    if bits == 16:
        packed = pack_bf16(x, backend="reference")
        return packed.view(torch.uint8), torch.empty(0), packed.float()
    payload, params = quantize(x, bits, KEY, backend="reference")
    return payload, params.view(torch.uint8), dequantize(payload, params, bits, x.shape[1], backend="reference")


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check equality bit for bit, except for the bits of NaNs."""
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0).view(torch.int32), expected.nan_to_num(0).view(torch.int32))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_encodes_any_rows_to_any_places(backend, width, bits):
    x = some_rows(width)
    payload, params, _ = encoded(x, bits)
    rows = torch.tensor([29, 3, 0, 17, 13, 5, 6, 17, 8, 4])
    wire = make_wire(rows.numel(), width, bits)
    assert encode_rows(x, rows, bits, KEY, wire.buffer, *wire.at(bits), backend=backend) == 3
    assert torch.equal(wire.buffer[wire.payload_at[:, None] + torch.arange(payload.shape[1])], payload[rows])
    if bits <= 8:
        assert torch.equal(wire.buffer[wire.params_at[:, None] + torch.arange(4)], params[rows])
    gaps = wire.gaps(width, bits)
    assert gaps.numel() > 0
    assert (gaps == UNTOUCHED).all()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_decodes_to_any_rows(backend, width, bits, accumulate):
    x = some_rows(width)
    wire, rows = make_wire(30, width, bits), torch.randperm(30)
    encode_rows(x, rows, bits, KEY, wire.buffer, *wire.at(bits), backend="reference")
    out = torch.randn(50, width)
    targets = torch.randperm(50)[:30]
    expected = out.clone()
    decoded = encoded(x, bits)[2][rows]
    expected[targets] = expected[targets] + decoded if accumulate else decoded
    assert decode_rows(wire.buffer, *wire.at(bits), bits, out, targets, accumulate, backend=backend) == 3
    assert_same(out, expected)


@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
def test_many_rows_there_and_back(backend, bits):
    """There are enough rows for several threads, and for stores past the caches."""
    width, count = 64, 4_000 if backend == "triton" else 70_000  # few rows, because it is interpreted
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(1))
    wire, rows = make_wire(count, width, bits), torch.randperm(count)
    assert encode_rows(x, rows, bits, KEY, wire.buffer, *wire.at(bits), backend=backend) == 0
    out = torch.full((count, width), 7.0)
    assert decode_rows(wire.buffer, *wire.at(bits), bits, out, rows, backend=backend) == 0
    assert torch.equal(out, encoded(x, bits)[2])
    assert (wire.gaps(width, bits) == UNTOUCHED).all()


@pytest.mark.parametrize("bits", BITS)
def test_the_same_bytes_for_any_number_of_threads(backend, bits):
    width, rows, threads, results = 100, torch.randperm(999), torch.get_num_threads(), []
    x = torch.randn(999, width)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        wire, out = make_wire(999, width, bits), torch.ones(999, width)
        encode_rows(x, rows, bits, KEY, wire.buffer, *wire.at(bits), backend=backend)
        decode_rows(wire.buffer, *wire.at(bits), bits, out, rows, True, backend=backend)
        results.append((wire.buffer, out))
    torch.set_num_threads(threads)
    for found in results[1:]:
        assert torch.equal(found[0], results[0][0])
        assert torch.equal(found[1], results[0][1])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("count", "width"), [(0, 7), (4, 0), (0, 0)])
def test_nothing_to_do(backend, bits, count, width):
    wire, rows = make_wire(count, width, bits), torch.arange(count)
    assert encode_rows(torch.ones(5, width), rows, bits, KEY, wire.buffer, *wire.at(bits), backend=backend) == 0
    out = torch.ones(5, width)
    assert decode_rows(wire.buffer, *wire.at(bits), bits, out, rows, backend=backend) == 0
    assert (wire.gaps(width, bits) == UNTOUCHED).all()
    assert torch.equal(out, torch.ones(5, width))


def test_what_is_counted_as_not_finite(backend):
    """A row counts once. A finite number that bfloat16 cannot hold becomes an infinity only for the receiver."""
    x = torch.ones(3, 20)
    x[1, 2:9] = torch.nan
    x[2, 19] = torch.finfo(torch.float32).max
    rows = torch.arange(3)
    for bits in BITS:
        wire = make_wire(3, 20, bits)
        assert encode_rows(x, rows, bits, KEY, wire.buffer, *wire.at(bits), backend=backend) == 1
        received = decode_rows(wire.buffer, *wire.at(bits), bits, torch.empty(3, 20), rows, backend=backend)
        assert received == (2 if bits == 16 else 1)


def test_parameters_alone_are_looked_at(backend):
    buffer, places = torch.zeros(64, dtype=torch.uint8), torch.tensor([0, 8, 16])
    for row, params in enumerate(([torch.inf, 1.0], [0.0, torch.nan], [1.0, 2.0])):
        start = 32 + 4 * row
        buffer[start : start + 4] = torch.tensor(params, dtype=torch.bfloat16).view(torch.uint8)
    out, rows = torch.empty(3, 8), torch.arange(3)
    assert decode_rows(buffer, places, 32 + 4 * rows, 8, out, rows, backend=backend) == 2
    assert out[2].tolist() == [1.0] * 8


def to_centres(x: torch.Tensor, bits: int, backend: str = "auto") -> tuple[Wire, torch.Tensor, torch.Tensor]:
    """All rows encoded without a key: the bytes, (n, 2) float64 zero-points and scales, and the decoded rows."""
    wire, rows, out = make_wire(x.shape[0], x.shape[1], bits), torch.arange(x.shape[0]), torch.empty(x.shape)
    found = encode_rows(x, rows, bits, None, wire.buffer, *wire.at(bits), backend=backend)
    assert found == (~x.isfinite()).any(1).sum()
    decode_rows(wire.buffer, *wire.at(bits), bits, out, rows, backend=backend)
    params = wire.buffer[wire.params_at[:, None] + torch.arange(4)].view(torch.bfloat16).double()
    return wire, params, out


@pytest.mark.parametrize("bits", BITS[:4])
@pytest.mark.parametrize("width", WIDTHS)
def test_without_a_key_each_value_becomes_the_centre_of_its_cell(backend, width, bits):
    x = torch.cat([some_rows(width), 100 + torch.randn(20, width), 1 + 1e-6 * torch.randn(5, width)])
    x = x[x.isfinite().all(1)]
    _, params, out = to_centres(x, bits, backend)
    x, zero, scale = x.double(), params[:, :1], params[:, 1:]
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    assert (2**bits * scale >= (high - low) * (1 - 1e-6)).all()
    assert (2**bits * scale <= (high - low) * (1 + 1 / 128)).all()
    assert ((zero - (low + scale / 2)).abs() <= zero.abs() * 2**-8).all()
    in_float32 = scale * 1e-4 + x.abs() * 1e-6
    assert ((out - x).abs() <= scale / 2 + zero.abs() * 2**-8 + in_float32).all()
    code = ((x - zero) / scale.clamp(min=2**-110)).round().clamp(0, 2**bits - 1)
    assert ((out - x).abs() <= (zero + code * scale - x).abs() + in_float32).all()  # no code is nearer


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_without_a_key_everyone_writes_the_same_bytes(width, bits):
    x, threads = some_rows(width, 200), torch.get_num_threads()
    x[20:27] = torch.linspace(-1, 1, width) * torch.logspace(-45, 38, 7)[:, None]
    x[27:31] = torch.tensor([3.4e38, -3.4e38, 1e-45, -1e-45])[:, None]
    x[31] = torch.where(torch.arange(width) % 2 == 0, 3.4e38, -3.4e38)
    expected = to_centres(x, bits, "reference")[0]
    assert (expected.gaps(width, bits) == UNTOUCHED).all()
    for backend in BACKENDS:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(to_centres(x, bits, backend)[0].buffer, expected.buffer), (backend, count)
    torch.set_num_threads(threads)
    if bits > 8:
        wire = make_wire(200, width, bits)
        encode_rows(x, torch.arange(200), bits, KEY, wire.buffer, *wire.at(bits))
        assert torch.equal(wire.buffer, expected.buffer)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    npst.arrays(np.float32, npst.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=140)),
    st.sampled_from(BITS[:4]),
)
def test_without_a_key_everyone_agrees_on_any_rows(x, bits):
    expected, *_ = to_centres(torch.from_numpy(x), bits, "reference")
    for backend in BACKENDS:
        assert torch.equal(to_centres(torch.from_numpy(x), bits, backend)[0].buffer, expected.buffer), backend


@pytest.mark.parametrize("bits", BITS[:4])
def test_without_a_key_what_becomes_of_unusual_rows(backend, bits):
    def decoded(*row: float) -> list[float]:
        return to_centres(torch.tensor([row]), bits, backend)[2][0].tolist()

    for bad in (torch.nan, torch.inf, -torch.inf):
        assert np.isnan(decoded(1.0, bad, 2.0, 3.0)).all()
    for value in (0.0, 3.0, -0.5, 2.0**-120):
        assert decoded(value, value, value) == [value] * 3
    assert decoded(0.1, 0.1) == [torch.tensor(0.1).bfloat16().item()] * 2
    assert decoded(1 + 2**-8, 1 + 2**-8) == [1.0, 1.0]  # ties to even
    assert decoded(1 + 3 * 2**-8, 1 + 3 * 2**-8) == [1 + 2**-6] * 2
    assert str(decoded(-0.0, -0.0)) == "[0.0, 0.0]"
    assert decoded(3.4e38, 3.4e38) == [2.0**126] * 2
    half = 2.0**126 / 2**bits  # half a cell
    assert decoded(-3.4e38, 3.4e38) == pytest.approx([half - 2.0**126, 2.0**126 - half], rel=1 / 128)
    assert decoded(0.0, 1e-40) == [2.0**-111] * 2  # half of the smallest scale


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 100])
@pytest.mark.parametrize("width", [40, 256])
@pytest.mark.parametrize(("bits", "rounds"), [(1, 40), (2, 20), (4, 12), (8, 8)])
def test_without_a_key_the_rest_of_a_sum_shrinks_to_nothing(backend, bits, rounds, width, offset):
    x, rows = torch.randn(50, width, generator=torch.Generator().manual_seed(bits)) + offset, torch.arange(50)
    wire, kept = make_wire(50, width, bits), torch.zeros(50, width)
    rest, noise = x.abs().max(), 4 * x.abs().max() * 2**-24  # the error of float32 in the running sum
    for _ in range(rounds):
        encode_rows(x - kept, rows, bits, None, wire.buffer, *wire.at(bits), backend=backend)
        decode_rows(wire.buffer, *wire.at(bits), bits, kept, rows, True, backend=backend)
        before, rest = rest, (x - kept).abs().max()
        assert rest <= before * (2**-bits * (1 + 1 / 64) + 2**-8) + noise
    assert rest <= noise


def random_csr(lengths: list[int], columns: int, weighted: bool, seed: int = 3) -> Csr:
    rng = np.random.default_rng(seed)
    indptr = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    weight = rng.standard_normal(indptr[-1]).astype(np.float32) if weighted else None
    return Csr(indptr, rng.integers(0, columns, indptr[-1]), columns, weight)


def received(x: torch.Tensor, bits: int) -> Wire:
    wire = make_wire(x.shape[0], x.shape[1], bits)
    encode_rows(x, torch.arange(x.shape[0]), bits, KEY, wire.buffer, *wire.at(bits))
    return wire


def assert_is_spmm_of_decoded(csr: Csr, x: torch.Tensor, bits: int, backend: str) -> None:
    """Check equality bit for bit with spmm of decoded rows: by numba, and natively; other backends sum in another order."""
    wire, width = received(x, bits), x.shape[1]
    out = torch.randn(csr.num_rows, width, generator=torch.Generator().manual_seed(0))
    decoded = torch.empty(csr.num_cols, width)
    decode_rows(wire.buffer, *wire.at(bits), bits, decoded, torch.arange(csr.num_cols))
    expected = spmm(csr, decoded, out=out.clone(), backend="jit" if backend == "native" else backend)
    spmm_rows(csr, wire.buffer, *wire.at(bits), bits, width, out, backend=backend)
    assert_same(out, expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", [*WIDTHS, 61, 63, 64, 128, 200, 512])
def test_spmm_rows_is_spmm_of_decoded_rows(backend, width, bits, weighted):
    most = 17 if backend == "triton" else 100  # few rows, because it is interpreted
    csr = random_csr([0, 1, 2, 7, min(30, most), 0, most, 3, 5, 8], 30, weighted)
    assert_is_spmm_of_decoded(csr, some_rows(width), bits, backend)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_spmm_rows_adds_heavy_rows_in_the_same_segments(monkeypatch, backend, bits, weighted):
    segment = segment_entries()
    if backend == "triton":
        segment = 20  # few entries, because it is interpreted
        monkeypatch.setattr(tasks, "SEGMENT", segment)
    csr = random_csr([2, segment + 1, 0, segment, 2 * segment + 5, 1], 500, weighted)
    assert_is_spmm_of_decoded(csr, torch.randn(500, 100), bits, backend)


@pytest.mark.parametrize("bits", BITS)
def test_spmm_rows_for_any_number_of_threads(backend, bits):
    # Few rows, because it is interpreted.
    count, most, heavy = (60, 10, 30) if backend == "triton" else (3000, 40, 9000)
    lengths = np.random.default_rng(0).integers(0, most, count).tolist()
    csr, wire = random_csr([*lengths, heavy], 700, False), received(torch.randn(700, 40), bits)
    threads, results = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(torch.zeros(csr.num_rows, 40))
        spmm_rows(csr, wire.buffer, *wire.at(bits), bits, 40, results[-1], backend=backend)
    torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("lengths", "columns", "width"), [([], 5, 3), ([0, 0], 0, 3), ([0, 0], 4, 3), ([1, 2], 4, 0)])
def test_spmm_rows_of_nothing(backend, bits, lengths, columns, width):
    wire, out = received(torch.ones(columns, width), bits), torch.ones(len(lengths), width)
    spmm_rows(random_csr(lengths, columns, False), wire.buffer, *wire.at(bits), bits, width, out, backend=backend)
    assert torch.equal(out, torch.ones(len(lengths), width))


def arguments() -> dict[str, object]:
    """Correct arguments for both functions: 4 rows of 3 columns in 2 bits."""
    places = torch.arange(4) * 8
    return {"bits": 2, "buffer": torch.zeros(32, dtype=torch.uint8), "payload_at": places, "params_at": places + 4}


OF_PLACES = [
    ({"bits": 3}, "bits"),
    ({"buffer": torch.zeros(32)}, "buffer"),
    ({"buffer": torch.zeros(4, 8, dtype=torch.uint8)}, "buffer"),
    ({"buffer": torch.zeros(64, dtype=torch.uint8)[::2]}, "buffer"),
    ({"payload_at": torch.arange(3)}, "payload_at"),
    ({"payload_at": torch.arange(4, dtype=torch.int32)}, "payload_at"),
    ({"payload_at": torch.arange(8)[::2]}, "payload_at"),
    ({"payload_at": torch.tensor([0, 1, 2, 32])}, r"payload_at must lie in \[0, 31\]"),
    ({"payload_at": torch.tensor([0, 1, 2, -1])}, "payload_at"),
    ({"params_at": torch.tensor([0, 1, 2, 29])}, r"params_at must lie in \[0, 28\]"),
    ({"params_at": torch.tensor([-4, 1, 2, 3])}, "params_at"),
    ({"params_at": torch.arange(5)}, "params_at"),
    ({"params_at": None}, "params_at"),
    ({"rows": torch.tensor([0, 1, 2, 4])}, "rows must lie"),
    ({"rows": torch.tensor([0, -1, 2, 3])}, "rows must lie"),
    ({"rows": torch.arange(4.0)}, "rows"),
    ({"backend": "cuda"}, "backend"),
]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        *OF_PLACES,
        ({"x": torch.ones(4, 3).double()}, "x must"),
        ({"x": torch.ones(3, 4).T}, "x must"),
        ({"x": torch.ones(12)}, "x must"),
        ({"key": -1}, "key"),
        ({"key": 2**64}, "key"),
    ],
)
def test_wrong_arguments_of_encode_rows_are_refused_by_name(override, named):
    with pytest.raises(ValueError, match=named):
        encode_rows(**({"x": torch.ones(4, 3), "rows": torch.arange(4), "key": KEY} | arguments() | override))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        *OF_PLACES,
        ({"out": torch.ones(4, 3).double()}, "out must"),
        ({"out": torch.ones(3, 4).T}, "out must"),
        ({"rows": torch.tensor([0, 1, 2, 1])}, "rows must name each row at most once"),
    ],
)
def test_wrong_arguments_of_decode_rows_are_refused_by_name(override, named):
    with pytest.raises(ValueError, match=named):
        decode_rows(**({"out": torch.ones(4, 3), "rows": torch.arange(4)} | arguments() | override))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        *(case for case in OF_PLACES if "rows" not in case[0]),
        ({"out": torch.ones(2, 3).double()}, "out must"),
        ({"out": torch.ones(3, 2).T}, "out must"),
        ({"out": torch.ones(3, 3)}, "out must"),
        ({"num_columns": 2}, "out must"),
        ({"csr": Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 3]), 4, torch.ones(2).double())}, "csr.weight"),
        ({"csr": Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 3]), 5)}, "payload_at must hold 5"),
    ],
)
def test_wrong_arguments_of_spmm_rows_are_refused_by_name(override, named):
    csr = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 3]), 4)
    with pytest.raises(ValueError, match=named):
        spmm_rows(**({"csr": csr, "out": torch.ones(2, 3), "num_columns": 3} | arguments() | override))


def test_memory_is_not_shared():
    memory = torch.zeros(48, dtype=torch.uint8)
    with pytest.raises(ValueError, match="share"):
        encode_rows(memory.view(torch.float32).view(4, 3), torch.arange(4), 2, KEY, **places_in(memory))


def places_in(buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"buffer": buffer, "payload_at": torch.arange(4) * 8, "params_at": torch.arange(4) * 8 + 4}


def test_without_checks_only_shapes_are_looked_at():
    x, wire = torch.randn(4, 3), arguments()
    assert encode_rows(x, torch.arange(4), key=KEY, check=False, **wire) == 0
    out = torch.empty(4, 3)
    assert decode_rows(out=out, rows=torch.arange(4), check=False, **wire) == 0
    assert_same(out, encoded(x, 2)[2])
    with pytest.raises(ValueError, match="payload_at"):
        encode_rows(x, torch.arange(4), key=KEY, check=False, **wire | {"payload_at": torch.arange(3)})
