"""HDF5 files that every rank can read and write by byte offset: all arrays are contiguous datasets that are allocated when the
file is created, so that slabs are written with plain ``pwrite`` or MPI-IO, and no parallel HDF5 is needed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.base.byte_sink import ByteSink
from hpcgnn.base.errors import HpcgnnError

# The words for each kind of file, and the command that makes it.
_NAMES = {
    "hpcgnn-graph": ("graph file", "convert"),
    "hpcgnn-parts": ("parts file", "partition"),
    "hpcgnn-predictions": ("predictions file", "predict"),
    "hpcgnn-node-rows": ("file of learned rows of nodes", "train"),
}
_LIBVER = ("v108", "v108")
_ERRNO = re.compile(r"\berrno = (\d+)")
USUAL_PARTS = 4  # in advice, where the number of ranks is not known
_OF_DAMAGE = (0, errno.EINVAL, errno.EOVERFLOW)  # errors to which a wrong offset in a damaged file leads
# The errors that h5py raises for damaged files, for instance ValueError for text that is not UTF-8.
# NotImplementedError is a RuntimeError.
DAMAGE = (KeyError, TypeError, ValueError, RuntimeError, OverflowError, AttributeError, MemoryError)
Schema = Mapping[str, tuple[tuple[int, ...], np.dtype]]


class SlabWriter:
    """Writes rows of the arrays that :func:`create` has allocated."""

    def __init__(self, sink: ByteSink, offsets: Mapping[str, int], schema: Schema) -> None:
        self._sink, self._offsets, self.schema = sink, offsets, schema

    def write(self, name: str, first_row: int, rows: np.ndarray) -> None:
        """Write ``rows``, cast to the stored dtype, to dataset ``name`` from row ``first_row`` on."""
        shape, dtype = self.schema[name]
        if rows.size == 0:
            return
        if first_row + rows.shape[0] > shape[0] or rows.shape[1:] != shape[1:]:
            raise ValueError(f"{name}: rows {first_row}+{rows.shape} do not fit into {shape}")
        row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        self._sink.write(self._offsets[name] + first_row * row_bytes, rows.astype(dtype, copy=False))


def create(path: str | Path, schema: Schema, attributes: Mapping[str, Any]) -> dict[str, int]:
    """Create ``path`` with every dataset of ``schema`` allocated; return the byte offset of each in the file."""
    total = sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for shape, dtype in schema.values())
    folder = Path(path).resolve().parent
    free = shutil.disk_usage(folder).free
    if total > free:
        raise HpcgnnError(f"disk full: {folder} has {free:,} bytes left, and the file to write needs {total:,}")
    # HDF5 protects its metadata by checksums, but not in its oldest format, which is the default.
    with telling_refusals(path), h5py.File(path, "w", locking=False, libver=_LIBVER) as file:
        file.attrs.update(attributes)
        return add_datasets(file, schema)


def add_datasets(group: h5py.Group, schema: Schema) -> dict[str, int]:
    """Add contiguous datasets to an open file or group, allocated at once; return their byte offsets."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.CONTIGUOUS)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    offsets = {}
    for name, (shape, dtype) in schema.items():
        parent = group.require_group(os.path.dirname(name) or "/") if "/" in name else group
        space = h5py.h5s.create_simple(shape)
        kind = h5py.h5t.py_create(dtype, logical=True)
        dataset = h5py.h5d.create(parent.id, os.path.basename(name).encode(), kind, space, plist)
        if np.prod(shape, dtype=np.int64) > 0:
            offsets[name] = dataset.get_offset()
    return offsets


def byte_offsets(path: str | Path, schema: Schema) -> dict[str, int]:
    """The byte offsets that :func:`create` returned for the same ``schema``. Raises HpcgnnError for a file with another."""
    with reading(path, "the datasets of an unfinished file"), h5py.File(path, locking=False) as file:
        for name, wanted in schema.items():
            if (file[name].shape, file[name].dtype) != wanted:
                raise ValueError(f"{name} is {file[name].dtype} of shape {file[name].shape}")
        return {name: file[name].id.get_offset() for name in schema if file[name].size}


def new_header(kind: str, version: int) -> dict[str, Any]:
    """The attributes that every file has; the uuid is a new one."""
    return {"format": kind, "version": version, "uuid": uuid.uuid4().hex}


@contextlib.contextmanager
def reading(path: str | Path | h5py.Group | h5py.Dataset, what: str) -> Iterator[None]:
    """Turn any error of h5py into one sentence: which it raises for a damaged file depends on the wrong bytes. what: the thing to
    read. Only a few calls of h5py may be inside, so that no mistake of ours is hidden."""
    try:
        yield
    except (OSError, *DAMAGE) as error:
        path = path if isinstance(path, str | Path) else path.file.filename
        if refused := refusal(error, path):
            raise HpcgnnError(f"cannot read {path}: {refused.strerror}") from error
        raise damaged(path, f"cannot read {what}: {_first_line(error)}") from error


def refusal(error: BaseException, path: str | Path) -> OSError | None:
    """The system's error in one line if it refused an operation of HDF5, which h5py's error, the text of HDF5, or an earlier
    error in the context tells; else None."""
    number = 0
    cause: BaseException | None = error
    while cause is not None and not number:
        found = _ERRNO.search(str(cause))
        number = (isinstance(cause, OSError) and cause.errno) or (int(found[1]) if found else 0)
        cause = cause.__context__
    return None if number in _OF_DAMAGE else OSError(number, os.strerror(number), str(path))


@contextlib.contextmanager
def telling_refusals(path: str | Path) -> Iterator[None]:
    """Raise an ``OSError`` of one line where the system refuses to write, for which HDF5 raises a ``RuntimeError`` of several on
    flushing."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if refused := refusal(error, path):
            raise refused from error
        raise


@contextlib.contextmanager
def writing(path: str | Path, what: str) -> Iterator[None]:
    """Like :func:`reading`, for additions to a file. An OSError stays an OSError, because the disk may be full."""
    try:
        with telling_refusals(path):
            yield
    except DAMAGE as error:
        raise damaged(path, f"cannot add {what}: {_first_line(error)}") from error


def damaged(path: str | Path, what: str) -> HpcgnnError:
    """The error for a file whose contents are wrong or contradict each other. what: a phrase about them."""
    return HpcgnnError(f"{path} is damaged ({what}): create it again")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def open_checked(
    path: str | Path, kind: str, versions: tuple[int, ...], mode: str = "r", advised_parts: int = USUAL_PARTS
) -> h5py.File:
    """Open a file of hpcgnn, and check that it exists, is complete, and has the expected ``kind`` and one of ``versions``.
    advised_parts: the number of parts to advise where a graph file stands in place of a parts file."""
    path = Path(path)
    words, command = _NAMES[kind]
    if not path.exists():
        raise HpcgnnError(f"there is no file {path}: check the name, or make it with `hpcgnn {command}`")
    if not path.is_file():
        raise HpcgnnError(f"{path} is {'a folder' if path.is_dir() else 'not a file'}, but a {words} is needed")
    try:
        # Locks fail on many parallel file systems. They are not needed: a file gets its name only when it is complete.
        file = h5py.File(path, mode, locking=False, libver=_LIBVER)
    except (OSError, *DAMAGE) as error:
        if refused := refusal(error, path):
            raise HpcgnnError(f"cannot open {path}: {refused.strerror}") from error
        if not begins_with(path, HDF5):
            raise HpcgnnError(f"{path} is not a {words} of hpcgnn: give the output of `hpcgnn {command}`") from error
        raise HpcgnnError(
            f"{path} is not a whole HDF5 file (truncated, or another format): {_first_line(error)}"
        ) from error
    try:
        _check_heaps(file)
        _check_header(file, kind, versions, advised_parts)
    except BaseException:
        file.close()
        raise
    return file


def in_words(kind: str) -> str:
    """The words for a kind of file, such as "a graph file"."""
    return f"a {_NAMES[kind][0]}" if kind in _NAMES else "an HDF5 file that hpcgnn did not write"


def kind_of(path: str | Path) -> str:
    """The attribute ``format`` of an HDF5 file, or an empty string if it has none."""
    with reading(path, "its format"), h5py.File(path, locking=False) as file:
        _check_heaps(file)
        return str(file.attrs.get("format", ""))


def _check_header(file: h5py.File, kind: str, versions: tuple[int, ...], advised_parts: int) -> None:
    path = file.filename
    with reading(path, "its format"):
        found = file.attrs.get("format")
    known = found if isinstance(found, str) else ""
    if known != kind:
        advice = f"give the output of `hpcgnn {_NAMES[kind][1]}`"
        if (known, kind) == ("hpcgnn-graph", "hpcgnn-parts"):
            advice = f"run `hpcgnn partition {shlex.quote(path)} parts.h5 --parts {advised_parts}`"
        raise HpcgnnError(f"{path} is {in_words(known)}, but {in_words(kind)} is needed: {advice}")
    version = attribute(file, "version", int)
    if version not in versions:
        readable = " and ".join(map(str, versions))
        advice = "update hpcgnn" if version > max(versions) else "create it again"
        raise HpcgnnError(f"{path} has {kind} version {version}, but this hpcgnn reads version {readable}: {advice}")
    if not attribute(file, "uuid", str):
        raise HpcgnnError(f"{path} has no uuid: it was not written by hpcgnn")


def attribute(item: h5py.File | h5py.Group, name: str, kind: type) -> Any:
    """The value of an attribute: a single int, float, bool or Unicode str, as ``kind`` asks, and no array."""
    with reading(item, f"attribute {name} of {item.name}"):
        value = item.attrs[name]
    found = value.item() if isinstance(value, np.generic) else value
    if type(found) is not kind:
        is_array = isinstance(value, np.ndarray) and value.ndim
        shown = f"an array of shape {value.shape}" if is_array else repr(value)[:40]
        raise damaged(item.file.filename, f"attribute {name} of {item.name} is {shown}, not {_KINDS[kind]}")
    # By surrogates, h5py represents bytes that are not UTF-8.
    if isinstance(found, str) and any("\ud800" <= character <= "\udfff" for character in found):
        raise damaged(item.file.filename, f"attribute {name} of {item.name} is {ascii(found)[:40]}, which is not UTF-8")
    return found


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def child(group: h5py.Group, name: str) -> Any:
    """The dataset or group ``a/b/c`` in ``group``, or None. Every step must be a hard link, so that no other file is read."""
    with reading(group, name):
        found: Any = group
        for step in name.split("/"):
            if not isinstance(found, h5py.Group):
                raise damaged(group.file.filename, f"{step} of {name} is in no group")
            link = found.get(step, getlink=True)
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise damaged(group.file.filename, f"{name} is a link to somewhere else")
            found = found[step]
        return found


_MARK = b"GCOL\x01\0\0\0"  # the first bytes of a heap: its signature and version
_HEADER_BYTES = 16  # a heap's header: mark and size; an object's header: index, reference count, padding, size
_LEAST_BYTES = 4096
# Metadata between two arrays takes some KiB. A longer gap is space that HDF5 has freed, or the file is not ours.
_LONGEST_GAP = 1 << 20


def _check_heaps(file: h5py.File) -> None:
    """Raise HpcgnnError for a heap that HDF5 cannot walk through. Heaps hold the text of attributes, and are the only metadata of
    our files without checksums. HDF5 goes from object to object by their sizes, so an object of size 0 makes it loop forever
    ("Disk Format: Level 1E - Global Heap" of the specification)."""
    with reading(file, "its heaps"), open(file.filename, "rb") as stream:
        for first, last in _gaps(file, os.fstat(stream.fileno()).st_size):
            content = os.pread(stream.fileno(), min(last - first, _LONGEST_GAP), first)
            start = content.find(_MARK)
            while start >= 0:
                if not _is_walkable(content[start:]):
                    told = f"the heap at byte {first + start} does not tell where its objects end"
                    raise damaged(file.filename, told)
                start = content.find(_MARK, start + _LEAST_BYTES)


def _gaps(file: h5py.File, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of bytes ``[begin, end)`` of the file that belong to no array."""
    extents = []

    def add(_: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset) and item.id.get_offset() is not None:
            extents.append((item.id.get_offset(), item.id.get_storage_size()))

    file.visititems(add)
    end = 0
    for first, length in sorted(extents):
        if first > end:
            yield end, min(first, size)
        end = max(end, first + length)
    if end < size:
        yield end, size


def _is_walkable(heap: bytes) -> bool:
    """Return whether the sizes of a heap's objects lead from one to the next up to its end; more bytes may follow."""
    end = int.from_bytes(heap[8:16], "little")
    if end < _LEAST_BYTES or end > len(heap):
        return False
    place = _HEADER_BYTES
    while place + _HEADER_BYTES <= end:
        index = int.from_bytes(heap[place : place + 2], "little")
        length = int.from_bytes(heap[place + 8 : place + 16], "little")
        if index == 0 and length < _HEADER_BYTES:  # the free space, whose length includes its header
            return False
        place += length if index == 0 else _HEADER_BYTES + (length + 7) // 8 * 8
    return place <= end


HDF5, GZIP, ZIP = b"\x89HDF\r\n\x1a\n", b"\x1f\x8b", b"PK"
BZIP2, XZ = b"BZh", b"\xfd7zXZ\x00"
UTF8_MARK, UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")  # byte order marks
OTHER_COMPRESSED = {  # that Python does not read: the name, and the command that unpacks a file
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"7z\xbc\xaf\x27\x1c": ("7-Zip", "7z x"),
    b"\x1f\x9d": ("compress", "uncompress"),
    b"LZIP": ("lzip", "lzip -d"),
}


def begins_with(path: Path, signature: bytes) -> bool:
    """Return whether these are the first bytes of the file. Raises OSError if it cannot be read."""
    with path.open("rb") as stream:
        return stream.read(len(signature)) == signature
