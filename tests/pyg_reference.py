"""The same training in single-process PyTorch Geometric, whose results any number of ranks must reproduce."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from pyg_models import Stack, to_pyg
from small_graphs import Arrays

from hpcgnn.nn import ModelConfig


def train(
    graph: Arrays,
    config: ModelConfig,
    state: dict[str, torch.Tensor],
    epochs: int,
    lr: float,
    dtype: torch.dtype,
    propagated: Callable[[int], torch.Tensor] | None = None,
) -> tuple[list[float], dict[str, np.ndarray], np.ndarray]:
    """The losses of ``epochs``, the gradients of the first epoch by PyG's names, and the final scores (N, C).

    propagated: ``propagated(epoch)`` returns the nodes (N,) whose label is an input if they are training nodes.
    """
    model = Stack(config, graph.x.shape[1], graph.num_classes).to(dtype)
    model.load_state_dict(to_pyg(config, state), strict=False)
    for conv in model.layers[:-1] if config.norm_in_use in ("mean", "batch") else ():
        getattr(conv, "lin_l", conv).bias.requires_grad_(False)  # such a bias has no gradient but rounding errors
    x = torch.from_numpy(graph.x.toarray() if sp.issparse(graph.x) else graph.x).to(dtype)
    edge_index = torch.from_numpy(graph.edge_index)
    weight = None if graph.weight is None else torch.from_numpy(graph.weight).to(dtype)
    y, mask = torch.from_numpy(graph.y).long(), torch.from_numpy(graph.masks["train_mask"])
    embedding = None
    if propagated is not None:
        embedding = torch.nn.Parameter(state["embed_labels.weight"].clone().to(dtype))
        model.register_parameter("embed_labels_weight", embedding)  # PyTorch allows no dot in this name

    def inputs(nodes: torch.Tensor) -> torch.Tensor:
        if embedding is None:
            return x
        vectors = (y if y.dim() == 2 else torch.nn.functional.one_hot(y, graph.num_classes)).to(dtype)
        return x + torch.where((nodes & mask)[:, None], vectors @ embedding, 0)

    nobody, everybody = torch.zeros_like(mask), torch.ones_like(mask)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    losses, gradients = [], {}
    for epoch in range(epochs):
        optimiser.zero_grad()
        drawn = nobody if propagated is None else propagated(epoch)
        learned = mask & ~drawn
        if not learned.any():  # an epoch without training nodes changes nothing
            losses.append(0.0)
            continue
        loss = _loss(model(inputs(drawn), edge_index, weight), y, learned)
        loss.backward()
        losses.append(loss.item())
        if epoch == 0:
            gradients = {
                name.replace("embed_labels_", "embed_labels."): (torch.zeros_like(p) if p.grad is None else p.grad)
                .numpy()
                .copy()
                for name, p in model.named_parameters()
            }
        optimiser.step()
    model.eval()
    with torch.no_grad():
        return losses, gradients, model(inputs(everybody), edge_index, weight).numpy()


def _loss(scores: torch.Tensor, y: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    if y.dim() == 2:
        return torch.nn.functional.binary_cross_entropy_with_logits(scores[nodes], y[nodes].to(scores.dtype))
    return torch.nn.functional.cross_entropy(scores[nodes], y[nodes])
