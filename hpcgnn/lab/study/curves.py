"""Curves over the epochs of trainings: medians over the runs of a configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcgnn.train.summary import mean_bits

EPOCH, TRAINING_SECONDS = PLACES = ("epoch", "training_seconds")
FIGURES = {
    "loss": "loss",
    "train_metric": "training metric",
    "val_metric": "validation metric",
    "test_metric": "test metric",
    "seconds": "seconds of the epoch",
    "bytes_sent": "bytes sent in the epoch",
    "bits": "mean bit-width of messages",
    "exchanges": "exchanges that sent rows",
}


def curve(
    runs: Iterable[Mapping[str, list[Any]]], place: str, figure: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """x and y of each epoch in which any run has a number for the figure; y is the median over runs.

    runs: for each run, lists over the lines of ``metrics.jsonl`` by name; ``epoch`` has the numbers of epochs. place: one of
    :data:`PLACES`; training seconds are those of all epochs so far, without evaluations. Lines may be missing.
    """
    values: dict[int, list[float]] = {}
    seconds: dict[int, list[float]] = {}
    for epochs in runs:
        column, so_far = _column(epochs, figure), _seconds_so_far(epochs)
        for line, (epoch, value) in enumerate(zip(epochs.get("epoch", range(len(column))), column, strict=False)):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                values.setdefault(epoch, []).append(float(value))
                if so_far is not None and (passed := so_far[line]) is not None:
                    seconds.setdefault(epoch, []).append(passed)
    found = sorted(values if place == EPOCH else values.keys() & seconds.keys())
    x = [epoch + 1.0 if place == EPOCH else float(np.median(seconds[epoch])) for epoch in found]
    return tuple(x), tuple(float(np.median(values[epoch])) for epoch in found)


def seconds_to(epochs: Mapping[str, list[Any]], figure: str, target: float) -> float:
    """Seconds of training until the figure first reached the target; infinite if it never did, or is not in the records."""
    for value, passed in zip(_column(epochs, figure), _seconds_so_far(epochs) or (), strict=False):
        if value is not None and passed is not None and value >= target:
            return passed
    return math.inf


def _column(epochs: Mapping[str, list[Any]], figure: str) -> list[Any]:
    """The values of a figure; bits and exchanges follow from the number of rows of each exchange with each bit-width."""
    sent = epochs.get("bits", [])
    if figure == "exchanges" and figure not in epochs:
        return [len(each) if isinstance(each, Mapping) else None for each in sent]
    if figure == "bits":
        return [mean_bits(each).get("all rows") if isinstance(each, Mapping) else each for each in sent]
    return epochs.get(figure, [])


def _seconds_so_far(epochs: Mapping[str, list[Any]]) -> Sequence[float | None] | None:
    if "training_seconds" in epochs:
        return epochs["training_seconds"]
    return np.cumsum(epochs["seconds"]).tolist() if "seconds" in epochs else None
