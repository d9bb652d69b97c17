"""ogbn-arxiv with label propagation: the labels of some training nodes are inputs, and the loss is computed on the other
training nodes (SuperGCN, UniMP).

    hpcgnn convert 'ogb:ogbn-arxiv?root=data' arxiv.h5 --undirected --self-loops
    hpcgnn partition arxiv.h5 arxiv-4.h5 --parts 4
    mpirun -n 4 python -m mpi4py examples/ogbn_arxiv.py arxiv-4.h5

To try it on a small generated graph: `mpirun -n 2 python -m mpi4py examples/ogbn_arxiv.py --small`.
"""

from __future__ import annotations

from pathlib import Path

from small_graph import arguments, parts_of

import hpcgnn


def main(parts: Path, epochs: int) -> None:
    """Train without and with label propagation, and print both accuracies."""
    graph = hpcgnn.load(parts)
    for rate in (0.0, 0.62):
        run = hpcgnn.RunConfig.from_settings(
            {
                "model": "sage",
                "layers": 3,
                "hidden": 256 if epochs > 100 else 32,
                "dropout": 0.5,
                "lr": 0.01,
                "epochs": epochs,
                "eval_every": 5,
                "label_propagation": rate,
            }
        )
        model = hpcgnn.build_model(run.model, graph)
        summary = hpcgnn.Trainer(model, graph, run.train).fit()
        if graph.world.rank == 0:
            print(f"label propagation {rate}: test accuracy {summary['test_metric_at_best_val']:.3f}")


if __name__ == "__main__":
    given = arguments(__doc__, epochs=500)
    with parts_of(given) as file:
        main(file, given.epochs)
