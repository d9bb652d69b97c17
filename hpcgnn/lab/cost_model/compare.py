"""The comparison of predictions with measured runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.lab.cost_model.constants import Model
from hpcgnn.lab.cost_model.fit import cases_of
from hpcgnn.lab.cost_model.predict import warnings_of
from hpcgnn.lab.study.records import Record, in_words


@dataclass(frozen=True, eq=False)
class Compared:
    """A run with the configuration of its record. measured, predicted: seconds of an epoch. spread: as of a case of a fit.
    warnings: those of the prediction."""

    key: str
    configuration: dict[str, Any]
    measured: float
    predicted: float
    spread: float
    warnings: tuple[str, ...]

    @property
    def error(self) -> float:
        """The error of the prediction, relative to the measurement; above 0 if the prediction is too long."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, eq=False)
class Comparison:
    """The comparison of a study. left_out: a sentence for each run that the equations do not cover, or that did not finish.
    notes: sentences for a reader."""

    runs: tuple[Compared, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def errors(self) -> dict[str, float]:
        """The median and largest absolute relative errors, and the numbers of runs within errors, as ``--json`` prints them."""
        sizes = np.abs([run.error for run in self.runs])
        within = {f"within_{share}_percent": int((sizes <= share / 100).sum()) for share in (10, 20)}
        return {"median_error": float(np.median(sizes)), "worst_error": float(sizes.max())} | within

    def warnings(self) -> dict[str, int]:
        """Each sentence about an extrapolated term, with the number of runs that have it."""
        return dict(Counter(sentence for run in self.runs for sentence in run.warnings))

    def in_words(self) -> str:
        """The comparison in one sentence."""
        median, worst, tenth, fifth = self.errors().values()
        return (
            f"{len(self.runs)} runs: predicted epochs are off by {median:.1%} in the median and {worst:.1%} at worst; "
            f"{tenth} are within 10 % and {fifth} within 20 %"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        runs = [
            {"key": run.key, "measured_seconds": run.measured, "predicted_seconds": run.predicted, "error": run.error,
             "spread": run.spread, "warnings": run.warnings}
            for run in self.runs
        ]  # fmt: skip
        rest = {"warnings": self.warnings(), "left_out": self.left_out, "notes": self.notes}
        return {"runs": runs} | self.errors() | rest


def compare(model: Model, folder: Path, records: Iterable[Record], machine: str | None = None) -> Comparison:
    """Predict the finished runs of the study in ``folder``, and compare the predictions with its ``records``. machine: identifier
    of the machine whose records count, needed if there are several. Raises HpcgnnError if the equations cover no run."""
    records = list(records)
    found, values = cases_of(folder, records, machine), model.values()
    here, there = found.machine, model.machine
    own = {record.key: record for record in records if record.machine_id == here.get("id", "")}
    told = f"the runs were made on another machine, {in_words(here)}, than those of the fit, {in_words(there)}"
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
    return Comparison(runs, tuple(found.left_out), (told,) if here.get("id") != there.get("id") else ())


def error_by(runs: Iterable[Compared], axis: str) -> dict[str, tuple[int, float, float]]:
    """For each value of an axis, the number of runs, and the median and largest absolute relative error."""
    sizes: dict[str, list[float]] = {}
    for run in runs:
        sizes.setdefault(str(run.configuration.get(axis, "")), []).append(abs(run.error))
    return {value: (len(each), float(np.median(each)), max(each)) for value, each in sizes.items()}
