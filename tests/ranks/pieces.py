"""Programs for ranks: attention over the halo in pieces, beside the whole halo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import small_graphs
import torch
from ranks import models

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.node_order import node_order
from hpcgnn.nn.graph_model import GraphModel
from hpcgnn.train.objective import loss_sum
from hpcgnn.world import World


def model_of(graph: LocalGraph, name: str, bits: int = 32, **changes: object) -> GraphModel:
    """A model in double precision with large scores; dropouts are on."""
    rates = {"dropout": 0.3, "input_dropout": 0.2, "attention_dropout": 0.5}
    messages = Messages(graph.world, MessageConfig(bits=bits))
    name, _, mechanism = name.partition(" ")
    config = models.small(name, **rates | changes | ({"attention_mechanism": mechanism} if mechanism else {}))
    model = hpcgnn.build_model(config, graph, dtype=torch.float64, seed=1, messages=messages)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.mul_(5 if "attend" in key or "query" in key else 1)
    model.begin_epoch(3)
    return model


def trained(graph: LocalGraph, model: GraphModel) -> dict[str, torch.Tensor]:
    """The scores of a training step, and the gradients of all parameters, added up over ranks."""
    scores = model(graph.features.double())
    loss_sum(scores, graph.y, graph.masks["train_mask"].nonzero()[:, 0]).backward()
    sums = {name: torch.from_numpy(graph.world.allreduce(p.grad.numpy())) for name, p in model.named_parameters()}
    return {"scores": scores.detach()} | sums


def graph_on(world: World, folder: Path, kind: str) -> LocalGraph:
    """The graph of the tests with features of edges (``attr``), without edges inside parts (``cut``), without edges between them
    (``apart``), with an edge between any two nodes (``dense``), or with nodes in another order (``ordered``)."""
    arrays, path = small_graphs.random_multigraph(), folder / f"{kind}-{world.size}.h5"
    part = small_graphs.random_parts(arrays.num_nodes, world.size, empty=world.size - 1 if world.size > 2 else None)
    if kind == "cut" or ("cut" in kind and world.size > 1):
        arrays = small_graphs.without_local_edges(arrays, part)
    elif "apart" in kind:
        inside = part[arrays.edge_index[0]] == part[arrays.edge_index[1]]
        arrays.edge_index = arrays.edge_index[:, inside]
    elif kind == "dense":
        arrays.edge_index = np.stack(np.nonzero(np.ones((arrays.num_nodes,) * 2)))
    if "attr" in kind:
        arrays = small_graphs.with_typed_edges(arrays)
    if world.rank == 0:
        small_graphs.write_parts(path, arrays, part, world.size)
    world.allreduce(np.zeros(1))
    graph = hpcgnn.load(path, world)
    return graph.in_order(node_order(graph.local_edges(), "degree", 8)) if "ordered" in kind else graph


def difference(world: World, folder: Path, name: str, kind: str) -> float:
    """The largest relative difference of scores and gradients between the whole halo and pieces."""
    graph = graph_on(world, folder, kind)
    whole, pieces = (trained(graph, model_of(graph, name, halo=halo)) for halo in ("whole", "pieces"))
    worst = 0.0
    for key, wanted in whole.items():
        largest = float(world.allreduce(np.array([float(wanted.abs().max()) if wanted.numel() else 0.0]), "max")[0])
        if wanted.numel():
            worst = max(worst, float((pieces[key] - wanted).abs().max()) / max(largest, 1e-300))
    return float(world.allreduce(np.array([worst]), "max")[0])
