"""Files and folders that another user has made, and the permissions of those that hpcgnn makes."""

from __future__ import annotations

import functools
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py

from campaign import processes
from campaign.processes import HPCGNN, Ended
from campaign.run import ROOT
from campaign.section import FAILED, LEFT_OUT, REFUSED, RIGHT, Case, Session

_NOBODY = 65534
_PLANTING = """
import os, sys
from pathlib import Path
from hpcgnn.base import whole_file
target, victim = map(Path, sys.argv[1:3])
target.with_name(f".{target.name}.{whole_file._host()}.{os.getpid()}.hpcgnn.tmp").symlink_to(victim)
sys.argv = ["hpcgnn", *sys.argv[3:]]
from hpcgnn.cli.main import main
main()
"""
_CACHE_WITH_CODE = """
import sys, torch
class RunsCode:
    def __reduce__(self):
        return exec, (f"open({sys.argv[2]!r}, 'w').close()",)
torch.save({"graph": RunsCode(), "labels": 0}, sys.argv[1])
"""


def cases(session: Session) -> Iterator[Case]:
    """Yield a case for each thing that another user may have prepared."""
    folder = session.new_folder("files")
    graph, parts = folder / "g.h5", folder / "p.h5"
    _must(*HPCGNN, "convert", "sbm:nodes=60,blocks=3,degree=4,features=4", graph, "--undirected")
    _must(*HPCGNN, "partition", graph, parts, "--parts", 2)
    for group, each in (
        ("HDF5 files that point elsewhere", _elsewhere(session, folder, graph, parts)),
        ("links and folders that others have put there", _planted(session, folder, graph, parts)),
        ("caches of compiled code", _caches(session, folder)),
        ("pickles of other projects' data sets", _pickles(session, folder)),
        ("modes of what is written", _modes(session, parts)),
    ):
        for name, check in each:
            if session.wants(name) and session.has_time():
                started = time.monotonic()
                try:
                    end, said = check()
                except RuntimeError as error:  # an error in the preparation
                    end, said = FAILED, str(error)
                yield Case(group, name, end, said, time.monotonic() - started)


def _run(*command: object, **options: object) -> Ended:
    return processes.run(command, seconds=300, **options)  # type: ignore[arg-type]


def _must(*command: object, ranks: int = 0) -> None:
    ended = _run(*command, "--quiet", ranks=ranks)
    if ended.exit:
        raise RuntimeError(f"{command} has failed: {ended.stderr[-1000:]}")


def refused(ended: Ended, name: str) -> tuple[str, str]:
    """``(end, said)`` of a command that must be refused, with a sentence that contains ``name``."""
    problem = processes.wrong_end(ended, names=[name])
    if problem:
        return FAILED, problem
    return (FAILED, "it is taken") if ended.exit == 0 else (REFUSED, ended.stderr.strip()[-300:])


# -- HDF5 --------------------------------------------------------------------------------------------------------------


def _elsewhere(
    session: Session, folder: Path, graph: Path, parts: Path
) -> Iterator[tuple[str, Callable[[], tuple[str, str]]]]:
    for kind in ("an external link",) if session.short else _POINTERS:
        for name in _datasets(graph)[: 1 if session.short else None]:
            yield f"{kind} for {name} of a graph", functools.partial(_pointed, folder, graph, kind, name)
    if session.short:
        return
    yield "an external link for the plans of a parts file", functools.partial(_plan_elsewhere, folder, parts)


def _datasets(path: Path) -> list[str]:
    """The names of all datasets with more than one value."""
    found: list[str] = []
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) and item.size > 1 else None
        )
    return found


def _external_link(file: h5py.File, name: str, other: Path) -> None:
    file[name] = h5py.ExternalLink(str(other), name)


def _soft_link(file: h5py.File, name: str, other: Path) -> None:
    with h5py.File(other) as whole:
        file.create_dataset("hidden", data=whole[name][()])
    file[name] = h5py.SoftLink("/hidden")


def _external_storage(file: h5py.File, name: str, other: Path) -> None:
    with h5py.File(other) as whole:
        values = whole[name][()]
    raw = other.with_suffix(".raw")
    raw.write_bytes(values.tobytes())
    file.create_dataset(name, values.shape, values.dtype, external=[(str(raw), 0, h5py.h5f.UNLIMITED)])


def _virtual(file: h5py.File, name: str, other: Path) -> None:
    with h5py.File(other) as whole:
        source = h5py.VirtualSource(whole[name])
        layout = h5py.VirtualLayout(whole[name].shape, whole[name].dtype)
    layout[...] = source
    file.create_virtual_dataset(name, layout)


def _filtered(file: h5py.File, name: str, other: Path) -> None:
    with h5py.File(other) as whole:
        file.create_dataset(name, data=whole[name][()], chunks=True, compression="gzip")


_POINTERS: dict[str, Callable[[h5py.File, str, Path], None]] = {
    "an external link": _external_link,
    "a soft link": _soft_link,
    "external storage": _external_storage,
    "a virtual dataset": _virtual,
    "a filter": _filtered,
}


def _pointed(folder: Path, graph: Path, kind: str, name: str) -> tuple[str, str]:
    """The values are those of the whole file, so a reader that follows the pointer notices nothing."""
    path, out = folder / "pointing.h5", folder / "q.h5"
    shutil.copy(graph, path)
    with h5py.File(path, "r+", libver=("v108", "v110")) as file:
        del file[name]
        _POINTERS[kind](file, name, graph)
    ended = _run(*HPCGNN, "partition", path, out, "--parts", 2)
    if out.exists():
        out.unlink()
        return FAILED, "it is read"
    return refused(ended, path.name)


def _plan_elsewhere(folder: Path, parts: Path) -> tuple[str, str]:
    path, other = folder / "pointing.h5", folder / "other.h5"
    shutil.copy(parts, path)
    with h5py.File(other, "w") as file:
        file.create_group("plan")
    before = other.read_bytes()
    with h5py.File(path, "r+", libver=("v108", "v110")) as file:
        del file["plan"]
        file["plan"] = h5py.ExternalLink(str(other), "plan")
    ended = _run(*HPCGNN, "plan", path)
    if other.read_bytes() != before:
        return FAILED, "the other file is written"
    return refused(ended, path.name)


# -- links and folders of other users ----------------------------------------------------------------------------------


def _planted(
    session: Session, folder: Path, graph: Path, parts: Path
) -> Iterator[tuple[str, Callable[[], tuple[str, str]]]]:
    commands = {"convert": ("convert", "digits", "{}")}
    if not session.short:
        commands |= {"plan": ("plan", "{}", "--strategy", "pre"), "report": ("report", folder / "run", "--out", "{}")}
    for name, words in commands.items():
        yield f"a link in the place of {name}'s temporary file", functools.partial(_linked, folder, name, words, parts)
    for whose in ("link",) if session.short else ("link", "folder of another user"):
        yield f"a {whose} in the place of partition's work", functools.partial(_work, folder, graph, whose)


def _linked(folder: Path, name: str, words: tuple[object, ...], parts: Path) -> tuple[str, str]:
    target, victim = folder / f"linked-{name}", folder / "victim"
    victim.write_text("kept")
    if name == "plan":
        shutil.copy(parts, target)
    if name == "report":
        _must(*HPCGNN, "train", parts, "--out", folder / "run", "--epochs", 2, ranks=2)
    command = [target if word == "{}" else word for word in words]
    ended = _run(sys.executable, "-c", _PLANTING, target, victim, *command)
    if victim.read_text(errors="replace") != "kept":
        return FAILED, "the link is followed: the file that it names is written"
    if target.is_symlink() or ended.exit != 0:
        return FAILED, f"exit code {ended.exit}: {ended.stderr[-300:]}"
    return RIGHT, ""


def _work(folder: Path, graph: Path, whose: str) -> tuple[str, str]:
    folder = folder / f"everybodys {whose}"
    folder.mkdir()
    folder.chmod(0o1777)
    out, place = folder / "worked.h5", folder / ".worked.h5.work"
    victim = folder / "elsewhere"
    victim.mkdir(exist_ok=True)
    if whose == "link":
        place.symlink_to(victim)
    elif os.geteuid():
        return LEFT_OUT, "only root can make a folder of another user"
    else:
        place.mkdir()
        os.chown(place, _NOBODY, _NOBODY)
    ended = _run(*HPCGNN, "partition", graph, out, "--parts", 2)
    written = [*victim.iterdir(), *place.iterdir()]
    place.unlink() if place.is_symlink() else shutil.rmtree(place)
    return (FAILED, f"it is used: {written[0].name} is in it") if written else refused(ended, out.name)


# -- code --------------------------------------------------------------------------------------------------------------


def _caches(session: Session, folder: Path) -> Iterator[tuple[str, Callable[[], tuple[str, str]]]]:
    yield "the package's own", _own_caches
    yield "a folder that everybody may write", functools.partial(_cache_of_others, folder, 0o777, os.geteuid())
    if not session.short:
        yield "a folder of another user", functools.partial(_cache_of_others, folder, 0o755, _NOBODY)


def _own_caches() -> tuple[str, str]:
    """numba's caches are beside the source, like Python's own compiled code."""
    places = list((ROOT / "hpcgnn").rglob("__pycache__"))
    writable = [str(path) for path in places if path.stat().st_mode & stat.S_IWOTH]
    return (FAILED, f"everybody may write {writable[0]}") if writable else (RIGHT, "")


def _cache_of_others(folder: Path, mode: int, owner: int) -> tuple[str, str]:
    place = folder / f"cache-{mode:o}-{owner}"
    place.mkdir()
    place.chmod(mode)
    if owner != os.geteuid():
        if os.geteuid():
            return LEFT_OUT, "only root can make a folder of another user"
        os.chown(place, owner, owner)
    ended = _run(*HPCGNN, "convert", "digits", folder / "cached.h5", variables={"NUMBA_CACHE_DIR": str(place)})
    return refused(ended, "NUMBA_CACHE_DIR")


def _pickles(session: Session, folder: Path) -> Iterator[tuple[str, Callable[[], tuple[str, str]]]]:
    if session.short:  # the import of ogb takes seconds
        return
    yield "ogb's cache, with code in it", functools.partial(_ogb, folder)


def _ogb(folder: Path) -> tuple[str, str]:
    base, marker = folder / "ogb" / "ogbn_arxiv", folder / "marker"
    (base / "processed").mkdir(parents=True)
    (base / "RELEASE_v1.txt").touch()
    made = _run(sys.executable, "-c", _CACHE_WITH_CODE, base / "processed" / "data_processed", marker)
    ended = _run(*HPCGNN, "convert", f"ogb:ogbn-arxiv?root={folder / 'ogb'}", folder / "ogb.h5")
    if "pip install" in ended.stderr:
        return LEFT_OUT, "ogb is not installed"
    if marker.exists() or made.exit:
        return FAILED, f"the code has run {made.stderr[-200:]}"
    return refused(ended, "builtin")


# -- modes -------------------------------------------------------------------------------------------------------------


def _modes(session: Session, parts: Path) -> Iterator[tuple[str, Callable[[], tuple[str, str]]]]:
    if not session.short:
        for umask in (0o077, 0o022):
            yield f"files and folders under umask {umask:03o}", functools.partial(_umask, session, umask)
        yield "memory that ranks share", functools.partial(_shared_memory, session, parts)


def _umask(session: Session, umask: int) -> tuple[str, str]:
    folder = session.new_folder("modes")
    graph, parts, run = folder / "g.h5", folder / "p.h5", folder / "run"
    before = os.umask(umask)
    try:
        _must(*HPCGNN, "convert", "digits", graph)
        _must(*HPCGNN, "partition", graph, parts, "--parts", 1)
        _must(*HPCGNN, "train", parts, "--out", run, "--epochs", 2, "--hidden", 4, "--checkpoint-every", 1)
    finally:
        os.umask(before)
    wide = too_wide(folder, umask)
    return (FAILED, f"others may do more than they should with {wide}") if wide else (RIGHT, "")


def too_wide(folder: Path, umask: int) -> str:
    """The first file below ``folder`` with a permission bit that ``umask`` removes; empty if there is none."""
    found = (path for path in folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & umask)
    return next((f"{path.name} ({path.stat().st_mode & 0o777:o})" for path in found), "")


def _shared_memory(session: Session, parts: Path) -> tuple[str, str]:
    """The shared memory in /dev/shm while ranks train, under a umask that would let others read."""
    place = Path("/dev/shm")
    before = {path.name for path in place.iterdir()}
    words = (*HPCGNN, "train", parts, "--out", session.new_folder("shm") / "run", "--epochs", 30, "--node-aware", "on")
    process = processes.start(words, ranks=2, variables={"HPCGNN_RANKS_PER_NODE": "2"})
    seen: dict[str, int] = {}
    while process.poll() is None and session.has_time():
        for entry in os.scandir(place):
            if entry.name not in before and entry.name not in seen:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                seen[entry.name] = stat.S_IMODE(found.st_mode) if found.st_uid == os.geteuid() else 0
        time.sleep(0.01)
    processes.finish(process)
    wide = [f"{name} ({mode:o})" for name, mode in seen.items() if mode & 0o022]
    session.add_fact("files in /dev/shm inspected", len(seen))
    return (FAILED, f"others may write {wide[0]}") if wide else (RIGHT, "")
