"""Programs for ranks: scores and gradients of every native model, compared with PyG's layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import small_graphs
import torch
from ranks import equivalence

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.config import MODELS
from hpcgnn.train.objective import loss_sum
from hpcgnn.world import World

SMALL = {"layers": 3, "hidden": 12, "heads": 4, "dropout": 0.0, "norm": "layer", "hops": 3}


def small(name: str, **changes: object) -> hpcgnn.ModelConfig:
    """The model with those of the small settings that it has."""
    return hpcgnn.ModelConfig.of_used(SMALL | {"model": name} | changes)


CONFIGS = (
    {name: small(name) for name in MODELS}
    | {
        "gat, elu": small("gat", activation="elu", norm="none", output_heads=2),
        "gat, partial": small("gat", attention="partial"),
        "gat, pieces": small("gat", halo="pieces", output_heads=2),
        "gat, pieces, elu": small("gat", halo="pieces", activation="elu", norm="none"),
        "gatv2, pieces": small("gatv2", halo="pieces"),
        "transformer, pieces": small("transformer", halo="pieces", output_heads=2),
        "rgat, pieces": small("rgat", halo="pieces", bases=2),
        "rgat, within, pieces": small("rgat", attention_mechanism="within-relation", halo="pieces"),
        "hgt, pieces": small("hgt", halo="pieces"),
        "gat, partial, 2 heads": small("gat", attention="partial", activation="elu", norm="none", output_heads=2),
        "gcnii, 8 layers": small("gcnii", layers=8, norm="batch"),
        "gcnii, mean": small("gcnii", norm="mean"),
        "gatv2, 2 heads": small("gatv2", activation="elu", norm="none", output_heads=2),
        "gin, wide": small("gin", hidden=32, norm="none"),
        "gine, elu": small("gine", activation="elu", norm="none"),
        "transformer, 2 heads": small("transformer", activation="elu", norm="none", output_heads=2),
        "hgt, elu": small("hgt", activation="elu", norm="none", heads=2),
        "rgat, bases": small("rgat", bases=2, norm="none", output_heads=2),
        "rgat, within": small("rgat", attention_mechanism="within-relation", activation="elu"),
        "rgcn, bases": small("rgcn", bases=2, norm="none"),
        "rgcn, blocks": small("rgcn", blocks=3),
    }
    | {
        f"{name}, {how} of types": small(name, edge_types=how, layers=2)
        for name in ("sage", "gcn", "gat")
        for how in ("sum", "mean", "max")
    }
)


def with_dropout(graph: LocalGraph, config: hpcgnn.ModelConfig) -> dict[str, float]:
    """The loss of all ranks with all dropouts in training, and without them in evaluation."""
    rates = {"dropout": 0.5, "input_dropout": 0.3, "attention_dropout": 0.6}
    dropping = hpcgnn.ModelConfig.of_used(config.flat() | rates)
    model = hpcgnn.build_model(dropping, graph, backend="reference", dtype=torch.float64, seed=1)
    losses = {}
    for training in (True, False):
        model.train(training)
        model.begin_epoch(3)
        loss = loss_sum(model(graph.features.double()), graph.y, graph.masks["train_mask"].nonzero()[:, 0])
        losses["training" if training else "evaluation"] = float(graph.world.allreduce(np.array([loss.item()]))[0])
    return losses


def rounding_errors(world: World, folder: Path, name: str) -> float:
    """The mean square of the difference that messages of 2 bits make to the rows of a single layer with large scores."""
    graph = small_graphs.on_ranks(world, small_graphs.random_multigraph(), folder / f"rounded-{world.size}.h5")
    config = small("gat", layers=1, attention="partial" if "partial" in name else "halo")
    square, results = 0.0, []
    for epoch in range(20):
        for bits in (32, 2):
            messages = Messages(world, MessageConfig(bits=bits))
            model = hpcgnn.build_model(config, graph, seed=1, messages=messages)
            with torch.no_grad():
                model.layers[0].attend_source.mul_(10)
            model.begin_epoch(epoch)
            results.append(model(graph.features).detach())
        square += float((results.pop() - results.pop()).square().sum())
    return float(world.allreduce(np.array([square]))[0])


def dropout(world: World, folder: Path, name: str) -> dict[str, float]:
    """The losses in training and in evaluation."""
    arrays = small_graphs.with_typed_edges(small_graphs.random_multigraph(weighted=True))
    return with_dropout(small_graphs.on_ranks(world, arrays, folder / f"dropout-{world.size}.h5"), CONFIGS[name])


def batch_norm_scores(world: World, folder: Path, name: str) -> np.ndarray:
    """(N, C) scores of all nodes by original id, after 20 epochs in float32."""
    graph = small_graphs.on_ranks(world, small_graphs.random_multigraph(), folder / f"batch-{world.size}.h5")
    config = small(name, norm="batch", hidden=32)
    model = hpcgnn.build_model(config, graph, seed=9)  # with most other seeds, scores of gatv2 come too close to a kink
    return equivalence.run(graph, model).scores


def of_an_older_run(world: World, folder: Path, name: str) -> tuple[float, float]:
    """The changes of biases before batch norms, and of all parameters, after a checkpoint in which these biases had moved."""
    graph = small_graphs.on_ranks(world, small_graphs.random_multigraph(), folder / f"old-{name}.h5")
    config = small(name, norm="batch")
    before, now = (hpcgnn.build_model(config, graph, seed=seed) for seed in (1, 2))
    resting = [key for key, parameter in before.named_parameters() if not parameter.requires_grad]
    before.requires_grad_(True)  # as in older versions
    old = hpcgnn.Trainer(before, graph, hpcgnn.TrainConfig(epochs=10), stop=StopRequest())
    old.fit()
    state = {key: value.clone() for key, value in before.state_dict().items()}
    assert min(float(state[key].abs().max()) for key in resting) > 1e-3
    new = hpcgnn.Trainer(now, graph, hpcgnn.TrainConfig(epochs=11), stop=StopRequest())
    now.load_state_dict(state)
    new.optimiser.load_state_dict(old.optimiser.state_dict())
    before.eval(), now.eval()
    with torch.no_grad():
        assert torch.equal(before(graph.features), now(graph.features))
    new.step(10)
    moved = {key: float((p.detach() - state[key]).abs().max()) for key, p in now.named_parameters()}
    return max(moved[key] for key in resting), max(moved.values())
