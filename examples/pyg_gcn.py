"""PyTorch Geometric's GCN on several ranks, with the training loop of PyG's own example (examples/gcn.py there).

    hpcgnn convert 'pyg:Cora?root=data' cora.h5 --row-normalise
    hpcgnn partition cora.h5 cora-2.h5 --parts 2
    mpirun -n 2 python -m mpi4py examples/pyg_gcn.py cora-2.h5

To try it on a small generated graph: `mpirun -n 2 python -m mpi4py examples/pyg_gcn.py --small`.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from small_graph import arguments, parts_of
from torch_geometric.nn import GCN

import hpcgnn


def main(parts: Path, epochs: int) -> None:
    """Train, and print accuracies every 20 epochs: the best validation accuracy, and the test accuracy of that epoch."""
    torch.manual_seed(0)
    data = hpcgnn.load(parts)  # this rank's part of the graph
    net = GCN(data.meta.num_features, 16, num_layers=2, out_channels=data.meta.num_classes, dropout=0.5)
    model = hpcgnn.distribute(net, data)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    masks, x = data.masks, data.x
    x = x.to_dense() if x.layout == torch.sparse_csr else x  # Cora's features are stored sparse
    total = {name: max(int(hpcgnn.sum(mask, data)), 1) for name, mask in masks.items()}
    best, test = 0.0, 0.0
    for epoch in range(1, epochs + 1):
        model.train()
        optimiser.zero_grad()
        out = model(x, data.edge_index)
        train = masks["train_mask"]
        losses = F.cross_entropy(out[train], data.y[train], reduction="none")
        hpcgnn.mean_loss(losses, data).backward()  # the mean over the training nodes of all ranks
        hpcgnn.sum_gradients(model)
        optimiser.step()
        model.eval()
        with torch.no_grad():
            right = model(x, data.edge_index).argmax(1) == data.y
        found = {name: int(hpcgnn.sum(right[mask], data)) / total[name] for name, mask in masks.items()}
        if found["val_mask"] > best:
            best, test = found["val_mask"], found["test_mask"]
        if data.world.rank == 0 and epoch % 20 == 0:
            print(f"epoch {epoch}: training accuracy {found['train_mask']:.3f}, validation {best:.3f}, test {test:.3f}")


if __name__ == "__main__":
    given = arguments(__doc__, epochs=200)
    with parts_of(given) as file:
        main(file, given.epochs)
