"""The page of a study: its tables and figures, the phases of an epoch as stacked bars, and a cost model's predictions beside the
measurements and projection, which may also have a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model.compare import Compared, Comparison, error_by
from hpcgnn.lab.cost_model.policies import DECISIONS
from hpcgnn.lab.cost_model.predict import STRONG, WEAK
from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.page import Page, Picture, Section
from hpcgnn.lab.study import records
from hpcgnn.lab.study.groups import RANKS, Group, Groups, in_words
from hpcgnn.lab.study.summary import StudySummary, summarise
from hpcgnn.lab.study.tables import Figure, Series, Table

# Records of older versions have the medians over epochs only.
_MEANS = ("breakdown_seconds_mean_per_epoch", "breakdown_seconds_mean_median")
_MOST_PICTURES, _MOST_BARS = 8, 24


def study_of(folder: Path, summary: StudySummary | None = None, comparison: Comparison | None = None) -> Page:
    """The page of the study that ``hpcgnn study run`` has left in ``folder``. summary: its summary, if that exists already.
    comparison: of a cost model's predictions with its runs. Raises HpcgnnError if the folder holds no study."""
    records.check_folder(folder)
    summary = summary or summarise(folder)
    groups = summary.groups
    notes = summary.notes if groups.all else ("No run has finished yet.", *summary.notes)
    facts = Table("Configurations and machine", ("", ""), summary.facts, label_columns=2)
    sections = [Section("Study", tables=(facts,))]
    if pictures := tuple(picture for figure in summary.figures for picture in _figure(figure)):
        sections.append(Section("Figures", pictures=pictures))
    sections += _breakdown(groups)
    sections += [] if comparison is None else [model_section(comparison)]
    sections += section_of(folder)
    sections += [Section("Tables", tables=summary.tables)] if summary.tables else []
    return Page(f"Study {summary.name}", tuple(sections), f"{summary.kind}, in {folder}", notes)


def _figure(figure: Figure) -> list[Picture]:
    """The picture of a figure; several pictures if it has more lines than one can show."""
    measured = [each for each in figure.series if each.x and not each.is_reference]
    ideal = tuple(each for each in figure.series if each.x and each.is_reference)
    if not measured:
        return []
    most = drawing.MOST_LINES - 1
    chunks = [measured[i : i + most] for i in range(0, len(measured), most)]
    found = []
    for number, series in enumerate(chunks, start=1):
        title = figure.title if len(chunks) == 1 else f"{figure.title} ({number} of {len(chunks)})"
        drawn = replace(figure, title=title, series=(*series, *ideal), notes=())
        alt = "; ".join(f"{each.name or 'all'} {_points(each, '{:.3g} at {:g}')}" for each in series)
        alt = f"{figure.y_label} by {figure.x_label}: {alt}."
        found.append(Picture(title, partial(drawing.lines, drawn), alt, figure.notes))
    return found


def _points(series: Series, form: str) -> str:
    return ", ".join(form.format(y, x) for x, y in zip(series.x, series.y, strict=True))


def _breakdown(groups: Groups) -> list[Section]:
    """The mean phases of an epoch: by number of ranks for each configuration if ranks vary, else by configuration."""
    timed = [group for group in groups.all if _phase(groups, group, drawing.ADDING) > 0]
    if not timed:
        return []
    drawn = []
    if varies := len({group.configuration.get(RANKS) for group in timed}) > 1:
        others = groups.left_open(timed, (RANKS,))
        for label in dict.fromkeys(group.label(others) for group in timed):
            alike = [group for group in timed if group.label(others) == label]
            chosen = sorted(alike, key=lambda group: group.configuration[RANKS])
            named = in_words(others, label)
            title = f"An epoch by phase: {named}" if named else "An epoch by phase"
            drawn.append((chosen, [str(group.configuration[RANKS]) for group in chosen], title, RANKS))
    else:
        axes, chosen = groups.left_open(timed, ()), timed[:_MOST_BARS]
        names = [", ".join(group.label(axes)) or "all runs" for group in chosen]
        drawn.append((chosen, names, "An epoch by phase", ", ".join(axes)))
    text = [
        "Mean over ranks and over epochs (the median over epochs for records of older versions), median over seeds and repeats. "
        "Wire time overlaps them and is not shown."
    ]
    if len(drawn) > _MOST_PICTURES or (not varies and len(timed) > _MOST_BARS):
        text.append("Not all configurations are drawn; the tables have all of them.")
    pictures = tuple(_stacked(groups, *each) for each in drawn[:_MOST_PICTURES])
    return [Section("Time by phase", tuple(text), pictures)]


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


# -- predictions of a cost model beside the measurements ---------------------------------------------------------------

_TITLE = "Predicted against measured"
# The axes by whose values a table lists errors, if they vary.
_AXES = ("graph", "ranks", "rate", "ranks_per_node", "model", "hidden", "layers", "strategy", "bits", "staleness",
         "compute", "threads")  # fmt: skip
_MOST_COLOURS = 6


def model_section(comparison: Comparison) -> Section:
    """The section of a page, with a picture, a summary and tables."""
    text = (f"{comparison.in_words()}.", *comparison.notes)
    return Section(_TITLE, text, (_agreement(comparison.runs),), model_tables(comparison))


def model_tables(comparison: Comparison) -> tuple[Table, ...]:
    """Errors by configuration, by the values of each axis, and the terms that were extrapolated."""
    axes = _varied(comparison.runs)
    rows = []
    for run in sorted(comparison.runs, key=lambda run: -abs(run.error)):
        seconds = words.seconds(run.measured), words.seconds(run.predicted)
        rows.append((*_axes_of(run, axes), *seconds, f"{run.error:+.1%}", f"{run.spread:.1%}"))
    header = (*axes, "measured", "predicted", "error", "spread of epochs")
    left_out = [f"{len(comparison.left_out)} runs are left out: {each}." for each in comparison.left_out[:1]]
    notes = (f"{comparison.in_words()}.", *comparison.notes, *left_out)
    by_axis = tuple(
        (f"{axis} {value}".strip(), str(count), f"{median:.1%}", f"{worst:.1%}")
        for axis in axes
        for value, (count, median, worst) in error_by(comparison.runs, axis).items()
    )
    errors = Table("Errors of predictions", ("", "runs", "median", "worst"), by_axis)
    terms = tuple((sentence, str(count)) for sentence, count in comparison.warnings().items())
    extrapolated = (Table("Extrapolated terms", ("term", "runs"), terms),) if terms else ()
    return Table(_TITLE, header, tuple(rows), notes, len(axes)), errors, *extrapolated


def _varied(runs: Sequence[Compared]) -> list[str]:
    """The axes in which the runs differ."""
    return [axis for axis in _AXES if len({str(run.configuration.get(axis, "")) for run in runs}) > 1]


def _axes_of(run: Compared, axes: Sequence[str]) -> list[str]:
    return [words.plain(run.configuration.get(axis, "")) or "-" for axis in axes]


def _by(runs: Sequence[Compared], axes: Sequence[str]) -> dict[str, list[Compared]]:
    """Runs grouped by their values of axes, which the keys give in words."""
    found: dict[str, list[Compared]] = {}
    for run in runs:
        found.setdefault(in_words(axes, _axes_of(run, axes)), []).append(run)
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


# -- projections ---------------------------------------------------------------------------------------------------------

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
    """The projection in a file. Raises HpcgnnError if the file holds none."""
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
    warnings = dict.fromkeys(sentence for each in projection.points for sentence in each.warnings)
    notes = tuple(f"{sentence[0].upper()}{sentence[1:]}." for sentence in warnings)
    sections = [projection_section(projection)]
    if projection.numbers:
        rows = tuple(projection.numbers.items())
        table = Table("Source of each number", ("number", "source"), rows, label_columns=2)
        sections.append(Section("Nodes and network", tuple(projection.sources), tables=(table,)))
    subtitle = f"Made with: {projection.command}" if projection.command else ""
    return Page(f"Projection to {projection.where}", tuple(sections), subtitle, notes)


def projection_section(projection: Projection) -> Section:
    """The figures of all scalings side by side, the assumptions, and tables."""
    points = projection.points
    figures = _scalings(points)
    alt = "; ".join(
        f"{figure.title}: "
        + "; ".join(f"{each.name} {_points(each, '{:.3g} s at {:g}')}" for each in figure.series[:-1])
        for figure in figures
    )
    picture = Picture(f"Predicted by {projection.model}", lambda: drawing.panels(figures).decode(), alt)
    assumed: dict[tuple[str, str], dict[str, None]] = {}
    for point in points:
        for sentence in point.assumes:
            assumed.setdefault((point.way, sentence), {})[point.parts] = None
    text = (
        f"The machine is {projection.where}, described by {projection.model}.",
        "All seconds and memory on this page are predictions by the cost model, and nothing was measured. Rows and bytes are "
        "exact counts of the plans.",
    )
    tables = tuple(_scaling_table(scaling, own) for scaling, own in _by_scaling(points).items())
    rows = tuple((way, ", ".join(parts), sentence) for (way, sentence), parts in sorted(assumed.items()))
    folded = (Table("Assumptions", ("setting", "parts", "the prediction"), rows, label_columns=3),) if rows else ()
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
    lines = (*series, Series("ideal", tuple(every), ideal, is_reference=True))
    y_label = "seconds per epoch, predicted"
    return Figure(_SCALINGS[scaling], "ranks", y_label, lines, x_is_log=True, y_is_log=True)


def _way_name(way: str, points: Sequence[Point]) -> str:
    """The name of a way to train, with its strategy and bit-width unless the name has them."""
    first = next(point for point in points if point.way == way)
    bits = f"{first.bits} bits" if isinstance(first.bits, int) else first.bits
    told = f"{first.strategy}, {bits}"
    return way if way.startswith(told) or way == first.bits else f"{way} ({told})"


def _scaling_table(scaling: str, points: Sequence[Point]) -> Table:
    first = points[0].way
    seconds = {point.ranks: point.epoch_seconds for point in points if point.way == first}
    rows = []
    for point in points:
        speed_up = f"{seconds[point.ranks] / point.epoch_seconds:.2f}" if point.ranks in seconds else "-"
        rows.append((
            f"{point.ranks:,}", point.way, f"{point.epoch_seconds:.4g}", f"{point.phases_seconds.get(DECISIONS, 0.0):.3g}",
            speed_up, words.size(point.bytes_sent), f"{point.rows_sent:,}",
            words.size(point.largest_memory_bytes_of_a_rank), Path(point.parts).name,
        ))  # fmt: skip
    header = ("ranks", "setting", "seconds per epoch", "of which policy decisions", f"speed-up relative to {first}", "bytes sent",
              "rows sent", "memory of the largest rank", "parts")  # fmt: skip
    return Table(_SCALINGS[scaling], header, tuple(rows), label_columns=2)
