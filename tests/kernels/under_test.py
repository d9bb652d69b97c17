"""The backends with which a test body runs, and what property tests of kernels share: drawn cases and comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from requires import EVERYTHING

from hpcgnn.kernels import Csr
from hpcgnn.kernels.library import segment_entries

# Triton's interpreter runs kernels on tensors of the CPU. If there is a GPU, conftest.py copies these there and back.
TRITON = "triton-on-gpu" if torch.cuda.is_available() else "triton"
BACKENDS = ("native", "jit", "reference", TRITON)
TRITON_SEGMENT = 64  # entries of a task in place of 1,024, because the interpreter needs time for each entry
FLOATS = (torch.float32, torch.float64)

# Less than a vector, whole vectors, parts of vectors, several tiles, and any others.
widths = st.sampled_from([1, 3, 16, 40, 100, 256, 602]) | st.integers(1, 70)
seeds = st.integers(0, 2**16)


def compared_with(backend: str) -> str:
    """The backend that must give the same results: the native one, whose kernels tests/native compares with plain loops, and for
    itself the reference.
    """
    return "reference" if backend == "native" else "native"


def budget(examples: int) -> settings:
    """The settings of a property test: the number of drawn cases, and 20 times as many with ``HPCGNN_TESTS=all``."""
    return settings(deadline=None, max_examples=20 * examples if EVERYTHING else examples)


def segment_of(backend: str) -> int:
    """The entries of a row that a backend sums before it adds the sums; the fixture ``short_segments`` sets Triton's."""
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


def not_refused(calls: list[tuple[str, Callable[[], object]]]) -> list[str]:
    """The calls that raise no ValueError whose text matches the words beside them; none if all is well."""
    found = []
    for words, call in calls:
        try:
            call()
            found.append(f"{words}: no error")
        except ValueError as error:
            if not re.search(words, str(error)):
                found.append(f"{words}: {error}")
    return found
