"""The settings of training that are tried, and the phases of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping

EPOCHS = 6
COMMON = (
    *("--hidden", 64, "--layers", 2, "--compute", "float32", "--device", "cpu", "--quiet"),
    *("--epochs", EPOCHS, "--eval-every", 3, "--checkpoint-every", 2),
)
SETTINGS: dict[str, tuple[object, ...]] = {
    "32 bits": (),
    "2 bits": ("--bits", 2),
    "2 bits, delta": ("--bits", 2, "--message-coding", "delta", "--dropout", 0),
    "gat, 8 bits": ("--model", "gat", "--heads", 2, "--bits", 8),
    "adaqp": ("--bits", "adaqp", "--bits-period", 2),
    "pipeline": ("--staleness", "pipeline"),
    "pipeline, 2 bits": ("--staleness", "pipeline", "--bits", 2),
    "pipeline, adaqp": ("--staleness", "pipeline", "--bits", "adaqp", "--bits-period", 2),
    "sylvie": ("--staleness", "sylvie", "--bits", "sylvie", "--loss-window", 2),
    "auto": ("--staleness", "auto", "--bits", "auto"),
    "pipeqs": ("--staleness", "pipeqs", "--bits", "pipeqs", "--drift-threshold", 2),
    "pipeqs, late": ("--staleness", "pipeqs", "--drift-threshold", 2, "--bypass", "late"),
    "sancus": ("--staleness", "sancus", "--drift-threshold", 2),
}
# The operations for which a rank waits, by phase; the first match decides.
_PHASES = {
    "policy": r"bits of rows|.*costs? of links.*|a timed message|.*assignment.*|every rank to assign bits",
    "checkpoint": r"the disk, .*|every rank to write .*",
    "evaluation": r"metric counts|the metrics",
    "the end": r"every rank to read the epochs.*|bytes between ranks|figures of ranks|the summary",
    "times": r"the times of the epoch",
    "forward": r"layer \d's boundary rows|sums over nodes",
    "backward": r"layer \d's gradients",
    "reduction of gradients": r"gradients",
    "calls of MPI that block": r"MPI in .*",
    "start": r".*",
}
PHASES = tuple(_PHASES)


def phase_of(what: str) -> str:
    """The phase in which a rank waits for ``what``."""
    return next(phase for phase, pattern in _PHASES.items() if re.fullmatch(pattern, what))


def by_phase(waits: Mapping[str, int]) -> dict[str, list[str]]:
    """The operations for which a rank waited in a run, by phase."""
    found: dict[str, list[str]] = {}
    for what in waits:
        found.setdefault(phase_of(what), []).append(what)
    return found
