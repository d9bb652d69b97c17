"""Files that appear under their name only when they are complete, and locks of files between processes.

A file is written under a temporary name in the same folder, and renamed at the end. What a killed process leaves is removed by
the next process on the same host that writes into the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from hpcgnn.base.errors import HpcgnnError

# A temporary name consists of the file's name, the host and the process id. No other program makes such names.
_LEFT = re.compile(r"\..+\.(?P<host>[^.]+)\.(?P<process>\d+)\.hpcgnn\.tmp")


@contextlib.contextmanager
def replacing(
    path: str | Path, *, force: bool = True, inputs: Iterable[str | Path] = (), cleans: bool = True
) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; rename that file to ``path`` on success, delete it on any failure. A symbolic link
    stays: the file to which it points is replaced. Raises HpcgnnError where the file must not or cannot be written.

    force: whether an existing file may be replaced. inputs: files from which the new one is made, which it never replaces.
    cleans: remove temporary files in the folder that processes of this host have left that no longer exist.
    """
    target = check(path, force=force, inputs=inputs)
    if cleans:
        remove_left(target.parent)
    temporary = target.with_name(f".{target.name}.{_host()}.{os.getpid()}.hpcgnn.tmp")
    try:
        with _one_sentence(path):
            # Its name is easy to guess: a link that others have put there is removed, and never followed.
            temporary.unlink(missing_ok=True)
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o666))
            yield temporary
        put(temporary, path)
    finally:
        # On a file system that has become read-only, removing fails as writing did; the first error is the one to report.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def check(path: str | Path, *, force: bool = True, inputs: Iterable[str | Path] = ()) -> Path:
    """The file to replace: ``path``, or the file to which it is a symbolic link. Raises as :func:`replacing` does."""
    path = Path(path)
    target = _target(path)
    if not target.parent.is_dir():
        raise HpcgnnError(f"cannot write {path}: folder {target.parent} does not exist")
    with _one_sentence(path):
        if not target.exists():
            return target
    if target.is_dir():
        raise HpcgnnError(f"cannot write {path}: it is a folder")
    if not target.is_file():
        raise HpcgnnError(f"cannot write {path}: it is a device, a pipe or a socket, which are never replaced")
    if any(_is_same(target, Path(each)) for each in inputs):
        raise HpcgnnError(f"{path} is an input of this command, and is not replaced: choose another name")
    if not force:
        raise HpcgnnError(f"{path} exists: choose another name or pass --force to overwrite it")
    return target


def put(temporary: Path, path: str | Path) -> None:
    """Rename a complete temporary file, on the same file system, to ``path``. Raises HpcgnnError."""
    with _one_sentence(path):
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, _target(Path(path)))


@contextlib.contextmanager
def _one_sentence(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # The system's words for the error; libraries add the name of the temporary file, and more, to theirs.
        number = error.errno
        reason = os.strerror(number) if number is not None and number in errno.errorcode else str(error)
        raise HpcgnnError(f"cannot write {path}: {reason}") from error


@contextlib.contextmanager
def temporary_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path`` for pieces of the file; it is removed in any case. Raises HpcgnnError."""
    target = _target(Path(path))
    folder = target.with_name(f".{target.name}-pieces.{_host()}.{os.getpid()}.hpcgnn.tmp")
    with _one_sentence(path):
        remove_folder(folder)
        folder.mkdir()
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder of temporary files. Files that the system refuses to remove stay, without an error: they are no results."""
    for _ in range(2):  # the system may refuse only once
        # Where closing a folder fails, shutil closes it again, and raises the error of the second attempt.
        with contextlib.suppress(OSError):
            shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _target(path: Path) -> Path:
    if not path.is_symlink():
        return path
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise HpcgnnError(
            f"{path} is a symbolic link to {os.readlink(path)}, which does not exist: remove the link, or choose another name"
        ) from error


def _is_same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False


def remove_left(folder: Path) -> None:
    """Remove temporary files and folders in ``folder`` that processes of this host have left that no longer exist."""
    with contextlib.suppress(OSError):  # a failure to clean is no reason not to write
        for entry in os.scandir(folder):
            found = _LEFT.fullmatch(entry.name)
            if found and found["host"] == _host() and not _is_alive(int(found["process"])):
                if entry.is_dir(follow_symlinks=False):
                    remove_folder(Path(entry.path))
                else:
                    os.unlink(entry.path)


def _host() -> str:
    """This host's name, in the form in which it is part of temporary names."""
    return re.sub(r"[^\w-]", "_", socket.gethostname(), flags=re.ASCII) or "host"


def _is_alive(process: int) -> bool:
    """Return whether the process exists, and is no zombie, which may stay for long where a job's launcher was killed."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    with contextlib.suppress(OSError):  # no /proc
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[:1] != ["Z"]
    return True


def lock(stream: IO[str], *, waits: bool) -> bool:
    """Lock an open file until this process closes it; return False if another process holds the lock, or with ``waits`` wait for
    it. On a file system without locks, nothing is locked, and the result is True."""
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):  # POSIX allows both errors
        return False
    except OSError:
        pass
    return True
