"""Rank program: epochs of the same training in each arithmetic of dense products, by turns.

usage: hpcgnn launch -n RANKS -t THREADS python compute_epochs.py PARTS.h5 EPOCHS WIDTH [WIDTH ...]

Rank 0 prints one JSON object whose `cases` say, for each model and width, what `auto` chose, and the seconds of each epoch
under each choice that is not refused here. The first epoch of each is left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hpcgnn
from hpcgnn.comm import MpiWorld
from hpcgnn.comm.threads import use_threads
from hpcgnn.graph import LocalGraph
from hpcgnn.memory import keep_freed_memory
from hpcgnn.stop import StopRequest

MODELS = ("gcn", "sage", "gat")
CHOICES = ("float32", "bf16", "auto", "int8")


def main() -> None:
    """Train. Collective."""
    parts, epochs, *widths = Path(sys.argv[1]), *map(int, sys.argv[2:])
    world = MpiWorld()
    use_threads(world)
    graph = hpcgnn.load(parts, world)
    keep_freed_memory()
    cases = []
    for name in MODELS:
        for width in widths:
            trainers = {choice: trainer for choice in CHOICES if (trainer := trainer_of(graph, name, width, choice))}
            seconds = by_turns(trainers, epochs)
            chosen = trainers["auto"].model.compute
            cases.append({"model": name, "width": width, "chosen": chosen, "seconds": seconds})
    if world.rank == 0:
        print(json.dumps({"cases": cases}))


def trainer_of(graph: LocalGraph, name: str, width: int, choice: str) -> hpcgnn.Trainer | None:
    """With the defaults of the command; None where the choice is refused. Collective."""
    config = hpcgnn.ModelConfig(name, hidden=width)
    try:
        model = hpcgnn.build_model(config, graph, compute=choice)
    except hpcgnn.HpcgnnError as error:
        if "bf16-emulated" not in str(error):
            raise
        return None
    return hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=10**6, eval_every=10**6), stop=StopRequest())


def by_turns(trainers: dict[str, hpcgnn.Trainer], epochs: int) -> dict[str, list[float]]:
    """Seconds of the slowest rank in each epoch but the first one. Collective."""
    seconds: dict[str, list[float]] = {choice: [] for choice in trainers}
    for turn in range(1 + epochs):
        for choice, trainer in trainers.items():
            record = trainer.run_epoch()
            if turn > 0:
                seconds[choice].append(record["seconds"])
    return seconds


if __name__ == "__main__":
    main()
