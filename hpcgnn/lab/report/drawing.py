"""Pictures of reports as SVG, readable in colour, for the colour-blind, and in black and white: the colours are those of Okabe
and Ito, and lines also differ in dashes and markers, bars in hatches. Text stays text, and is never interpreted as
mathematics."""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.lab.report.words import shortened
from hpcgnn.lab.study.tables import Figure, Series
from hpcgnn.train.rank_report import BREAKDOWN

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
_WIDTH, _HEIGHT = 4.7, 3.1  # inches; on a phone, text of 10 points is then 10 pixels high
_MOST_POINTS = 400
_MOST_NAMES = 16  # most bars or ranks of which all are named
MOST_LINES = 12
_SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "hpcgnn", "text.parse_math": False,
    "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "font.size": 10, "axes.labelsize": 10, "legend.fontsize": 9.5, "xtick.labelsize": 9.5, "ytick.labelsize": 9.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#dddddd", "grid.linewidth": 0.6, "hatch.linewidth": 0.7,
    "axes.formatter.useoffset": False, "axes.formatter.limits": (-4, 6),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One part of stacked bars, or one of several bars side by side, with a value for each bar. name: shown in the legend, unless
    it begins with an underscore."""

    name: str
    values: Sequence[float]
    colour: str
    hatch: str = ""


def lines(figure: Figure) -> str:
    """Lines over the same axes; at most :data:`MOST_LINES` are drawn."""

    def draw(axes: Any) -> None:
        _shape_lines(axes, figure)
        if len(figure.series) > 1 or figure.series[0].is_reference:
            _legend(axes)

    return _drawn(draw)


def panels(figures: Sequence[Figure], kind: str = "svg") -> bytes:
    """Several figures with the same lines side by side, with a common vertical axis and one legend. kind: svg or pdf."""
    with _canvas(_WIDTH * len(figures), _HEIGHT + 0.4) as picture:
        beside = picture.subplots(1, len(figures), sharey=True, squeeze=False)[0]
        for axes, figure in zip(beside, figures, strict=True):
            _shape_lines(axes, figure)
            axes.set_title(figure.title, fontsize=10)
            axes.label_outer()
        _legend(beside[0], most_columns=3 * len(figures))
        return _saved(picture, kind)


def thinned(x: Sequence[float], y: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At most some hundred of the points, at even distances, including the last one."""
    step = -(-len(x) // _MOST_POINTS) if x else 1
    chosen = range((len(x) - 1) % step if x else 0, len(x), step)
    return tuple(x[i] for i in chosen), tuple(y[i] for i in chosen)


def stacked_bars(
    names: Sequence[str], parts: Sequence[Part], y_label: str, x_label: str = "", mean: float | None = None
) -> str:
    """One vertical bar for each name, made of stacked parts; with ``mean``, a line at that height."""

    def draw(axes: Any) -> None:
        places, bottom = np.arange(len(names)), np.zeros(len(names))
        thickness = {"width": 0.8, "linewidth": 0.6}
        if len(names) > 2 * _MOST_NAMES:  # no borders, which would hide the colours of many bars
            thickness = {"width": 1.0, "linewidth": 0.0}
        for part in parts:
            axes.bar(places, part.values, bottom=bottom, label=part.name, **_look(part), **thickness)
            bottom += np.asarray(part.values, float)
        if mean is not None:
            axes.axhline(mean, color="black", linestyle=(0, (5, 2)), linewidth=1.2, label="mean")
        ticks = _ticks(len(names))
        axes.set_xticks(ticks, [shortened(names[i], 18) for i in ticks], rotation=_rotation(names, ticks))
        axes.set(xlabel=x_label, ylabel=_wrapped(y_label))
        axes.grid(visible=False, axis="x")
        _legend(axes)

    return _drawn(draw)


def bars_beside(
    names: Sequence[str], parts: Sequence[Part], value_label: str, shown: Callable[[float], str] | None = None
) -> str:
    """Horizontal bars: for each name, one bar for each part. shown: gives the text to write after a bar."""

    def draw(axes: Any) -> None:
        thickness = 0.8 / len(parts)
        for number, part in enumerate(parts):
            places = np.arange(len(names)) + (number - (len(parts) - 1) / 2) * thickness
            bars = axes.barh(places, part.values, thickness, label=part.name, linewidth=0.6, **_look(part))
            if shown is not None:
                axes.bar_label(bars, [shown(value) for value in part.values], padding=3, fontsize=8.5)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel(value_label)
        axes.margins(x=0.18 if shown is not None else 0.05)
        axes.grid(visible=False, axis="y")
        if len(parts) > 1:
            _legend(axes)

    return _drawn(draw, height=max(_HEIGHT, 0.8 + 0.25 * len(names) * len(parts)))


def agreement(series: Sequence[Series], x_label: str, y_label: str, shares: Sequence[float] = (0.1, 0.2)) -> str:
    """Points over two logarithmic axes of the same quantity, the line on which both are equal, and lines at relative distances
    ``shares`` from it."""

    def draw(axes: Any) -> None:
        places = [place for each in series for place in (*each.x, *each.y)]
        ends = np.array([min(places) / 1.3, max(places) * 1.3])
        axes.plot(ends, ends, color="#555555", linewidth=1.0, zorder=1)
        for share, dashes in zip(shares, ((0, (5, 2)), (0, (1, 2))), strict=False):
            for factor in (1 + share, 1 - share):
                axes.plot(ends, factor * ends, color="#555555", linestyle=dashes, linewidth=0.9, zorder=1)
        for number, each in enumerate(series[:MOST_LINES]):
            look = {"color": COLOURS[number % len(COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
            axes.plot(each.x, each.y, linestyle="", markersize=5, alpha=0.85, label=shortened(each.name), **look)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=x_label, ylabel=_wrapped(y_label))
        for axis in (axes.xaxis, axes.yaxis):
            _name_decades(axis, float(ends[1] / ends[0]))
        _legend(axes)

    return _drawn(draw, height=4.2)


def _name_decades(axis: Any, extent: float) -> None:
    """Label a logarithmic axis with plain numbers, at 1, 2 and 5 unless it is long; matplotlib's own labels are mathematics."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if extent < 1000 else (1,), numticks=12))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def heat_map(values: np.ndarray, names: Sequence[str], unit: str) -> str:
    """A heat map of ``values`` (B, B), from the rank of the row to that of the column; 0 is white, and the largest value dark."""

    def draw(axes: Any) -> None:
        shown = np.ma.masked_equal(values, 0)
        most = max(float(values.max()), 1e-300)
        image = axes.imshow(shown, cmap="cividis_r", vmin=0, vmax=most, interpolation="none", aspect="equal")
        axes.grid(visible=False)
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
        ticks = _ticks(len(names))
        axes.set_xticks(ticks, [names[i] for i in ticks], rotation=_rotation(names, ticks))
        axes.set_yticks(ticks, [names[i] for i in ticks])
        axes.set(xlabel="to rank", ylabel="from rank")
        if len(names) <= 8:
            for (i, j), value in np.ndenumerate(values):
                colour = "white" if value > 0.5 * most else "black"
                axes.text(j, i, f"{value:.3g}" if value else "0", ha="center", va="center", color=colour, fontsize=9)
        axes.figure.colorbar(image, ax=axes, label=unit, shrink=0.85)

    return _drawn(draw, height=3.9)


# -- the phases of an epoch, which look the same in all pictures ----------------------------------------------------------

WIRE = "wire_seconds"  # overlaps with the other phases, and is not part of their sum
WAITING = ("communication_wait_seconds", "synchronisation_seconds", "imbalance_seconds")
PHASES = {name: name.removesuffix("_seconds").replace("_", " ") for name in BREAKDOWN[1:]}
ADDING = tuple(name for name in PHASES if name != WIRE)
_OTHER = ("#d9d9d9", "")
_LOOKS = {
    "aggregation_seconds": ("#0072b2", ""),
    "communication_wait_seconds": ("#d55e00", "//"),
    "quantization_seconds": ("#56b4e9", ".."),
    "synchronisation_seconds": ("#f0e442", "xx"),
    "policy_seconds": ("#cc79a7", "\\\\"),
    "imbalance_seconds": ("#009e73", "--"),
}


def phase_parts(values: Callable[[str], Sequence[float]], scale: float) -> list[Part]:
    """The parts of stacked bars: the phases that take time, times ``scale``. values: returns the seconds of a phase in each
    bar."""
    found = [(name, [scale * max(value, 0.0) for value in values(name)]) for name in ADDING]
    return [Part(PHASES[name], each, *_LOOKS.get(name, _OTHER)) for name, each in found if any(each)]


# -- one picture -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _canvas(width: float, height: float) -> Iterator[Any]:
    """An empty figure of matplotlib, imported late because the import takes longer than all others."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    with rc_context(_SETTINGS):
        yield Canvas(figsize=(width, height), layout="constrained")


def _drawn(draw: Callable[[Any], None], *, height: float = _HEIGHT) -> str:
    with _canvas(_WIDTH, height) as picture:
        draw(picture.add_subplot())
        return _saved(picture, "svg").decode()


def _saved(picture: Any, kind: str) -> bytes:
    """The file of a picture, without metadata that differ each time it is made."""
    stream = io.BytesIO()
    names = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Creator", "Producer", "CreationDate")
    picture.savefig(stream, format=kind, metadata=dict.fromkeys(names), facecolor="white")
    return stream.getvalue()


def _shape_lines(axes: Any, figure: Figure) -> None:
    for number, series in enumerate(figure.series[:MOST_LINES]):
        _draw_series(axes, series, number)
    if figure.x_is_log:
        places = sorted({place for series in figure.series for place in series.x if place > 0})
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.set_xticks(places[:: -(-len(places) // 10)] if places else [])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif all(float(place).is_integer() for series in figure.series for place in series.x):
        axes.xaxis.get_major_locator().set_params(integer=True)
    _shape_y(axes, figure)
    axes.set(xlabel=figure.x_label, ylabel=_wrapped(figure.y_label))


def _shape_y(axes: Any, figure: Figure) -> None:
    """Set the scale and the labels of the vertical axis."""
    from matplotlib.ticker import EngFormatter

    if figure.y_is_log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        _name_decades(axes.yaxis, high / low)
    most = max((abs(value) for series in figure.series for value in series.y), default=0.0)
    if most >= 1e4:
        axes.yaxis.set_major_formatter(EngFormatter(sep=" "))


def _draw_series(axes: Any, series: Series, number: int) -> None:
    name = shortened(series.name)
    if series.is_reference:
        axes.plot(series.x, series.y, color="#555555", linestyle=(0, (1, 2)), linewidth=1.5, label=name)
        return
    colour, every = COLOURS[number % len(COLOURS)], max(len(series.x) // 10, 1)
    # Markers are at different places in each line, because lines often lie on each other.
    first = min(number * max(every // 4, 1), len(series.x) - 1)
    axes.plot(
        series.x, series.y, color=colour, linestyle=_DASHES[number % len(_DASHES)], linewidth=1.7, label=name,
        marker=_MARKERS[number % len(_MARKERS)], markersize=5, markevery=(first, every) if len(series.x) > 20 else None,
    )  # fmt: skip
    if series.low and series.high:
        axes.vlines(series.x, series.low, series.high, color=colour, linewidth=1.2)


def _look(part: Part) -> Mapping[str, Any]:
    return {"color": part.colour, "hatch": part.hatch, "edgecolor": "#333333"}


def _legend(axes: Any, most_columns: int = 3) -> None:
    """Draw the legend below the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    columns = most_columns // 3 * (1 if max(map(len, labels)) > 22 else 2 if max(map(len, labels)) > 12 else 3)
    figure = axes.figure
    figure.set_figheight(figure.get_figheight() + 0.22 * (-(-len(labels) // columns) - 1))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False, handlelength=2.8
    )


def _wrapped(label: str) -> str:
    """A label broken into lines that fit beside an axis."""
    return "\n".join(textwrap.wrap(label, 34))


def _ticks(count: int) -> range:
    return range(0, count, -(-count // _MOST_NAMES))


def _rotation(names: Sequence[str], ticks: Iterable[int]) -> int:
    return 90 if sum(len(names[i]) + 1 for i in ticks) > 40 else 0
