"""The pictures of a comparison of policies: test accuracy over seconds of training and over epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compare_policies_report as report
import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

POINTS = 100
# A method has its colour in all pictures, whichever others are beside it.
COLOURS = ("vanilla", "int8", "int2", "uniform", "adaqp", "sylvie", "sylvie-printed", "pipeline", "pipeqs")


def curves(runs: report.Runs, out: Path) -> None:
    """Draw a picture for each graph, model and rate."""
    for case, methods in report.cases(runs).items():
        with rc_context({"svg.hashsalt": "hpcgnn", "font.size": 7}):
            figure = Figure(figsize=(6.4, 6.4), layout="constrained")
            for number, (column, label) in enumerate(((1, "seconds of training"), (0, "epochs")), 1):
                axes = figure.add_subplot(2, 1, number)
                _draw(axes, methods, column)
                axes.set(xlabel=label, ylabel="test %, mean over seeds")
                axes.grid(visible=True, linewidth=0.3)
            axes.legend(fontsize=6, loc="lower right", frameon=False)
            figure.suptitle(str(case), fontsize=8)
            figure.savefig(report.picture(out, case), metadata={"Date": None})


def _draw(axes: Any, methods: report.Methods, column: int) -> None:
    for method, runs in methods.items():
        x, y = mean_curve([run["curve"] for run in runs.values()], column)
        colour = f"C{COLOURS.index(method)}" if method in COLOURS else "0.5"
        axes.plot(x, y, marker="o" if x.size == 1 else None, linewidth=1, color=colour, label=method)


def mean_curve(found: list[list[list[float]]], column: int) -> tuple[np.ndarray, np.ndarray]:
    """Percent over that ``column`` of the curves, from where all have begun to where the last one ends.

    The others keep their last value, so that the mean ends at the mean of what was reached.
    """
    tables = [np.array(curve) for curve in found]
    first = max(table[0, column] for table in tables)
    last = max(table[-1, column] for table in tables)
    x = np.linspace(first, last, POINTS) if last > first else np.array([first])
    return x, 100 * np.mean([np.interp(x, table[:, column], table[:, 2]) for table in tables], axis=0)
