"""Distributed models in programs of users: autocast, compilation and gradients of gradients give what one process gives."""

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

RANKS, WIDTH, CLASSES = 3, 9, 4
ARRAYS = small_graphs.random_multigraph(seed=3, weighted=True)
X, EDGES, WEIGHT, Y = (torch.from_numpy(each) for each in (ARRAYS.x, ARRAYS.edge_index, ARRAYS.weight, ARRAYS.y))
MODELS = {
    "GCN and batch norm": lambda: (pyg.GCNConv(WIDTH, 8), nn.BatchNorm1d(8), pyg.GCNConv(8, CLASSES)),
    "weights": lambda: (pyg.GraphConv(WIDTH, 8), pyg.GraphNorm(8), pyg.GraphConv(8, CLASSES, aggr="mean")),
    "attention": lambda: (pyg.GATConv(WIDTH, 8), pyg.PairNorm(), pyg.GATv2Conv(8, CLASSES)),
    "GIN and transformer": lambda: (
        pyg.GINConv(nn.Linear(WIDTH, 8)),
        pyg.LayerNorm(8),
        pyg.TransformerConv(8, CLASSES),
    ),
}


class Net(nn.Module):
    def __init__(self, first: nn.Module, norm: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.second, self.drop = first, norm, second, nn.Dropout(0.0)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        weights = (edge_weight,) if isinstance(self.first, pyg.GraphConv) else ()
        x = self.drop(self.norm(self.first(x, edge_index, *weights)).tanh())
        return self.second(x, edge_index, *weights)


Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Mean = Callable[[torch.Tensor], torch.Tensor]


def on_parts(tmp_path: Path, plain: nn.Module, use: Callable[[Any, Given, LocalGraph], Any]) -> list[Any]:
    """``use(model, (x, edge_index, edge_weight, y), graph)`` of each rank, of which the last has no node."""

    def program(world: Any) -> Any:
        graph = small_graphs.on_ranks(world, ARRAYS, tmp_path / "parts.h5")
        model = hpcgnn.distribute(copy.deepcopy(plain), graph, check=False)
        return use(model, (graph.x, graph.edge_index, graph.edge_weight, graph.y), graph)

    return on_threads(RANKS, program)


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# -- ways of training --------------------------------------------------------------------------------------------------


def in_bfloat16(model: nn.Module, given: Given, mean: Mean) -> torch.Tensor:
    """Two steps in autocast; the scores."""
    for _ in range(2):  # in the second one, edges have a plan
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(*given[:3])
            loss = mean(F.cross_entropy(scores, given[3], reduction="none"))
        loss.backward()
    return scores.detach()


def penalised(model: nn.Module, given: Given, mean: Mean) -> None:
    """Two steps of a loss that has a gradient of the scores, in float64."""
    x, edge_index, weight, y = given
    for _ in range(2):
        model.double().zero_grad()
        x = x.detach().double().requires_grad_()
        scores = model(x, edge_index, weight.double())
        (slope,) = torch.autograd.grad((scores**2).sum(), x, create_graph=True)
        (even,) = torch.autograd.grad(scores.sum(), x, create_graph=True)  # the last layer's gradient is a constant
        mean(F.cross_entropy(scores, y, reduction="none") + (slope**2 + even**2).sum(1)).backward()


def after_an_evaluation(model: nn.Module, given: Given, mean: Mean) -> None:
    """A step after evaluations in inference mode."""
    x, edge_index, weight, y = given
    with torch.inference_mode():
        evaluated = model.eval()(x, edge_index, weight), model(x, edge_index, weight)
    assert not evaluated[0].requires_grad
    torch.testing.assert_close(*evaluated)
    mean(F.cross_entropy(model.train()(x, edge_index, weight), y, reduction="none")).backward()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("trained", "relative", "absolute"),
    [(in_bfloat16, 0.1, 0.02), (penalised, 1e-7, 1e-7), (after_an_evaluation, 1e-3, 1e-5)],
)
def test_gradients_are_those_of_one_process(
    tmp_path: Path, name: str, trained: Any, relative: float, absolute: float
) -> None:
    plain = Net(*MODELS[name]())

    def use(model: nn.Module, given: Given, graph: LocalGraph) -> Any:
        scores = trained(model, given, lambda losses: hpcgnn.mean_loss(losses, graph))
        hpcgnn.sum_gradients(model)
        return graph.original_ids, scores, gradients_of(model)

    found = on_parts(tmp_path, plain, use)
    exact = copy.deepcopy(plain)(X, EDGES, WEIGHT).detach()
    scores = trained(plain, (X, EDGES, WEIGHT, Y), lambda losses: losses.mean())
    for ids, mine, gradients in found:
        torch.testing.assert_close(gradients, gradients_of(plain), rtol=relative, atol=absolute)
        if scores is not None:
            assert mine.dtype == scores.dtype
            torch.testing.assert_close(mine.float(), exact[ids], rtol=0.05, atol=0.05)


# -- torch.compile -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_distributed_model_runs_as_it_is(tmp_path: Path, in_place: bool) -> None:
    graph, plain = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5"), Net(*MODELS["attention"]())
    model = hpcgnn.distribute(plain, graph)
    wanted = model(graph.x, graph.edge_index, graph.edge_weight)
    if in_place:
        model.compile(backend="eager")
    compiled = model if in_place else torch.compile(model, backend="eager")
    found = compiled(graph.x, graph.edge_index, graph.edge_weight)
    torch.testing.assert_close(found, wanted)
    found.sum().backward()
    hpcgnn.sum_gradients(compiled)


def test_a_model_that_is_compiled_already_is_not_distributed(tmp_path: Path) -> None:
    graph, plain = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5"), nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(HpcgnnError, match=r"this OptimizedModule is compiled.*before torch\.compile"):
        hpcgnn.distribute(torch.compile(plain), graph)
    plain.append(torch.compile(nn.Linear(2, 2)))
    with pytest.raises(HpcgnnError, match=r"1 \(OptimizedModule\) is compiled"):
        hpcgnn.distribute(plain, graph)


# -- native models, and 16 bits ----------------------------------------------------------------------------------------


def test_a_native_model_is_neither_copied_nor_saved(tmp_path: Path) -> None:
    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    model = hpcgnn.build_model(hpcgnn.ModelConfig("sage", layers=2, hidden=8), graph)
    with pytest.raises(HpcgnnError, match=r"cannot be copied: take its model\.state_dict\(\)"):
        copy.deepcopy(model)
    with pytest.raises(HpcgnnError, match="cannot be saved"):
        torch.save(model, tmp_path / "model.pt")
    with torch.inference_mode():
        model(graph.features)
    model(graph.features).sum().backward()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_16_bits(tmp_path: Path, name: str) -> None:
    plain = Net(*MODELS[name]())

    def use(model: nn.Module, given: Given, graph: LocalGraph) -> Any:
        x, edge_index, weight, _ = given
        return graph.original_ids, model.bfloat16()(x.bfloat16(), edge_index, weight.bfloat16())

    exact = copy.deepcopy(plain)(X, EDGES, WEIGHT).detach()
    for ids, mine in on_parts(tmp_path, plain, use):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(mine.detach().float(), exact[ids], rtol=0.1, atol=0.1)


# -- weights that differ between ranks ----------------------------------------------------------------------------------


def steps(model: nn.Module, given: Given, graph: LocalGraph, optimiser: torch.optim.Optimizer, summed: bool) -> None:
    for _ in range(5):
        optimiser.zero_grad()
        hpcgnn.mean_loss(F.cross_entropy(model(*given[:3]), given[3], reduction="none"), graph).backward()
        if summed:
            hpcgnn.sum_gradients(model)
        optimiser.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("summed", [True, False])
def test_a_loop_without_sums_of_gradients_is_refused(tmp_path: Path, kind: Any, summed: bool) -> None:
    def use(model: nn.Module, given: Given, graph: LocalGraph) -> None:
        if summed:
            steps(model, given, graph, kind(model.parameters(), lr=1e-4), summed)
            return
        with pytest.raises(HpcgnnError, match=r"weights of Net differ between ranks .*call hpcgnn\.sum_gradients"):
            steps(model, given, graph, kind(model.parameters(), lr=1e-4), summed)

    on_parts(tmp_path, Net(*MODELS["GCN and batch norm"]()), use)


def test_weights_that_one_rank_loads_are_refused(tmp_path: Path) -> None:
    plain = Net(*MODELS["attention"]())
    others = Net(*MODELS["attention"]()).state_dict()

    def use(model: nn.Module, given: Given, graph: LocalGraph) -> None:
        if graph.world.rank == 0:
            model.load_state_dict(others)
        with pytest.raises(HpcgnnError, match="load or change weights on all ranks alike"):
            model(*given[:3])

    on_parts(tmp_path, plain, use)
