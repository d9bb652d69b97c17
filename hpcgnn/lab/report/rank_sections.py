"""Sections about ranks, from ``ranks.json`` and the parts file: how long ranks wait, the bytes that they send to each other, and
the partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Blocks:
    """The contents of ``ranks.json`` as arrays with one entry for each block of ranks: mean and largest value over its ranks.
    names: such as ``7`` or ``0-127``."""

    ranks: Ranks
    names: list[str]
    sizes: np.ndarray

    @classmethod
    def of(cls, ranks: Ranks) -> Blocks:
        """The blocks of ``ranks``, with their names and sizes."""
        ends = [*ranks.first_rank[1:], ranks.ranks]
        pairs = list(zip(ranks.first_rank, ends, strict=True))
        names = [str(first) if end - first == 1 else f"{first}-{end - 1}" for first, end in pairs]
        return cls(ranks, names, np.diff([*ranks.first_rank, ranks.ranks]))

    @property
    def are_ranks(self) -> bool:
        """Return whether each block is a single rank."""
        return len(self.names) == self.ranks.ranks

    @property
    def axis(self) -> str:
        """The label of an axis with the blocks' names."""
        return "rank" if self.are_ranks else "ranks (mean of each block)"

    def mean(self, name: str) -> np.ndarray:
        """(B,) mean over the ranks of each block."""
        return np.array(self.ranks.mean[name])

    def sum_of(self, names: Iterable[str]) -> np.ndarray:
        """(B,) sum of the means of several figures."""
        return np.sum([self.mean(name) for name in names], axis=0)

    def largest(self, name: str) -> np.ndarray:
        """(B,) largest value over the ranks of each block."""
        return np.array(self.ranks.largest[name])

    def over_all(self, name: str) -> tuple[float, float]:
        """Mean and largest value over all ranks."""
        return float(self.mean(name) @ self.sizes / self.sizes.sum()), float(self.largest(name).max())


def rank_sections(run: Run) -> list[Section]:
    """The sections about ranks of a run with ``ranks.json``; without it, those that follow from the parts file alone."""
    if run.ranks is None:
        said = Section("By rank", (f"No data {_MISSING}.",))
        partition = _partition(run, None)
        return [said, partition] if partition.tables else [said]
    blocks = Blocks.of(run.ranks)
    found = [_waiting(blocks), _partition(run, blocks), _memory(blocks)]
    if len(blocks.names) > 1:
        found.insert(1, _traffic(blocks))
    return found


# -- time --------------------------------------------------------------------------------------------------------------


def _waiting(blocks: Blocks) -> Section:
    names, ranks = blocks.names, blocks.ranks
    waits = blocks.sum_of(drawing.WAITING)
    works = blocks.sum_of([name for name in drawing.ADDING if name not in drawing.WAITING])
    scale, unit = words.second_unit(float(blocks.mean("seconds").max()))
    parts = drawing.phase_parts(lambda name: blocks.mean(name).tolist(), scale)
    draw = partial(drawing.stacked_bars, names, parts, f"{unit} per epoch", blocks.axis)
    busiest, idlest = int(np.argmax(works)), int(np.argmax(waits))
    what, s = ("Rank", "s") if blocks.are_ranks else ("Ranks", "")
    text = [f"Seconds of each phase are means over {_epochs(ranks)}."]
    if len(names) > 1:
        mean = float(works @ blocks.sizes / blocks.sizes.sum())
        text.append(
            f"{what} {names[busiest]} work{s} longest: {words.seconds(works[busiest])} per epoch without waiting, "
            f"{works[busiest] / mean if mean > 0 else 1:.2f} times the mean. {what} {names[idlest]} wait{s} longest: "
            f"{words.seconds(waits[idlest])}, of {words.seconds(blocks.mean('seconds')[idlest])} per epoch."
        )
    told = list(zip(names, works, waits, strict=True))[:_MOST_ROWS]
    alt = f"Stacked bars: {'; '.join(_told(*each) for each in told)}."
    tables = (_time_table(blocks, works, waits),) if len(names) <= _MOST_ROWS else ()
    folded = () if tables else (_time_table(blocks, works, waits),)
    return Section("Waiting by rank", tuple(text), (Picture("An epoch by rank", draw, alt),), tables, folded)


def _told(name: str, work: float, wait: float) -> str:
    return f"rank {name} works {words.seconds(work)} and waits {words.seconds(wait)}"


def _epochs(ranks: Ranks) -> str:
    last = ranks.first_epoch + ranks.epochs - 1
    return f"epochs {ranks.first_epoch} to {last}" if ranks.epochs > 1 else f"epoch {last}"


def _time_table(blocks: Blocks, works: np.ndarray, waits: np.ndarray) -> Table:
    shown = [name for name in drawing.PHASES if blocks.mean(name).any()]
    header = (blocks.axis, "works", "waits", *(drawing.PHASES[name] for name in shown), "slowest of the block")
    columns = [works, waits, *(blocks.mean(name) for name in shown), blocks.largest("seconds")]
    if blocks.are_ranks:
        header, columns = (*header[:-1], "whole epoch"), [*columns[:-1], blocks.mean("seconds")]
    rows = tuple(
        (name, *(words.seconds(float(column[i])) for column in columns)) for i, name in enumerate(blocks.names)
    )
    return Table("An epoch by rank", header, rows, ("Wire time overlaps the other phases.",))


# -- bytes -------------------------------------------------------------------------------------------------------------


def _traffic(blocks: Blocks) -> Section:
    ranks = blocks.ranks
    sent = np.array(ranks.bytes, dtype=float) / ranks.epochs
    most = float(sent.max())
    scale, unit = words.byte_unit(most)
    draw = partial(drawing.heat_map, sent / scale, blocks.names, f"{unit} per epoch")
    i, j = np.unravel_index(int(sent.argmax()), sent.shape)
    out, into = sent.sum(axis=1), sent.sum(axis=0)
    what = "ranks" if blocks.are_ranks else f"{len(blocks.names)} blocks of ranks"
    text = (
        f"Bytes of messages in training, including zero-points and scales, mean over {_epochs(ranks)}: "
        f"{words.size(float(sent.sum()))} per epoch between {what}. "
        "Rows that ranks read from the shared memory of their node are not counted.",
        f"The largest share goes from {blocks.names[i]} to {blocks.names[j]}: {words.size(most)}.",
    )
    alt = f"Heat map: from {blocks.names[i]} to {blocks.names[j]} most, {words.size(most)} per epoch."
    header = (blocks.axis.replace(" (mean of each block)", ""), "sends", "receives", "sends to", "most of it to")
    rows = tuple(
        (
            name,
            words.size(out[k]),
            words.size(into[k]),
            words.count(float(np.count_nonzero(sent[k]))),
            blocks.names[int(sent[k].argmax())],
        )
        for k, name in enumerate(blocks.names)
    )
    table = Table("Bytes by rank", header, rows)
    is_short = len(rows) <= _MOST_ROWS
    picture = Picture("Bytes between ranks", draw, alt)
    return Section("Bytes between ranks", text, (picture,), (table,) if is_short else (), () if is_short else (table,))


# -- the partition -----------------------------------------------------------------------------------------------------


def _partition(run: Run, blocks: Blocks | None) -> Section:
    text, pictures, tables = [], [], []
    if blocks is not None:
        rows = []
        for name, told in _COUNTED.items():
            mean, largest = blocks.over_all(name)
            total = mean * blocks.ranks.ranks
            rows.append(
                (
                    told,
                    words.count(round(total)),
                    words.count(mean),
                    words.count(largest),
                    words.ratio(largest, mean)[1:],
                )
            )
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


def _balance(blocks: Blocks) -> Picture:
    series, told = [], []
    for name, word in _COUNTED.items():
        mean, largest = blocks.over_all(name)
        if mean:
            series.append(
                Series(word, tuple(map(float, blocks.ranks.first_rank)), tuple((blocks.mean(name) / mean).tolist()))
            )
            told.append(f"{word} at most {largest / mean:.2f} times the mean")
    figure = Figure(
        "Balance", "rank" if blocks.are_ranks else "first rank of a block", "of the mean rank", tuple(series)
    )
    return Picture(
        "Nodes, edges and rows of each rank, relative to the mean",
        partial(drawing.lines, figure),
        f"{'; '.join(told)}.",
    )


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
    missing = [name for name in STRATEGIES if name not in told]
    notes = (
        (f"Not in the file: {', '.join(missing)}; `hpcgnn plan {path} --strategy all` adds them.",) if missing else ()
    )
    return [Table("Rows of one aggregation by strategy, from the plans in the parts file", header, rows, notes)]


def _parts_of(run: Run) -> Path | None:
    """The path of the parts file, relative to the working folder or to the run."""
    named = run.settings.get("parts")
    if not isinstance(named, str) or not named:
        return None
    try:
        return next((path for path in (Path(named), run.path.parent / named) if path.is_file()), None)
    except (OSError, ValueError):
        return None


# -- memory ------------------------------------------------------------------------------------------------------------


def _memory(blocks: Blocks) -> Section:
    mean, largest = blocks.over_all("peak_memory_bytes")
    peaks = blocks.largest("peak_memory_bytes")
    scale, unit = words.byte_unit(max(largest, 2**20))
    label = f"peak memory in {unit}"
    draw = partial(
        drawing.bars,
        blocks.names,
        (peaks / scale).tolist(),
        label,
        "rank" if blocks.are_ranks else "ranks (largest of each block)",
    )
    above = largest / mean if mean else 1
    text = f"At its peak a rank holds {words.size(largest)}, {above:.2f} times the mean, including the program and its libraries."
    alt = f"Bars from {words.size(float(peaks.min()))} to {words.size(float(peaks.max()))}."
    return Section("Memory by rank", (text,), (Picture("Peak memory by rank", draw, alt),))
