"""Copies of ``parts.h5`` that differ between nodes, damage that `hpcgnn check` must name, and formats of every version."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import torch
from rank_pool import ThreadPool
from ranks import border

from campaign import processes
from campaign.processes import HPCGNN, wrong_end
from campaign.run import ROOT
from campaign.section import FAILED, REFUSED, RIGHT, Case, Session
from campaign.wrong_cluster import ranks
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import h5, plan_store, whole_check
from hpcgnn.data.graph_file import PartsFile, reader_of
from hpcgnn.data.sealing import seal
from hpcgnn.partition.options import PartitionOptions
from hpcgnn.partition.partitioner import partition
from hpcgnn.train import archive, checkpoint, predict
from hpcgnn.world.thread_world import on_threads

_DATA = ROOT / "tests" / "data"
_SECONDS = 90.0
_PARTS = 2
KEPT = {
    "graph": [f"graph-version-{version}.h5" for version in (1, 2, 3)],
    "parts": [f"parts-version-{version}.h5" for version in (1, 2, 3)],
    "checkpoint": [f"checkpoint-version-{version}.pt" for version in (1, 2)],
    "messages": [f"messages-version-{version}.pt" for version in (1, 2)],
    "predictions": ["predictions-version-1.h5"],
}


def cases(session: Session, parts: Path) -> Iterator[Case]:
    """Yield all cases; ``parts`` has two parts and a plan."""
    yield from _copies(session, parts)
    yield from _damage(session, parts)
    yield from _versions(session)


# -- copies of a file on two nodes -------------------------------------------------------------------------------------


def _copies(session: Session, parts: Path) -> Iterator[Case]:
    folder = session.new_folder("copies")
    made = {name: make(parts, folder / f"{number}.h5") for number, (name, make) in enumerate(_COPIES.items())}
    for name, path in made.items():
        for first in (False, True):
            case = f"{name}, on the {'first' if first else 'second'} node"
            if not session.wants(case):
                continue
            started = time.monotonic()
            paths = [path, parts] if first else [parts, path]
            answers = ThreadPool(_PARTS).run(border.refused, paths)
            wrong = _wrong_answers(_as_one_name(answers, paths))
            said = wrong or (answers[0][0] if answers[0] else "")
            yield Case("copies that differ", case, FAILED if wrong else REFUSED, said, time.monotonic() - started)
    chosen = ["values"] if session.short else ["values", "another uuid", "another plan", "missing"]
    for name in chosen:
        if session.wants(f"{name}, under mpirun"):
            yield _under_mpirun(session, name, parts, made[name])


def _as_one_name(answers: list[tuple[str, bool] | None], paths: list[Path]) -> list[tuple[str, bool] | None]:
    """Give both copies one name, as copies on different nodes have."""
    return [answer and (_renamed(answer[0], paths), answer[1]) for answer in answers]


def _renamed(sentence: str, paths: list[Path]) -> str:
    for path in paths:
        sentence = sentence.replace(str(path), "the file")
    return sentence


def _wrong_answers(answers: list[tuple[str, bool] | None]) -> str:
    if answers[0] is None or None in answers:
        return "accepted" if set(answers) == {None} else f"refused by some ranks only: {answers}"
    sentence, agreed = answers[0]
    if any(answer != answers[0] for answer in answers) or not agreed:
        return f"ranks say different things: {answers}"
    return "" if "the file" in sentence and "\n" not in sentence else f"no sentence: {sentence}"


def _under_mpirun(session: Session, name: str, parts: Path, other: Path) -> Case:
    command = [*HPCGNN, "train", parts, "--out", session.folder / "run-of-copies", "--quiet"]
    line = [*ranks.line(command, [{}]), ":", "-n", 1, *command[:-4], other, *command[-3:]]
    ended = processes.run(line, folder=session.folder, seconds=_SECONDS)
    wrong = wrong_end(ended, ranks=2) or ("" if ended.exit == 1 else f"exit code {ended.exit}")
    end = FAILED if wrong else REFUSED
    return Case("copies that differ", f"{name}, under mpirun", end, wrong or ended.stderr[:300], ended.seconds)


def _changed(change: Callable[[h5py.File], object], *, sealed: bool) -> Callable[[Path, Path], Path]:
    def make(parts: Path, path: Path) -> Path:
        shutil.copy(parts, path)
        with h5py.File(path, "r+") as file:
            change(file)
        if sealed:
            seal(path)
        return path

    return make


def _add_to(name: str) -> Callable[[h5py.File], object]:
    """Change the first and the last row, so that both parts differ."""

    def change(file: h5py.File) -> None:
        for row in (0, -1):
            file[name][row] = file[name][row] + 1

    return change


def _another_uuid(parts: Path, path: Path) -> Path:
    options = PartitionOptions(_PARTS, method="random", plan="hybrid")
    on_threads(1, lambda world: partition(world, parts.with_name("graph.h5"), path, options))
    return path


def _more_plans(parts: Path, path: Path) -> Path:
    """Add a plan. Only the plan that all copies have is used, so that the other copy lacks this one."""
    shutil.copy(parts, path)
    with h5py.File(path, "r+") as file:
        del file["plan/hybrid"]
    plan_store.store_plans(path, ["post"])
    return path


def _swapped_rows(file: h5py.File) -> None:
    """Another valid plan: the entries of one row of each part, in another order."""
    indices, edges, indptr = (file[f"plan/hybrid/L_{name}"] for name in ("indices", "edges", "indptr"))
    offsets = file["plan/hybrid/L_offsets"][:]
    for part in range(_PARTS):
        starts = indptr[offsets[part, 0] : offsets[part + 1, 0]]
        row = int(np.flatnonzero(np.diff(starts) > 1)[0])
        first = int(offsets[part, 1] + starts[row])
        for values in (indices, edges):
            values[first : first + 2] = values[first : first + 2][::-1]


def _cut_off(parts: Path, path: Path) -> Path:
    path.write_bytes(parts.read_bytes()[: parts.stat().st_size // 2])
    return path


_COPIES: dict[str, Callable[[Path, Path], Path]] = {
    "another uuid": _another_uuid,
    "values": _changed(_add_to("nodes/x"), sealed=True),
    "labels": _changed(lambda file: file["nodes/y"].write_direct(1 - file["nodes/y"][:]), sealed=True),
    "bytes": _changed(_add_to("nodes/x"), sealed=False),
    "another plan": _changed(_swapped_rows, sealed=True),
    "bytes of the plan": _changed(_swapped_rows, sealed=False),
    "without the plan": _more_plans,
    "cut off": _cut_off,
    "missing": lambda parts, path: path,
}


# -- damage that `hpcgnn check` names ----------------------------------------------------------------------------------


def _damage(session: Session, parts: Path) -> Iterator[Case]:
    """Flip a bit in every array of every part and of its plan; the sentence must name the array and the part."""
    folder, draw = session.new_folder("damage"), session.generator("damage")
    for name, first, last, where in _slabs(parts):
        case = f"a bit of {name}, {where}"
        number = int(draw.integers(first, last))
        bit = int(draw.integers(8))
        if not session.wants(case):
            continue
        started = time.monotonic()
        path = Path(shutil.copy(parts, folder / "damaged.h5"))
        with path.open("r+b") as stream:
            stream.seek(number)
            byte = stream.read(1)[0] ^ (1 << bit)
            stream.seek(number)
            stream.write(bytes([byte]))
        said = _said_by_check(path)
        is_named = _names(said, name, where)
        wrong = "" if is_named and str(path) in said else f"`hpcgnn check` says: {said or 'nothing'}"
        yield Case("bits of parts.h5", case, FAILED if wrong else REFUSED, wrong or said, time.monotonic() - started)
    if session.wants("hpcgnn check"):
        ended = processes.run([*HPCGNN, "check", path], seconds=_SECONDS)
        wrong = wrong_end(ended, names=[str(path)]) or ("" if ended.exit == 1 else f"exit code {ended.exit}")
        yield Case(
            "bits of parts.h5", "hpcgnn check", FAILED if wrong else REFUSED, wrong or ended.stderr, ended.seconds
        )


def _names(said: str, name: str, where: str) -> bool:
    """Return whether a sentence names the array and the part. For offsets of a plan, it may name an array that they divide,
    which no longer fits.
    """
    if name.endswith("_offsets") and "has shape" in said:
        return f"plan/hybrid/{name.removesuffix('offsets')}" in said
    return name.rpartition("/")[2] in said and (where in said or where == "all parts" or "near row" in said)


def _slabs(parts: Path) -> list[tuple[str, int, int, str]]:
    """The bytes of each part's slab of every array in the file, and the name of the slab."""
    found = []
    with PartsFile(parts) as reader:
        plan = plan_store.StoredPlan(reader, "hybrid")
        places = {name: (reader.file[name], reader) for name in reader.rules}
        places |= {name: (reader.file[f"plan/hybrid/{name}"], plan) for name in plan.arrays}
        for name, (dataset, holder) in places.items():
            is_whole = name in plan.offsets or name == "parts/node_offsets"
            for part in range(1 if is_whole else reader.num_parts):
                first, last = (0, dataset.shape[0]) if is_whole else holder.slab_rows(name, part)
                row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
                begins = dataset.id.get_offset()
                if last > first:
                    where = "all parts" if is_whole else f"part {part}"
                    found.append((name, begins + first * row_bytes, begins + last * row_bytes, where))
    return found


def _said_by_check(path: Path) -> str:
    try:
        with reader_of(path)(path) as reader:
            whole_check.verify(reader)
    except HpcgnnError as error:
        return str(error)
    return ""


# -- formats of every version ------------------------------------------------------------------------------------------


def _versions(session: Session) -> Iterator[Case]:
    for name in (name for names in KEPT.values() for name in names):
        if session.wants(f"of before: {name}"):
            yield _looked_at(f"of before: {name}", _DATA / name, "")
    folder = session.new_folder("versions")
    for kind, names in KEPT.items():
        for version in (99, 0):
            case = f"version {version} of {kind}"
            if kind != "messages" and session.wants(case):
                path = _of_version(version, Path(shutil.copy(_DATA / names[-1], folder / f"{kind}-{version}")))
                yield _looked_at(case, path, "update hpcgnn" if version == 99 else "version 0")
    if session.wants("a plan of a later version"):
        yield _later_plan(folder)


def _of_version(version: int, path: Path) -> Path:
    if h5py.is_hdf5(path):
        with h5py.File(path, "r+") as file:
            file.attrs["version"] = version
    else:
        content = torch.load(path, weights_only=True)
        content.pop("digest", None)
        content["version"] = version
        content["digest"] = archive.digest_of(content)
        torch.save(content, path)
    return path


def _looked_at(name: str, path: Path, wanted: str) -> Case:
    """The file must be read, or refused by a sentence with ``wanted``."""
    started = time.monotonic()
    try:
        if path.suffix == ".pt" or "checkpoint" in path.name:
            checkpoint.look_at(path)
        elif h5.kind_of(path) == predict.PREDICTIONS_KIND:
            predict.look_at_predictions(path)
        else:
            with reader_of(path)(path) as reader:
                whole_check.verify(reader)
        said = ""
    except HpcgnnError as error:
        said = str(error)
    is_right = (wanted in said and str(path) in said) if wanted else not said
    end = (REFUSED if wanted else RIGHT) if is_right else FAILED
    return Case("versions of formats", name, end, said or ("" if is_right else "accepted"), time.monotonic() - started)


def _later_plan(folder: Path) -> Case:
    """A plan of a later version is not used, but computed again; the rest of the file is read."""
    path = Path(shutil.copy(_DATA / KEPT["parts"][-1], folder / "later-plan.h5"))
    with h5py.File(path, "r+") as file:
        file["plan/hybrid"].attrs["plan_version"] = 99
    with PartsFile(path) as reader:
        found = whole_check.verify(reader)
    answers = ThreadPool(_PARTS).run(border.refused, [path])
    made = plan_store.store_plans(path, ["hybrid"])
    is_right = found["plans_out_of_use"] == ["hybrid"] and answers == [None] * _PARTS and made == ["hybrid"]
    said = "" if is_right else f"{found['plans_out_of_use']}, {answers}, {made}"
    return Case("versions of formats", "a plan of a later version", RIGHT if is_right else FAILED, said)
