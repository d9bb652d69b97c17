"""Programs for ranks: distributed models of PyG's layers, compared with the same models on one machine."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import numpy as np
import small_graphs
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from ranks import equivalence

import hpcgnn
from hpcgnn.exchange import MessageConfig
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.world import World

EPOCHS, LR = 8, 0.01


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
        "gat": Net(pyg.GATConv(width, 4, heads=2), pyg.GATConv(8, classes), 8),
        "max and transformer": Net(pyg.SAGEConv(width, 8, aggr="max"), pyg.TransformerConv(8, classes), 8),
        "cheb and appnp": Net(pyg.ChebConv(width, 6, K=3), pyg.TAGConv(6, classes), 6, weighted=True),
        "PyG's GCN": pyg.GCN(width, 8, 3, classes, norm="graph_norm", jk="cat"),
    }


def step(model: torch.nn.Module, x, edge_index, weight, y, mask) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores, and the sum of the losses of the masked nodes; gradients are left in the parameters."""
    extra = () if weight is None or not getattr(model, "weighted", False) else (weight,)
    scores = model(x, edge_index, *extra)
    loss = F.cross_entropy(scores[mask], y[mask], reduction="sum")
    model.zero_grad()
    loss.backward()
    return scores.detach(), loss.detach()


def compare(graph: LocalGraph, arrays: small_graphs.Arrays, plain: torch.nn.Module) -> dict[str, float]:
    """The largest relative differences of losses, scores and gradients over some steps of both models."""
    plain = plain.double()
    model = hpcgnn.distribute(plain, graph, backend="reference", check=False)
    assert model.state_dict().keys() == plain.state_dict().keys()
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    whole_weight = None if arrays.weight is None else torch.from_numpy(arrays.weight).double()
    whole = (torch.from_numpy(arrays.x).double(), torch.from_numpy(arrays.edge_index), whole_weight)
    labels = torch.from_numpy(arrays.y), torch.from_numpy(arrays.masks["train_mask"])
    weight = None if graph.edge_weight is None else graph.edge_weight.double()
    part = (graph.x.double(), graph.edge_index, weight, graph.y, graph.masks["train_mask"])

    wanted = steps(plain, lambda: step(plain, *whole, *labels), lambda: None, lambda value: value)
    plain.load_state_dict(state)
    world = graph.world
    found = steps(
        model,
        lambda: step(model, *part),
        lambda: hpcgnn.sum_gradients(model),
        lambda value: torch.from_numpy(world.allreduce(np.array([value.item()]))),
    )
    scores = torch.zeros_like(wanted[2])
    scores[graph.original_ids] = found[2]
    everyones = torch.from_numpy(world.allreduce(scores.numpy()))
    return {
        "losses": float(np.abs(np.array(found[0]) / wanted[0] - 1).max()),
        "gradients": max(_relative(found[1][name], value, 1e-3) for name, value in wanted[1].items()),
        "scores": _relative(everyones, wanted[2]),
    }


def _relative(found: torch.Tensor, wanted: torch.Tensor, least: float = 0.0) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=least))


def steps(model, take, reduce, over_ranks) -> tuple[list[float], dict[str, torch.Tensor], torch.Tensor]:
    """The losses, and the gradients and scores of the last step."""
    optimiser = torch.optim.SGD(model.parameters(), LR)
    losses = []
    for _ in range(EPOCHS):
        scores, loss = take()
        reduce()
        optimiser.step()
        losses.append(float(over_ranks(loss)))
    return losses, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, scores


def trained(graph: LocalGraph, plain: torch.nn.Module) -> dict[str, float]:
    """The losses of a trainer with low bit-widths, stale rows and policies; they must fall."""
    results = {}
    policies = {"exact": (32, {}), "quantized": (8, {"bits": "adaqp", "bits_period": 2, "staleness": "pipeline"})}
    for name, (bits, policy) in policies.items():
        model = hpcgnn.distribute(plain, graph, messages=MessageConfig(bits=bits))
        config = hpcgnn.TrainConfig(epochs=6, eval_every=3, policy=hpcgnn.PolicyConfig(**policy))
        trainer = hpcgnn.Trainer(model, graph, config)
        trainer.fit()
        results[name] = trainer.records[-1]["loss"] / trainer.records[0]["loss"]
        results[f"{name}, exchanges"] = len(trainer.policies.record().get("bits", {})) if policy else 0
    return results


NAMES = tuple(models(9, 4))


def on(world: World, folder: Path, weighted: bool) -> tuple[small_graphs.Arrays, LocalGraph]:
    """A graph, whole and on the ranks."""
    arrays = small_graphs.random_multigraph(weighted=weighted)
    return arrays, small_graphs.on_ranks(world, arrays, folder / f"distributed-{weighted}-{world.size}.h5")


def errors(
    world: World, folder: Path, name: str, weighted: bool, order: str, plain: torch.nn.Module
) -> dict[str, float]:
    """The largest errors of all ranks."""
    arrays, graph = on(world, folder, weighted)
    found = compare(graph.reordered(order), arrays, copy.deepcopy(plain))
    return dict(zip(found, world.allreduce(np.array(list(found.values())), "max").tolist(), strict=True))


def losses_fall(world: World, folder: Path, plain: torch.nn.Module) -> dict[str, float]:
    """The decrease of a trainer's loss, relative to its first loss."""
    return trained(on(world, folder, True)[1], copy.deepcopy(plain))


sabotage = functools.partial(equivalence.sabotage, "zeroed")
