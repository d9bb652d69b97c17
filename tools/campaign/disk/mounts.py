"""A full disk and a read-only disk, both small file systems in memory."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from campaign.disk import cases as framework
from campaign.disk.commands import COMMANDS, TRAIN, Command, raw
from campaign.processes import Ended, wrong_end
from campaign.section import FAILED, LEFT_OUT, REFUSED, RIGHT, Case

if TYPE_CHECKING:
    from campaign.disk.cases import Bench

_SIZE_BYTES = 4 << 20
_PAGE_BYTES = 4096
_FULL, _READ_ONLY = "a full disk", "a read-only folder"


def cases(bench: Bench) -> Iterator[Case]:
    """Yield cases of all commands on disks with room for only a part of the results."""
    if problem := _cannot_mount(bench.session.new_folder("mounted")):
        for group in (_FULL, _READ_ONLY):
            yield Case(group, group, LEFT_OUT, problem)
        return
    for command in (TRAIN,) if bench.session.short else COMMANDS:
        if bench.session.wants(f"{_READ_ONLY}: {command.name}"):
            yield _read_only(bench, command)
        pages = _pages_written(bench, command)
        for room in (pages // 2,) if bench.session.short else sorted({*range(min(pages, 12)), *range(0, pages, 3)}):
            if bench.session.wants(f"{_FULL}: {command.name}"):
                yield _full(bench, command, room)


def _cannot_mount(folder: Path) -> str:
    if os.geteuid() != 0:
        return "it takes root to mount a small file system"
    try:
        with _mounted(folder):
            return ""
    except subprocess.CalledProcessError as error:
        return f"a file system cannot be mounted here: {error.stderr.strip()}"


@contextlib.contextmanager
def _mounted(folder: Path) -> Iterator[None]:
    _call("mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "tmpfs", folder)
    try:
        yield
    finally:
        _call("umount", folder)


def _call(*words: object) -> None:
    subprocess.run([*map(str, words)], check=True, capture_output=True, text=True)


def _pages_written(bench: Bench, command: Command) -> int:
    """The number of memory pages for the results of a command, and for a temporary second copy of the largest file."""
    with _disk(bench, command) as folder:
        before = _free(folder)
        bench.server.run(command.words, folder)
        largest = max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)
        return (max(before - _free(folder), 0) + largest) // _PAGE_BYTES + 2


@contextlib.contextmanager
def _disk(bench: Bench, command: Command) -> Iterator[Path]:
    folder = bench.session.new_folder("disk")
    with _mounted(folder):
        framework.new_folder(bench, command, folder)
        yield folder
    shutil.rmtree(folder)


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _full(bench: Bench, command: Command, room: int) -> Case:
    """A disk with this much room. room: pages that are free when the command begins."""
    started, name = time.monotonic(), f"{_FULL}: {command.name} with room for {room} pages"
    framework.alone(bench, command)
    with _disk(bench, command) as folder:
        before, ballast = raw(folder), folder / ".ballast"
        with ballast.open("wb") as file:
            file.write(b"\0" * (_free(folder) - room * _PAGE_BYTES))
        ended = bench.server.run(command.words, folder)
        ballast.unlink()
        wrong = _wrong_end(ended, (os.strerror(errno.ENOSPC), "disk full"))
        wrong = wrong or framework.wrong_files(bench, command, folder, before, ended)
    return _case(_FULL, name, wrong, ended, started)


def _read_only(bench: Bench, command: Command) -> Case:
    started, name = time.monotonic(), f"{_READ_ONLY}: {command.name}"
    framework.alone(bench, command)
    with _disk(bench, command) as folder:
        before = raw(folder)
        _call("mount", "-o", "remount,ro", folder)
        ended = bench.server.run(command.words, folder)
        wrong = _wrong_end(ended, (os.strerror(errno.EROFS),))
        if not wrong and ended.exit == 0:
            wrong = "ends with exit code 0, and can have written nothing"
        if not wrong and raw(folder) != before:
            wrong = "files have changed"
        _call("mount", "-o", "remount,rw", folder)
        wrong = wrong or framework.wrong_files(bench, command, folder, before, ended)
    return _case(_READ_ONLY, name, wrong, ended, started)


def _wrong_end(ended: Ended, reasons: tuple[str, ...]) -> str:
    wrong = wrong_end(ended)
    if not wrong and ended.exit != 0 and not any(reason in ended.stderr for reason in reasons):
        wrong = f"says none of {', '.join(reasons)}: {ended.stderr.strip()[-300:]}"
    return wrong


def _case(group: str, name: str, wrong: str, ended: Ended, started: float) -> Case:
    end = FAILED if wrong else RIGHT if ended.exit == 0 else REFUSED
    return Case(group, name, end, wrong or ended.stderr.strip()[:300], time.monotonic() - started)
