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
METHODS = ("vanilla", "int8", "int2", "uniform", "adaqp", "sylvie", "sylvie-printed", "pipeline", "pipeqs")
COLOURS = {method: f"C{place}" for place, method in enumerate(METHODS)}
COLOURS |= {"pipeline8": "C9", "pipeline-uncorrected": "black"}


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


def messages(runs: report.Runs, out: Path) -> None:
    """Draw how many exchanges sent anything in each epoch, and in how many bits, where methods choose that."""
    for case, methods in report.cases(runs).items():
        chosen = report.adapts(methods)
        if not chosen:
            continue
        with rc_context({"svg.hashsalt": "hpcgnn", "font.size": 7}):
            figure = Figure(figsize=(6.4, 4.8), layout="constrained")
            labels = (("exchanges", "exchanges that sent, mean over seeds"), ("bits", "bits of a value, mean"))
            for number, (name, label) in enumerate(labels, 1):
                axes = figure.add_subplot(2, 1, number)
                for method in chosen:
                    epochs = np.mean([run["messages"][name] for run in methods[method].values()], axis=0)
                    axes.step(
                        np.arange(epochs.size),
                        epochs,
                        where="mid",
                        linewidth=0.8,
                        color=COLOURS.get(method),
                        label=method,
                    )
                axes.set(xlabel="epochs", ylabel=label, ylim=(0, None))
                axes.grid(visible=True, linewidth=0.3)
            axes.legend(fontsize=6, frameon=False)
            figure.suptitle(str(case), fontsize=8)
            figure.savefig(report.picture(out, case, "messages"), metadata={"Date": None})


def _draw(axes: Any, methods: report.Methods, column: int) -> None:
    for method, runs in methods.items():
        x, y = mean_curve([run["curve"] for run in runs.values()], column)
        marker = "o" if x.size == 1 else None
        axes.plot(x, y, marker=marker, linewidth=1, color=COLOURS.get(method, "0.5"), label=method)


def mean_curve(found: list[list[list[float]]], column: int) -> tuple[np.ndarray, np.ndarray]:
    """Percent over that ``column`` of the curves, from where all have begun to where the last one ends.

    The others keep their last value, so that the mean ends at the mean of what was reached.
    """
    tables = [np.array(curve) for curve in found]
    first = max(table[0, column] for table in tables)
    last = max(table[-1, column] for table in tables)
    x = np.linspace(first, last, POINTS) if last > first else np.array([first])
    return x, 100 * np.mean([np.interp(x, table[:, column], table[:, 2]) for table in tables], axis=0)
