"""Tables and figures of a study as plain data, from which a Markdown file, a terminal and an HTML page show the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of cells as text. The first ``label_columns`` columns name a row, the others are its figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    label_columns: int = 1


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
