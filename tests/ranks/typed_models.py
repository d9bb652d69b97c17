"""Programs for ranks: models on graphs whose nodes have types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyg_models
import small_graphs
import torch
from ranks.models import small

import hpcgnn
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn.typed_input import initial_rows
from hpcgnn.train.objective import loss_sum
from hpcgnn.train.tasks import features_of
from hpcgnn.world import World

ARRAYS = small_graphs.with_types()


def typed_graph(world: World, folder: Path, arrays: small_graphs.Arrays = ARRAYS) -> LocalGraph:
    """The graph in random parts, of which the last of three or more has no node."""
    return small_graphs.on_ranks(world, arrays, folder / f"typed-{world.size}.h5")


def reference_input(
    weights: dict[str, torch.Tensor], embed: str, seed: int, arrays: small_graphs.Arrays = ARRAYS
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(N, H) projected features of all nodes, in float64, and the parameters from which they follow."""
    names = ("weight", "bias")
    given = {name: weights[f"input_layer.{name}"].clone().requires_grad_() for name in names}
    types = np.repeat(np.arange(len(arrays.node_types)), [each.count for each in arrays.node_types])
    h = torch.from_numpy(arrays.x.toarray()).double() @ given["weight"] + given["bias"][torch.from_numpy(types)]
    if embed:
        chosen = np.isin(types, [k for k, each in enumerate(arrays.node_types) if embed == "all" or each.name in embed])
        ids = np.flatnonzero(chosen)
        given["embedding"] = initial_rows(ids, h.shape[1], seed).double().requires_grad_()
        h = h.index_add(0, torch.from_numpy(ids), given["embedding"])
    return h, given


def compare(
    world: World,
    folder: Path,
    name: str,
    embed: str = "",
    strategy: str = "hybrid",
    *,
    order: str = "none",
    arrays: small_graphs.Arrays = ARRAYS,
    change: Callable[[small_graphs.Arrays], small_graphs.Arrays] | None = None,
    **changes: Any,
) -> dict[str, float]:
    """The largest differences of scores and of gradients from PyG's layers on the whole graph. arrays: the graph.
    change: of the graph that the ranks get. changes: of the model's settings."""
    graph = typed_graph(world, folder, arrays if change is None else change(arrays)).reordered(order)
    config = small(name, **{"embed": embed, "norm": "none"} | changes)
    model = hpcgnn.build_model(config, graph, backend="reference", dtype=torch.float64, seed=3, strategy=strategy)
    model.begin_epoch(0)
    train = graph.masks["train_mask"].nonzero()[:, 0]
    mine = model(features_of(graph, model))
    loss_sum(mine, graph.y, train).backward()
    state = {key: value for key, value in model.state_dict().items() if not key.startswith("input_layer")}
    world.allreduce(np.zeros(1))  # ranks that are threads share the generator from which PyG's model draws
    wanted = pyg_models.reference(config, config.hidden, arrays.num_classes, state, graph=arrays)
    h, given = reference_input(model.state_dict(), embed, 3, arrays)
    theirs = wanted(h, torch.from_numpy(arrays.edge_index), None)
    loss_sum(
        theirs, torch.from_numpy(arrays.y), torch.from_numpy(arrays.masks["train_mask"]).nonzero()[:, 0]
    ).backward()
    gradients = {key: p.grad for key, p in model.named_parameters()}
    owned = gradients.pop("input_layer.embedding", None)
    sums = {key: torch.from_numpy(world.allreduce(value.numpy())) for key, value in gradients.items()}
    errors = [float((sums.pop(f"input_layer.{key}") - given[key].grad).abs().max()) for key in ("weight", "bias")]
    if owned is not None:
        rows = given["embedding"].grad[torch.from_numpy(model.input_layer.embedded)]
        errors.append(float((owned - rows).abs().max()) if len(rows) else 0.0)
    found = pyg_models.to_pyg(config, sums, getattr(wanted, "keys", None))
    errors += [float((found[key] - p.grad).abs().max()) for key, p in wanted.named_parameters()]
    scores = (mine - theirs[graph.original_ids]).detach().abs().numpy()
    found_errors = np.array([scores.max(initial=0), max(errors)])
    return dict(zip(("scores", "gradients"), world.allreduce(found_errors, "max").tolist(), strict=True))


def train(world: World, folder: Path, **settings: Any) -> tuple[list[float], np.ndarray, np.ndarray]:
    """The losses of six epochs; and, from the last step, the gradients of the biases of venues and of terms, and the sums of the
    gradients of the learned rows of these nodes."""
    graph = typed_graph(world, folder).with_target("paper")
    config = hpcgnn.ModelConfig("rgcn", layers=2, hidden=8, embed="venue,term", dropout=0.0)
    model = hpcgnn.build_model(config, graph, seed=1)
    trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=6, **settings))
    trainer.fit()
    layer, kinds = model.input_layer, graph.nodes_by_type.type[: graph.num_nodes]
    assert layer is not None
    rows = (
        torch.zeros(0, 8) if layer.embedding.grad is None else layer.embedding.grad
    )  # None on a rank without such nodes
    sums = [rows[kinds[kinds >= 2] == kind].sum(0).double().numpy() for kind in (2, 3)]
    total = world.allreduce(np.stack(sums))
    return [record["loss"] for record in trainer.records], layer.bias.grad[2:].numpy(), total
