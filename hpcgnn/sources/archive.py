"""Reading of arrays from an ``.npz`` file; each is compared with the size of the file before memory is allocated for it.

The file is a zip archive of ``.npy`` members. The sizes in the headers of both must fit into the file. Nothing is ever unpickled,
and only members that the caller asks for are read.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.signatures import ZIP, begins_with

_MOST_DEFLATED = 1032  # the largest ratio of sizes that deflate can reach
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_SUFFIX = ".npy"


class Archive:
    """An open ``.npz`` file. All methods raise :class:`HpcgnnError`, which names the file and the array, if one is damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:  # on a damaged file, zipfile raises errors of many types
            if isinstance(error, zipfile.BadZipFile) and not begins_with(path, ZIP):
                raise HpcgnnError(f"{path} is not an npz file: write it with numpy.savez") from error
            raise HpcgnnError(f"{path} cannot be read as npz: {_told(error)}") from error
        self._members = {info.filename.removesuffix(_SUFFIX): info for info in self._zip.infolist()}
        self._file_bytes = path.stat().st_size
        self._read: set[str] = set()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def names(self) -> list[str]:
        """The names of all arrays, in alphabetical order."""
        return sorted(self._members)

    @property
    def unread(self) -> list[str]:
        """The names of the arrays that nobody has asked for, in alphabetical order."""
        return sorted(set(self._members) - self._read)

    def read(self, name: str) -> np.ndarray | None:
        """Array ``name``, with its checksum compared, or None if the file has no such array."""
        if name not in self._members:
            return None
        self._read.add(name)
        try:
            self._check_member(self._members[name])
            with self._zip.open(self._members[name]) as file:
                self._check_header(file, self._members[name])
            with self._zip.open(self._members[name]) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                if file.read(1):
                    raise ValueError("it has more bytes than its header says")
                return array
        except Exception as error:  # as above, and errors of zlib, numpy and its parser of headers
            raise HpcgnnError(f"{self._path} cannot be read as npz: array {name}: {_told(error)}") from error

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        """Raise ValueError unless the sizes of a member in the archive's directory fit into the file."""
        most = _MOST_DEFLATED if info.compress_type == zipfile.ZIP_DEFLATED else 1
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is compressed by another method than numpy's")
        if not 0 <= info.file_size <= most * info.compress_size or info.compress_size > self._file_bytes:
            raise ValueError(f"its directory claims {info.file_size:,} bytes, but the file has {self._file_bytes:,}")

    def _check_header(self, file: IO[bytes], info: zipfile.ZipInfo) -> None:
        """Raise ValueError unless the array's shape and dtype fit the size of the member."""
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"its format {version} is none that holds numbers")
        shape, _, dtype = _HEADERS[version](file)
        if min(shape, default=0) < 0:
            raise ValueError(f"its shape is {shape}")
        values = math.prod(shape) * dtype.itemsize
        if values + file.tell() != info.file_size and not dtype.hasobject:  # numpy refuses objects in its own words
            raise ValueError(
                f"{dtype} of shape {shape} take {values:,} bytes, but there are {info.file_size - file.tell():,}"
            )


def _told(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
