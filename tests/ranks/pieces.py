"""Programs for ranks: attention over the halo in pieces."""

from __future__ import annotations

from pathlib import Path

import small_graphs
import torch
from ranks import models

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import LocalGraph
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


def graph_on(world: World, folder: Path) -> LocalGraph:
    """The graph of the tests; of three or more ranks, the last one has no nodes."""
    return small_graphs.on_ranks(world, small_graphs.random_multigraph(), folder / f"{world.size}.h5")
