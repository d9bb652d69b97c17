"""The contents of a run folder, for ``hpcgnn show`` and reports. Missing or damaged files become notes."""

from __future__ import annotations

import contextlib
import json
import math
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.train.config import in_words, merit
from hpcgnn.train.rank_report import Ranks
from hpcgnn.train.run_config import CONFIG, RANKS, RECORDS, SUMMARY, as_written, settings_by_name
from hpcgnn.train.run_folder import Record
from hpcgnn.train.summary import mean_of_epochs, policy_failures

_LINES_NAMED = 3


@dataclass(frozen=True)
class Run:
    """A run. records: lines of ``metrics.jsonl``, by epoch. summary: empty if missing. state: whether the run has finished, in
    words. notes: sentences about missing or damaged files."""

    path: Path
    name: str
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    summary: dict[str, Any]
    ranks: Ranks | None
    state: str
    is_finished: bool
    notes: tuple[str, ...] = field(default=())

    def warnings(self) -> tuple[str, ...]:
        """The sentences that a reader must know first: the state of a run that has not finished, failures of its policies, and
        the notes."""
        state = () if self.is_finished else (f"{self.state[0].upper()}{self.state[1:]}.",)
        failures = policy_failures(self.records)
        if failures:
            (epoch, reason), more = failures[0], len(failures) - 1
            others = f", and so in {more} later assignments" if more else ""
            failed = f"All rows had 8 bits from epoch {epoch} to the next assignment, because {reason}{others}."
            return *state, failed, *self.notes
        return *state, *self.notes

    def values(self, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The epochs that have a number called ``name``, and these numbers."""
        found = [(record["epoch"], value) for record in self.records if is_number(value := record.get(name))]
        return tuple(float(epoch) for epoch, _ in found), tuple(float(value) for _, value in found)

    def median(self, name: str) -> float | None:
        """The median over epochs; None if no epoch has the number."""
        values = self.values(name)[1]
        return float(np.median(values)) if values else None

    def mean(self, name: str) -> float | None:
        """The mean over epochs, as in ``summary.json``; None if no epoch has the number."""
        return mean_of_epochs(name, self.values(name)[1])

    def number(self, name: str) -> float | None:
        """A figure of the summary; None if it is missing."""
        value = self.summary.get(name)
        return float(value) if is_number(value) else None

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return str(self.summary.get("metric_name") or self.settings.get("metric") or "metric")

    def in_words(self, value: Any) -> str:
        """A value of the metric; a dash if there is none."""
        return in_words(self.metric, value) if is_number(value) else "-"

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks; None if no file has it."""
        told = self.number("ranks")
        return int(told) if told else self.ranks.ranks if self.ranks else None

    def best(self) -> dict[str, Any] | None:
        """The record with the best validation metric, of equal ones the last, as in training; None if none was measured."""
        measured = [record for record in self.records if is_number(record.get("val_metric"))]
        return max(reversed(measured), key=lambda each: merit(self.metric, each["val_metric"])) if measured else None

    def compared_settings(self) -> list[tuple[str, str, str]]:
        """The settings as (name, value, default)."""
        defaults = {
            name: plain(as_written(each.setting, each.setting.default)) for name, each in settings_by_name().items()
        }
        given = self.settings.items()
        return [(name, plain(value), defaults.get(name, "")) for name, value in given if name != "parts"]


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a finite number, which can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def plain(value: Any, missing: str = "none") -> str:
    """A setting's value, almost as a TOML file has it; ``missing`` for None."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(plain(each, missing) for each in value)
    return missing if value is None else str(value)


def is_run(folder: Path) -> bool:
    """Return whether the folder holds files of a training."""
    return any((folder / name).is_file() for name in (CONFIG, RECORDS, SUMMARY))


def check_folder(folder: Path, other: str = "") -> None:
    """Raise HpcgnnError if the folder holds no run. other: what it does not hold either, for the sentence."""
    if not folder.is_dir():
        what = "it is a file; give its folder" if folder.exists() else "there is no such folder"
        raise HpcgnnError(f"{folder} holds no run: {what}")
    if not is_run(folder):
        runs = sorted(each.name for each in folder.iterdir() if each.is_dir() and is_run(each))
        advice = "give a folder that `hpcgnn train --out` made"
        if runs:
            advice = f"give the runs in it, such as {folder / runs[0]}"
        raise HpcgnnError(f"{folder} holds no run (no {RECORDS}){other}: {advice}")


def read_run(folder: Path, name: str = "") -> Run:
    """The run in a folder. Raises HpcgnnError if the folder holds no run, or cannot be read at all."""
    check_folder(folder)
    notes: list[str] = []
    settings = _settings_in(folder / CONFIG, notes)
    records = _records_in(folder / RECORDS, notes)
    summary = _json_in(folder / SUMMARY, dict[str, Any], notes) or {}
    ranks = _json_in(folder / RANKS, Ranks, notes)
    if ranks is not None and not ranks.is_whole:
        notes.append(f"{RANKS} is left out: its lists do not have the same length")
        ranks = None
    state = _state(folder, settings, records, summary)
    name = name or folder.name or str(folder)
    return Run(folder, name, settings, records, summary, ranks, *state, tuple(notes))


def _settings_in(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        if path.exists():
            values = tomllib.loads(typed.text_of(path, "surrogateescape").encode(errors="replace").decode())
            str(values)  # Python refuses to print a whole number of thousands of digits
            return values
        notes.append(f"there is no {path.name}, so the settings are unknown")
    except (HpcgnnError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read: {error}")
    return {}


def _json_in(path: Path, kind: Any, notes: list[str]) -> Any:
    """The contents of a JSON file as a ``kind``; None if there is no file, or one with other contents."""
    try:
        return typed.read_json(path, kind) if path.exists() else None
    except HpcgnnError as error:
        notes.append(f"{path.name} is left out: {error}")
        return None


def _records_in(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The lines that are records; of several with one epoch, the last one."""
    if not path.exists():
        notes.append(f"there is no {path.name}, so no epoch is known")
        return []
    found: dict[int, dict[str, Any]] = {}
    foreign, repeated = [], 0
    lines = typed.text_of(path, "replace").splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not typed.why_invalid(record, Record):
            repeated += record["epoch"] in found
            found[record["epoch"]] = record
        elif number == len(lines) and not line.endswith("\n"):
            notes.append(
                f"the last line of {path.name} is incomplete (it is being written, or its writer was killed) and is left out"
            )
        elif line.strip():
            foreign.append(number)
    if foreign:
        places = ", ".join(map(str, foreign[:_LINES_NAMED])) + (" and others" if len(foreign) > _LINES_NAMED else "")
        what = f"{len(foreign)} lines are not records of epochs and are"
        if len(foreign) == 1:
            what = "one line is not a record of an epoch and is"
        notes.append(f"{path.name}: {what} left out (line {places})")
    if repeated:
        notes.append(f"{path.name}: {repeated} epochs have several lines, the last of which counts")
    return [found[epoch] for epoch in sorted(found)]


def _state(
    folder: Path, settings: dict[str, Any], records: list[dict[str, Any]], summary: dict[str, Any]
) -> tuple[str, bool]:
    """The state of a run in words, and whether it has finished."""
    wanted, before, reason = settings.get("epochs"), summary.get("epochs"), summary.get("stop_reason")
    done = f"{len(records)} of {wanted} epochs" if is_number(wanted) else f"{len(records)} epochs"
    under_way = f"is still running or was killed, after {done}{_last_written(folder)}"
    if not summary:
        return f"the run has no {SUMMARY}: it {under_way}", False
    if is_number(before) and records and records[-1]["epoch"] + 1 > before:
        return f"the run was resumed after {before} epochs and {under_way}", False
    if summary.get("finished") is False:
        return f"the run was stopped{f' by {reason}' if reason else ''} after {done}: --resume continues it", False
    return f"finished after {done}" + (f", by {reason}" if reason else ""), True


def _last_written(folder: Path) -> str:
    with contextlib.suppress(OSError):
        seconds = (folder / RECORDS).stat().st_mtime
        return time.strftime(", last written %Y-%m-%d %H:%M:%S", time.localtime(seconds))
    return ""
