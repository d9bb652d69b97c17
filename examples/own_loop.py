"""A training loop without a Trainer, and the scores of all nodes on rank 0.

    hpcgnn convert digits digits.h5
    hpcgnn partition digits.h5 digits-2.h5 --parts 2
    mpirun -n 2 python -m mpi4py examples/own_loop.py digits-2.h5

To try it on a small generated graph: `mpirun -n 2 python -m mpi4py examples/own_loop.py --small`.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from small_graph import arguments, parts_of

import hpcgnn


def main(parts: Path, epochs: int) -> None:
    """Train, gather the scores on rank 0, and print the test accuracy."""
    graph = hpcgnn.load(parts)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("sage", layers=2, hidden=32), graph)

    train = graph.masks["train_mask"].nonzero()[:, 0]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        optimiser.zero_grad()
        scores = model(graph.features)  # one row for each node that this rank owns
        losses = F.cross_entropy(scores[train], graph.y[train], reduction="none")
        hpcgnn.mean_loss(losses, graph).backward()  # the mean over the training nodes of all ranks
        hpcgnn.sum_gradients(model, graph.world)
        optimiser.step()

    model.eval()
    with torch.no_grad():
        everywhere = hpcgnn.gather(model(graph.features), graph)  # (N, classes) on rank 0, None on the other ranks
    labels, test = hpcgnn.gather(graph.y, graph), hpcgnn.gather(graph.masks["test_mask"], graph)
    if graph.world.rank == 0:
        right = everywhere.argmax(1)[test] == labels[test]
        print(f"test accuracy {right.float().mean():.3f} over {int(test.sum())} nodes of {len(labels)}")


if __name__ == "__main__":
    given = arguments(__doc__, epochs=100)
    with parts_of(given) as file:
        main(file, given.epochs)
