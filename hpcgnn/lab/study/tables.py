"""Tables and figures as plain data. A table is written as Markdown and in a terminal from one description of its columns; pages
in HTML use the same description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import rich.table
from rich import box

from hpcgnn.cli import console

NOTHING = "-"  # stands for a value that does not exist
_MOST_PLACES, _THINNED_TO = 40, 12


def plain(text: str) -> str:
    """The text on one line, with HTML made harmless."""
    return " ".join(text.split()).replace("<", "&lt;")


@dataclass(frozen=True)
class Table:
    """A table of cells as text. The first ``label_columns`` columns name a row, the others are its figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    label_columns: int = 1

    def markdown(
        self, cell: Callable[[str], str] = lambda text: plain(text).replace("|", "\\|"), right: str = "--:"
    ) -> list[str]:
        """The lines of the table without title and notes. cell: escapes the text of a cell. right: marks a column of figures."""
        marks = ["---" if number < self.label_columns else right for number in range(len(self.header))]
        lines = [[cell(text) for text in self.header], marks, *([cell(text) for text in row] for row in self.rows)]
        return [f"| {' | '.join(line)} |" for line in lines]

    def rich(self) -> rich.table.Table:
        """The table for a terminal, in which an interval is below its value."""
        shown = rich.table.Table(title=self.title or None, title_justify="left", box=box.SIMPLE)
        for number, name in enumerate(self.header):
            shown.add_column(name, justify="left" if number < self.label_columns else "right", overflow="fold")
        for row in self.rows:
            shown.add_row(*(text.replace(" [", "\n[", 1) for text in row))
        return shown

    def show(self) -> None:
        """Print the table on stdout."""
        console.stdout().print(self.rich())


@dataclass(frozen=True)
class Series:
    """A line of a figure. low, high: ends of the intervals at each x; empty if there are none. is_reference: the line is not
    measured, such as ideal scaling."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    is_reference: bool = False


@dataclass(frozen=True)
class Figure:
    """Lines over the same axes; labels include units. x_is_log, y_is_log: whether an axis is logarithmic (with base 2 along
    x)."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_is_log: bool = False
    y_is_log: bool = False
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """The measured values; those of lines with many points at few places."""
        measured = [series for series in self.series if not series.is_reference]
        places = sorted({x for series in measured for x in series.x})
        header, notes = (self.x_label, *(f"{self.y_label} ({series.name})" for series in measured)), self.notes
        if is_thinned := len(places) > _MOST_PLACES:
            step = float(f"{places[-1] / _THINNED_TO:.1g}")
            places = [step * number for number in range(1, int(places[-1] / step) + 1)]
            notes = (
                "Each cell has the last point of its line up to this place, as long as the line continues.",
                *notes,
            )

        def shown(series: Series, place: float) -> str:
            passed = [y for x, y in zip(series.x, series.y, strict=True) if x == place or (is_thinned and x < place)]
            is_over = is_thinned and place > series.x[-1]
            return f"{passed[-1]:.4g}" if passed and not is_over else NOTHING

        rows = [(f"{x:g}", *(shown(series, x) for series in measured)) for x in places]
        return Table(self.title, header, tuple(rows), notes)
