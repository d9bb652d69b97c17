"""Rows of a wire buffer: each backend writes and reads the bytes of the definition at any places, and no other bytes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import drawn
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from plainly import assert_same, encoded, make_wire
from requires import EVERYTHING
from under_test import TRITON, not_refused

from hpcgnn.kernels import Csr, keyed, spmm
from hpcgnn.kernels.messages import decode_rows, encode_rows, spmm_rows
from hpcgnn.kernels.native.library import segment_entries
from hpcgnn.kernels.packing import payload_bytes
from hpcgnn.kernels.triton import tasks

KEY = keyed.derive_key(4, 5, 6)


@pytest.fixture(params=drawn.IMPLEMENTATIONS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with drawn.using(request.param) as name:
        yield name


def check_message(
    backend: str, width: int, count: int, before: int, bits: int, key: int | None, aligned: bool, seed: int, on: int
) -> None:
    """Encode ``count`` rows in any order, from row number ``before`` on, then write and add them to any rows of a result."""
    rng = np.random.default_rng(seed)
    x = drawn.rows_of_all_kinds(width, seed)
    rows = torch.from_numpy(rng.permutation(max(count, x.shape[0]))[:count] % x.shape[0]) + before
    x = torch.cat((torch.zeros(before, width), x))
    payload, params, decoded = encoded(x[rows], rows, bits, key)
    wire, targets = make_wire(count, width, bits, seed, aligned), torch.from_numpy(rng.permutation(count + 9)[:count])
    out = torch.from_numpy(rng.standard_normal((count + 9, width), np.float32))
    sent, received = ((~values.isfinite()).any(1).sum() for values in (x[rows], decoded if bits == 16 else x[rows]))
    with drawn.on_threads(on):
        assert encode_rows(x, rows, bits, key, wire.buffer, *wire.at(bits), backend=backend) == sent
        assert torch.equal(wire.buffer, wire.holding(payload, params))
        for accumulate in (False, True):
            wanted = out.clone()
            wanted[targets] = wanted[targets] + decoded if accumulate else decoded
            assert decode_rows(wire.buffer, *wire.at(bits), bits, out, targets, accumulate, backend=backend) == received
            assert_same(out, wanted)


def test_rows_are_written_and_read_as_defined(backend: str) -> None:
    """A row counts once as not finite. A finite number that bfloat16 cannot hold becomes an infinity only for the receiver."""

    @drawn.budget(backend, 60)
    @given(
        width=drawn.widths, count=st.integers(0, 70), before=st.sampled_from([0, 300]), bits=st.sampled_from(drawn.BITS),
        key=drawn.keys, aligned=st.booleans(), seed=drawn.seeds, on=drawn.threads,
    )  # fmt: skip
    @example(width=129, count=70, before=0, bits=1, key=2**64 - 1, aligned=False, seed=1, on=3)
    @example(width=127, count=70, before=0, bits=1, key=None, aligned=True, seed=2, on=1)
    @example(width=64, count=70, before=0, bits=2, key=0, aligned=True, seed=3, on=2)
    @example(width=65, count=70, before=0, bits=2, key=None, aligned=False, seed=4, on=3)
    @example(width=33, count=70, before=0, bits=4, key=KEY, aligned=False, seed=5, on=2)
    @example(width=40, count=70, before=0, bits=4, key=None, aligned=True, seed=6, on=2)
    @example(width=602, count=60, before=0, bits=8, key=KEY, aligned=True, seed=7, on=2)
    @example(width=17, count=70, before=0, bits=8, key=None, aligned=False, seed=8, on=1)
    @example(width=1, count=70, before=70_000, bits=8, key=KEY, aligned=False, seed=9, on=3)
    @example(width=1, count=70, before=0, bits=1, key=None, aligned=True, seed=10, on=2)
    @example(width=3, count=70, before=0, bits=16, key=KEY, aligned=False, seed=11, on=3)
    @example(width=100, count=70, before=0, bits=16, key=None, aligned=True, seed=12, on=2)
    @example(width=100, count=70, before=0, bits=32, key=None, aligned=False, seed=13, on=3)
    @example(width=3, count=70, before=0, bits=32, key=KEY, aligned=True, seed=14, on=2)
    @example(width=0, count=5, before=0, bits=2, key=KEY, aligned=False, seed=15, on=2)
    @example(width=7, count=0, before=0, bits=4, key=None, aligned=False, seed=16, on=2)
    def holds(**case: Any) -> None:
        check_message(backend, **case)

    holds()
    if EVERYTHING:
        for width, bits, key, on in itertools.product(drawn.WIDTHS, drawn.BITS, (KEY, None), (1, 2, 3)):
            check_message(backend, width, 70, 0, bits, key, on == 2, width, on)


@pytest.mark.parametrize("implementation", drawn.NATIVE)
def test_large_results_go_past_the_caches_and_are_the_same(implementation: str) -> None:
    count, width, generator = 70_000, 64, torch.Generator().manual_seed(0)
    rows = torch.randperm(count, generator=generator)
    for bits in drawn.BITS:
        buffer = torch.randint(0, 256, (4 * count * (width + 1),), dtype=torch.uint8, generator=generator)
        payload_at = torch.arange(count) * payload_bytes(width, bits)
        params_at = buffer.numel() - 4 - 4 * torch.arange(count)
        whole, parts = torch.empty(2, count, width)
        with drawn.using(implementation) as backend:
            decode_rows(buffer, payload_at, params_at, bits, whole, rows, backend=backend)
            for part in (slice(0, count // 2), slice(count // 2, None)):
                decode_rows(buffer, payload_at[part], params_at[part], bits, parts, rows[part], backend=backend)
        assert_same(whole, parts)


def test_parameters_alone_are_looked_at(backend: str) -> None:
    buffer, places = torch.zeros(64, dtype=torch.uint8), torch.tensor([0, 8, 16])
    params = torch.tensor([[torch.inf, 1.0], [0.0, torch.nan], [1.0, 2.0]])
    buffer[32:44] = params.bfloat16().view(torch.uint8).flatten()
    out, rows = torch.empty(3, 8), torch.arange(3)
    assert decode_rows(buffer, places, 32 + 4 * rows, 8, out, rows, backend=backend) == 2
    assert out[2].tolist() == [1.0] * 8


# -- sums of rows in the buffer ----------------------------------------------------------------------------------------


def check_sums(
    backend: str, width: int, bits: int, rows: int, columns: int, hubs: int, weighted: bool, seed: int, on: int
) -> None:
    """Compare with spmm of decoded rows, bit for bit: by numba, and natively; other backends sum in another order."""
    rng, segment = np.random.default_rng(seed), tasks.SEGMENT if backend == TRITON else segment_entries()
    rows, hubs = min(rows, 60) if backend == "triton" else rows, min(hubs, rows)  # few rows, because it is interpreted
    lengths = rng.integers(0, 12, rows)
    lengths[:hubs] = [segment + 1, 2 * segment + 5, segment][:hubs]
    indptr = np.concatenate(([0], np.cumsum(rng.permutation(lengths) * (columns > 0), dtype=np.int64)))
    weight = rng.standard_normal(indptr[-1]).astype(np.float32) if weighted else None
    csr = Csr(indptr, rng.integers(0, max(columns, 1), indptr[-1]), columns, weight)
    x = drawn.random_rows(columns, width, seed=seed) * 10 ** rng.uniform(-2, 2)
    x[: seed % 2] = torch.nan
    payload, params, decoded = encoded(x, torch.arange(columns), bits, KEY)
    wire = make_wire(columns, width, bits, seed, aligned=weighted)
    out = torch.from_numpy(rng.standard_normal((rows, width), np.float32))
    with drawn.on_threads(on):
        expected = spmm(csr, decoded, out=out.clone(), backend="jit" if backend == "native" else backend)
        spmm_rows(csr, wire.holding(payload, params), *wire.at(bits), bits, width, out, backend=backend)
    assert_same(out, expected)


def test_sums_of_rows_are_those_of_decoded_rows(backend: str) -> None:
    """Heavy rows are cut into segments, which threads share."""
    more_widths = [*drawn.WIDTHS, 61, 200, 512]

    @drawn.budget(backend, 60)
    @given(
        width=st.sampled_from(more_widths), bits=st.sampled_from(drawn.BITS), rows=st.integers(0, 40),
        columns=st.integers(0, 60), hubs=st.integers(0, 3), weighted=st.booleans(), seed=drawn.seeds, on=drawn.threads,
    )  # fmt: skip
    @example(width=100, bits=1, rows=6, columns=500, hubs=3, weighted=True, seed=2, on=2)
    @example(width=64, bits=2, rows=6, columns=500, hubs=3, weighted=False, seed=4, on=3)
    @example(width=61, bits=4, rows=10, columns=30, hubs=1, weighted=True, seed=6, on=1)
    @example(width=256, bits=8, rows=10, columns=30, hubs=0, weighted=False, seed=7, on=2)
    @example(width=3, bits=16, rows=10, columns=30, hubs=2, weighted=True, seed=8, on=3)
    @example(width=40, bits=32, rows=10, columns=30, hubs=3, weighted=False, seed=10, on=2)
    @example(width=40, bits=2, rows=3000, columns=700, hubs=1, weighted=True, seed=12, on=3)
    @example(width=3, bits=8, rows=2, columns=0, hubs=0, weighted=False, seed=14, on=2)
    @example(width=3, bits=1, rows=0, columns=5, hubs=0, weighted=True, seed=16, on=2)
    @example(width=0, bits=4, rows=2, columns=4, hubs=0, weighted=False, seed=18, on=2)
    def holds(**case: Any) -> None:
        check_sums(backend, **case)

    holds()
    if EVERYTHING:
        for width, bits, weighted, hubs in itertools.product(more_widths, drawn.BITS, (False, True), (0, 3)):
            check_sums(backend, width, bits, 10, 30, hubs, weighted, 2 * width, 2)


# -- wrong arguments ---------------------------------------------------------------------------------------------------


def arguments() -> dict[str, Any]:
    """Correct arguments for all functions: 4 rows of 3 columns in 2 bits."""
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
    ({"backend": "cuda"}, "backend"),
]
OF_ROWS = [
    ({"rows": torch.tensor([0, 1, 2, 4])}, "rows must lie"),
    ({"rows": torch.tensor([0, -1, 2, 3])}, "rows must lie"),
    ({"rows": torch.arange(4.0)}, "rows"),
]


Wrong = list[tuple[dict[str, Any], str]]  # arguments in place of correct ones, and what the error names


def assert_refused(function: Callable[..., object], given: dict[str, Any], wrong: Wrong) -> None:
    calls = [(named, functools.partial(function, **(given | override))) for override, named in wrong]
    assert not_refused(calls) == []


def sharing(name: str) -> tuple[dict[str, torch.Tensor], str]:
    memory = torch.zeros(48, dtype=torch.uint8)
    return {name: memory.view(torch.float32).view(4, 3), "buffer": memory}, f"{name} must not share memory with buffer"


def test_wrong_arguments_of_encode_rows_are_refused_by_name() -> None:
    wrong = [
        *OF_PLACES,
        *OF_ROWS,
        ({"x": torch.ones(4, 3).double()}, "x must"),
        ({"x": torch.ones(3, 4).T}, "x must"),
        ({"x": torch.ones(12)}, "x must"),
        ({"key": -1}, "key"),
        ({"key": 2**64}, "key"),
    ]
    given = {"x": torch.ones(4, 3), "rows": torch.arange(4), "key": KEY} | arguments()
    assert_refused(encode_rows, given, [*wrong, sharing("x")])


def test_wrong_arguments_of_decode_rows_are_refused_by_name() -> None:
    wrong = [
        *OF_PLACES,
        *OF_ROWS,
        ({"out": torch.ones(4, 3).double()}, "out must"),
        ({"out": torch.ones(3, 4).T}, "out must"),
        ({"rows": torch.tensor([0, 1, 2, 1])}, "rows must name each row at most once"),
    ]
    given = {"out": torch.ones(4, 3), "rows": torch.arange(4)} | arguments()
    assert_refused(decode_rows, given, [*wrong, sharing("out")])


def test_wrong_arguments_of_spmm_rows_are_refused_by_name() -> None:
    csr = Csr(torch.tensor([0, 1, 2]), torch.tensor([0, 3]), 4)
    wrong = [
        *OF_PLACES,
        ({"out": torch.ones(2, 3).double()}, "out must"),
        ({"out": torch.ones(3, 2).T}, "out must"),
        ({"out": torch.ones(3, 3)}, "out must"),
        ({"num_columns": 2}, "out must"),
        ({"csr": Csr(csr.indptr, csr.indices, 4, torch.ones(2).double())}, "csr.weight"),
        ({"csr": Csr(csr.indptr, csr.indices, 5)}, "payload_at must hold 5"),
    ]
    assert_refused(spmm_rows, {"csr": csr, "out": torch.ones(2, 3), "num_columns": 3} | arguments(), wrong)


def test_without_checks_only_shapes_are_looked_at() -> None:
    x, wire, rows = torch.randn(4, 3), arguments(), torch.arange(4)
    assert encode_rows(x, rows, key=KEY, check=False, **wire) == 0
    out = torch.empty(4, 3)
    assert decode_rows(out=out, rows=rows, check=False, **wire) == 0
    assert_same(out, encoded(x, rows, 2, KEY)[2])
    with pytest.raises(ValueError, match="payload_at"):
        encode_rows(x, rows, key=KEY, check=False, **wire | {"payload_at": torch.arange(3)})
