"""``python -m campaign.soak.again PARTS ROUNDS OUT``: load a graph, build a model, train two epochs and drop both, repeatedly
in one job.

A native model and a distributed PyG model alternate. Each round adds a line to OUT.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch_geometric.nn as pyg

import hpcgnn

_EPOCHS = 2


def _one_round(parts: Path, number: int) -> float:
    graph = hpcgnn.load(parts)
    if number % 2:
        torch.manual_seed(number)
        model = hpcgnn.distribute(pyg.GCN(graph.meta.num_features, 16, 2, graph.meta.num_classes), graph)
    else:
        model = hpcgnn.build_model(hpcgnn.ModelConfig("sage", layers=2, hidden=16), graph, seed=number)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=_EPOCHS))
    return [trainer.run_epoch()["loss"] for _ in range(_EPOCHS)][-1]


def main(parts: Path, rounds: int, out: Path) -> None:
    """Run all rounds."""
    for number in range(rounds):
        loss = _one_round(parts, number)
        if loss != loss:
            raise SystemExit("a loss that is not a number")
        with out.open("a") as file:
            file.write(f"{number}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(f"{sys.argv[3]}"))
