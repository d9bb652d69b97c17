"""Files that contain Python code, in places where a pickle is, may be, or should never be: the code must not run."""

from __future__ import annotations

import functools
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from campaign.mutations import readers
from campaign.mutations.case import Case
from campaign.mutations.fork import CODE_RAN, Task
from campaign.mutations.more_cases import MAG, PAPERS, command
from campaign.mutations.mutation import REFUSE, Mutation

_GROUP = "code in files"


class _Code:
    """An object that creates a file when it is unpickled, to show that the code has run."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (CODE_RAN, "w")


def tasks(inputs: Path) -> list[Task]:
    """The tasks of this group."""
    return [*_arrays(inputs), *_checkpoints(), *_others()]


def _task(case: Case, what: str, change: Callable[[Path], object]) -> Task:
    def put_in(folder: Path) -> Mutation:
        change(folder / case.target)
        return Mutation(what, REFUSE)

    return Task(case, f"{case.name}: {what}", put_in, _GROUP)


def _objects(shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(shape, object)
    array[...] = _Code()
    return array


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def _of_objects(path: Path) -> None:
    """A .npy file of objects with the same shape."""
    path.write_bytes(_npy(_objects(np.load(path).shape)))


def _pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(_Code()))


def _member(path: Path, *, member: str, plain: bool) -> None:
    """A member of an archive: an array of objects, or a plain pickle, which numpy reads as one object."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    shape = np.load(io.BytesIO(members[member])).shape
    members[member] = pickle.dumps(_Code()) if plain else _npy(_objects(shape))
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _arrays(inputs: Path) -> list[Task]:
    found = []
    papers = command("convert", "ogb:ogbn-papers100M?root=.", "out.h5", "--quiet")
    archives = [(f"{name}.npz", Case("npz", readers.convert("npz", f"{name}.npz"), ((f"{name}.npz",) * 2,), f"{name}.npz", ()))
                for name in ("plain", "sparse", "multi")]  # fmt: skip
    archives += [
        (f"{PAPERS}/raw/{name}", Case("papers100M", papers, ((PAPERS, PAPERS),), f"{PAPERS}/raw/{name}", ()))
        for name in ("data.npz", "node-label.npz")
    ]
    for source, case in archives:
        for member in zipfile.ZipFile(inputs / source).namelist():
            if member == "node_year.npy" or member == "num_edges_list.npy":  # no reader opens them
                continue
            for plain in (False, True):
                what = f"{Path(source).name}: {member} is {'a pickle' if plain else 'of objects'}"
                found.append(_task(case, what, functools.partial(_member, member=member, plain=plain)))
        found.append(_task(case, f"{Path(source).name} is a pickle", _pickled))
    mag = command("convert", "ogb:mag240m?root=.", "out.h5", "--quiet")
    for name in (
        "processed/paper/node_feat.npy",
        "processed/paper/node_label.npy",
        "processed/paper___cites___paper/edge_index.npy",
    ):
        case = Case("mag240m", mag, ((MAG, MAG),), f"{MAG}/{name}", ())
        found += [
            _task(case, f"{Path(name).name} {what}", change)
            for what, change in (("is of objects", _of_objects), ("is a pickle", _pickled))
        ]
    return found


def _whole(path: Path) -> None:
    torch.save(_Code(), path)


def _legacy(path: Path) -> None:
    """A file in the format that torch used before it wrote archives."""
    torch.save({"model": _Code()}, path, _use_new_zipfile_serialization=False)


def _field(path: Path) -> None:
    """A new field with code, beside valid ones."""
    content = torch.load(path, weights_only=False)
    content["beside"] = _Code()
    torch.save(content, path)


def _in_front(path: Path) -> None:
    """Code in front of the archive's pickle, which leaves nothing behind; the rest of the pickle is unchanged."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    code = b"cbuiltins\nopen\n(V" + CODE_RAN.encode() + b"\nVw\ntR0"
    (name,) = (name for name in members if name.endswith("data.pkl"))
    head, rest = members[name][:2], members[name][2:]
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, head + code + rest if member == name else content)


_WAYS = (
    ("a pickle", _pickled),
    ("code alone, by torch", _whole),
    ("code as torch wrote before archives", _legacy),
    ("a field that is code", _field),
    ("code in front of its pickle", _in_front),
)


def _checkpoints() -> list[Task]:
    one, two = ((("plain-1.h5", "parts.h5"), ("run", "run")), (("plain-2.h5", "parts.h5"), ("run2", "run")))
    cases = [
        Case("last.pt", readers.RESUME, one, "run/checkpoints/last.pt", ()),
        Case("last.pt", command("check", "run/checkpoints/last.pt", "--quiet"), one, "run/checkpoints/last.pt", ()),
        Case("best.pt", readers.PREDICT, one, "run/checkpoints/best.pt", ()),
        Case("last.pt", readers.RESUME_THREADS, two, "run/checkpoints/last.pt", ()),
        Case("messages/2-0.pt", readers.RESUME_THREADS, two, "run/checkpoints/messages/2-0.pt", ()),
    ]
    return [
        _task(case, f"{Path(case.target).name} is or has {what}", change) for case in cases for what, change in _WAYS
    ]


def _others() -> list[Task]:
    mag = command("convert", "ogb:mag240m?root=.", "out.h5", "--quiet")
    found = []
    for name in ("meta.pt", "split_dict.pt"):
        case = Case("mag240m", mag, ((MAG, MAG),), f"{MAG}/{name}", ())
        found += [_task(case, f"{name} is or has {what}", change) for what, change in _WAYS]
    link = (("run-link", "run"), ("plain-1.h5", "parts.h5"), ("pairs.npy", "pairs.npy"))
    pairs = Case(
        "pairs",
        command("predict", "parts.h5", "run", "--out", "p.h5", "--pairs", "pairs.npy", "--quiet"),
        link,
        "pairs.npy",
        (),
    )
    found += [_task(pairs, "pairs.npy is of objects", _of_objects), _task(pairs, "pairs.npy is a pickle", _pickled)]
    for target, reader, copies in (
        ("graph.h5", readers.PARTITION, (("plain-graph.h5", "graph.h5"),)),
        ("parts.h5", readers.TRAIN, (("plain-1.h5", "parts.h5"),)),
    ):
        found.append(_task(Case(target, reader, copies, target, ()), f"{target} is a pickle", _pickled))
    return found
