"""The pages of one run, and of several runs: figures with ratios to the first run, and curves in common pictures. The sections
about ranks are made of ``ranks.json`` and the parts file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.base import typed
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.bench.names import LIMITS, Limits
from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.drawing import PHASES, WAITING, WIRE, Part
from hpcgnn.lab.report.page import Page, Picture, Section
from hpcgnn.lab.study.tables import Figure, Series, Table
from hpcgnn.plan import STRATEGIES
from hpcgnn.plan.plan import describe
from hpcgnn.train.config import scale_of
from hpcgnn.train.rank_report import Ranks
from hpcgnn.train.run_files import Run, is_number, read_run
from hpcgnn.train.summary import mean_bits

_METRICS = {"training": "train_metric", "validation": "val_metric", "test": "test_metric"}
_MOST_POINTS = 400


def run_page(folder: Path) -> Page:
    """The page of the run that ``hpcgnn train`` has left in ``folder``. Raises HpcgnnError if the folder holds no run."""
    run = read_run(folder)
    sections = [_result(run), _all_settings(run)]
    if run.records:
        sections += [_curves_of(run), _time_of(run), _limits_of(run)]
    task, ranks, model, parts = (
        run.settings.get("task"),
        run.num_ranks,
        run.settings.get("model"),
        run.settings.get("parts"),
    )
    subtitle = ", ".join(
        str(each) for each in (f"run {run.name}", task and f"{task} task", parts, ranks and f"{ranks} ranks") if each
    )
    title = f"Training of {model} on {Path(str(parts)).stem}" if model and parts else f"Run {run.name}"
    return Page(title, (*sections, *rank_sections(run)), subtitle, run.warnings(), _tiles(run))


def _tiles(run: Run) -> tuple[tuple[str, str], ...]:
    """The figures that a reader looks for first."""
    best, memory = run.best(), run.number("peak_memory_bytes_per_rank")
    found = (
        (f"test {run.metric}", best and run.in_words(best.get("test_metric"))),
        ("seconds per epoch", words.seconds(run.median("seconds"))),
        ("sent per epoch", words.size(run.mean("bytes_sent"))),
        ("memory per rank", memory and words.size(memory)),
    )
    return tuple((name, str(text)) for name, text in found if text)


def _result(run: Run) -> Section:
    best, losses, bytes_sent, threads = (
        run.best(),
        run.values("loss")[1],
        run.mean("bytes_sent"),
        run.number("threads_per_rank"),
    )
    between, shared = run.mean("bytes_between_nodes"), run.mean("bytes_shared_on_nodes")
    ranks, memory = run.num_ranks, run.number("peak_memory_bytes_per_rank")
    gpu_memory = run.number("peak_device_memory_bytes_per_rank")
    rows = [
        ("state", run.state),
        (f"best validation {run.metric}", best and f"{run.in_words(best['val_metric'])} in epoch {best['epoch']}"),
        (f"test {run.metric} in that epoch", best and run.in_words(best.get("test_metric"))),
        ("loss of the last epoch", losses and f"{losses[-1]:.4g}"),
        ("seconds per epoch, slowest rank (median)", words.seconds(run.median("seconds"))),
        ("seconds per epoch without the first, slowest rank (mean)", words.seconds(run.mean("seconds"))),
        ("bytes sent per epoch, all ranks (mean)", f"{words.size(bytes_sent)} ({words.count(bytes_sent)})"),
        ("  between nodes", (between or shared) and words.size(between)),
        ("bytes read in shared memory per epoch", (between or shared) and words.size(shared)),
        ("ranks x threads", ranks and (f"{ranks} x {threads:.0f}" if threads else str(ranks))),
        ("peak memory per rank, largest", memory and words.size(memory)),
        ("peak GPU memory per rank, largest", gpu_memory and words.size(gpu_memory)),
    ]
    for name in ("devices", "versions"):
        if isinstance(found := run.summary.get(name), dict):
            rows.append((name, ", ".join(f"{each} {value}" for each, value in found.items())))
    known = tuple((name, str(text)) for name, text in rows if text)
    return Section("Result", tables=(Table("In short", ("", ""), known, label_columns=2), *_account(run)))


def _account(run: Run) -> tuple[Table, ...]:
    """The table of the parts of memory, which runs of earlier versions do not have."""
    found = run.summary.get("memory_bytes")
    predicted, measured = (
        ((found.get(name) or {}) for name in ("predicted", "measured")) if isinstance(found, dict) else ({}, {})
    )
    if not all(isinstance(parts, dict) and all(map(is_number, parts.values())) for parts in (predicted, measured)):
        return ()
    rows = tuple(
        (part, *(words.size(parts[part]) if part in parts else "" for parts in (predicted, measured)))
        for part in dict.fromkeys((*predicted, *measured))
    )
    title = "Memory of a rank, the largest of each part"
    return (Table(title, ("part", "predicted", "measured"), rows, label_columns=1),) if rows else ()


def _all_settings(run: Run) -> Section:
    if not run.settings:
        return Section("Settings", ("The settings are unknown.",))
    found = run.compared_settings()
    changed = tuple(each for each in found if each[1] != each[2])
    usual = tuple((name, value) for name, value, default in found if value == default)
    header, title = ("setting", "value", "default"), f"{len(usual)} settings with their defaults"
    differing = Table("Settings that differ from the defaults", header, changed, label_columns=3)
    folded = Table(title, header[:2], usual, label_columns=2)
    text = () if changed else ("All settings have their default values.",)
    return Section("Settings", text, tables=(differing,) * bool(changed), folded=(folded,) * bool(usual))


def _curves_of(run: Run) -> Section:
    """Curves of loss, metrics and seconds, of the bit-widths and ages of rows if these change, and of the distances by which
    PipeQS decides."""
    scale, unit = words.second_unit(run.median("seconds") or 0)
    factor, in_unit, form = scale_of(run.metric)
    metrics = [_series(run, name, key, factor) for name, key in _METRICS.items()]
    names = {"slowest rank": "seconds", "mean over ranks": "seconds_mean"}
    seconds = [_series(run, name, key, scale) for name, key in names.items()]
    bits = _by_exchange(run, lambda record: mean_bits(record.get("bits", {})), without="all rows")
    ages = _by_exchange(run, lambda record: record.get("stale_epochs", {}))
    distances = _by_exchange(run, _distances)
    bit_widths = {value for series in bits for value in series.y}
    curves = [
        ("Loss", "loss", [_series(run, "loss", "loss")], "{:.4g}"),
        (f"Metric: {run.metric}", f"{run.metric}{in_unit}", metrics, form),
        ("Seconds per epoch", f"{unit} per epoch", seconds, f"{{:.3g}} {unit}"),
        ("Mean bit-width over rows", "bits", bits if len(bit_widths) > 1 else [], "{:.3g}"),
        ("Age of the rows that are used", "epochs", ages if any(any(each.y) for each in ages) else [], "{:g}"),
        ("Distance of rows from those of the message before, without noise", "1 - cosine", distances, "{:.2g}"),
    ]

    def told(series: Series, form: str) -> str:
        return f"{series.name} from {form.format(series.y[0])} to {form.format(series.y[-1])}"

    pictures = [
        _picture(title, "epoch", y_label, series, "By epoch", partial(told, form=form))
        for title, y_label, series, form in curves
    ]
    text = [f"All rows have {each:g} bits per value." for each in bit_widths] if len(bit_widths) == 1 else []
    if (epochs := len(run.records)) > _MOST_POINTS:
        text.append(f"Of {epochs} epochs, about every {-(-epochs // _MOST_POINTS)}th one is drawn.")
    return Section("Curves", tuple(text), tuple(filter(None, pictures)))


def _distances(record: dict[str, Any]) -> dict[str, Any]:
    policy = record.get("policy", {})
    return {name: told["distance"] for name, told in policy.items() if isinstance(told, dict) and "distance" in told}


def _series(run: Run, name: str, key: str, factor: float = 1) -> Series:
    x, y = run.values(key)
    return Series(name, x, tuple(factor * value for value in y))


def _by_exchange(run: Run, values: Callable[[dict[str, Any]], dict[str, Any]], without: str = "") -> list[Series]:
    """A series for each name in any epoch; ``without`` is left out if there are other names."""
    found: dict[str, list[tuple[float, float]]] = {}
    for record in run.records:
        for name, value in values(record).items():
            if is_number(value):
                found.setdefault(name, []).append((record["epoch"], value))
    if len(found) > 1:
        found.pop(without, None)
    return [Series(name, *drawing.thinned(*zip(*points, strict=True))) for name, points in sorted(found.items())]


def _picture(
    title: str, x_label: str, y_label: str, series: Iterable[Series], lead: str, told: Callable[[Series], str]
) -> Picture | None:
    """A picture of the series that have points, if there are any. lead, told: the words of its description."""
    drawn = tuple(Series(each.name, *drawing.thinned(each.x, each.y)) for each in series if each.y)
    alt = f"{lead}: {'; '.join(map(told, drawn[: drawing.MOST_LINES]))}."
    left_out = len(drawn) - drawing.MOST_LINES
    notes = (f"{left_out} more are not drawn.",) if left_out > 0 else ()
    draw = partial(drawing.lines, Figure(title, x_label, y_label, drawn))
    return Picture(title, draw, alt, notes) if drawn else None


def _time_of(run: Run) -> Section:
    """The seconds of each phase on its slowest rank and as the mean over ranks; means over epochs."""
    means = {name: (run.mean(name) or 0.0, run.mean(f"{name}_mean") or 0.0) for name in PHASES}
    slowest, whole = run.mean("seconds"), run.mean("seconds_mean") or run.mean("seconds") or 0.0
    names = PHASES | {WIRE: f"{PHASES[WIRE]}, overlapping the others", "": "whole epoch"}
    rows = []
    for name, (largest, mean) in (means | {"": (slowest, whole)}).items():
        share = words.percent(mean / whole) if whole and name not in (WIRE, "") else ""
        rows.append((names[name], words.seconds(largest), words.seconds(mean), share, words.ratio(largest, mean)[1:]))
    header = ("phase", "slowest rank", "mean over ranks", "share of the mean epoch", "slowest / mean")
    note = "Means over all epochs but the first. The slowest rank may differ between phases, so the column does not add up."
    tables = (Table("An epoch by phase", header, tuple(rows), (note,)),)
    shown = {PHASES[name]: values for name, values in means.items() if any(values)}
    if not shown:
        return Section("Time by phase", tables=tables)
    scale, unit = words.second_unit(max(map(max, shown.values())))
    of_slowest, of_mean = ([scale * each for each in values] for values in zip(*shown.values(), strict=True))
    parts = [
        Part("slowest rank", of_slowest, drawing.COLOURS[1], "//"),
        Part("mean over ranks", of_mean, drawing.COLOURS[0]),
    ]
    draw = partial(drawing.bars_beside, [*shown], parts, f"{unit} per epoch", lambda value: f"{value:.3g}")
    alt = "; ".join(f"{name} {words.seconds(largest)} on the slowest rank" for name, (largest, _) in shown.items())
    return Section("Time by phase", (), (Picture("An epoch by phase", draw, f"{alt}."),), tables)


def _limits_of(run: Run) -> Section:
    """The phases beside their floors, as ``hpcgnn bench epoch --run`` has measured them."""
    path, parts = run.path / LIMITS, run.settings.get("parts", "parts.h5")
    if not path.exists():
        command = f"hpcgnn bench epoch {parts} --run {run.path}"
        start = f"mpirun -n {run.num_ranks} " if (run.num_ranks or 1) > 1 else ""
        return Section(
            "Limits",
            (f"Not measured: `{start}{command}` measures the least time that the machine allows for each phase.",),
        )
    try:
        limits = typed.read_json(path, Limits)
    except HpcgnnError as error:
        return Section("Limits", (f"{path.name} is left out: {error}.",))
    if run.ranks is not None and limits.parts_uuid != run.ranks.parts_uuid:
        return Section("Limits", (f"{path.name} is left out: it was measured with other parts.",))
    rows = tuple(
        (
            name,
            words.seconds(each.seconds),
            words.seconds(each.floor_seconds),
            words.ratio(each.seconds, each.floor_seconds)[1:],
        )
        for name, each in limits.rows().items()
    )
    notes = (
        "Floor: the least time by the ceilings of the machine, which were measured between epochs. Phases are means over ranks.",
    )
    table = Table("An epoch by phase, and its floor", ("phase", "time", "floor", "time / floor"), rows, notes)
    return Section("Limits", (limits.advice(),), tables=(table,))


# -- several runs ------------------------------------------------------------------------------------------------------


def comparison_page(folders: Sequence[Path]) -> Page:
    """The page of several runs, which compares all others with the first. Raises HpcgnnError if a folder holds no run."""
    runs = [read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    notes = [f"{run.name}: {note}" for run in runs for note in run.warnings()]
    metrics = sorted({run.metric for run in runs if run.best() is not None})
    if len(metrics) > 1:
        notes.insert(
            0, f"The runs have different metrics ({', '.join(metrics)}), which are not compared with each other."
        )
    sections = (_figures(runs), _differing_settings(runs), *_curves(runs), *_time(runs))
    return Page(f"{len(runs)} runs compared", sections, f"Compared with {runs[0].name}", tuple(notes))


def _names(folders: Sequence[Path]) -> list[str]:
    """The names of folders, each with as many parent folders as make the names different."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(set(parts)):
            break
    return [name if names.index(name) == i else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _figures(runs: Sequence[Run]) -> Section:
    header = ("run", "state", "best validation", "test in that epoch", "epochs", "epoch", "bytes per epoch", "waiting",
              "peak memory", "ranks")  # fmt: skip
    compared: tuple[tuple[Callable[[float | None], str], Callable[[Run], float | None]], ...] = (
        (words.seconds, lambda run: run.median("seconds")),
        (words.size, lambda run: run.mean("bytes_sent")),
        (words.seconds, lambda run: sum(run.mean(f"{name}_mean") or 0.0 for name in WAITING) if run.records else None),
        (words.size, lambda run: run.number("peak_memory_bytes_per_rank")),
    )
    base = runs[0]
    rows = []
    for run in runs:
        state = "finished" if run.is_finished else "not finished"
        metrics = (_metric(run, base, name) for name in ("val_metric", "test_metric"))
        figures = (_compared(shown, figure(run), None if run is base else figure(base)) for shown, figure in compared)
        ranks = str(run.num_ranks or words.MISSING)
        rows.append((run.name, state, *metrics, words.count(len(run.records)), *figures, ranks))
    notes = (
        f"Brackets contain the ratio to {base.name}; for metrics, the difference, of percentages in points. "
        "Seconds of an epoch: median over epochs. Bytes and waiting: means over epochs. "
        "Waiting: mean over ranks, for messages and in reductions.",
    )
    return Section("Figures", tables=(Table("Runs", header, tuple(rows), notes, label_columns=2),))


def _compared(shown: Callable[[float | None], str], value: float | None, base: float | None) -> str:
    """A value, and the ratio to its base if there is one."""
    found = words.ratio(value, base)
    return f"{shown(value)} ({found})" if found else shown(value)


def _metric(run: Run, base: Run, name: str) -> str:
    value, other = ((each.best() or {}).get(name) for each in (run, base))
    if not is_number(value):
        return words.MISSING
    if run.metric != base.metric:
        return f"{run.in_words(value)} {run.metric}"
    factor, _, form = scale_of(run.metric)
    signed = form.replace(":", ":+").removesuffix(" %")
    difference = f" ({signed.format(factor * (value - other))})" if run is not base and is_number(other) else ""
    return run.in_words(value) + difference


def _differing_settings(runs: Sequence[Run]) -> Section:
    """The settings in which the runs differ."""
    names = dict.fromkeys(itertools.chain(*(run.settings for run in runs)))
    shown = {name: [words.plain(run.settings[name]) if name in run.settings else "" for run in runs] for name in names}
    differing = {name: values for name, values in shown.items() if len(set(values)) > 1}
    if not differing:
        return Section("Settings", ("All runs have the same settings.",))
    rows = tuple((name, *values) for name, values in differing.items())
    header = ("setting", *(run.name for run in runs))
    return Section("Settings", tables=(Table("Settings that differ", header, rows, label_columns=len(header)),))


def _curves(runs: Sequence[Run]) -> list[Section]:
    metric = next((run.metric for run in runs if run.best() is not None), None)
    alike = [run for run in runs if run.metric == metric]
    scale, unit = words.second_unit(max((run.median("seconds") or 0.0 for run in runs), default=0.0))
    factor, in_unit, _ = scale_of(metric or "")
    validation = [_series(run, run.name, "val_metric", factor) for run in alike]
    seconds = [_series(run, run.name, "seconds", scale) for run in runs]
    losses = [_series(run, run.name, "loss") for run in runs]
    label, over_time = f"validation {metric}{in_unit}", [_over_time(run) for run in alike]
    curves = (
        ("Loss", "epoch", "loss", losses),
        (f"Validation {metric} by epoch", "epoch", label, validation),
        (f"Validation {metric} by time", "seconds of training", label, over_time),
        ("Seconds per epoch, slowest rank", "epoch", f"{unit} per epoch", seconds),
    )
    found = (_picture(title, x_label, y_label, series, x_label, _end_of) for title, x_label, y_label, series in curves)
    pictures = tuple(filter(None, found))
    return [Section("Curves", pictures=pictures)] if pictures else []


def _end_of(series: Series) -> str:
    return f"{words.shortened(series.name)} ends at {series.y[-1]:.4g}"


def _over_time(run: Run) -> Series:
    """The validation metric over the seconds of all training steps until then, without evaluations."""
    spent, x, y = 0.0, [], []
    for record in run.records:
        spent += record["seconds"] if is_number(record.get("seconds")) else 0.0
        if is_number(record.get("val_metric")):
            x.append(spent)
            y.append(scale_of(run.metric)[0] * record["val_metric"])
    return Series(run.name, tuple(x), tuple(y))


def _time(runs: Sequence[Run]) -> list[Section]:
    """The phases of each run as stacked bars, means over ranks."""
    timed = [run for run in runs if run.records]
    scale, unit = words.second_unit(max((run.mean("seconds_mean") or 0.0 for run in timed), default=0.0))
    parts = drawing.phase_parts(lambda name: [run.mean(f"{name}_mean") or 0.0 for run in timed], scale)
    if not parts:
        return []
    draw = partial(drawing.stacked_bars, [run.name for run in timed], parts, f"{unit} per epoch", "run")
    alt = "; ".join(f"{run.name} {words.seconds(run.mean('seconds_mean'))}" for run in timed[: drawing.MOST_LINES])
    base = {name: timed[0].mean(f"{name}_mean") for name in PHASES}
    rows = []
    for run in timed:
        bases = dict.fromkeys(PHASES) if run is timed[0] else base
        cells = (_compared(words.seconds, run.mean(f"{name}_mean"), bases[name]) for name in PHASES)
        rows.append((run.name, *cells))
    notes = ("Means over ranks and over all epochs but the first. Wire time overlaps the other phases.",)
    table = Table("An epoch by phase", ("run", *PHASES.values()), tuple(rows), notes)
    picture = Picture("An epoch by phase and run, mean over ranks", draw, f"{alt}.")
    return [Section("Time by phase", (), (picture,), (table,))]


# -- ranks -------------------------------------------------------------------------------------------------------------

_MISSING = "by rank: the run has no ranks.json, which is written when a run ends (not by older versions)"
_MOST_ROWS = 16
_COUNTED = {"nodes": "nodes", "edges": "edges", "cut_edges": "edges from other ranks", "rows_sent": "rows sent"}


class _Blocks:
    """The contents of ``ranks.json`` as arrays with one entry for each block of ranks, whose names are such as ``7`` or
    ``0-127``."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, ends = ranks, [*ranks.first_rank[1:], ranks.ranks]
        self.sizes = np.diff([*ranks.first_rank, ranks.ranks])
        pairs = zip(ranks.first_rank, ends, strict=True)
        self.names = [str(first) if end - first == 1 else f"{first}-{end - 1}" for first, end in pairs]
        self.are_ranks = len(self.names) == ranks.ranks

    def label(self, of_ranks: str, of_blocks: str) -> str:
        return of_ranks if self.are_ranks else of_blocks

    @property
    def axis(self) -> str:
        return self.label("rank", "ranks (mean of each block)")

    def mean(self, name: str) -> np.ndarray:
        """(B,) mean over the ranks of each block."""
        return np.array(self.ranks.mean[name])

    def largest(self, name: str) -> np.ndarray:
        """(B,) largest value over the ranks of each block."""
        return np.array(self.ranks.largest[name])

    def over_all(self, name: str) -> tuple[float, float]:
        """Mean and largest value over all ranks."""
        return self.average(self.mean(name)), float(self.largest(name).max())

    def average(self, means: np.ndarray) -> float:
        """The mean over all ranks of the means of blocks."""
        return float(means @ self.sizes / self.sizes.sum())

    def epochs(self) -> str:
        first, last = self.ranks.first_epoch, self.ranks.first_epoch + self.ranks.epochs - 1
        return f"epochs {first} to {last}" if self.ranks.epochs > 1 else f"epoch {last}"


def rank_sections(run: Run) -> list[Section]:
    """The sections about ranks of a run with ``ranks.json``; without it, those that follow from the parts file alone."""
    if run.ranks is None:
        said = Section("By rank", (f"No data {_MISSING}.",))
        partition = _partition(run, None)
        return [said, partition] if partition.tables else [said]
    blocks = _Blocks(run.ranks)
    found = [_waiting(blocks), _partition(run, blocks), _memory(blocks)]
    if len(blocks.names) > 1:
        found.insert(1, _traffic(blocks))
    return found


def _waiting(blocks: _Blocks) -> Section:
    names = blocks.names
    waits = np.sum([blocks.mean(name) for name in drawing.WAITING], axis=0)
    works = np.sum([blocks.mean(name) for name in drawing.ADDING if name not in drawing.WAITING], axis=0)
    whole = blocks.mean("seconds")
    scale, unit = words.second_unit(float(whole.max()))
    parts = drawing.phase_parts(lambda name: blocks.mean(name).tolist(), scale)
    draw = partial(drawing.stacked_bars, names, parts, f"{unit} per epoch", blocks.axis)
    text = [f"Seconds of each phase are means over {blocks.epochs()}."]
    if len(names) > 1:
        busiest, idlest = int(np.argmax(works)), int(np.argmax(waits))
        what, s = ("Rank", "s") if blocks.are_ranks else ("Ranks", "")
        mean = blocks.average(works)
        text.append(
            f"{what} {names[busiest]} work{s} longest: {words.seconds(works[busiest])} per epoch without waiting, "
            f"{works[busiest] / mean if mean > 0 else 1:.2f} times the mean. {what} {names[idlest]} wait{s} longest: "
            f"{words.seconds(waits[idlest])}, of {words.seconds(whole[idlest])} per epoch."
        )
    alt = "; ".join(
        f"rank {name} works {words.seconds(work)} and waits {words.seconds(wait)}"
        for name, work, wait in list(zip(names, works, waits, strict=True))[:_MOST_ROWS]
    )
    picture = Picture("An epoch by rank", draw, f"Stacked bars: {alt}.")
    return _section("Waiting by rank", text, picture, _time_table(blocks, works, waits))


def _section(title: str, text: Sequence[str], picture: Picture, table: Table) -> Section:
    """A section with a table, which is folded if it is long."""
    tables = (table,)
    is_short = len(table.rows) <= _MOST_ROWS
    return Section(title, tuple(text), (picture,), tables if is_short else (), () if is_short else tables)


def _time_table(blocks: _Blocks, works: np.ndarray, waits: np.ndarray) -> Table:
    shown = [name for name in drawing.PHASES if blocks.mean(name).any()]
    last = blocks.label("whole epoch", "slowest of the block")
    header = (blocks.axis, "works", "waits", *(drawing.PHASES[name] for name in shown), last)
    whole = blocks.mean("seconds") if blocks.are_ranks else blocks.largest("seconds")
    columns = [works, waits, *map(blocks.mean, shown), whole]
    rows = tuple(
        (name, *(words.seconds(float(column[i])) for column in columns)) for i, name in enumerate(blocks.names)
    )
    return Table("An epoch by rank", header, rows, ("Wire time overlaps the other phases.",))


def _traffic(blocks: _Blocks) -> Section:
    names, sent = blocks.names, np.array(blocks.ranks.bytes, dtype=float) / blocks.ranks.epochs
    most = float(sent.max())
    scale, unit = words.byte_unit(most)
    draw = partial(drawing.heat_map, sent / scale, names, f"{unit} per epoch")
    i, j = np.unravel_index(int(sent.argmax()), sent.shape)
    what = blocks.label("ranks", f"{len(names)} blocks of ranks")
    text = (
        f"Bytes of messages in training, including zero-points and scales, mean over {blocks.epochs()}: "
        f"{words.size(float(sent.sum()))} per epoch between {what}. "
        "Rows that ranks read from the shared memory of their node are not counted.",
        f"The largest share goes from {names[i]} to {names[j]}: {words.size(most)}.",
    )
    alt = f"Heat map: from {names[i]} to {names[j]} most, {words.size(most)} per epoch."
    out, into, receivers = sent.sum(axis=1), sent.sum(axis=0), np.count_nonzero(sent, axis=1)
    header = (blocks.label("rank", "ranks"), "sends", "receives", "sends to", "most of it to")
    rows = tuple(
        (name, words.size(out[k]), words.size(into[k]), words.count(receivers[k]), names[int(sent[k].argmax())])
        for k, name in enumerate(names)
    )
    picture = Picture("Bytes between ranks", draw, alt)
    return _section("Bytes between ranks", text, picture, Table("Bytes by rank", header, rows))


def _partition(run: Run, blocks: _Blocks | None) -> Section:
    text, pictures, tables = [], [], []
    if blocks is not None:
        rows = []
        for name, told in _COUNTED.items():
            mean, largest = blocks.over_all(name)
            counts = map(words.count, (round(mean * blocks.ranks.ranks), mean, largest))
            rows.append((told, *counts, words.ratio(largest, mean)[1:]))
        edges, cut = (blocks.over_all(name)[0] for name in ("edges", "cut_edges"))
        if edges:
            text.append(f"{words.percent(cut / edges)} of the edges are cut: they come from nodes of other ranks.")
        header = ("", "total", "mean of a rank", "largest", "balance (largest / mean)")
        notes = ("Rows sent are those of the model's first exchange.",)
        tables.append(Table("Parts", header, tuple(rows), notes))
        if len(blocks.names) > 1:
            pictures.append(_balance(blocks))
    tables += _strategies(run, text)
    return Section("Partition", tuple(text), tuple(pictures), tuple(tables))


def _balance(blocks: _Blocks) -> Picture:
    series, told = [], []
    places = tuple(map(float, blocks.ranks.first_rank))
    for name, word in _COUNTED.items():
        mean, largest = blocks.over_all(name)
        if mean:
            series.append(Series(word, places, tuple((blocks.mean(name) / mean).tolist())))
            told.append(f"{word} at most {largest / mean:.2f} times the mean")
    figure = Figure("Balance", blocks.label("rank", "first rank of a block"), "of the mean rank", tuple(series))
    title = "Nodes, edges and rows of each rank, relative to the mean"
    return Picture(title, partial(drawing.lines, figure), f"{'; '.join(told)}.")


def _strategies(run: Run, text: list[str]) -> list[Table]:
    """A table of rows by strategy, from the plans in the parts file."""
    path = _parts_of(run)
    if path is None:
        return []
    try:
        with PartsFile(path) as parts:
            if run.ranks is not None and parts.uuid != run.ranks.parts_uuid:
                text.append(f"{path} was written again after this run, so rows by strategy are unknown.")
                return []
            told = {
                name: describe(plan_store.StoredPlan(parts, name).pairs(), parts.num_parts, 1)
                for name in plan_store.stored_strategies(parts)
            }
    except (HpcgnnError, OSError) as error:
        text.append(f"Rows by strategy are unknown: {error}.")
        return []
    names = ("rows", "post_rows", "pre_rows", "max_rows_sent", "max_rows_received", "pairs")
    rows = tuple((strategy, *(words.count(facts[name]) for name in names)) for strategy, facts in told.items())
    header = ("strategy", "rows", "of these post", "pre", "most sent by a rank", "most received", "pairs of ranks")
    missing = ", ".join(name for name in STRATEGIES if name not in told)
    notes = [f"Not in the file: {missing}; `hpcgnn plan {path} --strategy all` adds them."] if missing else []
    if told and run.ranks and (sent := run.ranks.total("rows_sent")) not in (each["rows"] for each in told.values()):
        notes.append(f"The run's first exchange has {sent:,} rows, and so none of these plans.")
    title = "Rows of one aggregation by strategy, from the plans in the parts file"
    return [Table(title, header, rows, tuple(notes))]


def _parts_of(run: Run) -> Path | None:
    """The path of the parts file, relative to the working folder or to the run."""
    named = run.settings.get("parts")
    if not isinstance(named, str) or not named:
        return None
    try:
        return next((path for path in (Path(named), run.path.parent / named) if path.is_file()), None)
    except (OSError, ValueError):
        return None


def _memory(blocks: _Blocks) -> Section:
    mean, largest = blocks.over_all("peak_memory_bytes")
    peaks = blocks.largest("peak_memory_bytes")
    scale, unit = words.byte_unit(max(largest, 2**20))
    x_label = blocks.label("rank", "ranks (largest of each block)")
    shown = (peaks / scale).tolist()
    parts = [Part("_memory", shown, drawing.COLOURS[5])]
    draw = partial(drawing.stacked_bars, blocks.names, parts, f"peak memory in {unit}", x_label, float(np.mean(shown)))
    above = largest / mean if mean else 1
    text = f"At its peak a rank holds {words.size(largest)}, {above:.2f} times the mean, including the program and its libraries."
    alt = f"Bars from {words.size(float(peaks.min()))} to {words.size(float(peaks.max()))}."
    return Section("Memory by rank", (text,), (Picture("Peak memory by rank", draw, alt),))
