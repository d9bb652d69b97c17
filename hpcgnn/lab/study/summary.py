"""The summary of a study's folder: tables and figures of the finished runs of one machine as plain data, from which a Markdown
file, a terminal and an HTML page show the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.study import measures, records, specification
from hpcgnn.lab.study.groups import RANKS, Estimate, Group, Groups, in_words
from hpcgnn.lab.study.records import Record
from hpcgnn.lab.study.specification import STRONG, WEAK, FigurePlan, Specification, TablePlan
from hpcgnn.lab.study.tables import NOTHING, Figure, Series, Table, plain

_FAILURES_SHOWN = 10
_HAS_INTERVALS = (
    "Brackets contain 95 % intervals: of medians by bootstrap, and of ratios and differences by Student's t over pairs."
)


@dataclass(frozen=True)
class StudySummary:
    """The summary of a study. facts: names and values about its specification and machine. notes: sentences about runs that have
    failed or not finished, and about left-out records. groups: groups of the runs in the tables and figures."""

    name: str
    kind: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    groups: Groups

    def markdown(self) -> str:
        """The whole summary as Markdown; pictures become tables of their values."""
        lines = [f"# {self.name}", "", *(f"- {name}: {plain(value)}" for name, value in self.facts)]
        lines += ["", *(f"> {plain(note)}" for note in self.notes), ""] if self.notes else [""]
        for table in (*self.tables, *(figure.table() for figure in self.figures)):
            lines += [f"## {table.title}", "", *table.markdown(), ""]
            lines += [line for note in table.notes for line in (plain(note), "")]
        return "\n".join(lines).rstrip() + "\n"


def read_study(folder: str | Path) -> Specification:
    """The specification of a study's folder. Raises HpcgnnError if the folder belongs to no study."""
    path = Path(folder) / records.SPECIFICATION
    if not path.exists():
        raise records.no_study(folder)
    return specification.read(path)


def choose_machine(found: list[Record], wanted: str = "") -> str:
    """The id of the machine whose records count: the wanted one, else this one, else that with most records. Raises HpcgnnError
    if there are no records, or not exactly one machine is the wanted one."""
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
    """Tables and figures of a study, from the runs that have finished so far. machine: as of :func:`choose_machine`, or its
    beginning. Raises HpcgnnError if the folder belongs to no study, or nothing has run."""
    study, found = read_study(folder), records.read(folder)
    chosen = choose_machine(found, machine)
    own = {record.key: record for record in found if record.machine_id == chosen}
    groups = Groups(study, [record for record in own.values() if record.is_finished])
    return StudySummary(
        name=study.name,
        kind=study.kind,
        facts=tuple(_facts(study, own)),
        tables=tuple(_table(groups, plan) for plan in study.tables if groups.all),
        figures=tuple(_figure(groups, plan) for plan in study.figures if groups.all),
        notes=tuple(_notes(study, found, chosen, own)),
        groups=groups,
    )


def _facts(study: Specification, own: dict[str, Record]) -> list[tuple[str, str]]:
    finished = [record for record in own.values() if record.is_finished]
    done = {record.key for record in finished} & {run.key for run in study.runs}
    last = finished[-1] if finished else next(iter(own.values()))
    versions = sorted({", ".join(f"{name} {value}" for name, value in each.versions.items()) for each in finished})
    return [
        *([("About", study.about)] if study.about else []),
        ("Kind", study.kind),
        ("Runs", f"{len(done)} of {len(study.runs)} have finished"),
        ("Seeds and repeats", str(len({run.round for run in study.runs}))),
        ("Machine", records.in_words(last.machine)),
        ("Versions", "; ".join(versions)),
    ]


def _notes(study: Specification, found: list[Record], chosen: str, own: dict[str, Record]) -> Iterator[str]:
    tried = [own[run.key] for run in study.runs if run.key in own]
    failed = [record for record in tried if record.status == records.FAILED]
    begun, left = sum(record.status == records.STARTED for record in tried), len(study.runs) - len(tried)
    yield from (f"{record.key} failed: {record.error}" for record in failed[:_FAILURES_SHOWN])
    if len(failed) > _FAILURES_SHOWN:
        yield f"{len(failed) - _FAILURES_SHOWN} more runs failed."
    if begun:
        yield f"{begun} runs are under way or were killed: `hpcgnn study run` runs those again."
    if left:
        yield f"{left} runs have not begun."
    for machine, others in records.by_machine(found).items():
        if machine != chosen:
            yield f"{len(others)} records of another machine are left out: {records.in_words(others[-1].machine)}."


# -- tables and figures ------------------------------------------------------------------------------------------------


def _table(groups: Groups, plan: TablePlan) -> Table:
    """The table of a plan; axes that vary and that the plan does not name become columns that name its rows."""
    chosen, across = groups.matching(plan.where), [plan.columns] if plan.columns else []
    axes = (*plan.rows, *groups.left_open(chosen, (*plan.rows, *across)))
    columns = dict.fromkeys(group.label(across) for group in chosen) if across else {(): None}
    cells: dict[tuple[str, ...], dict[tuple[str, ...], Group]] = {}
    for group in chosen:
        cells.setdefault(group.label(axes), {})[group.label(across)] = group
    places = list(itertools.product(columns, plan.figures))
    named = ("".join(f"{plan.columns} {value}: " for value in column) + measures.label(name) for column, name in places)
    rows = []
    for label, found in cells.items():
        row = [*label]
        for column, name in places:
            estimate = groups.estimate(found[column], name, plan.baseline) if column in found else None
            row.append(NOTHING if estimate is None else shown(name, estimate))
        rows.append(tuple(row))
    notes = [plan.about] if plan.about else []
    notes += [_HAS_INTERVALS] if any("[" in cell for row in rows for cell in row[len(axes) :]) else []
    notes += [f"Baseline: {in_words(plan.baseline, plan.baseline.values())}."] if plan.baseline else []
    return Table(plan.title, (*axes, *named), tuple(rows), tuple(notes), len(axes))


def shown(figure: str, found: Estimate) -> str:
    """An estimate as text, with its interval if it has one."""
    text = measures.shown(figure, found.value)
    if found.low is None or found.high is None or found.low == found.high:
        return text
    return f"{text} [{measures.shown(figure, found.low)}, {measures.shown(figure, found.high)}]"


def _figure(groups: Groups, plan: FigurePlan) -> Figure:
    """The picture of a plan, with a line for each combination of varying axes that the plan does not name."""
    chosen, notes = groups.matching(plan.where), [plan.about] if plan.about else []
    if plan.x in measures.PLACES:
        x_label, y_label = plan.x.replace("_", " "), measures.FIGURES[plan.figure]
        series = _curves(groups, chosen, plan)
    else:
        x_label, y_label = plan.x, measures.label(plan.figure).replace(", %", "")
        placed = [(group, x) for group in chosen if (x := _number(group, plan.x)) is not None]
        series = _over_axis(groups, placed, plan)
        if left_out := len(chosen) - len(placed):
            notes.append(f"{left_out} configurations have no number as {plan.x}.")
    return Figure(plan.title, x_label, y_label, tuple(series), plan.x_is_log, plan.y_is_log, tuple(notes))


def _curves(groups: Groups, chosen: list[Group], plan: FigurePlan) -> list[Series]:
    axes = (*plan.series, *groups.left_open(chosen, plan.series))
    curves = [(group, *measures.curve(group.epochs.values(), plan.x, plan.figure)) for group in chosen]
    return [Series(_name(axes, group.label(axes)) or plan.figure, x, y) for group, x, y in curves if x]


def _over_axis(groups: Groups, placed: list[tuple[Group, float]], plan: FigurePlan) -> list[Series]:
    axes = (*plan.series, *groups.left_open([group for group, _ in placed], (plan.x, *plan.series)))
    lines: dict[tuple[str, ...], list[tuple[float, Estimate]]] = {}
    for group, x in placed:
        if (found := groups.estimate(group, plan.figure, plan.baseline)) is not None:
            lines.setdefault(group.label(axes), []).append((x, found))
    series = [_series(_name(axes, label) or plan.x, points) for label, points in lines.items()]
    return series + (_ideal(groups.kind, plan.figure, series[0]) if plan.x == RANKS and series else [])


def _number(group: Group, axis: str) -> float | None:
    try:
        return float(group.configuration.get(axis, ""))
    except (TypeError, ValueError):
        return None


def _name(axes: Sequence[str], label: Sequence[str]) -> str:
    """The name of a line; the values of the axes ``name`` and ``graph`` need no name of the axis."""
    return ", ".join(
        value if axis in ("name", "graph") else f"{axis} {value}" for axis, value in zip(axes, label, strict=True)
    )


def _series(name: str, points: list[tuple[float, Estimate]]) -> Series:
    places, found = zip(*sorted(points, key=lambda point: point[0]), strict=True)
    values = tuple(each.value for each in found)
    if all(each.low is None for each in found):
        return Series(name, places, values)
    low, high = zip(*((each.value,) * 2 if each.low is None else (each.low, each.high) for each in found), strict=True)
    return Series(name, places, values, low, high)


def _ideal(kind: str, of: str, first: Series) -> list[Series]:
    """The line of ideal scaling, from the first point of the line ``first``."""
    start, seconds = first.x[0], first.y[0]
    values = {
        (STRONG, measures.SPEED_UP): [x / start for x in first.x],
        (STRONG, measures.SECONDS): [seconds * start / x for x in first.x],
        (WEAK, measures.SECONDS): [seconds] * len(first.x),
        (kind, measures.EFFICIENCY): [1.0] * len(first.x),
    }.get((kind, of))
    return [Series("ideal", first.x, tuple(values), is_reference=True)] if values else []
