"""Models of PyG's layers to be distributed, and a program for ranks that trains one."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg

import hpcgnn
from hpcgnn.exchange import MessageConfig
from hpcgnn.world import World


class Net(torch.nn.Module):
    """Two layers, and operations that users put between layers."""

    def __init__(self, first: torch.nn.Module, second: torch.nn.Module, width: int, *, weighted: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.norm = first, second, torch.nn.BatchNorm1d(width)
        self.weighted = weighted

    def forward(self, x, edge_index, edge_weight=None):
        extra = (edge_weight,) if self.weighted else ()
        x = F.elu(self.norm(self.first(x, edge_index, *extra)))
        return self.second(x, edge_index, *extra)


def models(width: int, classes: int) -> dict[str, torch.nn.Module]:
    torch.manual_seed(5)
    return {
        "gcn": Net(pyg.GCNConv(width, 8, cached=True), pyg.GCNConv(8, classes, improved=True), 8, weighted=True),
        "sage and gat": Net(pyg.SAGEConv(width, 8), pyg.GATv2Conv(8, classes, heads=2, concat=False), 8),
        "cheb and appnp": Net(pyg.ChebConv(width, 6, K=3), pyg.TAGConv(6, classes), 6, weighted=True),
        "PyG's GCN": pyg.GCN(width, 8, 3, classes, norm="graph_norm", jk="cat"),
    }


def losses_fall(world: World, path: Path, plain: torch.nn.Module) -> dict[str, float]:
    """The last losses of a trainer relative to its first ones, exact and with low bit-widths, stale rows and policies; and the
    number of exchanges for which a policy decides."""
    results = {}
    policies = {"exact": (32, {}), "quantized": (8, {"bits": "adaqp", "bits_period": 2, "staleness": "pipeline"})}
    graph = hpcgnn.load(path, world)
    for name, (bits, policy) in policies.items():
        model = hpcgnn.distribute(copy.deepcopy(plain), graph, messages=MessageConfig(bits=bits))
        config = hpcgnn.TrainConfig(epochs=6, eval_every=3, policy=hpcgnn.PolicyConfig(**policy))
        trainer = hpcgnn.Trainer(model, graph, config)
        trainer.fit()
        results[name] = trainer.records[-1]["loss"] / trainer.records[0]["loss"]
        results[f"{name}, exchanges"] = len(trainer.policies.record().get("bits", {})) if policy else 0
    return results
