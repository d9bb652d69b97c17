"""The picture of an ablation: where an epoch's time goes, as SuperGCN's figure 9."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ablation_report as report
from matplotlib import rc_context
from matplotlib.figure import Figure


def breakdown(content: dict[str, Any], path: Path) -> None:
    """Draw stacked bars of every configuration, a panel for each rate and arithmetic."""
    found = report.timings(content["runs"])
    panels = list(dict.fromkeys((each.rate, each.compute) for each in found))
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    bars = max(sum((each.rate, each.compute) == panel for each in found) for panel in panels)
    with rc_context({"svg.hashsalt": "hpcgnn", "font.size": 7}):
        figure = Figure(figsize=(4.8 * columns, rows * (1.2 + 0.16 * bars)), layout="constrained")
        for number, panel in enumerate(panels, 1):
            inside = {each: timing for each, timing in found.items() if (each.rate, each.compute) == panel}
            axes = figure.add_subplot(rows, columns, number)
            _draw(axes, inside)
            axes.set_title(", ".join(panel), fontsize=8)
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(report.PHASES), frameon=False
        )
        figure.savefig(path, metadata={"Date": None})


def _draw(axes: Any, found: report.Timings) -> None:
    names = [_name(each) for each in found]
    lefts = [0.0] * len(names)
    for phase in report.PHASES:
        widths = [timing.phases[phase] for timing in found.values()]
        axes.barh(names, widths, left=lefts, label=phase)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds an epoch, mean over ranks")


def _name(each: report.Configuration) -> str:
    labels = ", LP" if each.label_propagation else ""
    return f"{each.messages}{labels}" + (", no overlap" if each.overlap == "off" else "")
