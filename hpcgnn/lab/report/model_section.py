"""The section of a study's report about a cost model: its predictions beside the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hpcgnn.lab.cost_model import model_file
from hpcgnn.lab.cost_model.compare import Compared, Comparison, compare, error_by
from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.page import Picture, Section
from hpcgnn.lab.study import records
from hpcgnn.lab.study.shown import Series, Table
from hpcgnn.lab.study.summary import StudySummary, choose_machine

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
    return summary if comparison is None else replace(summary, tables=(*summary.tables, *tables(comparison)))


def section(comparison: Comparison) -> Section:
    """The section of a page, with a picture, a summary and tables."""
    text = (f"{comparison.in_words()}.", *comparison.notes)
    return Section(_TITLE, text, (_picture(comparison.runs),), tables(comparison))


def tables(comparison: Comparison) -> tuple[Table, ...]:
    """Errors by configuration, by the values of each axis, and the terms that were extrapolated."""
    axes = varied(comparison.runs)
    left_out = (
        (f"{len(comparison.left_out)} runs are left out: {comparison.left_out[0]}.",) if comparison.left_out else ()
    )
    rows = tuple(
        (*_label(run, axes), *_figures(run)) for run in sorted(comparison.runs, key=lambda run: -abs(run.error))
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


def varied(runs: Sequence[Compared]) -> list[str]:
    """The axes in which the runs differ."""
    return [axis for axis in _AXES if len({str(run.configuration.get(axis, "")) for run in runs}) > 1]


def _label(run: Compared, axes: Sequence[str]) -> list[str]:
    return [words.plain(run.configuration.get(axis, "")) or "-" for axis in axes]


def _figures(run: Compared) -> tuple[str, ...]:
    return words.seconds(run.measured), words.seconds(run.predicted), f"{run.error:+.1%}", f"{run.spread:.1%}"


def _by(runs: Sequence[Compared], axes: Sequence[str]) -> dict[str, list[Compared]]:
    """Runs grouped by their values of axes, which the keys give in words."""
    found: dict[str, list[Compared]] = {}
    for run in runs:
        name = ", ".join(f"{axis} {value}" for axis, value in zip(axes, _label(run, axes), strict=True))
        found.setdefault(name, []).append(run)
    return found


def _picture(runs: Sequence[Compared]) -> Picture:
    axes = [axis for axis in ("ranks", "rate") if axis in varied(runs)]
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
