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

    [[report.tables]]                 # the tables and pictures of the report; without them, a default by kind

A table has ``rows`` (an axis or several), ``columns`` (an axis) and ``figures`` (hpcgnn/lab/study/measures.py; those that end in
``_ratio`` or ``_difference`` compare runs of the same seed with ``baseline = {axis = value}``). A picture has ``x`` (an axis),
``figure`` and ``series`` (axes). With ``x = "epoch"`` or ``x = "training_seconds"`` it is a curve over epochs, the median over
seeds. Both may have a ``title``, ``where = {axis = value}`` to choose configurations, and ``about``, sentences to show beside it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.lab.study import axes, measures
from hpcgnn.lab.study.axes import BENCH, KINDS, PREPARE, STRONG, WEAK, CombinationError, GraphSource
from hpcgnn.lab.study.catalogue import Place, line_of, lines_of, one_line, parsed
from hpcgnn.lab.study.records import short_hash

_TOP = {"name": str, "kind": str, "about": str, "repeats": int, "seeds": list, "axes": dict, "configurations": list,
        "settings": dict, "graphs": dict, "report": dict}  # fmt: skip
_LONGEST_KEY = 100
_DERIVED = ("hosts", "ranks_per_node")  # these follow from ranks if ranks vary


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
class TablePlan:
    """The plan of a table of the report, as in the file."""

    title: str
    rows: tuple[str, ...]
    columns: str
    figures: tuple[str, ...]
    baseline: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True)
class FigurePlan:
    """The plan of a picture of the report, as in the file."""

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
class Specification:
    """A study. varied: axes with several values, in the order of the file. product: the varied axes that no listed configuration
    names, so that each configuration has all their values. text: the text of the file."""

    name: str
    kind: str
    about: str
    runs: tuple[Run, ...]
    varied: tuple[str, ...]
    product: tuple[str, ...]
    tables: tuple[TablePlan, ...]
    figures: tuple[FigurePlan, ...]
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
    """The specification in a TOML file. Raises HpcgnnError, one sentence with the line, for unknown names, values of wrong types,
    and combinations that cannot run."""
    path = Path(path)
    text, values = parsed(path)
    file = _File(path, values, lines_of(text))
    _check_top(file)
    _check_values(file)
    runs = tuple(_runs(file))
    _check_kind(file, runs)
    varied = _varied(run.given for run in runs)
    of_lines = measures.LINE_AXES if values["kind"] in (PREPARE, BENCH) else ()
    names = dict.fromkeys([*(name for run in runs for name in run.configuration), *of_lines])
    try:
        tables, figures = _report(values.get("report", {}), values["kind"], names, varied)
    except CombinationError as error:
        file.refuse(("report", *error.axes), str(error))
    _check_chosen(file, runs)
    listed = {name for table in values.get("configurations", []) for name in table}
    product = tuple(name for name in varied if name not in listed)
    about = one_line(values.get("about", ""))
    return Specification(values["name"], values["kind"], about, runs, varied, product, tables, figures, text, path)


# -- checks of single values -------------------------------------------------------------------------------------------


def _check_top(file: _File) -> None:
    values = file.values
    for name, value in values.items():
        if name not in _TOP:
            file.refuse((name,), f"a specification has no key {name}: its keys are {', '.join(_TOP)}")
        if problem := typed.why_invalid(value, _TOP[name]):
            file.refuse((name,), problem.replace("it", name, 1))
    for name in ("name", "kind", "axes"):
        if name not in values:
            file.refuse((), f"{name} is missing")
    if values["kind"] not in KINDS:
        file.refuse(("kind",), f"kind must be one of {', '.join(KINDS)}, not {values['kind']!r}")
    if not re.fullmatch(r"[\w.-]+", values["name"]):
        file.refuse(("name",), f"name must be of letters, digits, '-', '_' and '.', not {values['name']!r}")
    if values.get("repeats", 1) < 1:
        file.refuse(("repeats",), f"repeats must be at least 1, not {values['repeats']}")
    seeds = values.get("seeds", [0])
    if not seeds or len(set(map(str, seeds))) < len(seeds) or any(type(seed) is not int or seed < 0 for seed in seeds):
        file.refuse(("seeds",), f"seeds must be different whole numbers of at least 0, not {seeds}")


def _check_values(file: _File) -> None:
    """Check each axis by itself: its name, and the type and range of each value."""
    for number, table in enumerate(file.values.get("configurations", [])):
        if not isinstance(table, dict):
            said = "configurations must be a list of tables: begin each with [[configurations]]"
            file.refuse(("configurations",), said)
        _check_table(file, ("configurations", number), table, may_vary=True)
    _check_table(file, ("axes",), file.values["axes"], may_vary=True)
    _check_table(file, ("settings",), file.values.get("settings", {}), may_vary=False)
    for name, options in file.values.get("graphs", {}).items():
        try:
            axes.check_options(name, options)
        except CombinationError as error:
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


# -- runs --------------------------------------------------------------------------------------------------------------


def _configurations(values: Mapping[str, Any]) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Each configuration, with the number of the listed one from which it comes; None if none is listed."""
    listed: list[tuple[int | None, dict[str, Any]]] = [*enumerate(values.get("configurations", []))] or [(None, {})]
    for number, table in listed:
        varied = values["axes"] | table  # where a table names an axis, its values replace those of [axes]
        for product in itertools.product(*map(_listed, varied.values())):
            yield number, values.get("settings", {}) | dict(zip(varied, product, strict=True))


def _runs(file: _File) -> Iterator[Run]:
    found = list(_configurations(file.values))
    has_graphs = len({given.get("graph") for _, given in found}) > 1
    shown = [name for name in _varied(given for _, given in found) if name != "graph" or has_graphs]
    rounds = itertools.product(range(file.values.get("repeats", 1)), file.values.get("seeds", [0]))
    seen = set()
    for (repeat, seed), (number, given) in itertools.product(rounds, found):
        place = ("configurations", number or 0)
        try:
            run = _run(file.values, shown, given, repeat, seed)
        except CombinationError as error:
            places = [*filter(None, (file.place_of(name, number) for name in error.axes))]
            file.refuse(places[0] if places else place, str(error))
        if run.key in seen:
            file.refuse(place, f"it gives the same run as another one ({run.key}): leave it out")
        seen.add(run.key)
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
    has_graph = kind != BENCH or "graph" in given or axes.names_files(given["bench"])
    graph = axes.graph_source(given.get("graph"), values.get("graphs", {}), numbers) if has_graph else None
    words = [f"{name}-{configuration[name]}" for name in shown if name in configuration]
    words += [f"{name}-{value}" for name, value in turn.items() if name == "seed" or value]
    text = re.sub(r"[^\w.-]+", "_", "-".join(words))[:_LONGEST_KEY]
    key = f"{text}-{short_hash([configuration, graph.name if graph else ''])}"
    return Run(kind, key, configuration, given, where, graph, (*axes.as_flags(filled), "--seed", str(seed)))


def _varied(configurations: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The axes of which the configurations have different values."""
    found = list(configurations)
    names = dict.fromkeys(name for given in found for name in given)
    return tuple(name for name in names if len({str(given.get(name)) for given in found}) > 1)


def _check_kind(file: _File, runs: tuple[Run, ...]) -> None:
    """Check a study of scaling: it needs several numbers of ranks, and graphs that grow with them if weak, or stay if strong."""
    kind = file.values["kind"]
    if kind not in (STRONG, WEAK):
        return
    if len({run.place.ranks for run in runs}) < 2:
        said = f"a study of kind {kind} needs several numbers of ranks, such as ranks = [1, 2, 4]"
        file.refuse(("axes", "ranks"), said)
    found: dict[str, list[GraphSource]] = {}
    for run in runs:
        if run.graph is not None:
            found.setdefault(run.configuration["graph"], []).append(run.graph)
    for graph, sources in found.items():
        if kind == WEAK and len({source.name for source in sources}) < 2:
            said = "does not grow: a weak study needs a formula, such as rmat:scale={13 + log2(ranks)}"
        elif kind == STRONG and "ranks" in " ".join(source.formulas for source in sources):
            said = 'grows with ranks, but strong scaling needs the same graph for all of them: set kind = "weak"'
        else:
            continue
        file.refuse(("axes", "graph"), f"graph {graph!r} {said}")


# -- the report --------------------------------------------------------------------------------------------------------


def _check_chosen(file: _File, runs: tuple[Run, ...]) -> None:
    """Refuse a table or a picture that would stay empty because no run has the values that it asks for."""
    for kind, plans in file.values.get("report", {}).items():
        for (number, plan), name in itertools.product(enumerate(plans), ("where", "baseline")):
            wanted = {axis: value for axis, value in plan.get(name, {}).items() if axis not in measures.LINE_AXES}
            if not any(axes.matches(run.configuration, wanted) for run in runs):
                said = ", ".join(f"{axis} {quoted(value)}" for axis, value in wanted.items())
                file.refuse(("report", kind, number, name), f"{name} chooses no run of this study: none has {said}")


def _report(
    report: Mapping[str, Any], kind: str, names: Collection[str], varied: Sequence[str]
) -> tuple[tuple[TablePlan, ...], tuple[FigurePlan, ...]]:
    """The plans that a specification gives, or else the defaults of its kind.

    names: names of the axes that configurations have. varied: axes with several values. Raises CombinationError for plans that
    are not valid; its ``axes`` are the place within the table ``report``.
    """
    for name in report:
        if name not in ("tables", "figures"):
            raise CombinationError(f"a report has no {name}: it may have tables and figures", name)
        if not isinstance(report[name], list):
            raise _are_tables(name, name)
    tables = tuple(_table(table, ("tables", number), names) for number, table in enumerate(report.get("tables", [])))
    figures = tuple(_figure(each, ("figures", number), names) for number, each in enumerate(report.get("figures", [])))
    return tables or _usual_tables(kind, varied), figures or _usual_figures(kind, varied)


def _table(given: Any, place: Place, names: Collection[str]) -> TablePlan:
    _check(given, place, TablePlan, ("rows", "figures"))
    rows, figures = _texts(given, "rows", place), _texts(given, "figures", place)
    columns = given.get("columns", "")
    _check_axes([*rows, *filter(None, [columns])], place, names)
    _check_figures(figures, given, place)
    title = given.get("title") or f"By {', '.join(rows)}"
    return TablePlan(**given | {"title": title, "rows": rows, "columns": columns, "figures": figures})


def _figure(given: Any, place: Place, names: Collection[str]) -> FigurePlan:
    _check(given, place, FigurePlan, ("x", "figure"))
    x, figure, series = given["x"], given["figure"], _texts(given, "series", place)
    if x in measures.PLACES:
        _check_axes(series, place, names)
        if figure not in measures.FIGURES:
            said = f"no epoch has a figure {figure}: there are {', '.join(measures.FIGURES)}"
            raise CombinationError(said, *place, "figure")
    else:
        _check_axes((x, *series), place, names)
        _check_figures((figure,), given, place)
    title = given.get("title") or f"{measures.label(figure)} by {x.replace('_', ' ')}"
    scales = {name: bool(given.get(name, False)) for name in ("x_is_log", "y_is_log")}
    return FigurePlan(**given | scales | {"title": title, "series": series})


def _are_tables(name: str | int, *place: Any) -> CombinationError:
    return CombinationError(f"report.{name} must be a list of tables: begin each with [[report.{name}]]", *place)


def _check(given: Any, place: Place, plan: type[TablePlan | FigurePlan], needed: Sequence[str]) -> None:
    if not isinstance(given, dict):
        raise _are_tables(place[0], *place)
    allowed = [each.name for each in fields(plan)]
    for name in given:
        if name not in allowed:
            said = f"report.{place[0]} have no key {name}: their keys are {', '.join(allowed)}"
            raise CombinationError(said, *place, name)
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


def _texts(given: Mapping[str, Any], name: str, place: Place) -> tuple[str, ...]:
    value = given.get(name, [])
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CombinationError(f"{name} must be a name or a list of names, not {value!r}", *place, name)
    return tuple(found)


def _check_axes(chosen: Sequence[Any], place: Place, names: Collection[str]) -> None:
    for name in chosen:
        if name not in names:
            raise CombinationError(f"no configuration has the axis {name}: the axes are {', '.join(names)}", *place)


def _check_figures(figures: Sequence[str], given: Mapping[str, Any], place: Place) -> None:
    for name in figures:
        if not measures.is_known(name):
            raise CombinationError(f"there is no figure {name}: the figures are {', '.join(measures.known())}", *place)
        if measures.needs_baseline(name) and not given.get("baseline"):
            raise CombinationError(f'{name} needs a baseline, such as baseline = {{bits = "32"}}', *place)


def _usual_tables(kind: str, varied: Sequence[str]) -> tuple[TablePlan, ...]:
    rows = tuple(name for name in varied if kind == "train" or name not in _DERIVED)
    speed = {STRONG: [measures.SPEED_UP, measures.EFFICIENCY], WEAK: [measures.EFFICIENCY]}.get(kind, [])
    others = ("bytes_sent_per_epoch", "peak_memory_bytes_per_rank", "test_metric_at_best_val")
    return (TablePlan("All configurations", rows or ("graph",), "", (measures.SECONDS, *speed, *others)),)


def _usual_figures(kind: str, varied: Sequence[str]) -> tuple[FigurePlan, ...]:
    if kind not in (STRONG, WEAK):
        return ()
    series = tuple(name for name in varied if name not in ("ranks", *_DERIVED))
    return (
        FigurePlan("Seconds of an epoch", "ranks", measures.SECONDS, series, x_is_log=True, y_is_log=True),
        FigurePlan("Parallel efficiency", "ranks", measures.EFFICIENCY, series, x_is_log=True),
        FigurePlan("Bytes sent in an epoch", "ranks", "bytes_sent_per_epoch", series, x_is_log=True),
    )
