"""Sections about ranks, from ``ranks.json`` and the parts file: how long ranks wait, the bytes that they send to each other, and
the partition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data import plan_store
from hpcgnn.data.graph_file import PartsFile
from hpcgnn.lab.report import drawing, words
from hpcgnn.lab.report.page import Picture, Section
from hpcgnn.lab.study.tables import Figure, Series, Table
from hpcgnn.plan import STRATEGIES
from hpcgnn.plan.plan import describe
from hpcgnn.train.rank_report import Ranks
from hpcgnn.train.run_files import Run

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
        notes = ("Rows sent are those of the model's first exchange, from the plan of its strategy.",)
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
                name: describe(plan_store.read_all_pairs(parts, name), parts.num_parts, 1)
                for name in plan_store.stored_strategies(parts)
            }
    except (HpcgnnError, OSError) as error:
        text.append(f"Rows by strategy are unknown: {error}.")
        return []
    names = ("rows", "post_rows", "pre_rows", "max_rows_sent", "max_rows_received", "pairs")
    rows = tuple((strategy, *(words.count(facts[name]) for name in names)) for strategy, facts in told.items())
    header = ("strategy", "rows", "of these post", "pre", "most sent by a rank", "most received", "pairs of ranks")
    missing = ", ".join(name for name in STRATEGIES if name not in told)
    note = f"Not in the file: {missing}; `hpcgnn plan {path} --strategy all` adds them."
    title = "Rows of one aggregation by strategy, from the plans in the parts file"
    return [Table(title, header, rows, (note,) if missing else ())]


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
    draw = partial(drawing.bars, blocks.names, (peaks / scale).tolist(), f"peak memory in {unit}", x_label)
    above = largest / mean if mean else 1
    text = f"At its peak a rank holds {words.size(largest)}, {above:.2f} times the mean, including the program and its libraries."
    alt = f"Bars from {words.size(float(peaks.min()))} to {words.size(float(peaks.max()))}."
    return Section("Memory by rank", (text,), (Picture("Peak memory by rank", draw, alt),))
