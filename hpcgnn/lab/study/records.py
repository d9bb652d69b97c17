"""The records of a study: ``records.jsonl``, to which every attempt of a run appends lines."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec
from msgspec.structs import replace

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.base.process import processor
from hpcgnn.base.typed import NotNegative
from hpcgnn.train import run_files

RECORDS, SPECIFICATION = "records.jsonl", "study.toml"
STARTED: Final = "started"
FINISHED: Final = "finished"
FAILED: Final = "failed"
# The facts that identify a kind of machine. Nodes of a cluster with the same facts count as one machine; a host's name, its free
# memory and the cores of a job are recorded beside these facts, but do not count.
_OF_ID = ("processor", "architecture", "cores", "gpus")


class Record(msgspec.Struct, kw_only=True, frozen=True):
    """An attempt of a run. key: identifies the configuration with its seed and repeat. configuration: axis -> value. status: a
    killed run stays ``started``. error: one sentence. machine: :func:`machine_facts`. started: ISO 8601, UTC. wall_seconds: of
    the whole command. parts, run: files, relative to the study's folder. summary: ``summary.json`` of the run. epochs: lists by
    name with a number for each epoch of ``metrics.jsonl``. preparation: the output of ``plan`` and ``partition``. A short record
    (``tools/short_records.py``) has few of these fields. Machine, versions and names of ``values``, which are its summary, are
    those of the line before, unless it has its own."""

    key: str
    configuration: dict[str, Any] = {}
    status: Literal["started", "finished", "failed"] = "finished"
    error: str = ""
    machine: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    started: str = ""
    wall_seconds: NotNegative = 0.0
    parts: str = ""
    run: str = ""
    summary: dict[str, Any] = {}
    values: list[Any] = []
    epochs: dict[str, list[Any]] = {}
    preparation: dict[str, Any] = {}

    @property
    def is_finished(self) -> bool:
        """Return whether the run ended successfully."""
        return self.status == FINISHED

    @property
    def machine_id(self) -> str:
        """The short hash of the machine's facts."""
        return str(self.machine.get("id", ""))


class Line(msgspec.Struct):
    """One result of a run that has several."""

    axes: dict[str, str]
    figures: dict[str, Any]


def check_folder(folder: Path) -> None:
    """Raise HpcgnnError if the folder holds neither a study nor a run."""
    if not any((folder / name).is_file() for name in (RECORDS, SPECIFICATION)):
        run_files.check_folder(folder, f" and no study (no {RECORDS})")


def no_study(folder: str | Path) -> HpcgnnError:
    """The error for a folder that belongs to no study."""
    return HpcgnnError(
        f"{folder} is not the folder of a study: make one with `hpcgnn study run SPEC.toml --out {folder}`"
    )


def append(folder: str | Path, record: Record) -> None:
    """Append a line, which is on the disk when this returns. Processes of several hosts may append, if the file system has locks.
    Raises HpcgnnError if the file cannot be written."""
    path = Path(folder) / RECORDS
    # Python's JSON has NaN and infinity, which a loss may be; that of msgspec does not.
    line = json.dumps(msgspec.to_builtins(record)).encode() + b"\n"
    try:
        with path.open("a+b") as stream:
            with contextlib.suppress(OSError):  # a file system without locks, where one process at a time may write
                fcntl.lockf(stream, fcntl.LOCK_EX)
            stream.write((b"\n" if _is_torn(stream) else b"") + line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise HpcgnnError(f"cannot write {path}: {error.strerror}") from error


def _is_torn(stream: BinaryIO) -> bool:
    """Return whether the last line is incomplete because its writer was killed; it then stays a line of its own."""
    if not stream.seek(0, os.SEEK_END):
        return False
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) != b"\n"


def read(folder: str | Path) -> list[Record]:
    """The records of a study's folder, in the order of the runs' first attempts. If several lines have the same key and machine,
    the last one counts, but a finished run stays finished. Lines that are incomplete because their writer was killed are left
    out. Raises HpcgnnError with the line for other damage."""
    path = Path(folder) / RECORDS
    if not path.exists():
        if not Path(folder).is_dir():
            raise no_study(folder)
        return []
    found: dict[tuple[str, str], Record] = {}
    last: Record | None = None
    for number, line in enumerate(typed.text_of(path).splitlines(keepends=True), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):  # incomplete
            continue
        record = typed.validated(value, Record, f"{path}, line {number}")
        if last is not None and not record.machine:
            told = dict(zip(last.summary, record.values, strict=False)) | record.summary
            record = replace(record, machine=last.machine, versions=record.versions or last.versions, summary=told)
        last = record
        typed.validated(record.summary.get("lines", []), list[Line], f"{path}, line {number}, summary.lines")
        place = (record.key, record.machine_id)
        if place not in found or not found[place].is_finished or record.is_finished:
            found[place] = record
    return list(found.values())


def finished_keys(folder: str | Path, machine: str) -> set[str]:
    """The keys of the runs that have finished on the machine with the id ``machine``."""
    return {record.key for record in read(folder) if record.is_finished and record.machine_id == machine}


def by_machine(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by the machine's id; figures of different machines are never mixed."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.machine_id, []).append(record)
    return found


# -- machines ----------------------------------------------------------------------------------------------------------


def machine_facts() -> dict[str, Any]:
    """The facts about this machine, with ``id``, a short hash of those that identify it."""
    # the names of NVIDIA's GPUs, from the driver: torch would take memory of each GPU to answer
    paths = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    gpus = (re.findall(r"^\s*Model\s*:(.*)$", path.read_text(errors="replace"), re.MULTILINE) for path in paths)
    facts: dict[str, Any] = {
        "processor": processor(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "gpus": [name.strip() for names in gpus for name in names],
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
    }
    return facts | {"id": short_hash({name: facts[name] for name in _OF_ID})}


def in_words(facts: Mapping[str, Any]) -> str:
    """A machine in a few words: its processor, number of cores, GPUs and id."""
    gpus = facts.get("gpus") or []
    beside = f", {len(gpus)} x {gpus[0]}" if gpus else ""
    about = f"{facts.get('processor', 'a machine')}, {facts.get('cores', '?')} cores{beside}"
    return f"{about} ({facts.get('id', 'no id')})"


def short_hash(value: Any) -> str:
    """A hash of eight hexadecimal digits of a value that JSON can hold; the order of names does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]
