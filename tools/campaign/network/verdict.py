"""Comparison of a run with an undisturbed one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from campaign.processes import wrong_end
from campaign.rank_job import Outcome

_NONE = "none"
_NUMBERS = ("loss", "train_metric", "val_metric", "test_metric")
_OF_A_STALL = re.compile(r"hpcgnn: error on rank (\d+): rank \1 of \d+ waited .+: a peer or a link has stopped")


def numbers(run: Path) -> list[list[str]]:
    """The loss and the metrics of each epoch that was written, exactly."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [[_bits(line.get(name)) for name in _NUMBERS] for line in lines]


def _bits(value: Any) -> str:
    return _NONE if value is None else float(value).hex()


def weights(run: Path) -> dict[str, bytes]:
    """The weights of the last and of the best checkpoint."""
    found = {}
    for name in ("last.pt", "best.pt"):
        content = torch.load(run / "checkpoints" / name, weights_only=True)
        found |= {f"{name}: {key}": value.numpy().tobytes() for key, value in content["model"].items()}
    return found


def wrong_result(run: Path, undisturbed: Path) -> str:
    """A phrase about a difference in a run that completed; empty if there is none."""
    mine, wanted = numbers(run), numbers(undisturbed)
    if wrong := wrong_beginning(mine, wanted):
        return wrong
    if len(mine) != len(wanted):
        return f"{len(mine)} epochs, not {len(wanted)}"
    mine_weights, wanted_weights = weights(run), weights(undisturbed)
    other = [name for name in wanted_weights if mine_weights.get(name) != wanted_weights[name]]
    return f"other weights: {', '.join(other)}" if other else ""


def wrong_weights(outcome: Outcome) -> str:
    """A phrase about ranks that ended with different weights; empty if their weights are the same."""
    return "" if len(set(outcome.weights)) == 1 else f"the ranks' weights differ: {outcome.weights}"


def wrong_beginning(mine: Sequence[list[str]], wanted: Sequence[list[str]], *, replayed: bool = False) -> str:
    """A phrase about a difference in the epochs of a run that was ended. replayed: ``wanted`` is a run of exactly these epochs,
    which has evaluated its last epoch even if the longer run did not.
    """
    for epoch, (one, other) in enumerate(zip(mine, wanted, strict=False)):
        for name, value, right in zip(_NUMBERS, one, other, strict=True):
            was_not_due = replayed and epoch == len(wanted) - 1 and name != "loss" and value == _NONE
            if value != right and not was_not_due:
                return f"epoch {epoch} has {name} {value}, and {right} in a run that nothing happened to"
    return f"{len(mine)} epochs, more than {len(wanted)}" if len(mine) > len(wanted) else ""


def wrong_stop(outcome: Outcome, *, ranks: int, silent: Sequence[int], most_seconds: float) -> str:
    """A phrase about a wrong end of a job that a fault should end. silent: ranks that need not have printed anything."""
    ended = outcome.ended
    if outcome.hangs or ended is None:
        return f"hangs: no end within {outcome.seconds:.0f} s of the fault: {ended.stderr[-500:] if ended else ''}"
    if ended.exit != 1:
        return f"exit code {ended.exit}: {ended.stderr[-500:]}"
    if wrong := wrong_end(ended, ranks=ranks):
        return wrong
    said = {int(match[1]) for match in _OF_A_STALL.finditer(ended.stderr)}
    if missing := set(range(ranks)) - said - set(silent):
        return f"ranks {sorted(missing)} did not say what they waited for: {ended.stderr[-500:]}"
    if outcome.seconds > most_seconds:
        return f"ended {outcome.seconds:.0f} s after the fault, and --timeout allows {most_seconds:.0f}"
    return ""
