"""The summary of a study's folder: tables and figures of the finished runs of one machine as plain data, from which a Markdown
file, a terminal and an HTML page show the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study import records, specification, tables
from hpcgnn.lab.study.groups import Groups
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.shown import Figure, Series, Table
from hpcgnn.lab.study.specification import Specification

__all__ = ["Figure", "Series", "StudySummary", "Table", "finished_groups", "read_study", "summarise"]
_FAILURES_SHOWN = 10


@dataclass(frozen=True)
class StudySummary:
    """The summary of a study.

    facts: names and values, in order, about its specification and machine. notes: sentences about runs that failed or have not
    finished, and about left-out records of other machines. groups: groups of the runs in the tables and figures.
    """

    name: str
    kind: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    groups: Groups


def read_study(folder: str | Path) -> Specification:
    """The specification of a study's folder. Raises HpcgnnError if the folder belongs to no study."""
    path = Path(folder) / records.SPECIFICATION
    if not path.exists():
        raise HpcgnnError(
            f"{folder} is not the folder of a study: make one with `hpcgnn study run SPEC.toml --out {folder}`"
        )
    return specification.read(path)


def choose_machine(found: list[Record], wanted: str = "") -> str:
    """The id of the machine whose records count: the wanted one, else this one, else the one with most records.

    Raises:
        HpcgnnError: if there are no records, or not exactly one machine is the wanted one.
    """
    machines = records.by_machine(found)
    if not machines:
        raise HpcgnnError("no run has finished yet")
    if wanted:
        matching = [machine for machine in machines if machine.startswith(wanted)]
        if len(matching) != 1:
            raise HpcgnnError(f"the records have no single machine {wanted}: their machines are {', '.join(machines)}")
        return matching[0]
    here = records.machine_facts()["id"]
    return here if here in machines else max(machines, key=lambda machine: len(machines[machine]))


def finished_groups(folder: str | Path, machine: str = "") -> Groups:
    """The groups of a study's finished runs on one machine. Raises HpcgnnError as :func:`choose_machine` does."""
    study, found = read_study(folder), records.read(folder)
    chosen = choose_machine(found, machine)
    return Groups(study, [record for record in found if record.machine_id == chosen and record.is_finished])


def summarise(folder: str | Path, machine: str = "") -> StudySummary:
    """Tables and figures of a study, from the runs that have finished so far.

    machine: the id, or its beginning, of the machine whose records count; empty for this one, or else the one with most records.

    Raises:
        HpcgnnError: if the folder belongs to no study, or nothing has run.
    """
    study, found = read_study(folder), records.read(folder)
    chosen = choose_machine(found, machine)
    own = {record.key: record for record in found if record.machine_id == chosen}
    groups = Groups(study, [record for record in own.values() if record.is_finished])
    return StudySummary(
        name=study.name,
        kind=study.kind,
        facts=tuple(_facts(study, own)),
        tables=tuple(tables.table(groups, plan) for plan in study.layout.tables) if groups.all else (),
        figures=tuple(tables.figure(groups, plan) for plan in study.layout.figures) if groups.all else (),
        notes=(*_of_runs(study, own), *_of_machines(found, chosen)),
        groups=groups,
    )


def _facts(study: Specification, own: dict[str, Record]) -> list[tuple[str, str]]:
    done = sum(run.key in own and own[run.key].is_finished for run in study.runs)
    finished = [record for record in own.values() if record.is_finished]
    last = finished[-1] if finished else next(iter(own.values()))
    versions = sorted({", ".join(f"{name} {value}" for name, value in each.versions.items()) for each in finished})
    facts = [("About", study.about)] if study.about else []
    return [
        *facts,
        ("Kind", study.kind),
        ("Runs", f"{done} of {len(study.runs)} have finished"),
        ("Seeds and repeats", str(len({run.round for run in study.runs}))),
        ("Machine", records.in_words(last.machine)),
        ("Versions", "; ".join(versions)),
    ]


def _of_runs(study: Specification, own: dict[str, Record]) -> list[str]:
    states = Counter(own[run.key].status if run.key in own else "" for run in study.runs)
    failed = [own[run.key] for run in study.runs if run.key in own and own[run.key].status == records.FAILED]
    notes = [f"{record.key} failed: {record.error}" for record in failed[:_FAILURES_SHOWN]]
    if len(failed) > _FAILURES_SHOWN:
        notes.append(f"{len(failed) - _FAILURES_SHOWN} more runs failed.")
    if states[records.STARTED]:
        notes.append(
            f"{states[records.STARTED]} runs are under way or were killed: `hpcgnn study run` runs those again."
        )
    if states[""]:
        notes.append(f"{states['']} runs have not begun.")
    return notes


def _of_machines(found: list[Record], chosen: str) -> list[str]:
    return [
        f"{len(others)} records of another machine are left out: {records.in_words(others[-1].machine)}."
        for machine, others in records.by_machine(found).items()
        if machine != chosen
    ]
