"""Files that may replace others, files that stay, and removal of files of processes that have ended."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from requires import require

from hpcgnn.base import whole_file
from hpcgnn.base.errors import HpcgnnError


def write(path: Path, text: str = "new", **how: object) -> None:
    with whole_file.replacing(path, **how) as temporary:
        temporary.write_text(text)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "f"
    write(path, "old")
    with pytest.raises(TypeError):
        write(path, 3)
    assert (path.read_text(), left(tmp_path)) == ("old", ["f"])
    with pytest.raises(HpcgnnError, match="pass --force"):
        write(path, force=False)
    write(path)
    assert (path.read_text(), left(tmp_path)) == ("new", ["f"])


def test_the_bytes_of_a_file_are_on_the_disk_before_it_is_renamed(tmp_path, monkeypatch):
    calls = []
    for name, call in (("fsync", os.fsync), ("replace", os.replace)):
        monkeypatch.setattr(os, name, lambda *words, name=name, call=call: (calls.append(name), call(*words)))
    write(tmp_path / "f")
    assert calls == ["fsync", "replace"]


def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    before = left(tmp_path)
    for path, sentence in (
        (tmp_path / "folder", "a folder"),
        (tmp_path / "pipe", "a device, a pipe"),
        (tmp_path / "dangling", "nothing, which does not"),
        (tmp_path / "round", "a symbolic link"),
        (Path("/dev/null"), "^cannot write /dev/null: it is a device"),
    ):
        with pytest.raises(HpcgnnError, match=sentence):
            write(path)
    assert left(tmp_path) == before


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "f").write_text("old")
    (tmp_path / "link").symlink_to("there/f")
    write(tmp_path / "link")
    assert os.readlink(tmp_path / "link") == "there/f"
    assert (tmp_path / "there" / "f").read_text() == "new"
    assert left(tmp_path / "there") == ["f"]


@pytest.mark.parametrize("name", ["f", "link", "hard", "../{}/f"])
def test_what_is_read_is_not_replaced_under_any_name(tmp_path, name):
    path = tmp_path / "f"
    path.write_text("old")
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    with pytest.raises(HpcgnnError, match="is an input of this command"):
        write(tmp_path / name.format(tmp_path.name), inputs=["", tmp_path / "no", path])
    assert path.read_text() == "old"


def test_what_the_dead_have_left_is_removed_and_nothing_else(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = whole_file._host()
    dead = [f".f.{host}.{gone.pid}.hpcgnn.tmp", f".other.h5.{host}.{gone.pid}.hpcgnn.tmp"]
    kept = [
        f".f.{host}.{os.getppid()}.hpcgnn.tmp",  # alive
        f".f.{host}.1.hpcgnn.tmp",  # may belong to another user
        f".f.another-{host}.{gone.pid}.hpcgnn.tmp",  # cannot be checked from this host
        f".f.{gone.pid}.tmp",
        f"f.{host}.{gone.pid}.hpcgnn.tmp",
    ]
    for name in dead + kept:
        (tmp_path / name).touch()
    write(tmp_path / "f", cleans=False)
    assert set(dead) < set(left(tmp_path))
    write(tmp_path / "f")
    assert left(tmp_path) == sorted({*kept, "f"})  # a process whose parent is 1 has two equal names


def test_a_killed_process_leaves_what_the_next_one_removes(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node-7.cluster/x")
    child = os.fork()
    if child == 0:
        with whole_file.replacing(tmp_path / "f") as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), 9)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it is dead, but waits to be asked for its exit code
    assert [name.startswith(".f.") for name in left(tmp_path)] == [True]
    write(tmp_path / "f")
    os.waitpid(child, 0)
    assert left(tmp_path) == ["f"]


def write_while_it_becomes_read_only(disk: Path) -> None:
    with whole_file.replacing(disk / "f") as temporary:
        temporary.write_text("half")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        temporary.write_text("the other half")


def test_a_file_system_that_is_read_only_or_full_is_named(tmp_path):
    require(os.geteuid() == 0, "root, to mount a small tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True)
    try:
        with pytest.raises(HpcgnnError, match=rf"^cannot write {disk}/f: Read-only file system$"):
            write_while_it_becomes_read_only(disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    with pytest.raises(HpcgnnError, match=r"/f: No space left on device$"), whole_file.replacing(tmp_path / "f"):
        raise OSError(
            errno.ENOSPC, "Can't synchronously write data (file name = '.f.tmp', errno = 28)"
        )  # a library's words


def test_a_link_with_the_temporary_name_is_not_followed(tmp_path):
    """Another user who may write the folder may have put it there; the name is easy to guess."""
    victim, name = tmp_path / "victim", f".f.{whole_file._host()}.{os.getpid()}.hpcgnn.tmp"
    victim.write_text("kept")
    (tmp_path / name).symlink_to(victim)
    write(tmp_path / "f")
    assert ((tmp_path / "f").read_text(), victim.read_text()) == ("new", "kept")
    assert not (tmp_path / "f").is_symlink()


def test_the_umask_rules_over_what_others_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "f")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_a_folder_that_cannot_be_closed_is_removed_at_the_second_try(tmp_path, monkeypatch):
    close, failures = os.close, [errno.EIO]

    def failing(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        close(descriptor)
        if is_folder and failures:
            raise OSError(failures.pop(), "on close")

    with whole_file.temporary_folder(tmp_path / "f") as folder:
        (folder / "piece").touch()
        (folder / "more").mkdir()
        monkeypatch.setattr(os, "close", failing)
    monkeypatch.undo()
    assert not failures
    assert left(tmp_path) == []
