"""Checks of the file system: a file that all ranks write and read, temporary files, and shared memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.doctor.job import Check, Fact, Finding, Job, Problem, Verdict, by_rank, guarded, of_problems
from hpcgnn.world.world import World

LEAST_FREE_BYTES = 1 << 30
LEAST_SHARED_BYTES = 256 << 20  # Docker's default is 64 MiB, of which MPI takes a share for each pair of ranks
_SHARED = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_MOST_ROWS, _MOST_BYTES, _COLUMNS = 4099, 64 << 20, 61  # odd, so that ranks meet within a block of the file system
_MOUNTS = Path("/proc/self/mounts")


def shared_folder(job: Job) -> Finding:
    """Check that all ranks can write to one HDF5 file by MPI-IO, and read the same bytes back. Collective."""
    free = 0
    with guarded(job.world, f"look at {job.folder}"):
        if not job.folder.is_dir():
            raise HpcgnnError(
                f"{job.folder} is not a folder here: give --folder FOLDER with a folder that all nodes see"
            )
        free = shutil.disk_usage(job.folder).free
    started = time.perf_counter()
    num_bytes = _write_and_compare(job.world, job.folder)
    seconds = time.perf_counter() - started
    ranks = "one rank" if job.world.size == 1 else f"{job.world.size} ranks"
    found = (
        f"{ranks} wrote and read {num_bytes / 2**20:.1f} MiB in {seconds:.2f} s in {job.folder} ({file_system(job.folder)},"
        f" {free / 2**30:.0f} GiB free)"
    )
    problems = [f"{job.folder} has only {free / 2**20:.0f} MiB free: remove files, or use another folder"]
    return of_problems("folder", found, problems if free < LEAST_FREE_BYTES else [])


def _write_and_compare(world: World, folder: Path) -> int:
    """Write, read and remove the file; returns its number of bytes. Collective."""
    from hpcgnn.data import h5, shared_file

    rows = max(min(_MOST_ROWS, _MOST_BYTES // _COLUMNS // world.size), 1)
    schema = {"rows": ((rows * world.size, _COLUMNS), np.dtype(np.uint8))}
    path = folder / world.broadcast(f"hpcgnn-doctor.{socket.gethostname()}.{os.getpid()}.h5")
    try:
        with shared_file.replacing(world, path, force=False) as temporary:
            with guarded(world, f"create {path}"):
                if world.rank == 0:
                    h5.create(temporary, schema, {})
            with guarded(world, f"see {path}"):
                _check_is_seen(temporary)
            with shared_file.writing(world, temporary, schema, None) as writer, guarded(world, f"write {path}"):
                writer.write("rows", world.rank * rows, pattern(world.rank, rows))
        with guarded(world, f"read {path}"):
            _compare(path, world, rows)
    finally:
        if world.rank == 0:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return rows * world.size * _COLUMNS


def _check_is_seen(path: Path) -> None:
    """Raise HpcgnnError if this node's folder of this name is another one than that of rank 0."""
    if not path.exists():
        raise HpcgnnError(
            f"{socket.gethostname()} does not see a file that rank 0 made in {path.parent}: use a folder that all nodes share"
        )


def _compare(path: Path, world: World, rows: int) -> None:
    """Raise HpcgnnError unless this rank reads its own rows, and those of the next rank, as they were written."""
    import h5py

    with h5py.File(path, locking=False) as file:
        for rank in {world.rank, (world.rank + 1) % world.size}:
            if not np.array_equal(file["rows"][rank * rows : (rank + 1) * rows], pattern(rank, rows)):
                raise HpcgnnError(
                    f"{socket.gethostname()} reads other bytes from a file in {path.parent} than rank {rank} wrote: use a folder"
                    " on a file system for parallel writes (Lustre, GPFS), or run `hpcgnn partition` in one process"
                )


def pattern(rank: int, rows: int) -> np.ndarray:
    """(rows, columns) uint8 test data, which differ among 251 successive ranks."""
    numbers = np.arange(rows * _COLUMNS, dtype=np.int64)
    return ((numbers * 31 + rank) % 251).astype(np.uint8).reshape(rows, _COLUMNS)


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the file system that a folder is on."""
    try:
        lines = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    except OSError:
        return "unknown file system"
    real = os.path.realpath(folder)
    above = [(len(place), kind) for place, kind in lines if real == place or real.startswith(place.rstrip("/") + "/")]
    return max(above, default=(0, "unknown file system"))[1]


def look_at_temporary(job: Job) -> Fact:
    """The folder of this rank's temporary files, its free bytes, and whether other users may replace files there."""
    folder = Path(tempfile.gettempdir())
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(4096))
        file.flush()
    found = folder.stat()
    return {
        "host": socket.gethostname(),
        "folder": str(folder),
        "free": shutil.disk_usage(folder).free,
        "open_to_all": bool(found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX),
        "is_others": found.st_uid not in (os.geteuid(), 0),
    }


def judge_temporary(facts: list[Fact], job: Job) -> Verdict:
    """The folder should have space, and other users must not replace files in it."""
    least = min(fact["free"] for fact in facts)
    problems = (each for fact in facts for each in _about_temporary(fact))
    return f"{facts[0]['folder']}, {least / 2**30:.0f} GiB free", problems


def _about_temporary(fact: Fact) -> Iterator[Problem]:
    where = f"{fact['folder']} on {fact['host']}"
    if fact["open_to_all"] or fact["is_others"]:
        yield (
            f"other users may replace files in {where}: set TMPDIR to a folder of your own, or ask the administrator to set the"
            " sticky bit (chmod +t)"
        )
    if fact["free"] < LEAST_FREE_BYTES:
        yield f"{where} has only {fact['free'] / 2**20:.0f} MiB free: remove files, or set TMPDIR to another folder"


def look_at_shared_memory(job: Job) -> Fact:
    """The free bytes in the shared memory of this node, and whether this process may write there."""
    free = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else None
    return {"host": socket.gethostname(), "free": free, "writable": os.access(_SHARED, os.W_OK)}


def judge_shared_memory(facts: list[Fact], job: Job) -> Verdict:
    """MPI's messages within a node and shared rows need shared memory."""
    known = [fact for fact in facts if fact["free"] is not None]
    if not known:
        return f"there is no {_SHARED}", ()
    least = min(fact["free"] for fact in known)
    return f"{least / 2**20:.0f} MiB free in {_SHARED}", (each for fact in known for each in _about_shared_memory(fact))


def _about_shared_memory(fact: Fact) -> Iterator[Problem]:
    if not fact["writable"]:
        yield (
            f"{_SHARED} of {fact['host']} is not writable, so its ranks cannot share memory: mount it for all users (mode 1777)"
        )
    if fact["free"] < LEAST_SHARED_BYTES:
        yield (
            f"{_SHARED} of {fact['host']} has only {fact['free'] / 2**20:.0f} MiB free, and MPI sends messages within a node"
            " through it: give the container more (`docker run --shm-size 8g`), or remove files that earlier jobs left there"
        )


FOLDER = Check("folder", shared_folder)
TEMPORARY = by_rank("temporary files", look_at_temporary, judge_temporary)
SHARED_MEMORY = by_rank("shared memory", look_at_shared_memory, judge_shared_memory)
