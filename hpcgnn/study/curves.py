"""Curves over the epochs of trainings: medians over the runs of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hpcgnn.train.scalars import mean_bits

EPOCH, TRAINING_SECONDS = PLACES = ("epoch", "training_seconds")
FIGURES = {
    "loss": "loss",
    "train_metric": "training metric",
    "val_metric": "validation metric",
    "test_metric": "test metric",
    "seconds": "seconds of the epoch",
    "bytes_sent": "bytes sent in the epoch",
    "bits": "bits of a value that travelled",
}


def curve(
    runs: Iterable[Mapping[str, list[Any]]], place: str, figure: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """x and y of each epoch in which any run has a number as the figure.

    runs: by name, a list over epochs. place: of :data:`PLACES`; training seconds are those of all epochs so far, without
    evaluations.
    """
    values: dict[int, list[float]] = {}
    seconds: dict[int, list[float]] = {}
    for epochs in runs:
        so_far = np.cumsum(epochs["seconds"]) if "seconds" in epochs else None
        for epoch, value in enumerate(epochs.get(figure, [])):
            number = mean_bits(value).get("all rows") if figure == "bits" and value is not None else value
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                values.setdefault(epoch, []).append(float(number))
                if so_far is not None:
                    seconds.setdefault(epoch, []).append(float(so_far[epoch]))
    found = sorted(values if place == EPOCH else values.keys() & seconds.keys())
    x = [epoch + 1.0 if place == EPOCH else float(np.median(seconds[epoch])) for epoch in found]
    return tuple(x), tuple(float(np.median(values[epoch])) for epoch in found)
