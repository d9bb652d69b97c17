"""Train GAT with PyG in one process; prints one JSON object. Started by bench_attention.py."""

from __future__ import annotations

import argparse
import json
import statistics
import time

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv


def main() -> None:
    """Train, and print the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph")
    for name in ("threads", "layers", "hidden", "heads", "epochs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    x, edge_index, y, mask = read(arguments.graph)
    model = layers(arguments, x.shape[1], int(y.max()) + 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    seconds = []
    for _ in range(arguments.epochs):
        started = time.perf_counter()
        optimiser.zero_grad()
        hidden = x
        for depth, layer in enumerate(model):
            hidden = layer(hidden if depth == 0 else F.elu(hidden), edge_index)
        F.cross_entropy(hidden[mask], y[mask]).backward()
        optimiser.step()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"epoch_seconds_median": statistics.median(seconds)}))


def read(path: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, edges, labels and training nodes."""
    with h5py.File(path) as file:
        indptr, indices = file["edges/indptr"][:], file["edges/indices"][:]
        arrays = [file[f"nodes/{name}"][:] for name in ("x", "y", "train_mask")]
    destination = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    x, y, mask = map(torch.from_numpy, arrays)
    return x, torch.from_numpy(np.stack((indices, destination))), y.long(), mask.bool()


def layers(arguments: argparse.Namespace, width: int, classes: int) -> torch.nn.ModuleList:
    """All but the last join their heads."""
    found = torch.nn.ModuleList()
    for _ in range(arguments.layers - 1):
        found.append(GATConv(width, arguments.hidden // arguments.heads, arguments.heads))
        width = arguments.hidden
    return found.append(GATConv(width, classes, 1))


if __name__ == "__main__":
    main()
