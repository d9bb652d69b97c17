"""The stored work of a partition that was killed, from which the next call with the same arguments continues.

.parts.h5.work/             beside parts.h5; removed once that file is complete
    lock, key.json          the owner: the graph, the options, the version; and the uuid of parts.h5
    assignment, assignment.json    int32 part of each node, and its checksum
    parts.h5                the file under construction; sealed: only the plan is missing; adding: the plan is being added
    written.R.S             the number of rows that rank R of S has written
    STRATEGY.P.piece        the plan of part P (:mod:`hpcgnn.data.plan_pieces`)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from hpcgnn.base import whole_file
from hpcgnn.base.byte_sink import naming
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import checksums, h5
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.partition.problem import Slab
from hpcgnn.world import World, raise_on_all_ranks

NOTHING, BEGUN, WRITTEN = "nothing", "begun", "written"
_LOG = logging.getLogger("hpcgnn")
_WORTH_KEEPING_SECONDS = 60.0
_NOTE_EVERY_SECONDS = 5.0
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Work:
    """The folder of stored work. uuid: of the file to write. continues: whether an earlier run has left work in it."""

    folder: Path
    uuid: str
    continues: bool

    @property
    def parts(self) -> Path:
        """The parts file, before it gets its final name."""
        return self.folder / "parts.h5"

    def keep_assignment(self, world: World, slab: Slab, parts: np.ndarray, facts: dict[str, Any]) -> None:
        """Store ``parts`` (n,) int32 of this rank's slab, and ``facts`` about them. Collective."""
        path = self.folder / "assignment"
        with raise_on_all_ranks(world, f"write {path}"):
            if world.rank == 0:
                path.write_bytes(b"")
        with raise_on_all_ranks(world, f"write {path}"), path.open("r+b") as file:
            file.seek(slab.first * 4)
            file.write(np.ascontiguousarray(parts, dtype=np.int32).data)
        with raise_on_all_ranks(world, f"write {path}"):
            if world.rank == 0:
                _replace(path.with_suffix(".json"), json.dumps(facts | {"checksum": _checksum(path)}))

    def assignment(self, world: World, slab: Slab) -> tuple[np.ndarray, dict[str, Any]] | None:
        """The parts and facts that :meth:`keep_assignment` stored, or None if they are incomplete. Collective."""
        facts, path = None, self.folder / "assignment"
        if world.rank == 0 and self.continues:
            facts = _read(path.with_suffix(".json"))
            if facts and not _is_whole(path, int(4 * slab.bounds[-1]), facts["checksum"]):
                facts = None
        facts = world.broadcast(facts)
        if not facts:
            return None
        with raise_on_all_ranks(world, f"read {path}"):
            parts = np.fromfile(path, np.int32, slab.num_nodes, offset=4 * slab.first)
        return parts, facts

    def stage(self, schema: h5.Schema) -> str:
        """The state of the parts file: ``WRITTEN`` except for the plan, ``BEGUN``, or ``NOTHING`` that can be used."""
        if not self.continues or (self.folder / "adding").exists():  # HDF5 may have been interrupted between two writes
            return NOTHING
        try:
            if (self.folder / "sealed").exists():
                with PartsFile(self.parts) as parts:
                    return WRITTEN if parts.uuid == self.uuid else NOTHING
            h5.byte_offsets(self.parts, schema)
        except (HpcgnnError, OSError):
            return NOTHING
        return BEGUN

    def forget_writing(self) -> None:
        """Discard the parts file, so that it is written from the start."""
        for path in (*self.folder.glob("written.*"), self.parts, self.folder / "sealed", self.folder / "adding"):
            path.unlink(missing_ok=True)


class Written:
    """The number of rows, of all that this rank writes to the parts file, that are certainly on the disk."""

    def __init__(self, work: Work, world: World) -> None:
        self._path, self._parts = work.folder / f"written.{world.rank}.{world.size}", work.parts
        self.rows, self._noted = 0, time.monotonic()
        with contextlib.suppress(OSError, ValueError):
            self.rows = int(self._path.read_text())

    def reach(self, rows: int) -> None:
        """Note that the first ``rows`` are written. The note is stored every few seconds."""
        if time.monotonic() - self._noted < _NOTE_EVERY_SECONDS:
            return
        with naming(self._parts), self._parts.open("rb") as file:
            os.fdatasync(file)
        with naming(self._path.with_name(f"{self._path.name}.new")):
            _replace(self._path, str(rows))
        self._noted = time.monotonic()


@contextlib.contextmanager
def kept(
    world: World, path: str | Path, key: dict[str, Any], *, force: bool, inputs: Iterable[str | Path]
) -> Iterator[Work]:
    """Yield the folder in which to make ``path``; on success, :attr:`Work.parts` is renamed to ``path``. Collective. If a
    run fails, it removes the folder, unless the assignment took more than a minute; if it is killed or interrupted, the
    folder stays. With ``force`` or another ``key``, stored work is not used."""
    found = ("", "", False)
    with contextlib.ExitStack() as stack:
        with raise_on_all_ranks(world, f"write {path}"):
            if world.rank == 0:
                found = _claim(stack, Path(path), key, force=force, inputs=inputs)
        folder, name, continues = world.broadcast(found)
        work = Work(Path(folder), name, continues)
        try:
            yield work
        except Exception:
            if world.rank == 0:
                facts = _read(work.folder / "assignment.json") or {}
                if float(facts.get("seconds", 0.0)) < _WORTH_KEEPING_SECONDS:
                    whole_file.remove_folder(work.folder)
            raise
        with raise_on_all_ranks(world, f"write {path}"):
            if world.rank == 0:
                whole_file.put(work.parts, path)
                whole_file.remove_folder(work.folder)


def _claim(
    stack: contextlib.ExitStack, path: Path, key: dict[str, Any], *, force: bool, inputs: Iterable[str | Path]
) -> tuple[str, str, bool]:
    """``(folder, uuid, whether it has work to continue)``. The folder belongs to this process until ``stack`` ends."""
    target = whole_file.check(path, inputs=inputs)
    whole_file.remove_left(target.parent)
    folder = target.with_name(f".{target.name}.work")
    if not force and target.exists() and os.path.lexists(folder) and _has_named(folder, target):
        _check_owner(folder, path)
        _lock(stack, folder, path)
        whole_file.remove_folder(folder)
    whole_file.check(path, force=force, inputs=inputs)
    is_new = not os.path.lexists(folder)
    # Another process may start at the same moment; the lock decides which of them writes.
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    _check_owner(folder, path)
    _lock(stack, folder, path)
    key = json.loads(json.dumps(key))
    left = _read(folder / "key.json") or {}
    if left.get("key") == key and not force:
        _LOG.warning("continuing the stopped run whose work is in %s", folder)
        return str(folder), left["uuid"], True
    if not is_new:
        other = "that --force replaces" if force else "with other arguments"
        _LOG.warning("removing %s, left by a run %s", folder, other)
        for entry in folder.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    name = uuid.uuid4().hex
    _replace(folder / "key.json", json.dumps({"key": key, "uuid": name}))
    return str(folder), name, False


def _has_named(folder: Path, target: Path) -> bool:
    """Return whether the folder belongs to a run that ended after it had given its file the final name."""
    try:
        with PartsFile(target) as parts:
            return bool(parts.uuid == (_read(folder / "key.json") or {}).get("uuid"))
    except HpcgnnError:
        return False


def _check_owner(folder: Path, path: Path) -> None:
    """Raise HpcgnnError if the folder is a link, or belongs to another user in a folder that everybody may write."""
    found, around = folder.lstat(), folder.parent.stat()
    is_anothers = around.st_mode & stat.S_IWOTH and found.st_uid not in (os.geteuid(), around.st_uid)
    if is_anothers or not stat.S_ISDIR(found.st_mode):
        raise HpcgnnError(
            f"cannot write {path}: {folder}, the place for the work of stopped runs, belongs to another user or is not a "
            "folder: remove it, or choose another name"
        )


def _lock(stack: contextlib.ExitStack, folder: Path, path: Path) -> None:
    """Lock the folder until the process ends, except on network file systems without locks."""
    file = (folder / "lock").open("a")
    stack.callback(_release, file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise HpcgnnError(f"another process is writing {path}: wait until it ends, or choose another name") from error
    except OSError as error:
        words = "another process could write %s at the same time, because its folder cannot be locked: %s"
        _LOG.warning(words, path, error.strerror)


def _release(lock: IO[str]) -> None:
    with contextlib.suppress(OSError):  # nothing was written to it
        lock.close()


def _is_whole(path: Path, num_bytes: int, checksum: object) -> bool:
    try:
        return path.stat().st_size == num_bytes and _checksum(path) == checksum
    except OSError:
        return False


def _checksum(path: Path) -> int:
    with path.open("rb") as file:
        pieces = iter(lambda: file.read(_READ_BYTES), b"")
        return checksums.of_pieces(np.frombuffer(piece, np.uint8) for piece in pieces)


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if it is missing or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    os.replace(temporary, path)
