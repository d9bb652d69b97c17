"""Reading of large arrays in slabs, from ``.npy`` files, members of ``.npz`` archives, and plain binary files.

Headers are compared with the size of the file before anything is read, so that a file that was cut short is refused at once.
Files are not mapped into memory: mapped pages count as the memory of the process, which ends if a mapped file shrinks.
"""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from hpcgnn.base.errors import HpcgnnError

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# The header of a zip member: the bytes before its name, and the place of the lengths of the name and of the extra field.
_LOCAL_HEADER_BYTES, _LENGTHS = 30, slice(26, 30)
_PIECE_BYTES = 1 << 20


class FileBytes:
    """The bytes of ``path`` from ``offset`` on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset

    def fill(self, out: np.ndarray, position: int) -> None:
        """Fill ``out`` (n,) uint8 with the bytes from ``position`` on. Raises :class:`HpcgnnError` if there are fewer."""
        begin = self._offset + position
        with self._path.open("rb", buffering=0) as file:
            end = _read_at(file.fileno(), out, begin)
        if end < begin + out.size:
            raise HpcgnnError(f"{self._path} was cut short: it ends at byte {end:,}")


class DeflatedBytes:
    """The bytes of a deflated member of a zip archive, from byte ``skipped`` on. To go back, zipfile reads from the start, so
    each range that is read in turn with others needs an object of its own."""

    def __init__(self, path: Path, member: str, skipped: int) -> None:
        self._path, self._member, self._skipped = path, member, skipped
        self._file: Any = None

    def fill(self, out: np.ndarray, position: int) -> None:
        """As of :class:`FileBytes`."""
        try:
            if self._file is None:
                with zipfile.ZipFile(self._path) as archive:
                    self._file = archive.open(self._member)
                    self._file.MAX_SEEK_READ = _PIECE_BYTES  # what it passes over is in memory so much at a time
            self._file.seek(self._skipped + position)
            for piece in np.split(out, range(_PIECE_BYTES, out.size, _PIECE_BYTES)):
                if self._file.readinto(piece.data) < piece.size:
                    raise EOFError("it ends there")
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            at = 0 if self._file is None else self._file.tell()
            raise HpcgnnError(f"{self._path}: {self._member} is damaged at byte {at:,}: {one_line(error)}") from error


def _read_at(descriptor: int, out: np.ndarray, position: int) -> int:
    """Fill the contiguous ``out`` with the bytes of a file from ``position`` on; returns the end, which is earlier in a short
    file."""
    view = out.view(np.uint8).data
    while view and (count := os.preadv(descriptor, [view[: 1 << 30]], position)):
        view, position = view[count:], position + count
    return position


def one_line(error: BaseException) -> str:
    """The message of another library's error in one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class SlabArray:
    """An array (n, ...) in C order, of which slabs of rows are read. where: its name in errors."""

    def __init__(
        self, where: str, shape: tuple[int, ...], dtype: np.dtype, readers: list[FileBytes | DeflatedBytes]
    ) -> None:
        """``readers``: one, or, if :meth:`columns` reads the array, one for each index of its first axis."""
        self.where, self.shape, self.dtype = where, shape, dtype
        self._readers = readers

    def rows(self, first: int, last: int) -> np.ndarray:
        """Rows ``[first, last)``, (last - first, ...)."""
        return self._read(self._readers[0], first * math.prod(self.shape[1:]), (last - first, *self.shape[1:]))

    def columns(self, first: int, last: int) -> list[np.ndarray]:
        """Elements ``[first, last)`` of each of the k rows of a (k, n) array."""
        width = self.shape[1]
        readers = self._readers if len(self._readers) == self.shape[0] else self._readers[:1] * self.shape[0]
        return [self._read(reader, row * width + first, (last - first,)) for row, reader in enumerate(readers)]

    def _read(self, reader: FileBytes | DeflatedBytes, first: int, shape: tuple[int, ...]) -> np.ndarray:
        out = np.empty(shape, self.dtype)
        reader.fill(out.reshape(-1).view(np.uint8), first * self.dtype.itemsize)
        return out.astype(self.dtype.newbyteorder("="), copy=False)


def check_file(path: Path) -> None:
    """Raise HpcgnnError unless it is a file: opening a pipe may wait forever, and a device may have no end."""
    if not path.is_file():
        raise HpcgnnError(f"{path} does not exist or is not a file")


def open_npy(path: Path) -> SlabArray:
    """Open the array of a ``.npy`` file. Raises HpcgnnError where it is damaged or cut short."""
    check_file(path)
    with path.open("rb") as file:
        shape, dtype, begin = _header(file, str(path))
    _check_size(str(path), shape, dtype, path.stat().st_size - begin)
    return SlabArray(str(path), shape, dtype, [FileBytes(path, begin)])


def open_member(path: Path, name: str, num_readers: int = 1) -> SlabArray:
    """Open array ``name`` of a ``.npz`` file. ``num_readers`` ranges of a deflated array can be read in turn. Raises HpcgnnError
    where the array is missing, damaged or cut short."""
    member, where = f"{name}.npy", f"{path}, array {name}"
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if member not in archive.namelist():
                had = ", ".join(sorted(found.removesuffix(".npy") for found in archive.namelist())) or "none"
                raise HpcgnnError(f"{path} has no array {name!r}; it has {had}")
            info = archive.getinfo(member)
            with archive.open(info) as file:
                shape, dtype, begin = _header(file, where)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise HpcgnnError(f"{path} cannot be read as npz, and may have been cut short: {one_line(error)}") from error
    _check_size(where, shape, dtype, info.file_size - begin)
    if info.compress_type == zipfile.ZIP_STORED:
        offset = _data_offset(path, info.header_offset)
        if offset + info.file_size > path.stat().st_size:
            raise HpcgnnError(f"{where} was cut short: it ends beyond the file")
        return SlabArray(where, shape, dtype, [FileBytes(path, offset + begin)])
    return SlabArray(where, shape, dtype, [DeflatedBytes(path, member, begin) for _ in range(num_readers)])


def _data_offset(path: Path, header: int) -> int:
    """The place at which the bytes of a member begin, from the place of its local header."""
    raw = np.empty(_LOCAL_HEADER_BYTES, np.uint8)
    FileBytes(path).fill(raw, header)
    return header + _LOCAL_HEADER_BYTES + int(raw[_LENGTHS].view("<u2").sum())


def _header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype, int]:
    """The shape, the dtype, and the number of bytes before the values."""
    try:
        version = np.lib.format.read_magic(file)
        shape, fortran, dtype = HEADERS[version](file)
    except Exception as error:  # numpy passes a damaged header to Python's parsers, which raise errors of many types
        raise HpcgnnError(f"{where} cannot be read as npy: {one_line(error)}") from error
    if dtype.kind not in "biuf" or (fortran and len(shape) > 1) or min(shape, default=0) < 0:
        raise HpcgnnError(f"{where} holds {dtype} of shape {shape}, but it should be numbers in C order")
    return shape, dtype, file.tell()


def _check_size(where: str, shape: tuple[int, ...], dtype: np.dtype, there: int) -> None:
    wanted = math.prod(shape) * dtype.itemsize
    if wanted != there:
        short = "was cut short" if there < wanted else "has more bytes than its header says"
        raise HpcgnnError(f"{where} {short}: {dtype} of shape {shape} take {wanted:,} bytes, but there are {there:,}")


_SPOOL_PIECE_BYTES = 16 << 20


class Spool:
    """A growing one-dimensional array of ``dtype`` in an unnamed file in ``folder``. A full disk raises ``OSError``, which
    :func:`hpcgnn.base.whole_file.replacing` turns into one sentence."""

    def __init__(self, folder: Path, dtype: np.dtype | type) -> None:
        self.dtype = np.dtype(dtype)
        self.size = 0
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open for the spool's life

    def append(self, array: np.ndarray) -> None:
        """Add ``array``, cast to the spool's dtype, at the end."""
        data = np.ascontiguousarray(array, dtype=self.dtype).view(np.uint8).data
        position = self.size * self.dtype.itemsize
        self.size += array.size
        while data:
            written = os.pwrite(self._file.fileno(), data[: 1 << 30], position)
            data, position = data[written:], position + written

    def read(self, first: int, last: int) -> np.ndarray:
        """Elements ``[first, last)`` as a new array."""
        array = np.empty(last - first, self.dtype)
        self.read_into(array, first)
        return array

    def read_into(self, out: np.ndarray, first: int) -> None:
        """Fill the contiguous ``out`` with the elements from ``first`` on."""
        position = first * self.dtype.itemsize
        if _read_at(self._file.fileno(), out, position) < position + out.nbytes:
            raise ValueError(f"a spool of {self.size} elements has none at {first}+{out.size}")

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """All elements in order, in pieces of bounded size, as ``(index of the first, elements)``."""
        step = _SPOOL_PIECE_BYTES // self.dtype.itemsize
        for first in range(0, self.size, step):
            yield first, self.read(first, min(first + step, self.size))

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()
