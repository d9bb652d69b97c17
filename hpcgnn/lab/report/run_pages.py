"""The pages of one run, and of several runs: figures with ratios to the first run, and curves in common pictures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.drawing import PHASES, WIRE, Part
from hpcgnn.lab.report.page import Page, Picture, Section
from hpcgnn.lab.report.rank_sections import rank_sections
from hpcgnn.lab.study.tables import Figure, Series, Table
from hpcgnn.train.run_files import Run, is_number, read_run
from hpcgnn.train.summary import mean_bits


def run_page(folder: Path) -> Page:
    """The page of the run that ``hpcgnn train`` has left in ``folder``.

    Raises:
        HpcgnnError: if the folder holds no run.
    """
    run = read_run(folder)
    sections = [_result(run), _all_settings(run)]
    if run.records:
        sections += [curves(run), time_section(run)]
    sections += rank_sections(run)
    return Page(f"Run {run.name}", tuple(sections), _subtitle(run), run.warnings())


def _subtitle(run: Run) -> str:
    told = [
        run.settings.get("model"),
        run.settings.get("task") and f"{run.settings['task']} task",
        run.settings.get("parts"),
    ]
    ranks = f"{run.num_ranks} ranks" if run.num_ranks else None
    return ", ".join(str(each) for each in (*told, ranks) if each)


def _result(run: Run) -> Section:
    best, metric = run.best(), run.metric
    losses = run.values("loss")[1]
    bytes_sent = run.mean("bytes_sent")
    rows: list[tuple[str, str]] = [("state", run.state)]
    if best is not None:
        rows.append((f"best validation {metric}", f"{words.percent(best['val_metric'])} in epoch {best['epoch']}"))
        rows.append((f"test {metric} in that epoch", words.percent(best.get("test_metric"))))
    if losses:
        rows.append(("loss of the last epoch", f"{losses[-1]:.4g}"))
    rows += [
        ("seconds per epoch, slowest rank (median)", words.seconds(run.median("seconds"))),
        ("seconds per epoch without the first, slowest rank (mean)", words.seconds(run.mean("seconds"))),
        ("bytes sent per epoch, all ranks (mean)", f"{words.size(bytes_sent)} ({words.count(bytes_sent)})"),
    ]
    between, shared = run.mean("bytes_between_nodes"), run.mean("bytes_shared_on_nodes")
    if between or shared:
        rows.append(("  between nodes", words.size(between)))
        rows.append(("bytes read in shared memory per epoch", words.size(shared)))
    rows += _machine(run)
    return Section("Result", tables=(Table("In short", ("", ""), tuple(rows), label_columns=2),))


def _machine(run: Run) -> list[tuple[str, str]]:
    rows = []
    if run.num_ranks:
        threads = run.number("threads_per_rank")
        rows.append(("ranks x threads", f"{run.num_ranks} x {threads:.0f}" if threads else str(run.num_ranks)))
    for name, told in (
        ("peak_memory_bytes_per_rank", "peak memory per rank, largest"),
        ("peak_device_memory_bytes_per_rank", "peak GPU memory per rank, largest"),
    ):
        if run.number(name):
            rows.append((told, words.size(run.number(name))))
    for name in ("devices", "versions"):
        found = run.summary.get(name)
        if isinstance(found, dict):
            rows.append((name, ", ".join(f"{each} {value}" for each, value in found.items())))
    return rows


def _all_settings(run: Run) -> Section:
    changed, usual = run.changed_settings(), run.usual_settings()
    if not run.settings:
        return Section("Settings", ("The settings are unknown.",))
    text = () if changed else ("All settings have their default values.",)
    tables = (
        Table(
            "Settings that differ from the defaults", ("setting", "value", "default"), tuple(changed), label_columns=3
        ),
    )
    rows = tuple((name, value) for name, value, _ in usual)
    folded = (Table(f"{len(rows)} settings with their defaults", ("setting", "value"), rows, label_columns=2),)
    return Section("Settings", text, tables=tables if changed else (), folded=folded if rows else ())


_METRICS = {"training": "train_metric", "validation": "val_metric", "test": "test_metric"}


def curves(run: Run) -> Section:
    """Curves of loss, metrics and seconds, and of the bit-widths and ages of rows if these change."""
    text, pictures = [], []
    loss = _series("loss", *run.values("loss"))
    pictures += _picture("Loss", "loss", (loss,), lambda value: f"{value:.4g}")
    metrics = [_series(name, *run.values(key), scale=100) for name, key in _METRICS.items()]
    pictures += _picture(f"Metric: {run.metric}", f"{run.metric} in %", metrics, lambda value: f"{value:.2f} %")
    scale, name = words.second_unit(run.median("seconds") or 0)
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


def time_section(run: Run) -> Section:
    """The seconds of each phase on its slowest rank and as the mean over ranks; means over epochs."""
    means = {name: (run.mean(name) or 0.0, run.mean(f"{name}_mean") or 0.0) for name in PHASES}
    whole = run.mean("seconds_mean") or run.mean("seconds") or 0.0
    rows = [
        (
            PHASES[name] + (", overlapping the others" if name == WIRE else ""),
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
    scale, name = words.second_unit(max(max(values) for values in means.values()))
    parts = [
        Part("slowest rank", [scale * means[each][0] for each in shown], drawing.COLOURS[1], "//"),
        Part("mean over ranks", [scale * means[each][1] for each in shown], drawing.COLOURS[0]),
    ]
    draw = partial(
        drawing.bars_beside, [PHASES[each] for each in shown], parts, f"{name} per epoch", lambda value: f"{value:.3g}"
    )
    alt = "; ".join(f"{PHASES[each]} {words.seconds(means[each][0])} on the slowest rank" for each in shown)
    return Section("Time by phase", (), (Picture("An epoch by phase", draw, f"{alt}."),), (table,))


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
    sections = [_figures(runs), _differing_settings(runs), *_curves(runs), _time(runs)]
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
        waits = [sum(run.mean(f"{name}_mean") or 0.0 for name in drawing.WAITING) for run in (run, base)]
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


def _differing_settings(runs: Sequence[Run]) -> Section:
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
    scale, unit = words.second_unit(max((run.median("seconds") or 0.0 for run in runs), default=0.0))
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
    scale, unit = words.second_unit(max(run.mean("seconds_mean") or 0.0 for run in timed))
    parts = drawing.phase_parts(lambda name: [run.mean(f"{name}_mean") or 0.0 for run in timed], scale)
    if not parts:
        return None
    draw = partial(drawing.stacked_bars, [run.name for run in timed], parts, f"{unit} per epoch", "run")
    alt = "; ".join(f"{run.name} {words.seconds(run.mean('seconds_mean'))}" for run in timed[: drawing.MOST_LINES])
    shown = list(PHASES)
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
    table = Table("An epoch by phase", ("run", *(PHASES[name] for name in shown)), rows, notes)
    return Section(
        "Time by phase", (), (Picture("An epoch by phase and run, mean over ranks", draw, f"{alt}."),), (table,)
    )
