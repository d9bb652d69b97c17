"""Trainings with extreme numbers: P ranks, which are threads here, compared with one process."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from small_graphs import random_parts, write_parts

from campaign.numbers import graphs, messages, verdicts
from campaign.numbers.ranks import Outcome, small_products_in_bfloat16, train
from campaign.numbers.settings import EXACT, Choice, all_axes, cases
from campaign.section import FAILED, REFUSED, RIGHT, Case, Session
from hpcgnn.world.thread_world import on_threads

ALIKE, ROUNDED = "P ranks equal one process", "rounded, stale and delta messages"
_HANG_SECONDS = 20.0
_UNSURE = "one process ends otherwise where its inputs move by their last bits"
_ILL = "the results of one process change by more than 2e-4 if the last bits of its inputs change"
NOTES = (_UNSURE, _ILL)


def run(session: Session, group: str, count: int) -> Iterator[Case]:
    """Run at least this many cases of one group, in which every pair of values occurs; in the short form, the first of them."""
    axes = all_axes() | (EXACT if group == ALIKE else {})
    folder = session.new_folder(group)
    chosen = cases(session.generator(group), count, axes)
    for choice in itertools.islice(chosen, count) if session.short else chosen:
        if not session.has_time():
            return
        if not session.only or session.wants(f"{group}: {choice.name}"):
            yield _case(session, folder, group, choice)


def _case(session: Session, folder: Path, group: str, choice: Choice) -> Case:
    started = time.monotonic()
    try:
        end, said = _verdict(session, folder, choice)
    except Exception as error:  # any error but a sentence is a defect, and the next case can run
        end, said = FAILED, f"{type(error).__name__}: {error}"
    return Case(group, choice.name, end, said, time.monotonic() - started)


def _verdict(session: Session, folder: Path, choice: Choice) -> tuple[str, str]:
    paths = _files(session, folder, choice)
    (one,) = trained(paths[0], 1, choice)
    with messages.watched() as problems:
        many = trained(paths[1], int(str(choice["ranks"])), choice)
    wrong = verdicts.ranks_disagree(many) or (problems[0] if problems else "")
    if wrong:
        return FAILED, wrong
    if one.refused or many[0].refused:
        return both_refused(one, many[0], choice)
    wrong = verdicts.finite_everywhere(one) or verdicts.finite_everywhere(many[0])
    if wrong:
        return FAILED, wrong
    return _compared(paths[0], one, many[0], choice)


def _files(session: Session, folder: Path, choice: Choice) -> tuple[Path, Path]:
    names = tuple(str(choice[name]) for name in ("edges", "features", "labels"))
    graph, ranks = graphs.make(*names, session.generator(*names)), int(str(choice["ranks"]))
    part = random_parts(graph.num_nodes, ranks, seed=session.seed)
    paths = folder / "1.h5", folder / "P.h5"
    write_parts(paths[0], graph, np.zeros(graph.num_nodes, np.int64), 1)
    write_parts(paths[1], graph, part, ranks)
    return paths


def trained(path: Path, ranks: int, choice: Choice, nudge: int = 0) -> list[Outcome]:
    """The outcome on each of the given number of ranks, which are threads. nudge: see :func:`campaign.numbers.ranks.train`."""
    config, arithmetic = choice.config(), str(choice["arithmetic"])
    nodes = {"HPCGNN_RANKS_PER_NODE": "2"} if choice["node_aware"] == "on" else {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with mock.patch.dict(os.environ, nodes), small_products_in_bfloat16():
            return on_threads(
                ranks, lambda world: train(world, path, config, arithmetic, nudge), timeout_seconds=_HANG_SECONDS
            )
    finally:
        torch.set_num_threads(threads)


def both_refused(one: Outcome, many: Outcome, choice: Choice | dict[str, object]) -> tuple[str, str]:
    """The verdict for a training that was refused on one rank or on several."""
    sentences = [each.refused for each in (one, many) if each.refused]
    for sentence in sentences:
        if not verdicts.is_a_sentence(sentence):
            return FAILED, f"this is no sentence: {sentence}"
    if len(sentences) == 2:
        if all(map(verdicts.of_numbers, sentences)) != any(map(verdicts.of_numbers, sentences)):
            return FAILED, f"one process says {one.refused!r}, ranks {many.refused!r}"
        return REFUSED, sentences[-1]
    if verdicts.of_numbers(sentences[0]) and choice["features"] in graphs.SUMS_OVERFLOW:
        return REFUSED, f"sums overflow in one order only: {sentences[0]}"
    who = "one process" if one.refused else "ranks"
    return FAILED, f"only {who} refused: {sentences[0]}"


def _compared(path: Path, one: Outcome, many: Outcome, choice: Choice) -> tuple[str, str]:
    """Compare results: they must be equal where settings guarantee it, and otherwise within the uncertainty of one process's
    own results.
    """
    arithmetic = str(choice["arithmetic"])
    is_rounded = many.rows_sent and choice["bits"] != "32"
    if arithmetic not in verdicts.TOLERANCE or is_rounded:
        return RIGHT, ""
    epochs = 1 if choice["staleness"] != "off" and many.rows_sent else len(one.losses)
    tolerance = verdicts.TOLERANCE[arithmetic]
    found = verdicts.differences(many, one, epochs)
    if max(found.values()) <= tolerance:
        return RIGHT, ""
    spread = dict.fromkeys(found, 0.0)
    for nudge in (1, 2, 3, 4):
        (moved,) = trained(path, 1, choice, nudge)
        if moved.refused:
            return RIGHT, _UNSURE
        for name, value in verdicts.differences(moved, one, epochs).items():
            spread[name] = max(spread[name], value)
    for name, value in found.items():
        if value > tolerance + verdicts.MOST_SPREADS * spread[name]:
            return FAILED, (
                f"{name} differ by {value:.2g} of the largest, where one process' own move by {spread[name]:.2g}: "
                f"{many.losses} and {one.losses}"
            )
    return RIGHT, _ILL
