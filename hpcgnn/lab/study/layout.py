"""The layout of a study's report: tables and pictures, from ``[[report.tables]]`` and ``[[report.figures]]``, or a default by
kind.

A table has ``rows`` (an axis or several), ``columns`` (an axis) and ``figures`` (hpcgnn/lab/study/measures.py; those that end in
``_ratio`` or ``_difference`` compare runs of the same seed with ``baseline = {axis = value}``). A picture has ``x`` (an axis),
``figure`` and ``series`` (axes). With ``x = "epoch"`` or ``x = "training_seconds"`` it is a curve over epochs
(curves.py), the median over seeds. Both may have a ``title``, ``where = {axis = value}`` to choose configurations,
and ``about``, sentences to show beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcgnn.lab.study import curves, measures
from hpcgnn.lab.study.axes import STRONG, WEAK, CombinationError

_DERIVED = ("hosts", "ranks_per_node")  # these follow from ranks if ranks vary


@dataclass(frozen=True)
class TablePlan:
    """The plan of a table."""

    title: str
    rows: tuple[str, ...]
    columns: str
    figures: tuple[str, ...]
    baseline: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True)
class FigurePlan:
    """The plan of a picture."""

    title: str
    x: str
    figure: str
    series: tuple[str, ...]
    baseline: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    x_is_log: bool = False
    y_is_log: bool = False
    about: str = ""


@dataclass(frozen=True)
class Layout:
    """All tables and pictures of a report."""

    tables: tuple[TablePlan, ...]
    figures: tuple[FigurePlan, ...]


_TABLE = ("title", "rows", "columns", "figures", "baseline", "where", "about")
_FIGURE = ("title", "x", "figure", "series", "baseline", "where", "x_is_log", "y_is_log", "about")


def read_layout(report: Mapping[str, Any], kind: str, names: Collection[str], varied: Sequence[str]) -> Layout:
    """The layout that a specification gives, or else the default of its kind.

    names: names of the axes that configurations have. varied: axes with several values.

    Raises:
        CombinationError: for a layout that is not valid; its ``axes`` are the place within the table ``report``.
    """
    for name in report:
        if name not in ("tables", "figures"):
            raise CombinationError(f"a report has no {name}: it may have tables and figures", name)
        if not isinstance(report[name], list):
            raise _are_tables(name, name)
    tables = tuple(_table(table, number, names) for number, table in enumerate(report.get("tables", [])))
    figures = tuple(_figure(table, number, names) for number, table in enumerate(report.get("figures", [])))
    return Layout(tables or _usual_tables(kind, varied), figures or _usual_figures(kind, varied))


def _table(given: Any, number: int, names: Collection[str]) -> TablePlan:
    place = ("tables", number)
    _check(given, place, _TABLE, ("rows", "figures"))
    rows, figures = _texts(given, "rows", place), _texts(given, "figures", place)
    columns = given.get("columns", "")
    _check_axes([*rows, *filter(None, [columns])], place, names)
    _check_figures(figures, given, place)
    title = given.get("title") or f"By {', '.join(rows)}"
    about = given.get("about", "")
    return TablePlan(title, rows, columns, figures, given.get("baseline", {}), given.get("where", {}), about)


def _figure(given: Any, number: int, names: Collection[str]) -> FigurePlan:
    place: tuple[Any, ...] = ("figures", number)
    _check(given, place, _FIGURE, ("x", "figure"))
    series = _texts(given, "series", place)
    of_axes = series if given["x"] in curves.PLACES else (given["x"], *series)
    _check_axes(of_axes, place, names)
    if given["x"] not in curves.PLACES:
        _check_figures((given["figure"],), given, place)
    elif given["figure"] not in curves.FIGURES:
        said = f"no epoch has a figure {given['figure']}: there are {', '.join(curves.FIGURES)}"
        raise CombinationError(said, *place, "figure")
    title = given.get("title") or f"{measures.label(given['figure'])} by {given['x'].replace('_', ' ')}"
    x_is_log, y_is_log = (bool(given.get(name, False)) for name in ("x_is_log", "y_is_log"))
    baseline, where, about = given.get("baseline", {}), given.get("where", {}), given.get("about", "")
    return FigurePlan(title, given["x"], given["figure"], series, baseline, where, x_is_log, y_is_log, about)


def _are_tables(name: str, *place: Any) -> CombinationError:
    return CombinationError(f"report.{name} must be a list of tables: begin each with [[report.{name}]]", *place)


def _check(given: Any, place: tuple[Any, ...], allowed: Sequence[str], needed: Sequence[str]) -> None:
    if not isinstance(given, dict):
        raise _are_tables(place[0], *place)
    for name in given:
        if name not in allowed:
            raise CombinationError(
                f"report.{place[0]} have no key {name}: their keys are {', '.join(allowed)}", *place, name
            )
    for name in needed:
        if name not in given:
            raise CombinationError(f"{name} is missing", *place)
    for name in ("title", "x", "figure", "columns"):
        if not isinstance(given.get(name, ""), str):
            raise CombinationError(f"{name} must be a text, not {given[name]!r}", *place, name)
    for name in ("baseline", "where"):
        if not isinstance(given.get(name, {}), dict):
            raise CombinationError(f'{name} must be a table such as {{bits = "32"}}', *place, name)
    if not isinstance(given.get("about", ""), str):
        raise CombinationError("about must be a text", *place, "about")


def _texts(given: Mapping[str, Any], name: str, place: tuple[Any, ...]) -> tuple[str, ...]:
    value = given.get(name, [])
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CombinationError(f"{name} must be a name or a list of names, not {value!r}", *place, name)
    return tuple(found)


def _check_axes(axes: Sequence[Any], place: tuple[Any, ...], names: Collection[str]) -> None:
    for name in axes:
        if name not in names:
            raise CombinationError(f"no configuration has the axis {name}: the axes are {', '.join(names)}", *place)


def _check_figures(figures: Sequence[str], given: Mapping[str, Any], place: tuple[Any, ...]) -> None:
    for name in figures:
        if not measures.is_known(name):
            raise CombinationError(f"there is no figure {name}: the figures are {', '.join(measures.known())}", *place)
        if measures.needs_baseline(name) and not given.get("baseline"):
            raise CombinationError(f'{name} needs a baseline, such as baseline = {{bits = "32"}}', *place)


def _usual_tables(kind: str, varied: Sequence[str]) -> tuple[TablePlan, ...]:
    scaling = kind != "train"
    rows = tuple(name for name in varied if not (scaling and name in _DERIVED))
    figures = [measures.SECONDS, "bytes_sent_per_epoch", "peak_memory_bytes_per_rank", "test_metric_at_best_val"]
    speed = {"strong": [measures.SPEED_UP, measures.EFFICIENCY], "weak": [measures.EFFICIENCY]}.get(kind, [])
    return (TablePlan("All configurations", rows or ("graph",), "", (figures[0], *speed, *figures[1:])),)


def _usual_figures(kind: str, varied: Sequence[str]) -> tuple[FigurePlan, ...]:
    if kind not in (STRONG, WEAK):
        return ()
    series = tuple(name for name in varied if name not in ("ranks", *_DERIVED))
    return (
        FigurePlan("Seconds of an epoch", "ranks", measures.SECONDS, series, x_is_log=True, y_is_log=True),
        FigurePlan("Parallel efficiency", "ranks", measures.EFFICIENCY, series, x_is_log=True),
        FigurePlan("Bytes sent in an epoch", "ranks", "bytes_sent_per_epoch", series, x_is_log=True),
    )
