"""Cases that Hypothesis draws: their number, their rows of all kinds, and the threads on which kernels run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from requires import EVERYTHING
from under_test import TRITON, budget

BITS = [1, 2, 4, 8, 16, 32]
# Around the lengths of vectors, and of the blocks of 16, 32, 64 and 128 columns into which codes are packed.
WIDTHS = [0, 1, 3, 15, 16, 17, 31, 33, 40, 63, 64, 65, 100, 127, 128, 129, 256, 602]

widths = st.one_of(st.sampled_from(WIDTHS), st.integers(0, 300))
keys = st.one_of(st.none(), st.integers(0, 2**64 - 1))
seeds = st.integers(0, 2**32 - 1)
threads = st.integers(1, 3)


def hold(check: Callable[..., None], backend: str, most: int, **strategies: st.SearchStrategy) -> None:
    """Call ``check(backend, ...)`` for ``most`` drawn cases, or a tenth for Triton, whose interpreter is slow."""

    @budget(most // 10 if backend == TRITON else most)
    @given(**strategies)
    def holds(**case: Any) -> None:
        check(backend, **case)

    holds()


def widths_of(turn: int) -> list[int]:
    """One of the widths above 0 by turns; all of them with ``HPCGNN_TESTS=all``."""
    return WIDTHS if EVERYTHING else [WIDTHS[1 + 7 * (turn + 1) % (len(WIDTHS) - 1)]]


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rows_of_all_kinds(width: int, seed: int) -> torch.Tensor:
    """(n, width) rows of every kind for which :mod:`hpcgnn.kernels.messages` and :mod:`hpcgnn.kernels.int8` define a result."""
    rng = np.random.default_rng(seed)
    spread = rng.standard_normal(width)
    rows = [spread * 10.0**exponent for exponent in (-45, -42, -38, -33, -30, -10, 0, 5, 20, 37, 38)]
    rows += [np.full(width, value) for value in (0.0, -0.0, 0.1, -0.1, 3.0, 1e-45, -1e-45, 1e38, 3.4e38, -3.4e38)]
    # Half-way between two bfloat16 numbers.
    rows += [1 + np.arange(width) / 256, *(np.full(width, 1 + number / 256) for number in (1, 3))]
    rows += [1000 + spread, 100 - spread, 1 + spread * 1e-7, np.linspace(-1, 1, width), np.arange(width) % 255 - 127]
    rows += [np.where(spread > 0, *ends) for ends in ((0.0, -0.0), (3.4e38, -3.4e38), (3e38, -1e-38), (np.nan, spread))]
    for bad, column in ((np.nan, 0), (np.inf, width // 2), (-np.inf, -1), (np.nan, -1), (3.4e38, 0)):
        row = spread.copy()
        row[column : column + 1 or None] = bad
        rows.append(row)
    rows += [*rng.standard_normal((6, width)) * 10.0 ** rng.uniform(-20, 20, (6, 1))]
    with np.errstate(over="ignore"):
        known = np.array(rows).astype(np.float32)
    patterns = rng.integers(0, 2**32, (3, width), dtype=np.uint32).view(np.float32)
    return torch.from_numpy(np.concatenate((known, patterns)))


def random_rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
