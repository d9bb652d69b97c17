"""The section about the phases of an epoch, over all ranks."""

from __future__ import annotations

from functools import partial

from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.drawing import Part
from hpcgnn.lab.report.page import Picture, Section
from hpcgnn.lab.report.phases import NAMES, WIRE, unit
from hpcgnn.lab.study.summary import Table
from hpcgnn.train.run_files import Run


def time_section(run: Run) -> Section:
    """The seconds of each phase on its slowest rank and as the mean over ranks; means over epochs."""
    means = {name: (run.mean(name) or 0.0, run.mean(f"{name}_mean") or 0.0) for name in NAMES}
    whole = run.mean("seconds_mean") or run.mean("seconds") or 0.0
    rows = [
        (
            NAMES[name] + (", overlapping the others" if name == WIRE else ""),
            words.seconds(largest),
            words.seconds(mean),
            words.percent(mean / whole) if whole and name != WIRE else "",
            words.ratio(largest, mean)[1:],
        )
        for name, (largest, mean) in means.items()
    ]
    rows.append(
        (
            "whole epoch",
            words.seconds(run.mean("seconds")),
            words.seconds(whole),
            "",
            words.ratio(run.mean("seconds"), whole)[1:],
        )
    )
    header = ("phase", "slowest rank", "mean over ranks", "share of the mean epoch", "slowest / mean")
    notes = (
        "Means over all epochs but the first. The slowest rank may differ between phases, so the column does not add up.",
    )
    table = Table("An epoch by phase", header, tuple(rows), notes)
    shown = [name for name, values in means.items() if any(values)]
    if not shown:
        return Section("Time by phase", tables=(table,))
    scale, name = unit(max(max(values) for values in means.values()))
    parts = [
        Part("slowest rank", [scale * means[each][0] for each in shown], drawing.COLOURS[1], "//"),
        Part("mean over ranks", [scale * means[each][1] for each in shown], drawing.COLOURS[0]),
    ]
    draw = partial(
        drawing.bars_beside, [NAMES[each] for each in shown], parts, f"{name} per epoch", lambda value: f"{value:.3g}"
    )
    alt = "; ".join(f"{NAMES[each]} {words.seconds(means[each][0])} on the slowest rank" for each in shown)
    return Section("Time by phase", (), (Picture("An epoch by phase", draw, f"{alt}."),), (table,))
