"""Tables and pictures of a study, made from its groups and the layout of its report."""

from __future__ import annotations

from collections.abc import Sequence

from hpcgnn.lab.study import curves, measures
from hpcgnn.lab.study.groups import NOTHING, RANKS, Group, Groups
from hpcgnn.lab.study.layout import FigurePlan, TablePlan
from hpcgnn.lab.study.shown import Figure, Series, Table
from hpcgnn.lab.study.specification import STRONG, WEAK
from hpcgnn.lab.study.statistics import Estimate

_HAS_INTERVALS = (
    "Brackets contain 95 % intervals: of medians by bootstrap, and of ratios and differences by Student's t over pairs."
)


def table(groups: Groups, plan: TablePlan) -> Table:
    """The table of a plan; axes that vary and that the plan does not name become columns that name its rows."""
    chosen = groups.matching(plan.where)
    named = (*plan.rows, *filter(None, [plan.columns]))
    axes = (*plan.rows, *groups.left_open(chosen, named))
    columns = list(dict.fromkeys(group.label([plan.columns])[0] for group in chosen)) if plan.columns else [""]
    cells: dict[tuple[str, ...], dict[str, Group]] = {}
    for group in chosen:
        cells.setdefault(group.label(axes), {})[group.label([plan.columns])[0] if plan.columns else ""] = group
    header = [*axes]
    for column in columns:
        said = f"{plan.columns} {column}: " if plan.columns else ""
        header += [said + measures.label(figure) for figure in plan.figures]
    rows = []
    for label, found in cells.items():
        row = list(label)
        for column in columns:
            row += [_cell(groups, found.get(column), figure, plan) for figure in plan.figures]
        rows.append(tuple(row))
    notes = [plan.about] if plan.about else []
    notes += [_HAS_INTERVALS] if any("[" in cell for row in rows for cell in row[len(axes) :]) else []
    if plan.baseline:
        notes.append("Baseline: " + ", ".join(f"{axis} {value}" for axis, value in plan.baseline.items()) + ".")
    return Table(plan.title, tuple(header), tuple(rows), tuple(notes), len(axes))


def _cell(groups: Groups, group: Group | None, figure: str, plan: TablePlan) -> str:
    found = None if group is None else groups.estimate(group, figure, plan.baseline)
    return NOTHING if found is None else shown(figure, found)


def shown(figure: str, found: Estimate) -> str:
    """An estimate as text, with its interval if it has one."""
    text = measures.shown(figure, found.value)
    if found.low is None or found.high is None or found.low == found.high:
        return text
    return f"{text} [{measures.shown(figure, found.low)}, {measures.shown(figure, found.high)}]"


def figure(groups: Groups, plan: FigurePlan) -> Figure:
    """The picture of a plan; each combination of axes that vary and that the plan does not name is a line of its own. Values
    along x must be numbers."""
    if plan.x in curves.PLACES:
        return _curves(groups, plan)
    chosen = [group for group in groups.matching(plan.where) if _number(group, plan.x) is not None]
    axes = (*plan.series, *groups.left_open(chosen, (plan.x, *plan.series)))
    lines: dict[tuple[str, ...], list[tuple[float, Estimate]]] = {}
    for group in chosen:
        found, x = groups.estimate(group, plan.figure, plan.baseline), _number(group, plan.x)
        if found is not None and x is not None:
            lines.setdefault(group.label(axes), []).append((x, found))
    series = [_series(_name(axes, label) or plan.x, points) for label, points in lines.items()]
    if plan.x == RANKS and series:
        series += _ideal(groups.kind, plan.figure, series[0])
    left_out = len(groups.matching(plan.where)) - len(chosen)
    notes = _said(plan) + ((f"{left_out} configurations have no number as {plan.x}.",) if left_out else ())
    label = measures.label(plan.figure).replace(", %", "")
    return Figure(plan.title, plan.x, label, tuple(series), plan.x_is_log, plan.y_is_log, notes)


def _curves(groups: Groups, plan: FigurePlan) -> Figure:
    chosen = groups.matching(plan.where)
    axes = (*plan.series, *groups.left_open(chosen, plan.series))
    series = []
    for group in chosen:
        x, y = curves.curve(group.epochs.values(), plan.x, plan.figure)
        if x:
            series.append(Series(_name(axes, group.label(axes)) or plan.figure, x, y))
    x_label = plan.x.replace("_", " ")
    label = curves.FIGURES[plan.figure]
    return Figure(plan.title, x_label, label, tuple(series), plan.x_is_log, plan.y_is_log, _said(plan))


def _said(plan: FigurePlan) -> tuple[str, ...]:
    return (plan.about,) if plan.about else ()


def _number(group: Group, axis: str) -> float | None:
    try:
        return float(group.configuration.get(axis, ""))
    except (TypeError, ValueError):
        return None


def _name(axes: Sequence[str], label: Sequence[str]) -> str:
    return ", ".join(
        value if axis in ("name", "graph") else f"{axis} {value}" for axis, value in zip(axes, label, strict=True)
    )


def _series(name: str, points: list[tuple[float, Estimate]]) -> Series:
    points = sorted(points, key=lambda point: point[0])
    has_intervals = any(found.low is not None for _, found in points)
    low = [found.value if found.low is None else found.low for _, found in points] if has_intervals else []
    high = [found.value if found.high is None else found.high for _, found in points] if has_intervals else []
    x, y = [x for x, _ in points], [found.value for _, found in points]
    return Series(name, tuple(x), tuple(y), tuple(low), tuple(high))


def _ideal(kind: str, of: str, first: Series) -> list[Series]:
    """The line of ideal scaling, from the first point of the line ``first``."""
    start, seconds = first.x[0], first.y[0]
    if of == measures.EFFICIENCY:
        values = [1.0 for _ in first.x]
    elif of == measures.SPEED_UP and kind == STRONG:
        values = [x / start for x in first.x]
    elif of == measures.SECONDS and kind in (STRONG, WEAK):
        values = [seconds * start / x if kind == STRONG else seconds for x in first.x]
    else:
        return []
    return [Series("ideal", first.x, tuple(values), is_reference=True)]
