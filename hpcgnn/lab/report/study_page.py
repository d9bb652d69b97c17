"""The page of a study: its tables and figures, and the phases of an epoch as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model import model_file
from hpcgnn.lab.cost_model.compare import Compared, Comparison, compare, error_by
from hpcgnn.lab.cost_model.courses import DECISIONS
from hpcgnn.lab.cost_model.project import STRONG, WEAK
from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.page import Page, Picture, Section, as_html
from hpcgnn.lab.study import records
from hpcgnn.lab.study.groups import RANKS, Group, Groups
from hpcgnn.lab.study.records import check_folder
from hpcgnn.lab.study.summary import StudySummary, choose_machine, summarise
from hpcgnn.lab.study.tables import Figure, Series, Table

# Records of older versions have the medians over epochs only.
_MEANS = ("breakdown_seconds_mean_per_epoch", "breakdown_seconds_mean_median")
_MOST_PICTURES, _MOST_BARS = 8, 24


def study_page(folder: str | Path) -> str:
    """One HTML file about the study that ``hpcgnn study run`` has left in ``folder``.

    Raises:
        HpcgnnError: if the folder holds no study, or nothing has run.
    """
    return as_html(study_of(Path(folder)))


def study_of(folder: Path, summary: StudySummary | None = None, comparison: Comparison | None = None) -> Page:
    """The page of a study. summary: its summary, if that exists already. comparison: a comparison of a cost model's predictions
    with its runs, to add to the page."""
    check_folder(folder)
    summary = summarise(folder) if summary is None else summary
    groups = summary.groups
    notes = summary.notes if groups.all else ("No run has finished yet.", *summary.notes)
    sections = [
        Section("Study", tables=(Table("Configurations and machine", ("", ""), summary.facts, label_columns=2),))
    ]
    if pictures := tuple(picture for figure in summary.figures for picture in _figure(figure)):
        sections.append(Section("Figures", pictures=pictures))
    sections += _breakdown(groups)
    if comparison is not None:
        sections.append(model_section(comparison))
    sections += section_of(folder)
    if summary.tables:
        sections.append(Section("Tables", tables=summary.tables))
    return Page(f"Study {summary.name}", tuple(sections), f"{summary.kind}, in {folder}", notes)


def _figure(figure: Figure) -> list[Picture]:
    """The picture of a figure; several pictures if it has more lines than one can show."""
    measured = [each for each in figure.series if each.x and not each.is_reference]
    ideal = tuple(each for each in figure.series if each.x and each.is_reference)
    if not measured:
        return []
    chunks = [measured[i : i + drawing.MOST_LINES - 1] for i in range(0, len(measured), drawing.MOST_LINES - 1)]
    found = []
    for number, series in enumerate(chunks, start=1):
        title = figure.title if len(chunks) == 1 else f"{figure.title} ({number} of {len(chunks)})"
        drawn = Figure(title, figure.x_label, figure.y_label, (*series, *ideal), figure.x_is_log, figure.y_is_log)
        alt = "; ".join(map(_told, series))
        found.append(
            Picture(title, partial(drawing.lines, drawn), f"{figure.y_label} by {figure.x_label}: {alt}.", figure.notes)
        )
    return found


def _told(series: Series) -> str:
    points = ", ".join(f"{y:.3g} at {x:g}" for x, y in zip(series.x, series.y, strict=True))
    return f"{series.name or 'all'} {points}"


def _breakdown(groups: Groups) -> list[Section]:
    """The mean phases of an epoch: by number of ranks for each configuration if ranks vary, else by configuration."""
    timed = [group for group in groups.all if _phase(groups, group, drawing.ADDING) > 0]
    if not timed:
        return []
    others = groups.left_open(timed, (RANKS,))
    varies = len({group.configuration.get(RANKS) for group in timed}) > 1
    pictures = []
    if varies:
        for label in dict.fromkeys(group.label(others) for group in timed):
            chosen = sorted(
                (each for each in timed if each.label(others) == label), key=lambda each: each.configuration[RANKS]
            )
            named = ", ".join(f"{axis} {value}" for axis, value in zip(others, label, strict=True))
            title = f"An epoch by phase: {named}" if named else "An epoch by phase"
            pictures.append(_stacked(groups, chosen, [str(each.configuration[RANKS]) for each in chosen], title, RANKS))
    else:
        axes = groups.left_open(timed, ())
        names = [", ".join(group.label(axes)) or "all runs" for group in timed[:_MOST_BARS]]
        pictures.append(_stacked(groups, timed[:_MOST_BARS], names, "An epoch by phase", ", ".join(axes)))
    text = [
        "Mean over ranks and over epochs (the median over epochs for records of older versions), median over seeds and repeats. "
        "Wire time overlaps them and is not shown."
    ]
    if len(pictures) > _MOST_PICTURES or (not varies and len(timed) > _MOST_BARS):
        text.append("Not all configurations are drawn; the tables have all of them.")
    return [Section("Time by phase", tuple(text), tuple(pictures[:_MOST_PICTURES]))]


def _phase(groups: Groups, group: Group, names: Sequence[str]) -> float:
    for table in _MEANS:
        estimates = [groups.estimate(group, f"{table}.{name}", {}) for name in names]
        if found := [max(each.value, 0.0) for each in estimates if each is not None]:
            return sum(found)
    return 0.0


def _stacked(groups: Groups, chosen: Sequence[Group], names: Sequence[str], title: str, x_label: str) -> Picture:
    wholes = [_phase(groups, group, drawing.ADDING) for group in chosen]
    scale, unit = words.second_unit(max(wholes))
    parts = drawing.phase_parts(lambda name: [_phase(groups, group, [name]) for group in chosen], scale)
    draw = partial(drawing.stacked_bars, names, parts, f"{unit} per epoch", x_label)
    told = "; ".join(
        f"{name}: {words.seconds(whole)}, of which waiting {words.seconds(_phase(groups, group, drawing.WAITING))}"
        for name, whole, group in zip(names, wholes, chosen, strict=True)
    )
    return Picture(title, draw, f"Stacked bars by {x_label}: {told}.")


_TITLE = "Predicted against measured"
# The axes by whose values a table lists errors, if they vary.
_AXES = ("graph", "ranks", "rate", "ranks_per_node", "model", "hidden", "layers", "strategy", "bits", "staleness",
         "compute", "threads")  # fmt: skip
_MOST_COLOURS = 6


def comparison_with(fitted: Path, folder: Path, machine: str = "") -> Comparison:
    """Compare the cost model in a file with the finished runs of a study.

    machine: as in :func:`hpcgnn.lab.study.summary.summarise`.

    Raises:
        HpcgnnError: if the file holds no cost model, the folder no study, or no run has finished that the model can predict.
    """
    found = records.read(folder)
    return compare(model_file.read(fitted), folder, found, choose_machine(found, machine))


def added(summary: StudySummary, comparison: Comparison | None) -> StudySummary:
    """A summary with the tables of the comparison after its own."""
    return summary if comparison is None else replace(summary, tables=(*summary.tables, *model_tables(comparison)))


def model_section(comparison: Comparison) -> Section:
    """The section of a page, with a picture, a summary and tables."""
    text = (f"{comparison.in_words()}.", *comparison.notes)
    return Section(_TITLE, text, (_agreement(comparison.runs),), model_tables(comparison))


def model_tables(comparison: Comparison) -> tuple[Table, ...]:
    """Errors by configuration, by the values of each axis, and the terms that were extrapolated."""
    axes = _varied(comparison.runs)
    left_out = (
        (f"{len(comparison.left_out)} runs are left out: {comparison.left_out[0]}.",) if comparison.left_out else ()
    )
    rows = tuple(
        (*_axes_of(run, axes), *_errors(run)) for run in sorted(comparison.runs, key=lambda run: -abs(run.error))
    )
    header = (*axes, "measured", "predicted", "error", "spread of epochs")
    notes = (f"{comparison.in_words()}.", *comparison.notes, *left_out)
    by_run = Table(_TITLE, header, rows, notes, len(axes))
    by_axis = tuple(
        (f"{axis} {value}".strip(), str(count), f"{median:.1%}", f"{worst:.1%}")
        for axis in axes
        for value, (count, median, worst) in error_by(comparison.runs, axis).items()
    )
    found = [by_run, Table("Errors of predictions", ("", "runs", "median", "worst"), by_axis)]
    if warnings := comparison.warnings():
        terms = tuple((sentence, str(count)) for sentence, count in warnings.items())
        found.append(Table("Extrapolated terms", ("term", "runs"), terms))
    return tuple(found)


def _varied(runs: Sequence[Compared]) -> list[str]:
    """The axes in which the runs differ."""
    return [axis for axis in _AXES if len({str(run.configuration.get(axis, "")) for run in runs}) > 1]


def _axes_of(run: Compared, axes: Sequence[str]) -> list[str]:
    return [words.plain(run.configuration.get(axis, "")) or "-" for axis in axes]


def _errors(run: Compared) -> tuple[str, ...]:
    return words.seconds(run.measured), words.seconds(run.predicted), f"{run.error:+.1%}", f"{run.spread:.1%}"


def _by(runs: Sequence[Compared], axes: Sequence[str]) -> dict[str, list[Compared]]:
    """Runs grouped by their values of axes, which the keys give in words."""
    found: dict[str, list[Compared]] = {}
    for run in runs:
        name = ", ".join(f"{axis} {value}" for axis, value in zip(axes, _axes_of(run, axes), strict=True))
        found.setdefault(name, []).append(run)
    return found


def _agreement(runs: Sequence[Compared]) -> Picture:
    axes = [axis for axis in ("ranks", "rate") if axis in _varied(runs)]
    points = _by(runs, axes)
    if len(points) > _MOST_COLOURS:
        points = _by(runs, axes[:1])
    series = [
        Series(name or "runs", tuple(run.measured for run in each), tuple(run.predicted for run in each))
        for name, each in points.items()
    ]
    draw = partial(drawing.agreement, series, "measured seconds per epoch", "predicted seconds per epoch")
    told = "; ".join(f"{words.seconds(run.measured)} {run.error:+.0%}" for run in runs)
    notes = ("Points on the line agree; dashed lines mark a relative error of 10 %, and dotted lines one of 20 %.",)
    return Picture(_TITLE, draw, f"Predicted over measured epochs: {told}.", notes)


PROJECTION = "projection.json"
_SCALINGS = {STRONG: "Strong scaling", WEAK: "Weak scaling"}


class Point(msgspec.Struct):
    """A prediction, as ``hpcgnn model project`` writes it; its other fields are not shown."""

    scaling: str
    way: str
    ranks: int
    parts: str
    epoch_seconds: float
    bytes_sent: int
    rows_sent: int
    largest_memory_bytes_of_a_rank: int
    strategy: str
    bits: int | str
    staleness: str
    messages_timed: str = ""
    bits_shares: dict[str, float] = {}
    stale_share: float = 0.0
    sent_share: float = 1.0
    phases_seconds: dict[str, float] = {}
    assumes: list[str] = []
    warnings: list[str] = []


class Projection(msgspec.Struct):
    """The output of ``hpcgnn model project --out PROJECTION.json``. where: nodes and network in words. sources: origin of their
    numbers."""

    model: str
    where: str
    points: list[Point]
    command: str = ""
    sources: list[str] = []
    numbers: dict[str, str] = {}


def read_projection(path: Path) -> Projection:
    """The projection in a file.

    Raises:
        HpcgnnError: if the file holds no projection.
    """
    found = typed.read_json(path, Projection)
    if not found.points:
        raise HpcgnnError(f"{path} has no predictions: make the file with `hpcgnn model project ... --out {path.name}`")
    return found


def section_of(folder: Path) -> tuple[Section, ...]:
    """The section about the projection in a study's folder; empty if there is none."""
    return (projection_section(read_projection(folder / PROJECTION)),) if (folder / PROJECTION).is_file() else ()


def projection_picture(projection: Projection, kind: str = "svg") -> bytes:
    """The picture alone, as the bytes of a file. kind: svg or pdf."""
    return drawing.panels(_scalings(projection.points), kind)


def projection_page(projection: Projection) -> Page:
    """The page of a projection alone."""
    notes = tuple(dict.fromkeys(_general(sentence) for each in projection.points for sentence in each.warnings))
    sections = [projection_section(projection)]
    if projection.numbers:
        rows = tuple(projection.numbers.items())
        table = Table("Source of each number", ("number", "source"), rows, label_columns=2)
        sections.append(Section("Nodes and network", tuple(projection.sources), tables=(table,)))
    subtitle = f"Made with: {projection.command}" if projection.command else ""
    return Page(f"Projection to {projection.where}", tuple(sections), subtitle, notes)


def _general(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:] + "."


def projection_section(projection: Projection) -> Section:
    """The figures of all scalings side by side, the assumptions, and tables."""
    points = projection.points
    figures = _scalings(points)
    alt = "; ".join(f"{figure.title}: {_points_told(figure.series)}" for figure in figures)
    picture = Picture(f"Predicted by {projection.model}", lambda: drawing.panels(figures).decode(), alt)
    assumed = {
        f"{point.way}, {point.ranks:,} ranks ({point.scaling} scaling): the prediction {sentence}."
        for point in points
        for sentence in point.assumes
    }
    text = (
        f"The machine is {projection.where}, described by {projection.model}.",
        "All seconds and memory on this page are predictions by the cost model, and nothing was measured. Rows and bytes are "
        "exact counts of the plans.",
    )
    tables = tuple(_scaling_table(scaling, own) for scaling, own in _by_scaling(points).items())
    folded = (Table("Assumptions", ("assumption",), tuple((each,) for each in sorted(assumed))),) if assumed else ()
    return Section("Projection", text, (picture,), tables, folded)


def _by_scaling(points: Sequence[Point]) -> dict[str, list[Point]]:
    found = {each: [point for point in points if point.scaling == each] for each in _SCALINGS}
    return {scaling: own for scaling, own in found.items() if own}


def _scalings(points: Sequence[Point]) -> list[Figure]:
    return [_scaling(scaling, own) for scaling, own in _by_scaling(points).items()]


def _scaling(scaling: str, points: Sequence[Point]) -> Figure:
    series = []
    for way in dict.fromkeys(point.way for point in points):
        own = sorted((point.ranks, point.epoch_seconds) for point in points if point.way == way)
        ranks, seconds = zip(*own, strict=True)
        series.append(Series(_way_name(way, points), tuple(map(float, ranks)), seconds))
    every = sorted({float(point.ranks) for point in points})
    first = series[0].y[0]
    ideal = tuple(first * every[0] / ranks if scaling == STRONG else first for ranks in every)
    return Figure(
        _SCALINGS[scaling],
        "ranks",
        "seconds per epoch, predicted",
        (*series, Series("ideal", tuple(every), ideal, is_reference=True)),
        x_is_log=True,
        y_is_log=True,
    )


def _way_name(way: str, points: Sequence[Point]) -> str:
    """The name of a way to train, with its strategy and bit-width unless the name has them."""
    first = next(point for point in points if point.way == way)
    bits = f"{first.bits} bits" if isinstance(first.bits, int) else first.bits
    told = f"{first.strategy}, {bits}"
    return way if way.startswith(told) or way == first.bits else f"{way} ({told})"


def _points_told(series: Sequence[Series]) -> str:
    shown = (each for each in series if not each.is_reference)
    return "; ".join(
        f"{each.name} " + ", ".join(f"{y:.3g} s at {x:g}" for x, y in zip(each.x, each.y, strict=True))
        for each in shown
    )


def _scaling_table(scaling: str, points: Sequence[Point]) -> Table:
    first = points[0].way
    seconds = {point.ranks: point.epoch_seconds for point in points if point.way == first}
    rows = tuple(
        (
            f"{point.ranks:,}",
            point.way,
            f"{point.epoch_seconds:.4g}",
            f"{point.phases_seconds.get(DECISIONS, 0.0):.3g}",
            f"{seconds[point.ranks] / point.epoch_seconds:.2f}" if point.ranks in seconds else "-",
            words.size(point.bytes_sent),
            f"{point.rows_sent:,}",
            words.size(point.largest_memory_bytes_of_a_rank),
            Path(point.parts).name,
        )
        for point in points
    )
    header = (
        "ranks",
        "setting",
        "seconds per epoch",
        "of which policy decisions",
        f"speed-up relative to {first}",
        "bytes sent",
        "rows sent",
        "memory of the largest rank",
        "parts",
    )
    return Table(_SCALINGS[scaling], header, rows, label_columns=2)
