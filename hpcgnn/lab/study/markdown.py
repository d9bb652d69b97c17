"""A study's summary as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcgnn.lab.study.groups import NOTHING
from hpcgnn.lab.study.summary import Figure, Series, StudySummary, Table


def page(summary: StudySummary) -> str:
    """The whole summary; pictures become tables of their values."""
    lines = [f"# {summary.name}", ""]
    lines += [f"- {name}: {_plain(value)}" for name, value in summary.facts]
    lines += ["", *(f"> {_plain(note)}" for note in summary.notes), ""] if summary.notes else [""]
    for table in summary.tables:
        lines += [f"## {table.title}", "", *_table(table), "", *_notes(table.notes)]
    for figure in summary.figures:
        lines += [
            f"## {figure.title}",
            "",
            *_table(values := _values(figure)),
            "",
            *_notes((*values.notes, *figure.notes)),
        ]
    return "\n".join(lines).rstrip() + "\n"


_MOST_PLACES, _THINNED_TO = 40, 12


def _table(table: Table) -> list[str]:
    return rows_of_table(table.header, table.rows, table.label_columns)


def rows_of_table(header: Sequence[str], rows: Iterable[Sequence[str]], label_columns: int = 1) -> list[str]:
    """The lines of a table; columns after the first ``label_columns`` are numbers."""
    marks = ["---" if number < label_columns else "--:" for number in range(len(header))]
    return [_row(header), _row(marks), *map(_row, rows)]


def _values(figure: Figure) -> Table:
    measured = [series for series in figure.series if not series.is_reference]
    places = sorted({x for series in measured for x in series.x})
    header = (figure.x_label, *(f"{figure.y_label} ({series.name})" for series in measured))
    if len(places) > _MOST_PLACES:
        step = float(f"{places[-1] / _THINNED_TO:.1g}")
        places = [step * number for number in range(1, int(places[-1] / step) + 1)]
        rows = [(f"{x:g}", *(_last_until(series, x) for series in measured)) for x in places]
        return Table(
            figure.title,
            header,
            tuple(rows),
            ("Each cell has the last point of its line up to this place, as long as the line continues.",),
        )
    found = [dict(zip(series.x, series.y, strict=True)) for series in measured]
    rows = [(f"{x:g}", *(f"{values[x]:.4g}" if x in values else NOTHING for values in found)) for x in places]
    return Table(figure.title, header, tuple(rows))


def _last_until(series: Series, place: float) -> str:
    """The last value of a series up to ``place``; a dash before its first and after its last point."""
    passed = [y for x, y in zip(series.x, series.y, strict=True) if x <= place]
    return f"{passed[-1]:.4g}" if passed and place <= series.x[-1] else NOTHING


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _notes(notes: Iterable[str]) -> list[str]:
    return [line for note in notes for line in (_plain(note), "")]


def _plain(text: str) -> str:
    """The text on one line, with HTML made harmless."""
    return " ".join(text.split()).replace("<", "&lt;")
