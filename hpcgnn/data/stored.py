"""Reading of datasets as ranges of bytes of their file; HDF5 only tells the place of each. The type, shape and place of a dataset
are compared with its rule and with the file's size before anything is allocated, and values are checked while they are in the
cache.
"""

from __future__ import annotations

import contextlib
import copy
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import xxhash

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import h5
from hpcgnn.data.schema import Rule

_PIECE_BYTES = 1 << 19  # a piece and the temporary arrays of its checks fit into a second-level cache
_IDS_AT_A_TIME = 1 << 14  # 128 KiB of ids stay in the cache


class ValueCheck:
    """Checks the values of an array from row ``first`` on, piece by piece in order, while they are in the cache. name: of
    the array. whole_slab: the rows are all of one slab, so rules that hold within slabs are checked, too."""

    def __init__(self, name: str, rule: Rule, first: int, *, whole_slab: bool) -> None:
        self._name, self._rule = name, rule
        self._at = first * rule.row_size
        self._step = None if rule.within_slabs and not whole_slab else rule.step
        self._before: int | None = None

    def look(self, values: np.ndarray) -> str | None:
        """A phrase about the first wrong value, or None. values: (m,) of the stored dtype, the next ones; may be empty."""
        problem = None
        if values.size:
            problem = self._not_finite(values) if values.dtype.kind == "f" else self._wrong_integer(values)
        self._at += values.size
        return problem

    def _not_finite(self, values: np.ndarray) -> str | None:
        fits = ~np.isinf(values) if self._rule.may_be_nan else np.isfinite(values)
        return None if fits.all() else self._bad(~fits, values, "and neither NaN nor Inf is a number to train on")

    def _wrong_integer(self, values: np.ndarray) -> str | None:
        rule, numbers = self._rule, values.view(np.uint8) if values.dtype == np.bool_ else values
        if not in_range(numbers, rule.low, rule.high):
            wrong = (numbers < rule.low) | (numbers > rule.high)
            return self._bad(wrong, numbers, f"outside {rule.low} to {rule.high}")
        if rule.below and int(numbers.view(np.uint64).min()) < rule.below:  # as unsigned, -1 is huge
            wrong = (numbers >= 0) & (numbers < rule.below)
            return self._bad(wrong, numbers, f"neither -1 nor from {rule.below} to {rule.high}")
        if rule.ends is not None and (problem := self._wrong_end(numbers, *rule.ends)):
            return problem
        return None if self._step is None else self._falls(numbers, self._step)

    def _falls(self, numbers: np.ndarray, step: int) -> str | None:
        falls = bool((numbers[1:] < numbers[:-1] + step).any() if step else (numbers[1:] < numbers[:-1]).any())
        falls = falls or (self._before is not None and int(numbers[0]) < self._before + step)
        self._before = int(numbers[-1])
        return f"{self._name} is not a rising list near row {self._at}" if falls else None

    def _wrong_end(self, numbers: np.ndarray, first: int, last: int) -> str | None:
        if self._at == 0 and numbers[0] != first:
            return f"{self._name} begins with {numbers[0]}, not with {first}"
        if self._at + numbers.size == self._rule.shape[0] and numbers[-1] != last:
            return f"{self._name} ends with {numbers[-1]}, not with {last}"
        return None

    def _bad(self, wrong: np.ndarray, values: np.ndarray, what: str) -> str:
        place = int(np.flatnonzero(wrong)[0])
        row, column = divmod(self._at + place, self._rule.row_size)
        where = f"row {row}" if len(self._rule.shape) == 1 else f"row {row}, column {column}"
        return f"{self._name} holds {values[place]} in {where}, {what}"


def in_range(values: np.ndarray, low: int, high: int) -> bool:
    """Return whether integers (m,), m > 0, are from ``low`` to ``high``."""
    # One pass is enough for ``low`` 0: as unsigned numbers, negative ones are huge.
    if low == 0 and values.dtype.kind == "i":
        return int(values.view(f"u{values.dtype.itemsize}").max()) <= high
    return bool(low <= values.min() and values.max() <= high)


def sum_of_hashes(ids: np.ndarray) -> int:
    """The sum, modulo 2**64, of the 64-bit hashes (those of splitmix64) of all ids."""
    total = 0
    for begin in range(0, ids.size, _IDS_AT_A_TIME):
        mixed = (ids[begin : begin + _IDS_AT_A_TIME].view(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        total += int(mixed.sum())
    return total % 2**64


class ByteSource:
    """The bytes of a file."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        with _one_sentence(path):
            self._descriptor = os.open(path, os.O_RDONLY)

    def again(self) -> ByteSource:
        """The same open file, whatever has that name by now, for another user, who closes it."""
        other = copy.copy(self)
        with _one_sentence(self.path):
            other._descriptor = os.dup(self._descriptor)
        return other

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._descriptor).st_size

    def fill(self, out: np.ndarray, position: int) -> None:
        """Fill ``out`` (bytes,) uint8 with the bytes from ``position`` on. Raises HpcgnnError where they cannot be read."""
        view = out.data
        while view:
            with _one_sentence(self.path):
                count = os.preadv(self._descriptor, [view], position)
            if count == 0:
                raise HpcgnnError(f"{self.path} was truncated while it was read: create it again")
            view, position = view[count:], position + count

    def expect(self, position: int, count: int) -> None:
        """Let the system begin to read ``count`` bytes from ``position`` on, which are wanted next. It may decline."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, position, count, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close the file. An error of the system loses nothing that was read."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


@contextlib.contextmanager
def _one_sentence(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HpcgnnError(f"cannot read {path}: {error.strerror}") from error


class StoredArray:
    """A dataset of ``file``. Construction raises HpcgnnError unless it has the dtype and shape of ``rule``, and is one
    contiguous range of bytes of the file itself."""

    def __init__(self, file: h5py.File | h5py.Group, source: ByteSource, name: str, rule: Rule) -> None:
        self.name, self.rule = name, rule
        self._source = source
        path = source.path
        dataset = h5.child(file, name)
        if not isinstance(dataset, h5py.Dataset):
            raise h5.damaged(path, f"it has no dataset {name}")
        with h5.reading(path, name):
            shape, stored_type, layout = dataset.shape, dataset.id.get_type(), dataset.id.get_create_plist()
            expected_type = h5py.h5t.py_create(rule.dtype, logical=True)
            if not stored_type.equal(expected_type):
                raise h5.damaged(path, f"{name} holds {_kind(dataset)}, but it should be {rule.dtype}")
            if shape != rule.shape:
                raise h5.damaged(path, f"{name} has shape {shape}, but it should be {rule.shape}")
            if layout.get_layout() != h5py.h5d.CONTIGUOUS or layout.get_external_count():
                raise h5.damaged(path, f"{name} is not stored in one piece of this file, as every dataset of hpcgnn is")
            self._offset = dataset.id.get_offset()
        self._row_bytes = rule.dtype.itemsize * rule.row_size
        num_bytes = self._row_bytes * rule.shape[0]
        if num_bytes and (self._offset is None or self._offset + num_bytes > source.size):
            raise h5.damaged(path, f"{name} has no place in the file, or ends beyond it")

    @property
    def path(self) -> str | Path:
        """The path of the file."""
        return self._source.path

    def read(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows ``[first, last)``, all by default, checked by its rule. Raises HpcgnnError for a wrong value."""
        last = self.rule.shape[0] if last is None else last
        out = self.empty(last - first)
        look(self, (first, last), out, self.rule, "", None)
        return out

    def pieces(self, first: int, last: int, out: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """The bytes of rows ``[first, last)`` in pieces (m,) uint8, which are parts of ``out``, or one buffer if it is None."""
        if not 0 <= first <= last <= self.rule.shape[0]:
            raise ValueError(f"{self.name} has no rows {first} to {last}")
        total = (last - first) * self._row_bytes
        flat = np.empty(min(total, _PIECE_BYTES), np.uint8) if out is None else out.reshape(-1).view(np.uint8)
        for begin in range(0, total, _PIECE_BYTES):
            size = min(_PIECE_BYTES, total - begin)
            piece = flat[:size] if out is None else flat[begin : begin + size]
            self._source.fill(piece, self._offset + first * self._row_bytes + begin)
            yield piece

    def empty(self, rows: int) -> np.ndarray:
        """Memory for ``rows`` rows, not initialised."""
        return np.empty((rows, *self.rule.shape[1:]), self.rule.dtype)


class RowsOnDisk:
    """Rows ``[first, last)`` of an array, whose values were checked before, to be read as often as wanted. Their file stays open
    as long as this object lives."""

    def __init__(self, array: StoredArray, first: int, last: int) -> None:
        self._source = array._source.again()
        weakref.finalize(self, self._source.close)
        self.count, self.dtype = last - first, array.rule.dtype
        self._row_bytes, self._offset = array._row_bytes, array._offset + first * array._row_bytes

    def read(self, rows: slice, out: np.ndarray, following: slice) -> None:
        """Fill ``out`` with ``rows``, numbered from the first of these rows on, while the system begins to fetch ``following``.
        Raises HpcgnnError where they cannot be read."""
        size = (following.stop - following.start) * self._row_bytes
        if rows.stop > rows.start:
            self._source.fill(out.reshape(-1).view(np.uint8), self._offset + rows.start * self._row_bytes)
        if size:
            self._source.expect(self._offset + following.start * self._row_bytes, size)


def look(
    array: StoredArray, rows: tuple[int, int], out: np.ndarray | None, rule: Rule, slab: str, expected: int | None
) -> None:
    """Read ``rows`` (first, last) into ``out``, if given, and check every value by ``rule``, and the checksum of all. slab:
    words for the slab, such as "part 3", if the rows are all rows of one, else empty. expected: the checksum, or None.
    Raises HpcgnnError, which names the file, the dataset and the slab."""
    check = ValueCheck(array.name, rule, rows[0], whole_slab=bool(slab))
    digest = xxhash.xxh3_64()
    where = f" ({slab})" if slab else ""
    for piece in array.pieces(*rows, out):
        problem = check.look(piece.view(rule.dtype))
        if problem:
            raise h5.damaged(array.path, problem + where)
        if expected is not None:
            digest.update(piece.data)
    if expected is not None and digest.intdigest() != expected:
        raise h5.damaged(array.path, f"the checksum of {array.name}{where} does not match its content")


def look_in(file: h5py.File, name: str, rule: Rule, rows: tuple[int, int], out: np.ndarray | None = None) -> None:
    """:func:`look` at rows of an array of a file that has neither slabs nor checksums."""
    with contextlib.closing(ByteSource(file.filename)) as source:
        look(StoredArray(file, source, name, rule), rows, out, rule, "", None)


def _kind(dataset: h5py.Dataset) -> str:
    try:
        return str(dataset.dtype)
    except (TypeError, ValueError):
        return "values that no program here can read"
