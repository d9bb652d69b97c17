"""What a model predicts of runs that were made, beside what was measured of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.cost_model.cases import cases_of
from hpcgnn.cost_model.model_file import Model
from hpcgnn.cost_model.predict import warnings_of
from hpcgnn.study.records import Record, in_words


@dataclass(frozen=True, eq=False)
class Compared:
    """One run. configuration: its record's. measured, predicted: seconds of an epoch. spread: between the quartiles of its
    epochs, over their median. warnings: of the prediction."""

    key: str
    configuration: dict[str, Any]
    measured: float
    predicted: float
    spread: float
    warnings: tuple[str, ...]

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured; above 0 where it is too long."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, eq=False)
class Comparison:
    """left_out: a sentence for each run that the equations do not know, or that did not finish. notes: for a reader."""

    runs: tuple[Compared, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def _sizes(self) -> np.ndarray:
        return np.abs([run.error for run in self.runs])

    @property
    def median(self) -> float:
        """Of the errors' sizes."""
        return float(np.median(self._sizes()))

    @property
    def worst(self) -> float:
        """The largest error's size."""
        return float(self._sizes().max())

    def within(self, share: float) -> int:
        """How many runs are predicted to within a share."""
        return int((self._sizes() <= share).sum())

    def warnings(self) -> dict[str, int]:
        """Each sentence of an extrapolated term, with the number of runs that have it."""
        return dict(Counter(sentence for run in self.runs for sentence in run.warnings))

    def in_words(self) -> str:
        """One sentence."""
        return (
            f"{len(self.runs)} runs: predicted epochs are off by {self.median:.1%} in the median and {self.worst:.1%} at worst; "
            f"{self.within(0.1)} are within 10 % and {self.within(0.2)} within 20 %"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        return {
            "runs": [
                {
                    "key": run.key,
                    "measured_seconds": run.measured,
                    "predicted_seconds": run.predicted,
                    "error": run.error,
                    "spread": run.spread,
                    "warnings": list(run.warnings),
                }
                for run in self.runs
            ],
            "median_error": self.median,
            "worst_error": self.worst,
            "within_10_percent": self.within(0.1),
            "within_20_percent": self.within(0.2),
            "warnings": self.warnings(),
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }


def compare(model: Model, folder: Path, records: Iterable[Record], machine: str | None = None) -> Comparison:
    """Predict the finished runs of a study in ``folder``, and hold them against its ``records``.

    machine: whose records, where there are those of several.

    Raises:
        HpcgnnError: where there is no run that the equations know.
    """
    records = list(records)
    found, values = cases_of(folder, records, machine), model.values()
    own = {record.key: record for record in records if record.machine_id == found.machine.get("id", "")}
    runs = tuple(
        Compared(
            key=case.name,
            configuration=own[case.name].configuration,
            measured=case.seconds,
            predicted=case.predicted(values).total,
            spread=case.spread,
            warnings=tuple(warnings_of(model, case.setup, case.workload)),
        )
        for case in found.cases
    )
    return Comparison(runs, tuple(found.left_out), tuple(_of_machines(model, found.machine)))


def _of_machines(model: Model, machine: dict[str, Any]) -> list[str]:
    if model.machine.get("id") == machine.get("id"):
        return []
    return [
        f"the runs were made on another machine, {in_words(machine)}, than those of the fit, {in_words(model.machine)}"
    ]


def error_by(runs: Iterable[Compared], axis: str) -> dict[str, tuple[int, float, float]]:
    """Runs by their value of an axis: how many, and the median and worst size of their errors."""
    sizes: dict[str, list[float]] = {}
    for run in runs:
        sizes.setdefault(str(run.configuration.get(axis, "")), []).append(abs(run.error))
    return {value: (len(each), float(np.median(each)), max(each)) for value, each in sizes.items()}
