"""Curves of a run over its epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.page import Picture, Section
from hpcgnn.lab.report.phases import unit
from hpcgnn.lab.study.summary import Figure, Series
from hpcgnn.train.run_files import Run, is_number
from hpcgnn.train.summary import mean_bits

_METRICS = {"training": "train_metric", "validation": "val_metric", "test": "test_metric"}


def curves(run: Run) -> Section:
    """Curves of loss, metrics and seconds, and of the bit-widths and ages of rows if these change."""
    text, pictures = [], []
    loss = _series("loss", *run.values("loss"))
    pictures += _picture("Loss", "loss", (loss,), lambda value: f"{value:.4g}")
    metrics = [_series(name, *run.values(key), scale=100) for name, key in _METRICS.items()]
    pictures += _picture(f"Metric: {run.metric}", f"{run.metric} in %", metrics, lambda value: f"{value:.2f} %")
    scale, name = unit(run.median("seconds") or 0)
    seconds = [
        _series("slowest rank", *run.values("seconds"), scale),
        _series("mean over ranks", *run.values("seconds_mean"), scale),
    ]
    pictures += _picture("Seconds per epoch", f"{name} per epoch", seconds, lambda value: f"{value:.3g} {name}")
    bits = _by_exchange(run, lambda record: mean_bits(record.get("bits", {})), without="all rows")
    if is_constant := len({value for series in bits for value in series.y}) <= 1:
        told = {value for series in bits for value in series.y}
        text += [f"All rows have {each:g} bits per value." for each in told]
    if bits and not is_constant:
        pictures += _picture("Mean bit-width over rows", "bits", bits, lambda value: f"{value:.3g}")
    ages = _by_exchange(run, lambda record: record.get("stale_epochs", {}))
    if any(value for series in ages for value in series.y):
        pictures += _picture("Age of the rows that are used", "epochs", ages, lambda value: f"{value:g}")
    if any(len(run.records) > len(series.x) for series in (loss,)) and len(run.records) > 400:
        text.append(f"Of {len(run.records)} epochs, about every {-(-len(run.records) // 400)}th one is drawn.")
    return Section("Curves", tuple(text), tuple(pictures))


def _series(name: str, x: Sequence[float], y: Sequence[float], scale: float = 1) -> Series:
    x, y = drawing.thinned(x, y)
    return Series(name, tuple(x), tuple(scale * value for value in y))


def _by_exchange(run: Run, values: Callable[[dict[str, Any]], dict[str, Any]], without: str = "") -> list[Series]:
    """A series for each name in any epoch; ``without`` is left out if there are other names."""
    found: dict[str, list[tuple[float, float]]] = {}
    for record in run.records:
        for name, value in values(record).items():
            if is_number(value):
                found.setdefault(name, []).append((record["epoch"], value))
    if len(found) > 1:
        found.pop(without, None)
    return [_series(name, [x for x, _ in points], [y for _, y in points]) for name, points in sorted(found.items())]


def _picture(title: str, y_label: str, series: Sequence[Series], in_words: Callable[[float], str]) -> list[Picture]:
    """A picture of the series that have points; an empty list if none has."""
    drawn = tuple(each for each in series if each.y)
    if not drawn:
        return []
    alt = "; ".join(
        f"{each.name} from {in_words(each.y[0])} to {in_words(each.y[-1])}" for each in drawn[: drawing.MOST_LINES]
    )
    left_out = len(drawn) - drawing.MOST_LINES
    notes = (f"{left_out} more are not drawn.",) if left_out > 0 else ()
    return [Picture(title, partial(drawing.lines, Figure(title, "epoch", y_label, drawn)), f"By epoch: {alt}.", notes)]


def overlaid(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> list[Picture]:
    """A picture of series of several runs, over any axis; an empty list if none has points."""
    drawn = tuple(_series(each.name, each.x, each.y) for each in series if each.y)
    if not drawn:
        return []
    alt = "; ".join(f"{words.shortened(each.name)} ends at {each.y[-1]:.4g}" for each in drawn[: drawing.MOST_LINES])
    left_out = len(drawn) - drawing.MOST_LINES
    notes = (f"{left_out} more are not drawn.",) if left_out > 0 else ()
    return [Picture(title, partial(drawing.lines, Figure(title, x_label, y_label, drawn)), f"{x_label}: {alt}.", notes)]
