"""The page that compares several runs: their figures with ratios to the first run, and their curves in common pictures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hpcgnn.lab.report import drawing, phases, words
from hpcgnn.lab.report.curves import overlaid
from hpcgnn.lab.report.page import Page, Picture, Section
from hpcgnn.lab.study.summary import Series, Table
from hpcgnn.train.run_files import Run, is_number, read_run


def comparison_page(folders: Sequence[Path]) -> Page:
    """The page of several runs, which compares all others with the first.

    Raises:
        HpcgnnError: if a folder holds no run.
    """
    runs = [read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    notes = [f"{run.name}: {note}" for run in runs for note in run.warnings()]
    metrics = {run.metric for run in runs if run.best() is not None}
    if len(metrics) > 1:
        notes.insert(
            0,
            f"The runs have different metrics ({', '.join(sorted(metrics))}), which are not compared with each other.",
        )
    sections = [_figures(runs), _settings(runs), *_curves(runs), _time(runs)]
    title = f"{len(runs)} runs compared"
    return Page(
        title, tuple(each for each in sections if each is not None), f"Compared with {runs[0].name}", tuple(notes)
    )


def _names(folders: Sequence[Path]) -> list[str]:
    """The names of folders, each with as many parent folders as make the names different."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(set(parts)):
            break
    return [name if names.index(name) == i else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _figures(runs: Sequence[Run]) -> Section:
    header = (
        "run",
        "state",
        "best validation",
        "test in that epoch",
        "epochs",
        "epoch",
        "bytes per epoch",
        "waiting",
        "peak memory",
        "ranks",
    )
    base, rows = runs[0], []
    for run in runs:
        best = run.best()
        waits = [sum(run.mean(f"{name}_mean") or 0.0 for name in phases.WAITING) for run in (run, base)]
        memory = "peak_memory_bytes_per_rank"
        rows.append(
            (
                run.name,
                "finished" if run.is_finished else "not finished",
                *(_metric(run, base, best and best.get(name), name) for name in ("val_metric", "test_metric")),
                words.count(len(run.records)),
                _compared(words.seconds, run.median("seconds"), base.median("seconds"), run is base),
                _compared(words.size, run.mean("bytes_sent"), base.mean("bytes_sent"), run is base),
                _compared(words.seconds, waits[0] if run.records else None, waits[1], run is base),
                _compared(words.size, run.number(memory), base.number(memory), run is base),
                str(run.num_ranks or words.MISSING),
            )
        )
    notes = (
        f"Brackets contain the ratio to {base.name}; for metrics, the difference in percentage points. "
        "Seconds of an epoch: median over epochs. Bytes and waiting: means over epochs. "
        "Waiting: mean over ranks, for messages and in reductions.",
    )
    return Section("Figures", tables=(Table("Runs", header, tuple(rows), notes, label_columns=2),))


def _compared(shown: object, value: float | None, base: float | None, is_base: bool) -> str:
    assert callable(shown)
    found = words.ratio(value, base)
    return f"{shown(value)} ({found})" if found and not is_base else str(shown(value))


def _metric(run: Run, base: Run, value: object, name: str) -> str:
    best = base.best()
    if not is_number(value):
        return words.MISSING
    told = f"{words.percent(value)} {run.metric}" if run.metric != base.metric else words.percent(value)
    if run is base or run.metric != base.metric or best is None or not is_number(best.get(name)):
        return told
    return f"{told} ({100 * (value - best[name]):+.2f})"


def _settings(runs: Sequence[Run]) -> Section:
    """The settings in which the runs differ."""
    names = list(dict.fromkeys(itertools.chain(*(run.settings for run in runs))))
    shown = {name: [words.plain(run.settings[name]) if name in run.settings else "" for run in runs] for name in names}
    differing = {name: values for name, values in shown.items() if len(set(values)) > 1}
    if not differing:
        return Section("Settings", ("All runs have the same settings.",))
    rows = tuple((name, *values) for name, values in differing.items())
    header = ("setting", *(run.name for run in runs))
    table = Table("Settings that differ", header, rows, label_columns=len(header))
    return Section("Settings", tables=(table,))


def _curves(runs: Sequence[Run]) -> list[Section]:
    metric = next((run.metric for run in runs if run.best() is not None), None)
    alike = [run for run in runs if run.metric == metric]
    val = [Series(run.name, x, tuple(100 * y for y in ys)) for run in alike for x, ys in [run.values("val_metric")]]
    label = f"validation {metric} in %"
    pictures = overlaid("Loss", "epoch", "loss", [Series(run.name, *run.values("loss")) for run in runs])
    pictures += overlaid(f"Validation {metric} by epoch", "epoch", label, val)
    pictures += overlaid(
        f"Validation {metric} by time", "seconds of training", label, [_over_time(run) for run in alike]
    )
    scale, unit = phases.unit(max((run.median("seconds") or 0.0 for run in runs), default=0.0))
    seconds = [Series(run.name, x, tuple(scale * y for y in ys)) for run in runs for x, ys in [run.values("seconds")]]
    pictures += overlaid("Seconds per epoch, slowest rank", "epoch", f"{unit} per epoch", seconds)
    return [Section("Curves", pictures=tuple(pictures))] if pictures else []


def _over_time(run: Run) -> Series:
    """The validation metric over the seconds of all training steps until then, without evaluations."""
    spent, x, y = 0.0, [], []
    for record in run.records:
        spent += record["seconds"] if is_number(record.get("seconds")) else 0.0
        if is_number(record.get("val_metric")):
            x.append(spent)
            y.append(100 * record["val_metric"])
    return Series(run.name, tuple(x), tuple(y))


def _time(runs: Sequence[Run]) -> Section | None:
    """The phases of each run as stacked bars, means over ranks."""
    timed = [run for run in runs if run.records]
    if not timed:
        return None
    scale, unit = phases.unit(max(run.mean("seconds_mean") or 0.0 for run in timed))
    parts = phases.parts(lambda name: [run.mean(f"{name}_mean") or 0.0 for run in timed], scale)
    if not parts:
        return None
    draw = partial(drawing.stacked_bars, [run.name for run in timed], parts, f"{unit} per epoch", "run")
    alt = "; ".join(f"{run.name} {words.seconds(run.mean('seconds_mean'))}" for run in timed[: drawing.MOST_LINES])
    shown = list(phases.NAMES)
    rows = tuple(
        (
            run.name,
            *(
                _compared(words.seconds, run.mean(f"{name}_mean"), timed[0].mean(f"{name}_mean"), run is timed[0])
                for name in shown
            ),
        )
        for run in timed
    )
    notes = ("Means over ranks and over all epochs but the first. Wire time overlaps the other phases.",)
    table = Table("An epoch by phase", ("run", *(phases.NAMES[name] for name in shown)), rows, notes)
    return Section(
        "Time by phase", (), (Picture("An epoch by phase and run, mean over ranks", draw, f"{alt}."),), (table,)
    )
