"""Files that appear under their name only when they are whole.

What is written has a temporary name beside the file's own until then. A killed process leaves it behind; whoever writes
something in that folder next, on the same host, removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpcgnn.errors import HpcgnnError

# Of temporary names: the file's, the host, the process. Nothing else makes names like these.
_LEFT = re.compile(r"\..+\.(?P<host>[^.]+)\.(?P<process>\d+)\.hpcgnn\.tmp")


@contextlib.contextmanager
def replacing(
    path: str | Path, *, force: bool = True, inputs: Iterable[str | Path] = (), cleans: bool = True
) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; rename it to ``path`` on success, delete it on any failure.

    A symbolic link stays what it is: the file that it names is replaced, by one beside that.

    Args:
        force: whether a file may be there already.
        inputs: files that are read for it, and that it must not replace whatever ``force`` is.
        cleans: remove what processes of this host that are no more have left in the folder.

    Raises:
        HpcgnnError: where a file must not or cannot be written.
    """
    target = check(path, force=force, inputs=inputs)
    if cleans:
        remove_left(target.parent)
    temporary = target.with_name(f".{target.name}.{_host()}.{os.getpid()}.hpcgnn.tmp")
    try:
        with _one_sentence(path):
            _claim(temporary)
            yield temporary
        put(temporary, path)
    finally:
        # what could not be written, on a file system that is read-only now, cannot be removed either: the first error counts
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def check(path: str | Path, *, force: bool = True, inputs: Iterable[str | Path] = ()) -> Path:
    """The file that is to be replaced: ``path``, or what it is a link to. Raises as :func:`replacing` does."""
    path = Path(path)
    target = _target(path)
    if not target.parent.is_dir():
        raise HpcgnnError(f"cannot write {path}: folder {target.parent} does not exist")
    _check_replaceable(path, target, force, inputs)
    return target


def put(temporary: Path, path: str | Path) -> None:
    """Give what is whole now, on the same file system, the name ``path``. Raises HpcgnnError."""
    with _one_sentence(path):
        _sync(temporary)
        os.replace(temporary, _target(Path(path)))


def _claim(temporary: Path) -> None:
    """Make an empty file of this name. Where others may write the folder, a link of theirs may have the name, which is easy to
    guess: it is removed, or the error of the system is raised, but it is never followed."""
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o666))


@contextlib.contextmanager
def _one_sentence(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HpcgnnError(f"cannot write {path}: {_reason(error)}") from error


@contextlib.contextmanager
def temporary_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path`` for what it is made of; it is removed whatever happens.

    Raises:
        HpcgnnError: where there can be none.
    """
    target = _target(Path(path))
    folder = target.with_name(f".{target.name}-pieces.{_host()}.{os.getpid()}.hpcgnn.tmp")
    try:
        remove_folder(folder)
        folder.mkdir()
    except OSError as error:
        raise HpcgnnError(f"cannot write {path}: {_reason(error)}") from error
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder of temporary files. What the system refuses to remove stays: results are whole without that."""
    for _ in range(2):  # a refusal may be the only one
        # shutil closes a folder once more where closing it failed, and raises the error of that.
        with contextlib.suppress(OSError):
            shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _target(path: Path) -> Path:
    """What is to be replaced: the file that a symbolic link names."""
    if not path.is_symlink():
        return path
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise HpcgnnError(
            f"{path} is a symbolic link to {os.readlink(path)}, which does not exist: remove the link, or choose another name"
        ) from error


def _check_replaceable(path: Path, target: Path, force: bool, inputs: Iterable[str | Path]) -> None:
    """Raise HpcgnnError where there is something at ``target`` that must stay."""
    try:
        if not target.exists():
            return
    except OSError as error:
        raise HpcgnnError(f"cannot write {path}: {_reason(error)}") from error
    if target.is_dir():
        raise HpcgnnError(f"cannot write {path}: it is a folder")
    if not target.is_file():
        raise HpcgnnError(f"cannot write {path}: it is a device, a pipe or a socket, and never replaced")
    if any(_is_same(target, Path(each)) for each in inputs):
        raise HpcgnnError(f"{path} is what this command reads, and is not replaced: choose another name")
    if not force:
        raise HpcgnnError(f"{path} exists: choose another name or pass --force to overwrite it")


def _reason(error: OSError) -> str:
    """The system's words: libraries put the name of the temporary file, and more, into theirs."""
    number = error.errno
    return os.strerror(number) if number is not None and number in errno.errorcode else str(error)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def remove_left(folder: Path) -> None:
    """Remove what processes of this host have left in ``folder`` that ended before their files were whole."""
    with contextlib.suppress(OSError):  # which is no reason not to write
        for entry in os.scandir(folder):
            found = _LEFT.fullmatch(entry.name)
            if found and found["host"] == _host() and not _is_alive(int(found["process"])):
                if entry.is_dir(follow_symlinks=False):
                    remove_folder(Path(entry.path))
                else:
                    os.unlink(entry.path)


def _host() -> str:
    """This host's name as part of a file's."""
    return re.sub(r"[^\w-]", "_", socket.gethostname(), flags=re.ASCII) or "host"


def _is_alive(process: int) -> bool:
    """Whether the process is there, this user's or another's, and more than an entry that nobody has asked for its exit code:
    those of a job whose launcher was killed may stay for long."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    with contextlib.suppress(OSError):  # no /proc
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[:1] != ["Z"]
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
