"""Values of all nodes and losses of the whole graph: those of one process, with the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_graphs
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.world.thread_world import on_threads, one_rank

RANKS, WIDTH = 3, 9
ARRAYS = small_graphs.random_multigraph(seed=4)
NODES = ARRAYS.num_nodes
LABELS, TRAIN = torch.from_numpy(ARRAYS.y), torch.from_numpy(ARRAYS.masks["train_mask"])
CLASSES = ARRAYS.num_classes
VALUES = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round(decimals=1)
HELPERS = {
    "mean": (hpcgnn.mean, lambda x: x.mean(0)),
    "sum": (hpcgnn.sum, lambda x: x.sum(0)),
    "max": (hpcgnn.max, lambda x: x.amax(0)),
    "min": (hpcgnn.min, lambda x: x.amin(0)),
    "softmax": (hpcgnn.softmax, lambda x: x.softmax(0)),
}


def on_parts(tmp_path: Path, use: Callable[[LocalGraph], Any]) -> list[Any]:
    """``use(graph)`` of each rank, of which the last has no node."""
    program = lambda world: use(small_graphs.on_ranks(world, ARRAYS, tmp_path / "parts.h5"))  # noqa: E731
    return on_threads(RANKS, program)


@pytest.mark.parametrize("name", HELPERS)
@pytest.mark.parametrize("shape", [(), (5,), (5, 1)])
def test_values_and_gradients_are_those_of_one_process(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    helper, torchs = HELPERS[name]
    values = VALUES[:, :1].squeeze(1) if not shape else VALUES.view(NODES, *shape)
    pull = torch.randn(NODES, *shape, dtype=torch.float64)

    def loss(x: torch.Tensor, found: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
        return ((x + found) ** 2 * pull).sum()  # of this rank's nodes

    def use(graph: LocalGraph) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mine = values[graph.original_ids].requires_grad_()
        found = helper(mine, graph)
        loss(mine, found, pull[graph.original_ids]).backward()
        return graph.original_ids, found.detach(), mine.grad

    found = on_parts(tmp_path, use)
    assert found[-1][0].numel() == 0
    wanted = values.clone().requires_grad_()
    result = torchs(wanted)
    loss(wanted, result, pull).backward()
    for ids, mine, gradient in found:
        torch.testing.assert_close(mine, result[ids].detach() if name == "softmax" else result.detach())
        torch.testing.assert_close(gradient, wanted.grad[ids])


def test_rows_may_be_of_some_nodes_and_of_other_types(tmp_path: Path) -> None:
    def use(graph: LocalGraph) -> list[torch.Tensor]:
        mask = graph.masks["train_mask"]
        x = graph.x[mask]
        poisoned = torch.where(graph.original_ids == 3, torch.nan, 1.0)
        return [
            hpcgnn.mean(x, graph),
            hpcgnn.sum(mask, graph),
            hpcgnn.max(graph.y, graph),
            hpcgnn.min(graph.original_ids.to(torch.uint8), graph),
            hpcgnn.max(poisoned, graph).isnan(),
            hpcgnn.mean(mask, graph),
            hpcgnn.mean_loss(mask, graph),
            hpcgnn.mean_loss(mask.long(), graph),
        ]

    wanted = [torch.from_numpy(ARRAYS.x)[TRAIN].mean(0), TRAIN.sum(), LABELS.max(), torch.tensor(0, dtype=torch.uint8)]
    for found in on_parts(tmp_path, use):
        torch.testing.assert_close(found, [*wanted, torch.tensor(True), *[TRAIN.float().mean()] * 3])


class Virtual(nn.Module):
    """A model with a node that is connected with all others. graph: that of the helpers; None for one process without hpcgnn."""

    def __init__(self, graph: LocalGraph | None = None) -> None:
        super().__init__()
        self.first, self.second, self.scale = pyg.GCNConv(WIDTH, 8), pyg.GCNConv(8, CLASSES), nn.Linear(8, 8)
        self.graph = graph

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = self.first(x, edge_index).tanh()
        mean = x.mean(0) if self.graph is None else hpcgnn.mean(x, self.graph)
        best = x.amax(0) if self.graph is None else hpcgnn.max(x, self.graph)
        gate = x.softmax(0) if self.graph is None else hpcgnn.softmax(x, self.graph)
        return self.second(gate * x + self.scale(mean) + best, edge_index)


def losses_of(scores: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A loss for each node, with one term of the weights."""
    return F.cross_entropy(scores, y, reduction="none") + 0.1 * (weight**2).sum()


def test_a_virtual_node_in_forward_and_a_loss_over_all_ranks(tmp_path: Path) -> None:
    plain = Virtual().double()

    def use(graph: LocalGraph) -> tuple[float, dict[str, torch.Tensor]]:
        mine = copy.deepcopy(plain)
        mine.graph = graph
        model = hpcgnn.distribute(mine, graph)
        scores, mask = model(graph.x.double(), graph.edge_index), graph.masks["train_mask"]
        loss = hpcgnn.mean_loss(losses_of(scores[mask], graph.y[mask], model.scale.weight), graph)
        loss.backward()
        hpcgnn.sum_gradients(model)
        return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}

    scores = plain(torch.from_numpy(ARRAYS.x).double(), torch.from_numpy(ARRAYS.edge_index))
    wanted = losses_of(scores[TRAIN], LABELS[TRAIN], plain.scale.weight).mean()
    wanted.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in plain.named_parameters()}
    plain.zero_grad()
    for loss, found in on_parts(tmp_path, use):
        assert loss == pytest.approx(wanted.item(), rel=1e-6)
        for name, gradient in gradients.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)


def test_a_loss_may_be_a_function_of_means_of_losses(tmp_path: Path) -> None:
    """As the root of a mean square: each rank has the value over all, and its share of the gradient."""

    def use(graph: LocalGraph) -> tuple[float, torch.Tensor]:
        weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
        squares = (graph.x.double() @ weight) ** 2
        loss = hpcgnn.mean_loss(squares, graph).sqrt()
        loss.backward()
        return loss.item(), graph.world.allreduce(weight.grad)

    weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
    wanted = ((torch.from_numpy(ARRAYS.x).double() @ weight) ** 2).mean().sqrt()
    wanted.backward()
    for loss, gradient in on_parts(tmp_path, use):
        assert loss == pytest.approx(wanted.item())
        torch.testing.assert_close(gradient, weight.grad)


REFUSED = {
    "a loss that is a mean already": (hpcgnn.mean_loss, torch.tensor(0.5), 'give the loss reduction="none"'),
    "a single number": (hpcgnn.max, torch.tensor(0.5), "a row for each of some nodes"),
    "complex numbers": (hpcgnn.sum, torch.ones(2, dtype=torch.complex64), "a dense tensor of real numbers"),
    "a sparse tensor": (hpcgnn.mean, torch.eye(2).to_sparse(), "a dense tensor of real numbers"),
    "a list": (hpcgnn.softmax, [1.0], "x must be .*Tensor"),
    "no row, of a mean": (hpcgnn.mean, torch.ones(0, 2), r"hpcgnn\.mean has no row on any rank"),
    "no row, of a minimum": (hpcgnn.min, torch.ones(0, 2), r"hpcgnn\.min has no row on any rank"),
    "no loss": (hpcgnn.mean_loss, torch.ones(0), r"hpcgnn\.mean_loss has no row on any rank"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_rows_is_refused(tmp_path: Path, case: str) -> None:
    helper, given, sentence = REFUSED[case]
    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    with pytest.raises(HpcgnnError, match=sentence):
        helper(given, graph)
    with pytest.raises(HpcgnnError, match="graph must be LocalGraph"):
        helper(torch.ones(2), graph.world)


def test_a_graph_is_shared_by_copies_and_is_not_saved(tmp_path: Path) -> None:
    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    model = Virtual(graph)
    assert copy.deepcopy(model).graph is graph
    other = copy.copy(graph)
    other.y = None
    assert graph.y is not None
    assert other.features is graph.features
    assert copy.copy(other.world) is graph.world
    with pytest.raises(HpcgnnError, match="keep it outside of the model"):
        torch.save(model, tmp_path / "model.pt")
