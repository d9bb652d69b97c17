"""Link prediction: hold out a tenth of the links, train on the others, and score pairs of nodes.

    hpcgnn convert npz:mine.npz graph.h5 --undirected
    hpcgnn partition graph.h5 graph-4.h5 --parts 4
    mpirun -n 4 python -m mpi4py examples/links.py graph-4.h5

To try it on a small generated graph: `mpirun -n 2 python -m mpi4py examples/links.py --small`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from small_graph import arguments, parts_of

import hpcgnn


def main(parts: Path, epochs: int) -> None:
    """Train, and print the metric of the held-out links and the most likely partner of node 0."""
    graph = hpcgnn.load(parts)
    split = hpcgnn.split_links(graph, hpcgnn.LinkConfig(link_split=(0.05, 0.05)))
    config = hpcgnn.ModelConfig("gcn", layers=2, hidden=64, norm="none", dropout=0.0, decoder="dot")
    model = hpcgnn.build_model(config, split.train)
    summary = hpcgnn.Trainer(model, split, hpcgnn.TrainConfig(epochs=epochs, metric="roc-auc")).fit()
    model.eval()
    with torch.no_grad():
        embeddings = hpcgnn.gather(model(split.train.features), split.train)  # (N, 64) on rank 0, by original ids
    if embeddings is None:
        return
    scores = embeddings @ embeddings[0]
    scores[0] = -torch.inf
    print(f"ROC-AUC of held-out links: {summary['test_metric_at_best_val']:.3f}")
    print(f"most likely partner of node 0: node {int(scores.argmax())}")


if __name__ == "__main__":
    given = arguments(__doc__, epochs=200)
    with parts_of(given) as file:
        main(file, given.epochs)
