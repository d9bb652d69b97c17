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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from hpcgnn.base.errors import HpcgnnError, quoted
from hpcgnn.base.typed import MOST_INT, Count
from hpcgnn.lab.study import axes, measures
from hpcgnn.lab.study.axes import BENCH, KINDS, PREPARE, STRONG, WEAK, CombinationError, GraphOptions, GraphSource
from hpcgnn.lab.study.catalogue import Document, Place, one_line
from hpcgnn.lab.study.records import short_hash

_LONGEST_KEY = 100
_DERIVED = ("hosts", "ranks_per_node")  # these follow from ranks if ranks vary


@dataclass(frozen=True)
class Run:
    """One run: a training, a preparation or a bench, by the study's kind. key: identifies the run in records. configuration: that
    of its record. given: the values of axes that the specification gives. graph: None for a bench without one. flags: of ``hpcgnn
    train``."""

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


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a table or a picture of the report, as in the file."""

    title: str = ""
    baseline: dict[str, Any] = {}
    where: dict[str, Any] = {}
    about: str = ""


class TablePlan(Plan, frozen=True, kw_only=True):
    """The plan of a table."""

    rows: tuple[str, ...]
    columns: str = ""
    figures: tuple[str, ...]


class FigurePlan(Plan, frozen=True, kw_only=True):
    """The plan of a picture."""

    x: str
    figure: str
    series: tuple[str, ...] = ()
    x_is_log: bool = False
    y_is_log: bool = False


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


class _Values(msgspec.Struct, kw_only=True):
    """The keys of a specification."""

    name: str
    kind: str
    about: str = ""
    repeats: Annotated[int, msgspec.Meta(ge=1, le=MOST_INT)] = 1
    seeds: tuple[Count, ...] = (0,)
    axes: dict[str, Any]
    configurations: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    graphs: dict[str, GraphOptions] = {}
    report: dict[str, Any] = {}

    def place_of(self, name: str, number: int) -> Place:
        """The place in the file that gives the value of an axis in a configuration."""
        if self.configurations and name in self.configurations[number]:
            return ("configurations", number, name)
        return next(((table, name) for table in ("axes", "settings") if name in getattr(self, table)), ())


def read(path: str | Path) -> Specification:
    """The specification in a TOML file. Raises HpcgnnError, one sentence with the line, for unknown names, values of wrong types,
    and combinations that cannot run."""
    file = Document(Path(path))
    values = file.checked(file.values, _Values, (), "a specification has no key")
    _check_values(file, values)
    runs = tuple(_runs(file, values))
    _check_kind(file, values.kind, runs)
    varied = _varied(run.given for run in runs)
    tables, figures = _report(file, values, runs)
    listed = {name for table in values.configurations for name in table}
    return Specification(
        name=values.name,
        kind=values.kind,
        about=one_line(values.about),
        runs=runs,
        varied=varied,
        product=tuple(name for name in varied if name not in listed),
        tables=tables or _usual_tables(values.kind, varied),
        figures=figures or _usual_figures(values.kind, varied),
        text=file.text,
        path=file.path,
    )


# -- checks of single values -------------------------------------------------------------------------------------------


def _check_values(file: Document, values: _Values) -> None:
    """Check each axis by itself: its name, and the type and range of each value."""
    if values.kind not in KINDS:
        file.refuse(("kind",), f"kind must be one of {', '.join(KINDS)}, not {values.kind!r}")
    if not re.fullmatch(r"[\w.-]+", values.name):
        file.refuse(("name",), f"name must be of letters, digits, '-', '_' and '.', not {values.name!r}")
    if not values.seeds or len(set(values.seeds)) < len(values.seeds):
        file.refuse(("seeds",), f"seeds must be different whole numbers of at least 0, not {[*values.seeds]}")
    for number, table in enumerate(values.configurations):
        _check_table(file, ("configurations", number), table, may_vary=True)
    _check_table(file, ("axes",), values.axes, may_vary=True)
    _check_table(file, ("settings",), values.settings, may_vary=False)
    for name in values.graphs:
        file.checked(file.values["graphs"][name], GraphOptions, ("graphs", name), "graphs have no option")


def _check_table(file: Document, place: Place, table: Mapping[str, Any], *, may_vary: bool) -> None:
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


def _configurations(values: _Values) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each configuration, with the number of the listed one from which it comes."""
    for number, table in enumerate(values.configurations or [{}]):
        varied = values.axes | table  # where a table names an axis, its values replace those of [axes]
        for product in itertools.product(*map(_listed, varied.values())):
            yield number, values.settings | dict(zip(varied, product, strict=True))


def _runs(file: Document, values: _Values) -> Iterator[Run]:
    found = list(_configurations(values))
    has_graphs = len({given.get("graph") for _, given in found}) > 1
    shown = [name for name in _varied(given for _, given in found) if name != "graph" or has_graphs]
    seen = set()
    for repeat, seed, (number, given) in itertools.product(range(values.repeats), values.seeds, found):
        place = ("configurations", number)
        try:
            run = _run(values, shown, given, repeat, seed)
        except CombinationError as error:
            places = [*filter(None, (values.place_of(name, number) for name in error.axes))]
            file.refuse(places[0] if places else place, str(error))
        if run.key in seen:
            file.refuse(place, f"it gives the same run as another one ({run.key}): leave it out")
        seen.add(run.key)
        yield run


def _run(values: _Values, shown: list[str], given: dict[str, Any], repeat: int, seed: int) -> Run:
    kind, where = values.kind, axes.placement(given)
    axes.check_kind(given, kind)
    axes.check_framework(given, where)
    axes.check_partition(given, where)
    filled = {name: seed if value == axes.SEED_WORD else value for name, value in given.items()}
    config = axes.run_config(filled)
    turn = {"seed": seed, "repeat": repeat}
    configuration = axes.recorded(given, where, config, kind) | turn
    numbers = {name: value for name, value in configuration.items() if type(value) is int}
    has_graph = kind != BENCH or "graph" in given or axes.names_files(given["bench"])
    graph = axes.graph_source(given.get("graph"), values.graphs, numbers) if has_graph else None
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


def _check_kind(file: Document, kind: str, runs: tuple[Run, ...]) -> None:
    """Check a study of scaling: it needs several numbers of ranks, and graphs that grow with them if weak, or stay if strong."""
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


def _report(file: Document, values: _Values, runs: tuple[Run, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The plans of tables and of figures."""
    of_lines = measures.LINE_AXES if values.kind in (PREPARE, BENCH) else ()
    names = dict.fromkeys([*(name for run in runs for name in run.configuration), *of_lines])
    kinds: dict[str, type[TablePlan | FigurePlan]] = {"tables": TablePlan, "figures": FigurePlan}
    for name, given in values.report.items():
        if name not in kinds:
            file.refuse(("report", name), f"a report has no {name}: it may have tables and figures")
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            said = f"report.{name} must be a list of tables: begin each with [[report.{name}]]"
            file.refuse(("report", name), said)
    found = {}
    for name, kind in kinds.items():
        places = [("report", name, number) for number in range(len(values.report.get(name, [])))]
        found[name] = tuple(_plan(file, kind, place, runs, names) for place in places)
    return found["tables"], found["figures"]


def _plan(
    file: Document, kind: type[TablePlan | FigurePlan], place: Place, runs: tuple[Run, ...], names: Collection[str]
) -> TablePlan | FigurePlan:
    """The plan at a place in the file. names: names of the axes that configurations have."""
    given = file.values["report"][place[1]][place[2]]
    texts = {name: [given[name]] for name in ("rows", "figures", "series") if isinstance(given.get(name), str)}
    plan = file.checked(given | texts, kind, place, f"report.{place[1]} have no key")
    figures: tuple[str, ...] = ()
    if isinstance(plan, TablePlan):
        chosen, figures = (*plan.rows, *filter(None, [plan.columns])), plan.figures
        title = f"By {', '.join(plan.rows)}"
    else:
        title = f"{measures.label(plan.figure)} by {plan.x.replace('_', ' ')}"
        chosen = plan.series
        if plan.x not in measures.PLACES:
            chosen, figures = (plan.x, *chosen), (plan.figure,)
        elif plan.figure not in measures.FIGURES:
            said = f"no epoch has a figure {plan.figure}: there are {', '.join(measures.FIGURES)}"
            file.refuse((*place, "figure"), said)
    for name in chosen:
        if name not in names:
            file.refuse(place, f"no configuration has the axis {name}: the axes are {', '.join(names)}")
    for name in figures:
        if not measures.is_known(name):
            file.refuse(place, f"there is no figure {name}: the figures are {', '.join(measures.known())}")
        if measures.needs_baseline(name) and not plan.baseline:
            file.refuse(place, f'{name} needs a baseline, such as baseline = {{bits = "32"}}')
    for name, asked in (("where", plan.where), ("baseline", plan.baseline)):
        wanted = {axis: value for axis, value in asked.items() if axis not in measures.LINE_AXES}
        if not any(axes.matches(run.configuration, wanted) for run in runs):
            said = ", ".join(f"{axis} {quoted(value)}" for axis, value in wanted.items())
            file.refuse((*place, name), f"{name} chooses no run of this study: none has {said}")
    return msgspec.structs.replace(plan, title=plan.title or title)


def _usual_tables(kind: str, varied: Sequence[str]) -> tuple[TablePlan, ...]:
    rows = tuple(name for name in varied if kind == "train" or name not in _DERIVED)
    speed = {STRONG: [measures.SPEED_UP, measures.EFFICIENCY], WEAK: [measures.EFFICIENCY]}.get(kind, [])
    others = ("bytes_sent_per_epoch", "peak_memory_bytes_per_rank", "test_metric_at_best_val")
    figures = (measures.SECONDS, *speed, *others)
    return (TablePlan(title="All configurations", rows=rows or ("graph",), figures=figures),)


def _usual_figures(kind: str, varied: Sequence[str]) -> tuple[FigurePlan, ...]:
    if kind not in (STRONG, WEAK):
        return ()
    series = tuple(name for name in varied if name not in ("ranks", *_DERIVED))
    of_titles = {
        "Seconds of an epoch": measures.SECONDS,
        "Parallel efficiency": measures.EFFICIENCY,
        "Bytes sent in an epoch": "bytes_sent_per_epoch",
    }
    return tuple(
        FigurePlan(
            title=title, x="ranks", figure=figure, series=series, x_is_log=True, y_is_log=figure == measures.SECONDS
        )
        for title, figure in of_titles.items()
    )
