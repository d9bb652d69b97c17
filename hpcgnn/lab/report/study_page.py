"""The page of a study: its tables and figures, and the phases of an epoch as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hpcgnn.lab.cost_model.compare import Comparison
from hpcgnn.lab.report import drawing, model_section, phases, projection_section, words
from hpcgnn.lab.report.page import Page, Picture, Section, as_html
from hpcgnn.lab.study.groups import RANKS, Group, Groups
from hpcgnn.lab.study.records import check_folder
from hpcgnn.lab.study.summary import Figure, Series, StudySummary, Table, summarise

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
        sections.append(model_section.section(comparison))
    sections += projection_section.section_of(folder)
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
    timed = [group for group in groups.all if _phase(groups, group, phases.ADDING) > 0]
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
    wholes = [_phase(groups, group, phases.ADDING) for group in chosen]
    scale, unit = phases.unit(max(wholes))
    parts = phases.parts(lambda name: [_phase(groups, group, [name]) for group in chosen], scale)
    draw = partial(drawing.stacked_bars, names, parts, f"{unit} per epoch", x_label)
    told = "; ".join(
        f"{name}: {words.seconds(whole)}, of which waiting {words.seconds(_phase(groups, group, phases.WAITING))}"
        for name, whole, group in zip(names, wholes, chosen, strict=True)
    )
    return Picture(title, draw, f"Stacked bars by {x_label}: {told}.")
