"""Some of the trainings under mpirun, compared with the same ranks as threads; and the files of a run whose numbers overflow."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from small_graphs import random_parts, write_parts

from campaign import processes
from campaign.numbers import graphs, training, verdicts
from campaign.numbers.ranks import Outcome
from campaign.numbers.settings import Choice, all_axes, cases
from campaign.section import FAILED, REFUSED, RIGHT, Case, Session

GROUP, COMMAND = "under mpirun", "the command, where numbers overflow"
_RANKS = 2  # with two ranks, the order of a sum does not matter
_SECONDS, _COMMAND_SECONDS = 400.0, 120.0


def trainings(session: Session, count: int) -> Iterator[Case]:
    """Run this many of the usual choices in one launch."""
    if session.only and not session.wants(GROUP):
        return
    axes = all_axes() | {"ranks": (_RANKS,)}
    choices = list(itertools.islice(cases(session.generator(GROUP), count, axes), count))
    folder, started = session.new_folder(GROUP), time.monotonic()
    for number, choice in enumerate(choices):
        _write(session, folder / f"{number}.h5", choice)
    (folder / "choices.json").write_text(json.dumps([choice.chosen for choice in choices]))
    ended = processes.run([sys.executable, "-m", "campaign.numbers.program", folder], ranks=_RANKS, seconds=_SECONDS)
    wrong = processes.wrong_end(ended) or ("" if ended.exit == 0 else f"exit code {ended.exit}: {ended.stderr[-300:]}")
    told = json.loads((folder / "told.json").read_text()) if not wrong else []
    each_took = (time.monotonic() - started) / count
    if wrong:
        yield Case(GROUP, "all of them", FAILED, wrong, each_took * count)
    for number, (choice, found) in enumerate(zip(choices, told, strict=False)):
        threads = training.trained(folder / f"{number}.h5", _RANKS, choice)[0]
        yield Case(GROUP, choice.name, *_alike(Outcome(**found), threads, choice), each_took)


def _write(session: Session, path: Path, choice: Choice) -> None:
    names = tuple(str(choice[name]) for name in ("edges", "features", "labels"))
    graph = graphs.make(*names, session.generator(*names))
    write_parts(path, graph, random_parts(graph.num_nodes, _RANKS, seed=session.seed), _RANKS)


def _alike(found: Outcome, threads: Outcome, choice: Choice) -> tuple[str, str]:
    # torch's products in bfloat16 depend on its number of threads, which differs here. A last bit of bfloat16 then decides how
    # a message is rounded.
    is_torchs = choice["arithmetic"] == "bf16-emulated"
    if found.refused != threads.refused:
        return FAILED, f"under MPI {found.refused or 'it trains'!r}, with threads {threads.refused or 'it trains'!r}"
    if found.refused:
        return REFUSED, found.refused
    off = verdicts.difference(np.array(found.losses), np.array(threads.losses))
    if off > (1e-2 if is_torchs else 1e-6) or (found.metrics != threads.metrics and not is_torchs):
        return FAILED, f"under MPI {found.losses}, with threads {threads.losses}"
    return RIGHT, ""


def commands(session: Session) -> Iterator[Case]:
    """Run trainings whose weights overflow float32 after some epochs, and check the sentence and the earlier checkpoint."""
    for lr in ("1e30", "1e15"):
        for ranks in (1, 3):
            name = f"--lr {lr} on {ranks} ranks"
            if session.wants(f"{COMMAND}: {name}"):
                started = time.monotonic()
                end, said = _overflowing(session, lr, ranks)
                yield Case(COMMAND, name, end, said, time.monotonic() - started)


def _overflowing(session: Session, lr: str, ranks: int) -> tuple[str, str]:
    folder = session.new_folder(f"lr {lr} {ranks}")
    graph = graphs.make("random edges", "usual", "usual", session.generator("overflows"))
    write_parts(folder / "parts.h5", graph, random_parts(graph.num_nodes, ranks), ranks)

    def train(out: str, epochs: int) -> processes.Ended:
        words = ["--epochs", epochs, "--hidden", 8, "--lr", lr, "--norm", "none", "--checkpoint-every", 1, "--quiet"]
        return processes.run(
            [*processes.HPCGNN, "train", "parts.h5", "--out", out, *words],
            folder=folder,
            ranks=ranks,
            seconds=_COMMAND_SECONDS,
        )

    ended = train("long", 6)
    wrong = processes.wrong_end(ended, names=("in epoch",), ranks=ranks)
    if wrong or ended.exit == 0:
        return FAILED, wrong or "a training with such a rate goes on"
    epochs = len((folder / "long" / "metrics.jsonl").read_text().splitlines())
    ended = train("short", epochs)
    if ended.exit != 0:
        return FAILED, f"the same training of {epochs} epochs fails: {ended.stderr[-300:]}"
    long, short = (
        torch.load(folder / out / "checkpoints" / "last.pt", weights_only=True)["model"] for out in ("long", "short")
    )
    for name, value in short.items():
        if not torch.equal(long[name], value) or not value.isfinite().all():
            return FAILED, f"{name} in the last checkpoint is not what it was before epoch {epochs}"
    return REFUSED, ""
