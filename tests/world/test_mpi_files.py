"""Writes that MPI reports as complete although the system has not completed them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcgnn.world.mpi_world import MpiFile

DATA = np.arange(100, dtype=np.uint8)


class Handle:
    """A file that writes the first ``most`` bytes, and reports success."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most

    def Write_at(self, offset: int, data: np.ndarray, status: SimpleNamespace) -> None:
        if self.most < 0:
            raise RuntimeError("MPI_ERR_IO")
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data[: self.most].tobytes())
        status.count = min(self.most, data.size)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "f").write_bytes(bytes(110))
    return tmp_path / "f"


def test_the_rest_of_a_write_is_written(path):
    for most in (-1, 0, 1, 50, 100):
        path.write_bytes(bytes(110))
        MpiFile(str(path), Handle(path, most), SimpleNamespace(count=0)).write(10, DATA)
        assert path.read_bytes() == bytes(10) + DATA.tobytes()


def test_what_the_system_refuses_is_told(path, monkeypatch):
    def refused(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refused)
    with pytest.raises(OSError, match="No space left on device") as told:
        MpiFile(str(path), Handle(path, 50), SimpleNamespace(count=0)).write(10, DATA)
    assert told.value.filename == str(path)
