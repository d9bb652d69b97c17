"""The backends with which a test body runs, and what property tests of kernels share: drawn cases and comparisons."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from requires import EVERYTHING

from hpcgnn.kernels import Csr
from hpcgnn.kernels.library import segment_entries

# Triton's interpreter runs kernels on tensors of the CPU. If there is a GPU, conftest.py copies these there and back.
TRITON = "triton-on-gpu" if torch.cuda.is_available() else "triton"
BACKENDS = ("native", "jit", "reference", TRITON)
TRITON_SEGMENT = 64  # entries of a task in place of 1,024, because the interpreter needs time for each entry
FLOATS = (torch.float32, torch.float64)

BITS = (1, 2, 4, 8, 16, 32)

# Around the lengths of vectors, and of the blocks of 16, 32, 64 and 128 columns into which codes are packed.
widths = st.sampled_from([1, 3, 15, 16, 17, 31, 40, 63, 64, 65, 100, 127, 128, 129, 256, 602]) | st.integers(1, 70)
keys = st.one_of(st.none(), st.integers(0, 2**64 - 1))
seeds = st.integers(0, 2**16)


def on_every_backend(most: int, *examples: dict[str, Any], **strategies: st.SearchStrategy) -> Callable[..., Any]:
    """Make a test of ``check(backend, ...)``: for the examples and ``most`` drawn cases, 20 times as many with
    ``HPCGNN_TESTS=all``, and a tenth in Triton's interpreter, which is slow."""

    def test_of(check: Callable[..., None]) -> Callable[[str], None]:
        def test(backend: str) -> None:
            drawn = (20 * most if EVERYTHING else most) // (10 if backend == TRITON else 1)
            phases = set(Phase) - ({Phase.shrink} if backend == TRITON else set())

            @settings(deadline=None, max_examples=drawn, phases=phases)
            @given(**strategies)
            def holds(**case: Any) -> None:
                check(backend, **case)

            for case in examples:
                holds = example(**case)(holds)
            holds()

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return test_of


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compared_with(backend: str) -> str:
    """The backend that must give the same results: the native one, whose kernels tests/native compares with plain loops, and for
    itself the reference.
    """
    return "reference" if backend == "native" else "native"


def segment_of(backend: str) -> int:
    """The entries of a row that a backend sums before it adds the sums; conftest.py sets Triton's."""
    return TRITON_SEGMENT if backend == TRITON else segment_entries()


def numbers(seed: int) -> Callable[..., torch.Tensor]:
    """A function that draws normal float64 numbers of the shape that it is given."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in another order of memory."""
    return tensor.permute(*range(tensor.dim())[::-1]).contiguous().permute(*range(tensor.dim())[::-1])


@dataclass(frozen=True)
class Case:
    """A sparse matrix, with empty rows and with entries that repeat others, and operands of an operator over it.

    hubs: rows of several segments of entries, of none, of exactly one, and of one and one more entry follow the other rows.
    columns: columns of each head. heads: None is one head, without a dimension for it. is_turned: whether tensors are not
    contiguous. alone: number of the only operand that needs a gradient; None: all do.
    """

    rows: int = 7
    cols: int = 6
    entries: int = 20
    hubs: bool = False
    columns: int = 6
    heads: int | None = None
    dtype: torch.dtype = torch.float32
    is_turned: bool = False
    alone: int | None = None
    seed: int = 0

    @property
    def width(self) -> int:
        return self.columns * (self.heads or 1)

    def build(self, backend: str = "native") -> tuple[Csr, torch.Tensor, torch.Tensor]:
        """The matrix, and the row and the column of each entry."""
        rng = np.random.default_rng(self.seed)
        entries = self.entries if self.rows and self.cols else 0
        lengths = np.bincount(rng.integers(0, max(self.rows, 1), entries), minlength=self.rows)
        if self.hubs:
            segment = segment_of(backend)
            lengths = np.concatenate((lengths, [2 * segment + 5, 0, segment, segment + 1]))
        row = np.repeat(np.arange(lengths.size), lengths)
        col = rng.integers(0, max(self.cols, 1), row.size)
        csr = Csr(np.concatenate(([0], np.cumsum(lengths))), col, self.cols)
        return csr, torch.from_numpy(row), torch.from_numpy(col)

    def arrange(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the case's type and order of memory."""
        return (turned if self.is_turned else torch.clone)(tensor.to(self.dtype))

    def check(self, function: Callable[..., torch.Tensor], plain: Callable[..., torch.Tensor], *leaves: Any) -> None:
        """Compare the result of ``function`` and the gradients of ``leaves`` with torch's own, of ``plain`` in float64.

        The gradients are those of a product with other numbers, so that no symmetry hides a mistake.
        """
        rounding = 1e-3 if self.hubs else 1e-4  # of few terms, or of thousands
        bounds = {"rtol": rounding, "atol": rounding} if self.dtype == torch.float32 else {}
        given = [self.arrange(leaf) for leaf in leaves]
        exact = [leaf.double() for leaf in map(torch.clone, given)]
        asked = [k for k in range(len(leaves)) if self.alone in (None, k)] or [0]
        for k in asked:
            given[k].requires_grad_()
            exact[k].requires_grad_()
        found, expected = function(*given), plain(*exact)
        assert found.dtype == self.dtype
        torch.testing.assert_close(found.double(), expected, **bounds)
        factor = self.arrange(numbers(9)(*expected.shape))
        gradients = torch.autograd.grad(found, [given[k] for k in asked], factor)
        wanted = torch.autograd.grad(expected, [exact[k] for k in asked], factor.double())
        for one, other in zip(gradients, wanted, strict=True):
            assert one.dtype == self.dtype
            torch.testing.assert_close(one.double(), other, **bounds)


def cases(kind: type[Case] = Case, **others: st.SearchStrategy) -> st.SearchStrategy:
    """Drawn cases with small matrices."""
    drawn = {
        "rows": st.integers(1, 30),
        "cols": st.integers(1, 30),
        "entries": st.integers(0, 120),
        "columns": widths,
        "heads": st.sampled_from([None, None, 1, 2, 3, 5, 8]),
        "dtype": st.sampled_from(FLOATS),
        "is_turned": st.booleans(),
        "alone": st.sampled_from([None, 0, 1]),
        "seed": seeds,
    }
    return st.builds(kind, **(drawn | others))


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
