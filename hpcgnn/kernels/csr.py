"""The sparse matrix that the kernels take."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcgnn.base.arguments import check_tensors, check_type, check_whole
from hpcgnn.base.errors import WrongTypeError, WrongValueError
from hpcgnn.base.process import return_free_memory
from hpcgnn.kernels.backend import resolve
from hpcgnn.kernels.rows import cluster, gather_rows

Array = Tensor | np.ndarray
T = TypeVar("T")
_MANY_ENTRIES = 1 << 20
_ROWS_SORTED = 1 << 14  # rows whose entries are sorted at a time: this limits temporaries


@dataclass(frozen=True)
class HotColumns:
    """Columns that many entries name.

    columns: (h,) int32, in descending order of the number of entries.
    indices: (entries,) int32 the matrix's ``indices`` with ``columns[p]`` written as ``~p``, and perhaps grouped in each row (see
        :meth:`Csr.hot_columns`).
    """

    columns: Tensor
    indices: Tensor


class Csr:
    """A sparse matrix in CSR form, of ones or of the values ``weight``, that caches its transpose. All its arrays are on one
    device.

    A checked matrix owns its arrays: it copies those that it is given, unless their conversion makes a copy anyway, so later
    changes to your arrays do not affect it. Do not change its attributes; kernels read them without checks.

    Example:
        ``Csr(indptr=[0, 2, 3], indices=[0, 1, 1], num_cols=2)`` with tensors in place of the lists has the rows (1, 1) and
        (0, 1).

    Args:
        indptr: (num_rows + 1,) int32 or int64, not decreasing, from 0 to the number of entries.
        indices: (entries,) int32 or int64, the column of each entry.
        num_cols: number of columns, at most 2**31 - 1.
        weight: (entries,) floating-point values, or None for ones.
        check: validate and copy the arrays, in O(entries) time. False is only for arrays that are right by construction, and
            that nobody else writes to.

    Raises:
        ValueError: naming the argument that is wrong.
    """

    def __init__(
        self, indptr: Array, indices: Array, num_cols: int, weight: Array | None = None, *, check: bool = True
    ) -> None:
        check_type("check", check, bool)
        if check:
            check_whole("num_cols", num_cols)
        self.indptr, self.indices = _array("indptr", indptr), _array("indices", indices)
        self.num_cols = int(num_cols)
        self.weight = None if weight is None else _array("weight", weight)
        if check:
            self._check()
        self.indptr = _converted(self.indptr, torch.int64, own=check)
        self.indices = _converted(self.indices, torch.int32, own=check)
        if self.weight is not None:
            self.weight = _converted(self.weight, self.weight.dtype, own=check)
        self.num_rows = self.indptr.numel() - 1
        self._transpose: Csr | None = None
        self._kept: dict[Hashable, Any] = {}  # see kept()
        # kernels.spmm.multiply: its kernels, by type and width of x and the backend that was asked for
        self.products: dict[tuple[torch.dtype, int, str], Callable[..., None]] = {}
        self._shared: Csr | None = None  # the matrix that has the same structure and other values
        # The matrix whose transpose this is; weak, so that the pair can be freed.
        self._origin: weakref.ref[Csr] | None = None
        self.each_column_once = False  # if set, no column is hot, and uses need not be counted
        self._rows_before: Tensor | None = None  # (num_rows,) int64 numbers of rows before in_order()
        self._blocks: dict[int, list[tuple[slice, Csr]]] = {}  # see row_blocks()
        self._part_of: tuple[weakref.ref[Csr], slice] | None = None  # the matrix, and the entries, of a block

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"products": {}, "_kept": {}, "_blocks": {}}  # those have addresses of this matrix

    def _check(self) -> None:
        # This raises unless all are on one device, and some backend takes it.
        resolve(indices=self.indices, indptr=self.indptr, weight=self.weight)
        if self.indptr.dtype not in (torch.int32, torch.int64):
            raise WrongValueError(f"indptr must hold int32 or int64 integers, not {self.indptr.dtype}")
        if self.indptr.dim() != 1 or self.indptr.numel() == 0 or self.indptr[0] != 0:
            raise WrongValueError("indptr must be one-dimensional and start with 0")
        if bool((self.indptr[1:] < self.indptr[:-1]).any()):
            raise WrongValueError("indptr must not decrease")
        if self.indices.dim() != 1 or self.indices.dtype not in (torch.int32, torch.int64):
            raise WrongValueError("indices must be one-dimensional integers (int32 or int64)")
        if self.indices.numel() != int(self.indptr[-1]):
            raise WrongValueError(f"indices has {len(self.indices)} entries, indptr ends with {int(self.indptr[-1])}")
        if not 0 <= self.num_cols <= 2**31 - 1:
            raise WrongValueError(f"num_cols must be between 0 and 2**31 - 1, not {self.num_cols}")
        if self.indptr.numel() > 2**31:
            raise WrongValueError(f"indptr must have at most 2**31 - 1 rows, not {self.indptr.numel() - 1}")
        if self.indices.numel():
            least, most = torch.aminmax(self.indices)
            if not 0 <= int(least) <= int(most) < self.num_cols:
                raise WrongValueError(f"indices must lie in [0, {self.num_cols})")
        if self.weight is not None and (self.weight.shape != self.indices.shape or not self.weight.is_floating_point()):
            raise WrongValueError("weight must have one floating-point value per entry")

    @property
    def device(self) -> torch.device:
        """The device of its arrays, and of everything that is made from them."""
        return self.indices.device

    @property
    def num_entries(self) -> int:
        """Number of stored entries, duplicates included."""
        return self.indices.numel()

    @property
    def structure(self) -> Csr:
        """The matrix from which :meth:`with_weight` has made this one, or this matrix itself."""
        return self if self._shared is None else self._shared

    def kept(self, name: Hashable, make: Callable[[], T]) -> T:
        """``make()``, data that depend on the structure alone, made once for each ``name`` and kept as long as the structure."""
        if name in self._kept:
            return self._kept[name]
        return self._kept.setdefault(name, make())  # of two threads, both get the first one's data

    @property
    def transpose_order(self) -> Tensor:
        """(entries,) int32, int64 from 2**31 entries on: entry ``k`` of the transpose is entry ``transpose_order[k]`` here."""
        if self._shared is not None:
            return self._shared.transpose_order
        origin = None if self._origin is None else self._origin()
        if origin is None:
            return self.kept("by column", self._sorted_by_column)[1]
        order = origin.transpose_order

        def invert() -> Tensor:
            inverse = torch.empty_like(order)
            inverse[order] = torch.arange(order.numel(), dtype=order.dtype, device=self.device)
            return inverse

        return self.kept("inverse", invert)

    def _entries_of(self, rows: Tensor) -> Tensor:
        """(number of entries in ``rows``,) int64 numbers of the entries of ``rows`` (r,), row after row."""
        lengths = self.row_lengths()[rows]
        starts = self.indptr[rows] - (lengths.cumsum(0) - lengths)
        return torch.repeat_interleave(starts, lengths) + torch.arange(int(lengths.sum()), device=self.device)

    def in_order(self, rows: Tensor | None, columns: Tensor | None) -> Csr:
        """This matrix with its rows, its columns or both in another order; the entries of a row keep theirs.

        The rows of the result's transpose keep the order of their entries, too. So products with both matrices sum each row as
        before, and have the same bits, except where the kernel chooses an order (see :meth:`hot_columns`).

        Args:
            rows: (r,) int64: new row k is row ``rows[k]`` of this matrix; rows may be left out. None keeps all as they are.
            columns: (num_cols,) int64 permutation: new column k is column ``columns[k]``. None keeps all as they are.
        """
        indptr, indices, weight, before = self.indptr, self.indices, self.weight, self.structure._rows_before
        if rows is not None:
            entries = self._entries_of(rows)
            lengths = self.row_lengths()[rows]
            indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
            indices, weight = indices[entries], None if weight is None else weight[entries]
            before = rows if before is None else before[rows]
        if columns is not None:
            places = torch.empty(self.num_cols, dtype=torch.int32, device=self.device)
            places[columns] = torch.arange(self.num_cols, dtype=torch.int32, device=self.device)
            indices = places[indices]
        ordered = Csr(indptr, indices, self.num_cols, weight, check=False)
        ordered._rows_before = before
        return ordered

    def to(self, torch_device: torch.device | str) -> Csr:
        """This matrix if it is on ``torch_device``, else a copy there, whose transpose is made there as well."""
        if torch.device(torch_device) == self.device:
            return self
        weight = None if self.weight is None else self.weight.to(torch_device)
        moved = Csr(self.indptr.to(torch_device), self.indices.to(torch_device), self.num_cols, weight, check=False)
        moved.each_column_once = self.each_column_once
        before = self.structure._rows_before
        moved._rows_before = None if before is None else before.to(torch_device)
        return moved

    def transpose(self) -> Csr:
        """The transposed matrix, made once; within a row, its entries are in the order of this matrix's rows."""
        origin = None if self._origin is None else self._origin()
        if origin is not None:
            return origin
        if self._transpose is None:
            weight = None if self.weight is None else gather_rows(self.weight, self.transpose_order, check=False)
            if self._shared is None:
                indptr, order = self.kept("by column", self._sorted_by_column)
                indices = gather_rows(self.entry_rows(torch.int32), order, check=False)
                transpose = Csr(indptr, indices, self.num_rows, weight, check=False)
            else:
                assert weight is not None, "only with_weight() shares a structure"
                transpose = self._shared.transpose().with_weight(weight)
            transpose._origin = weakref.ref(self)
            self._transpose = self._trimmed(transpose)
        return self._transpose

    def _trimmed(self, made: T) -> T:
        """``made`` from this matrix, after temporaries of its size were given back to the system."""
        if self.num_entries >= _MANY_ENTRIES and self._part_of is None and self._shared is None:
            return_free_memory()
        return made

    def _sorted_by_column(self) -> tuple[Tensor, Tensor]:
        """``indptr`` and ``transpose_order`` of the transpose; within a column, entries are ordered by the number that their row
        had before :meth:`in_order`."""
        if self._rows_before is None:
            return cluster(self.indices, self.num_cols, check=False)
        by_row = self._entries_of(torch.argsort(self._rows_before))
        indptr, order = cluster(self.indices[by_row], self.num_cols, check=False)
        return indptr, by_row[order].to(order.dtype)

    def with_weight(self, weight: Tensor) -> Csr:
        """A matrix of the same structure with the values ``weight`` (entries,); both share the structure of the transpose."""
        if weight.shape != self.indices.shape:
            raise WrongValueError("weight must have one value per entry")
        other = Csr(self.indptr, self.indices, self.num_cols, weight, check=False)
        other._shared, other._kept = self.structure, self._kept
        return other

    def composed_with(self, other: Csr) -> Csr:
        """The product of this matrix and ``other`` (num_cols, C), a matrix of ones: (num_rows, C), with an entry for each path
        through both matrices, weighted by this matrix."""
        columns = self.indices.long()
        lengths = other.row_lengths()[columns]
        ends = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        weight = None if self.weight is None else torch.repeat_interleave(self.weight, lengths)
        indices = other.indices[other._entries_of(columns)]
        return Csr(ends[self.indptr], indices, other.num_cols, weight, check=False)

    def row_blocks(self, rows: int) -> list[tuple[slice, Csr]]:
        """The matrix in blocks of so many rows, each with its place; they share its entries, and are made once.

        Products with a block have the bits of products with the whole matrix.
        """
        if rows not in self._blocks:
            self._blocks[rows] = [
                (slice(first, first + rows), self._block(first, min(first + rows, self.num_rows)))
                for first in range(0, self.num_rows, rows)
            ]
        return self._blocks[rows]

    def _block(self, first: int, last: int) -> Csr:
        entries = slice(int(self.indptr[first]), int(self.indptr[last]))
        weight = None if self.weight is None else self.weight[entries]
        indptr = self.indptr[first : last + 1] - entries.start
        block = Csr(indptr, self.indices[entries], self.num_cols, weight, check=False)
        block._part_of = weakref.ref(self), entries
        return block

    def row_lengths(self) -> Tensor:
        """(num_rows,) int64 number of entries of each row."""
        return self.indptr[1:] - self.indptr[:-1]

    def entry_rows(self, dtype: torch.dtype = torch.int64) -> Tensor:
        """(entries,) row of each entry."""
        rows = torch.arange(self.num_rows, dtype=dtype, device=self.device)
        # With a known size, torch need not wait for the device.
        return torch.repeat_interleave(rows, self.row_lengths(), output_size=self.num_entries)

    def hot_columns(self, most: int, least_uses: int, *, grouped: bool = False) -> HotColumns | None:
        """At most ``most`` columns, each of which at least ``least_uses`` entries name; None if more than half of the entries
        name other columns. It is made once, and takes 4 bytes an entry.

        ``grouped`` orders each row's entries: first those of hot columns, in the order of ``columns``, then the others as they
        were.
        """
        key = most, least_uses, grouped
        return self.kept(("hot", *key), lambda: self._trimmed(self._find_hot_columns(*key)))

    def _find_hot_columns(self, most: int, least_uses: int, grouped: bool) -> HotColumns | None:
        if self._part_of is not None:
            whole, entries = self._part_of[0](), self._part_of[1]
            assert whole is not None, "a matrix keeps its blocks"
            found = whole.hot_columns(most, least_uses, grouped=grouped)
            return None if found is None else HotColumns(found.columns, found.indices[entries])
        if self.each_column_once and least_uses > 1:
            return None
        uses = torch.bincount(self.indices, minlength=self.num_cols)
        columns = torch.nonzero(uses >= least_uses).flatten()
        columns = columns[torch.argsort(uses[columns], descending=True, stable=True)[:most]].to(torch.int32)
        if 2 * int(uses[columns].sum()) < self.num_entries:
            return None
        places = torch.arange(columns.numel(), dtype=torch.int32, device=self.device)
        written = torch.arange(self.num_cols, dtype=torch.int32, device=self.device)
        written[columns] = ~places
        if not grouped:
            return HotColumns(columns, gather_rows(written, self.indices, check=False))
        place = torch.full((self.num_cols,), columns.numel(), dtype=torch.int32, device=self.device)
        place[columns] = places
        ordered = torch.empty_like(self.indices)
        for first in range(0, self.num_rows, _ROWS_SORTED):
            rows = slice(first, min(first + _ROWS_SORTED, self.num_rows))
            self._group_entries(rows, place, written, columns.numel() + 1, ordered)
        return HotColumns(columns, ordered)

    def _group_entries(self, rows: slice, place: Tensor, written: Tensor, places: int, out: Tensor) -> None:
        """Write the ``written`` numbers of the entries of some rows to ``out``, each row ordered by ``place``."""
        indptr = self.indptr[rows.start : rows.stop + 1]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        indices, row = self.indices[entries], torch.arange(indptr.numel() - 1, dtype=torch.int32, device=self.device)
        # Two stable counting sorts: by place, then back into rows.
        order = cluster(gather_rows(place, indices, check=False), places, check=False)[1]
        row = torch.repeat_interleave(row, indptr.diff(), output_size=indices.numel())
        of_row = cluster(gather_rows(row, order, check=False), indptr.numel() - 1, check=False)[1]
        order = gather_rows(order, of_row, check=False)
        out[entries] = gather_rows(written, gather_rows(indices, order, check=False), check=False)


def _array(name: str, given: Array) -> Tensor:
    """``given`` as a tensor. Raises an error that names the argument if it is neither a tensor nor an array of numbers."""
    try:
        array = given if isinstance(given, Tensor) else torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise WrongTypeError(f"{name} must be an array or a tensor of numbers: {error}") from error
    check_tensors(**{name: array})
    return array


def _converted(given: Tensor, dtype: torch.dtype, *, own: bool) -> Tensor:
    """``given`` contiguous and of ``dtype``; with ``own``, in memory that is not the caller's (a tensor cannot be frozen)."""
    converted = given.to(dtype).contiguous()
    return converted.clone() if own and converted.data_ptr() == given.data_ptr() else converted


def as_columns(values: Tensor) -> Tensor:
    """(entries,) or (entries, heads) values as (entries, heads)."""
    return values[:, None] if values.dim() == 1 else values
