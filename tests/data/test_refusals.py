"""Errors of the system while an HDF5 file is read or written: a sentence with the system's reason, and not about damage."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import h5py
import pytest
import small_graphs

from hpcgnn.base.byte_sink import LocalFile, naming
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import h5, plan_store
from hpcgnn.data.stored import ByteSource
from hpcgnn.world.thread_world import on_threads
from hpcgnn.world.world import open_for_writing

FULL = "Can't decrement id ref count (file write failed: time = now\n, errno = 28, error message = 'No space left on device')"
DISK = "Unable to synchronously open file (file read failed: time = now\n, errno = 5, error message = 'Input/output error')"
# Programs that may write no more than some bytes to a file.
LIMITED = """
import os, resource, signal, sys
import h5py, numpy as np
from hpcgnn.data import checksums, h5
path, limit = sys.argv[1], lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    {}
except OSError as error:
    print(error.errno, error.filename, flush=True)
os._exit(0)
"""
# The file must not become larger than its datasets, whose addresses HDF5 keeps until it is closed.
LARGE = """
    limit(1024)
    h5.create(path, {"x": ((4096,), np.dtype(np.int64))}, {})
"""
# The values of checksums stay in memory until their dataset is closed.
CHECKSUMS = """
    file = h5py.File(path, "w", libver=("v108", "v108"))
    file.flush()
    limit(os.path.getsize(path))
    with h5.writing(path, "checksums"):
        checksums.store(file, {"x": np.ones(64, np.uint64)}, {})
"""


def check_too_large(path, body):
    program = LIMITED.replace("    {}\n", body)
    ended = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == (f"{errno.EFBIG} {path}\n", "", 0)


def test_a_file_that_cannot_be_closed_is_an_error_of_the_system(tmp_path):
    check_too_large(tmp_path / "f.h5", LARGE)


def test_checksums_that_cannot_be_written_are_an_error_of_the_system(tmp_path):
    check_too_large(tmp_path / "f.h5", CHECKSUMS)


def test_what_cannot_be_added_for_want_of_room_is_no_damage():
    with pytest.raises(OSError, match="No space left on device") as told, h5.writing("f.h5", "a plan"):
        raise RuntimeError(FULL)
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, "f.h5")


def test_what_cannot_be_read_is_no_damage(tmp_path, monkeypatch):
    with pytest.raises(HpcgnnError, match=r"^cannot read f\.h5: Input/output error$"), h5.reading("f.h5", "x"):
        raise OSError(DISK)
    path = tmp_path / "f.h5"
    path.touch()

    def refused(*_, **how):
        raise OSError(DISK)

    monkeypatch.setattr(h5py, "File", refused)
    with pytest.raises(HpcgnnError, match=r"/f\.h5: Input/output error$"):
        h5.open_checked(path, "hpcgnn-graph", (1,))
    with pytest.raises(HpcgnnError, match=r"^cannot read .*/no: No such file"):
        ByteSource(tmp_path / "no")
    with pytest.raises(HpcgnnError, match="is damaged"), h5.reading("f.h5", "x"):  # by a wrong offset
        raise OSError(DISK.replace("errno = 5", "errno = 22"))


def test_files_of_another_kind_are_refused_with_advice(tmp_path):
    path = tmp_path / "f.h5"

    def refusal(kind):
        with pytest.raises(HpcgnnError) as refused:
            h5.open_checked(path, kind, (1,))
        return str(refused.value).replace(str(path), "F")

    assert refusal("hpcgnn-parts") == "there is no file F: check the name, or make it with `hpcgnn partition`"
    path.write_text("not HDF5")
    assert refusal("hpcgnn-graph") == "F is not a graph file of hpcgnn: give the output of `hpcgnn convert`"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(8))
    assert refusal("hpcgnn-graph").startswith("F is not a whole HDF5 file (truncated, or another format)")
    with h5py.File(path, "w") as file:
        file.attrs["format"] = [1, 2]
    assert refusal("hpcgnn-parts").startswith(
        "F is an HDF5 file that hpcgnn did not write, but a parts file is needed: "
    )
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "hpcgnn-graph"
    advice = "run `hpcgnn partition F parts.h5 --parts 4`"
    assert refusal("hpcgnn-parts") == f"F is a graph file, but a parts file is needed: {advice}"
    path.unlink()
    path.mkdir()
    assert refusal("hpcgnn-parts") == "F is a folder, but a parts file is needed"


def test_a_file_that_cannot_be_closed_after_that_has_the_first_reason():
    def refuse_twice() -> None:
        try:
            raise OSError(FULL)
        finally:
            raise RuntimeError("Slist already enabled? (slist already enabled?)")

    with pytest.raises(OSError, match="No space left on device"), h5.telling_refusals("f.h5"):
        refuse_twice()


def test_an_open_file_is_named(tmp_path):
    (tmp_path / "f").touch()
    file = LocalFile(tmp_path / "f")
    os.close(file._descriptor)
    with pytest.raises(OSError, match="Bad file descriptor") as told:
        file.close()
    assert told.value.filename == str(tmp_path / "f")
    with pytest.raises(OSError, match="other") as kept, naming("f"):
        raise OSError(errno.EIO, "other", "g")
    assert kept.value.filename == "g"


def test_a_file_of_all_ranks_that_cannot_be_closed_is_one_sentence_on_each(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.touch()
    close = LocalFile.close

    def failing(self):
        close(self)
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(LocalFile, "close", failing)

    def written(world):
        with pytest.raises(HpcgnnError) as told, open_for_writing(world, str(path)):
            pass
        return str(told.value)

    said = on_threads(2, written)
    assert len(set(said)) == 1
    assert "Input/output error" in said[0]


def test_a_plan_that_cannot_be_flushed_is_an_error_of_the_system(tmp_path, monkeypatch):
    path = small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), 2)
    flush, calls = h5py.File.flush, []

    def failing(self):
        calls.append(self)
        if len(calls) == 2:
            raise RuntimeError(FULL)
        flush(self)

    monkeypatch.setattr(h5py.File, "flush", failing)
    with pytest.raises(HpcgnnError, match=f"cannot write {path}: No space left on device"):
        plan_store.store_plans(path, ["hybrid"])
    assert len(calls) == 2
