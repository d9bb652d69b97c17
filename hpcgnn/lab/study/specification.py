"""The specification of a study: a TOML file, which is read and checked as a whole before the first run.

::

    name = "bits"
    kind = "strong"                   # train, strong or weak; prepare or bench (hpcgnn/lab/study/runner.py)
    seeds = [0, 1, 2]                 # or repeats = 3, or both

    [axes]                            # runs are the product of all values
    graph = "digits"                  # a source of `hpcgnn convert`, a graph.h5, or a name in [graphs]
    ranks = [1, 2, 4]

    [[configurations]]                # each replaces or adds axes, for studies that are no product
    bits = "32"
    [[configurations]]
    bits = ["2", "adaqp"]
    strategy = "post"

    [settings]                        # for all runs; in place of a whole number, "{seed}" is the seed of each run
    epochs = 50

    [[report.tables]]                 # see hpcgnn/lab/study/specification.py
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.lab.study import axes, measures
from hpcgnn.lab.study.axes import (
    BENCH,
    KINDS,
    PREPARE,
    STRONG,
    WEAK,
    CombinationError,
    GraphSource,
    check_options,
    graph_source,
)
from hpcgnn.lab.study.catalogue import Place, line_of, lines_of, one_line, parsed
from hpcgnn.lab.study.measures import LINE_AXES
from hpcgnn.lab.study.records import short_hash

_TOP = {"name": str, "kind": str, "about": str, "repeats": int, "seeds": list, "axes": dict, "configurations": list,
        "settings": dict, "graphs": dict, "report": dict}  # fmt: skip
_LONGEST_KEY = 100
_GRAPH_WORDS = (axes.PARTS_WORD, axes.GRAPH_WORD)


@dataclass(frozen=True)
class Run:
    """One run: a training, a preparation or a bench, by the study's kind.

    key: identifies the run in records. configuration: the configuration in its record. given: the values of axes that the
    specification gives. graph: its graph; None for a bench without one. flags: flags of ``hpcgnn train``.
    """

    kind: str
    key: str
    configuration: dict[str, Any]
    given: dict[str, Any]
    place: axes.Placement
    graph: GraphSource | None
    flags: tuple[str, ...]

    @property
    def round(self) -> tuple[int, int]:
        """Its repeat and seed. Runs of different configurations with the same repeat and seed are compared as a pair."""
        return self.configuration["repeat"], self.configuration["seed"]


@dataclass(frozen=True)
class Specification:
    """A study. varied: axes with several values, in the order of the file. product: the varied axes that no listed configuration
    names, so that each configuration has all their values. text: the text of the file."""

    name: str
    kind: str
    about: str
    runs: tuple[Run, ...]
    varied: tuple[str, ...]
    product: tuple[str, ...]
    layout: Layout
    text: str
    path: Path


@dataclass(frozen=True)
class _File:
    path: Path
    values: dict[str, Any]
    lines: dict[Place, int]

    def refuse(self, place: Place, sentence: str) -> NoReturn:
        raise HpcgnnError(f"{self.path}, line {line_of(self.lines, place)}: {sentence}")

    def place_of(self, name: str, number: int | None) -> Place:
        """The place in the file that gives the value of an axis in a configuration."""
        if number is not None and name in self.values["configurations"][number]:
            return ("configurations", number, name)
        return next(((table, name) for table in ("axes", "settings") if name in self.values.get(table, {})), ())


def read(path: str | Path) -> Specification:
    """The specification in a TOML file.

    Raises:
        HpcgnnError: one sentence with the line, for unknown names, values of another type, and combinations that cannot run.
    """
    path = Path(path)
    text, values = parsed(path)
    file = _File(path, values, lines_of(text))
    _check_top(file)
    _check_values(file)
    runs = tuple(_runs(file))
    _check_kind(file, runs)
    varied = _varied(run.given for run in runs)
    try:
        layout = read_layout(values.get("report", {}), values["kind"], _recorded_names(runs), varied)
    except axes.CombinationError as error:
        file.refuse(("report", *error.axes), str(error))
    _check_chosen(file, runs)
    about = one_line(values.get("about", ""))
    listed = {name for table in values.get("configurations", []) for name in table}
    product = tuple(name for name in varied if name not in listed)
    return Specification(values["name"], values["kind"], about, runs, varied, product, layout, text, path)


def _check_chosen(file: _File, runs: tuple[Run, ...]) -> None:
    """Refuse a table or a picture that would stay empty because no run has the values that it asks for."""
    for kind, plans in file.values.get("report", {}).items():
        for number, plan in enumerate(plans):
            for name in ("where", "baseline"):
                wanted = {axis: value for axis, value in plan.get(name, {}).items() if axis not in LINE_AXES}
                if not any(axes.matches(run.configuration, wanted) for run in runs):
                    said = ", ".join(f"{axis} {quoted(value)}" for axis, value in wanted.items())
                    file.refuse(("report", kind, number, name), f"{name} chooses no run of this study: none has {said}")


def _recorded_names(runs: tuple[Run, ...]) -> list[str]:
    of_lines = LINE_AXES if any(run.kind in (PREPARE, BENCH) for run in runs) else ()
    return list(dict.fromkeys([*(name for run in runs for name in run.configuration), *of_lines]))


def _check_top(file: _File) -> None:
    for name, value in file.values.items():
        if name not in _TOP:
            file.refuse((name,), f"a specification has no key {name}: its keys are {', '.join(_TOP)}")
        if problem := typed.problem_of(value, _TOP[name]):
            file.refuse((name,), problem.replace("it", name, 1))
    for name in ("name", "kind", "axes"):
        if name not in file.values:
            file.refuse((), f"{name} is missing")
    if file.values["kind"] not in KINDS:
        file.refuse(("kind",), f"kind must be one of {', '.join(KINDS)}, not {file.values['kind']!r}")
    if not re.fullmatch(r"[\w.-]+", file.values["name"]):
        file.refuse(("name",), f"name must be of letters, digits, '-', '_' and '.', not {file.values['name']!r}")
    if file.values.get("repeats", 1) < 1:
        file.refuse(("repeats",), f"repeats must be at least 1, not {file.values['repeats']}")
    seeds = file.values.get("seeds", [0])
    if not seeds or len(set(map(str, seeds))) < len(seeds) or any(type(seed) is not int or seed < 0 for seed in seeds):
        file.refuse(("seeds",), f"seeds must be different whole numbers of at least 0, not {seeds}")


def _check_values(file: _File) -> None:
    """Check each axis by itself: its name, and the type and range of each value."""
    for number, table in enumerate(file.values.get("configurations", [])):
        if not isinstance(table, dict):
            file.refuse(
                ("configurations",), "configurations must be a list of tables: begin each with [[configurations]]"
            )
        _check_table(file, ("configurations", number), table, may_vary=True)
    _check_table(file, ("axes",), file.values["axes"], may_vary=True)
    _check_table(file, ("settings",), file.values.get("settings", {}), may_vary=False)
    for name, options in file.values.get("graphs", {}).items():
        try:
            check_options(name, options)
        except axes.CombinationError as error:
            file.refuse(("graphs", name, *error.axes), str(error))


def _check_table(file: _File, place: Place, table: Mapping[str, Any], *, may_vary: bool) -> None:
    for name, value in table.items():
        if value == []:
            file.refuse((*place, name), f"{name} has no value")
        for each in _listed(value) if may_vary else [value]:
            try:
                axes.check_axis(name, each)
            except HpcgnnError as error:
                file.refuse((*place, name), str(error))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _configurations(values: Mapping[str, Any]) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Each configuration, with the number of the listed one from which it comes; None if none is listed."""
    base = values["axes"]
    listed: list[tuple[int | None, dict[str, Any]]] = [*enumerate(values.get("configurations", []))] or [(None, {})]
    for number, table in listed:
        varied = base | table  # where a table names an axis, its values replace those of [axes]
        for product in itertools.product(*map(_listed, varied.values())):
            yield number, values.get("settings", {}) | dict(zip(varied, product, strict=True))


def _runs(file: _File) -> Iterator[Run]:
    found = list(_configurations(file.values))
    shown = [
        name
        for name in _varied(given for _, given in found)
        if name != "graph" or len({g["graph"] for _, g in found}) > 1
    ]
    rounds = itertools.product(range(file.values.get("repeats", 1)), file.values.get("seeds", [0]))
    seen: dict[str, str] = {}
    for (repeat, seed), (number, given) in itertools.product(list(rounds), found):
        try:
            run = _run(file.values, shown, given, repeat, seed)
        except axes.CombinationError as error:
            places = [place for name in error.axes if (place := file.place_of(name, number))]
            file.refuse(places[0] if places else ("configurations", number or 0), str(error))
        if run.key in seen:
            file.refuse(
                ("configurations", number or 0), f"it gives the same run as another one ({run.key}): leave it out"
            )
        seen[run.key] = run.key
        yield run


def _run(values: Mapping[str, Any], shown: list[str], given: dict[str, Any], repeat: int, seed: int) -> Run:
    kind, where = values["kind"], axes.placement(given)
    axes.check_kind(given, kind)
    axes.check_framework(given, where)
    axes.check_partition(given, where)
    filled = {name: seed if value == axes.SEED_WORD else value for name, value in given.items()}
    config = axes.run_config(filled)
    turn = {"seed": seed, "repeat": repeat}
    configuration = axes.recorded(given, where, config, kind) | turn
    numbers = {name: value for name, value in configuration.items() if type(value) is int}
    has_graph = kind != BENCH or "graph" in given or any(word in given["bench"] for word in _GRAPH_WORDS)
    graph = graph_source(given.get("graph"), values.get("graphs", {}), numbers) if has_graph else None
    words = [f"{name}-{configuration[name]}" for name in shown if name in configuration]
    words += [f"{name}-{value}" for name, value in turn.items() if name == "seed" or value]
    text = re.sub(r"[^\w.-]+", "_", "-".join(words))[:_LONGEST_KEY]
    key = f"{text}-{short_hash([configuration, graph.name if graph else ''])}"
    flags = (*axes.as_flags(filled), "--seed", str(seed))
    return Run(kind, key, configuration, given, where, graph, flags)


def _varied(configurations: Iterator[Mapping[str, Any]] | Any) -> tuple[str, ...]:
    """The axes of which the configurations have different values."""
    found = list(configurations)
    names = list(dict.fromkeys(name for given in found for name in given))
    return tuple(name for name in names if len({str(given.get(name)) for given in found}) > 1)


def _check_kind(file: _File, runs: tuple[Run, ...]) -> None:
    """Check a study of scaling: it needs several numbers of ranks, and graphs that grow with them if weak, or stay if strong."""
    kind = file.values["kind"]
    if kind not in (STRONG, WEAK):
        return
    if len({run.place.ranks for run in runs}) < 2:
        file.refuse(
            ("axes", "ranks"), f"a study of kind {kind} needs several numbers of ranks, such as ranks = [1, 2, 4]"
        )
    grows: dict[str, set[str]] = {}
    of_graphs = [(run.configuration["graph"], run.graph) for run in runs if run.graph is not None]
    for graph, source in of_graphs:
        grows.setdefault(graph, set()).add(source.name)
    for graph, sources in grows.items():
        if kind == WEAK and len(sources) < 2:
            said = (
                f"graph {graph!r} does not grow: a weak study needs a formula, such as rmat:scale={{13 + log2(ranks)}}"
            )
            file.refuse(("axes", "graph"), said)
        if kind == STRONG and "ranks" in " ".join(source.formulas for name, source in of_graphs if name == graph):
            file.refuse(
                ("axes", "graph"),
                f'graph {graph!r} grows with ranks, but strong scaling needs the same graph for all of them: set kind = "weak"',
            )


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
    of_axes = series if given["x"] in measures.PLACES else (given["x"], *series)
    _check_axes(of_axes, place, names)
    if given["x"] not in measures.PLACES:
        _check_figures((given["figure"],), given, place)
    elif given["figure"] not in measures.FIGURES:
        said = f"no epoch has a figure {given['figure']}: there are {', '.join(measures.FIGURES)}"
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
