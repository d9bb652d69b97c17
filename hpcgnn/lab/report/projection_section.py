"""A projection as figures and tables: on a page of its own, or on that of a study with ``projection.json`` in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.lab.cost_model.courses import DECISIONS
from hpcgnn.lab.cost_model.project import STRONG, WEAK
from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.page import Page, Picture, Section
from hpcgnn.lab.study.shown import Figure, Series, Table

NAME = "projection.json"
_TITLES = {STRONG: "Strong scaling", WEAK: "Weak scaling"}


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
    """The output of ``hpcgnn model project --out NAME.json``. where: nodes and network in words. sources: origin of their
    numbers."""

    model: str
    where: str
    points: list[Point]
    command: str = ""
    sources: list[str] = []
    numbers: dict[str, str] = {}


def read(path: Path) -> Projection:
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
    return (section(read(folder / NAME)),) if (folder / NAME).is_file() else ()


def figure(projection: Projection, kind: str = "svg") -> bytes:
    """The picture alone, as the bytes of a file. kind: svg or pdf."""
    return drawing.panels(_figures(projection.points), kind)


def page(projection: Projection) -> Page:
    """The page of a projection alone."""
    notes = tuple(dict.fromkeys(_general(sentence) for each in projection.points for sentence in each.warnings))
    sections = [section(projection)]
    if projection.numbers:
        rows = tuple(projection.numbers.items())
        table = Table("Source of each number", ("number", "source"), rows, label_columns=2)
        sections.append(Section("Nodes and network", tuple(projection.sources), tables=(table,)))
    subtitle = f"Made with: {projection.command}" if projection.command else ""
    return Page(f"Projection to {projection.where}", tuple(sections), subtitle, notes)


def _general(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:] + "."


def section(projection: Projection) -> Section:
    """The figures of all scalings side by side, the assumptions, and tables."""
    points = projection.points
    figures = _figures(points)
    alt = "; ".join(f"{figure.title}: {_told(figure.series)}" for figure in figures)
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
    tables = tuple(_table(scaling, own) for scaling, own in _by_scaling(points).items())
    folded = (Table("Assumptions", ("assumption",), tuple((each,) for each in sorted(assumed))),) if assumed else ()
    return Section("Projection", text, (picture,), tables, folded)


def _by_scaling(points: Sequence[Point]) -> dict[str, list[Point]]:
    found = {each: [point for point in points if point.scaling == each] for each in _TITLES}
    return {scaling: own for scaling, own in found.items() if own}


def _figures(points: Sequence[Point]) -> list[Figure]:
    return [_figure(scaling, own) for scaling, own in _by_scaling(points).items()]


def _figure(scaling: str, points: Sequence[Point]) -> Figure:
    series = []
    for way in dict.fromkeys(point.way for point in points):
        own = sorted((point.ranks, point.epoch_seconds) for point in points if point.way == way)
        ranks, seconds = zip(*own, strict=True)
        series.append(Series(_name(way, points), tuple(map(float, ranks)), seconds))
    every = sorted({float(point.ranks) for point in points})
    first = series[0].y[0]
    ideal = tuple(first * every[0] / ranks if scaling == STRONG else first for ranks in every)
    return Figure(
        _TITLES[scaling],
        "ranks",
        "seconds per epoch, predicted",
        (*series, Series("ideal", tuple(every), ideal, is_reference=True)),
        x_is_log=True,
        y_is_log=True,
    )


def _name(way: str, points: Sequence[Point]) -> str:
    """The name of a way to train, with its strategy and bit-width unless the name has them."""
    first = next(point for point in points if point.way == way)
    bits = f"{first.bits} bits" if isinstance(first.bits, int) else first.bits
    told = f"{first.strategy}, {bits}"
    return way if way.startswith(told) or way == first.bits else f"{way} ({told})"


def _told(series: Sequence[Series]) -> str:
    shown = (each for each in series if not each.is_reference)
    return "; ".join(
        f"{each.name} " + ", ".join(f"{y:.3g} s at {x:g}" for x, y in zip(each.x, each.y, strict=True))
        for each in shown
    )


def _table(scaling: str, points: Sequence[Point]) -> Table:
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
    return Table(_TITLES[scaling], header, rows, label_columns=2)
