"""Copies of a distributed model: deep copies and averages that run on the ranks, and saved ones that run in one process."""

from __future__ import annotations

import copy
import io
import itertools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_graphs
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.pyg.distribution import distribution_of, is_distributed, plain_copy
from hpcgnn.world.thread_world import ThreadWorld, on_threads, one_rank

RANKS, WIDTH, CLASSES = 3, 9, 4
ARRAYS = small_graphs.random_multigraph(seed=3)
WHOLE = torch.from_numpy(ARRAYS.x), torch.from_numpy(ARRAYS.edge_index)


class Net(nn.Module):
    """A layer of each kind of adaptation. convs: a linear one, and one that takes halo rows."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = pyg.GCNConv(WIDTH, 8, cached=True), pyg.GATConv(8, 8)
        self.norm, self.drop, self.last = nn.BatchNorm1d(8), nn.Dropout(rate, inplace=True), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = self.drop(F.elu(self.norm(self.first(x, edge_index))) * 1)
        return self.last(self.second(x, edge_index))


def on_each_rank(tmp_path: Path, plain: nn.Module, use: Callable[[Any, LocalGraph], Any], **how: Any) -> list[Any]:
    """``use(model, graph)`` of each rank. The last rank owns no node."""

    def program(world: ThreadWorld) -> Any:
        graph = small_graphs.on_ranks(world, ARRAYS, tmp_path / "parts.h5").reordered("degree")
        return use(hpcgnn.distribute(copy.deepcopy(plain), graph, check=False, **how), graph)

    return on_threads(RANKS, program)


def everyones(model: nn.Module, graph: LocalGraph) -> torch.Tensor:
    """(N, C) scores of all nodes in evaluation, on all ranks."""
    with torch.no_grad():
        mine = model.eval()(graph.x, graph.edge_index)
    scores = torch.zeros(graph.meta.num_nodes, CLASSES)
    scores[graph.original_ids] = mine
    return graph.world.allreduce(scores)


def train(model: nn.Module, given: Any, mean: Callable[[torch.Tensor], torch.Tensor], then: Callable[[], None]) -> None:
    """Three steps. given: x, edge_index, y, and a mask of the training nodes. mean: of the losses of these nodes."""
    x, edge_index, y, mask = given
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimiser.zero_grad()
        mean(F.cross_entropy(model.train()(x, edge_index)[mask], y[mask], reduction="none")).backward()
        if is_distributed(model):
            hpcgnn.sum_gradients(model)
        optimiser.step()
        then()


def train_on_ranks(model: nn.Module, graph: LocalGraph, then: Callable[[], None] = lambda: None) -> None:
    given = graph.x, graph.edge_index, graph.y, graph.masks["train_mask"]
    train(model, given, lambda losses: hpcgnn.mean_loss(losses, graph), then)


def train_plain(model: nn.Module, then: Callable[[], None] = lambda: None) -> None:
    train(model, (*WHOLE, torch.from_numpy(ARRAYS.y), torch.from_numpy(ARRAYS.masks["train_mask"])), torch.mean, then)


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, atol=1e-4)


@torch.no_grad()
def scores_of(plain: nn.Module) -> torch.Tensor:
    return plain.eval()(*WHOLE)


def test_a_deep_copy_keeps_its_weights_and_runs_on_the_ranks(tmp_path: Path) -> None:
    plain = Net()
    before = scores_of(copy.deepcopy(plain))

    def use(model: nn.Module, graph: LocalGraph) -> list[torch.Tensor]:
        model(graph.x, graph.edge_index)  # layers may have kept something
        model.load_state_dict(plain.state_dict())
        twin = copy.deepcopy(model)
        assert distribution_of(twin) is not distribution_of(model)
        train_on_ranks(model, graph)
        kept = everyones(twin, graph)
        train_on_ranks(twin, graph)
        return [kept, everyones(model, graph), everyones(twin, graph)]

    found = on_each_rank(tmp_path, plain, use)
    train_plain(plain)
    after = scores_of(plain)
    assert not close(before, after)
    for kept, trained, later in found:
        assert close(kept, before)
        assert close(trained, after)
        assert close(later, after)


def test_averages_of_weights_are_those_of_one_process(tmp_path: Path) -> None:
    plain, ema = Net(), {"multi_avg_fn": get_ema_multi_avg_fn(0.5), "use_buffers": True}

    def use(model: nn.Module, graph: LocalGraph) -> torch.Tensor:
        averaged = AveragedModel(model, **ema)
        train_on_ranks(model, graph, lambda: averaged.update_parameters(model))
        return everyones(averaged, graph)

    found = on_each_rank(tmp_path, plain, use)
    averaged = AveragedModel(plain, **ema)
    train_plain(plain, lambda: averaged.update_parameters(plain))
    assert not close(scores_of(averaged), scores_of(plain))
    assert all(close(one, scores_of(averaged)) for one in found)


def test_a_saved_model_runs_in_one_process_and_can_be_distributed_again(tmp_path: Path) -> None:
    def use(model: nn.Module, graph: LocalGraph) -> tuple[nn.Module, torch.Tensor]:
        train_on_ranks(model, graph)
        file = io.BytesIO()
        if graph.world.rank == 0:  # as programs do
            torch.save({"model": model, "best": copy.deepcopy(model)}, file)
            file.seek(0)
        return torch.load(file, weights_only=False) if graph.world.rank == 0 else {}, everyones(model, graph)

    saved, wanted = on_each_rank(tmp_path, Net(0.5), use)[0]
    for loaded in saved.values():
        assert [type(module) for module in loaded.modules()] == [type(module) for module in Net().modules()]
        assert (loaded.drop.p, loaded.drop.inplace, is_distributed(loaded)) == (0.5, True, False)
        assert close(scores_of(loaded), wanted)
    again = on_each_rank(tmp_path, saved["model"], everyones)
    assert all(close(one, wanted) for one in again)


def test_a_model_in_integers_is_copied_with_its_arithmetic(tmp_path: Path) -> None:
    def use(model: nn.Module, graph: LocalGraph) -> tuple[str, bool, set[str]]:
        twin, plain = copy.deepcopy(model), plain_copy(model)
        train_on_ranks(twin, graph)
        hooks = [hook for module in plain.modules() for hook in module._forward_hooks]
        return distribution_of(twin).compute, bool(hooks), {name for name in vars(plain.last) if name == "forward"}

    found = on_each_rank(tmp_path, Net(), use, compute="int8-always")
    assert found == [("int8-always", False, set())] * RANKS


def test_a_plain_copy_shares_its_tensors(tmp_path: Path) -> None:
    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    model = hpcgnn.distribute(Net(), graph, check=False)
    plain = plain_copy(model)
    assert all(a is b for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert all(a is b for a, b in zip(plain.buffers(), model.buffers(), strict=True))
    assert is_distributed(model)
    assert not is_distributed(plain)


def test_methods_that_a_program_had_replaced_come_back(tmp_path: Path) -> None:
    graph, model = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5"), Net()
    model.forward = types.MethodType(lambda self, *given: Net.forward(self, *given) + 1, model)
    twin = copy.deepcopy(hpcgnn.distribute(model, graph, check=False))
    assert close(plain_copy(twin).eval()(*WHOLE), Net.forward(model.eval(), *WHOLE) + 1)


@pytest.mark.parametrize("done", [copy.deepcopy, lambda layer: torch.save(layer, io.BytesIO())])
def test_a_part_of_a_distributed_model_is_not_copied_alone(tmp_path: Path, done: Callable[[Any], Any]) -> None:
    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    model = hpcgnn.distribute(Net(), graph, check=False)
    with pytest.raises(HpcgnnError, match="GATConv is a part of a distributed model"):
        done(model.second)
    with pytest.raises(HpcgnnError, match=r"use copy\.deepcopy"):
        copy.copy(model)


def test_a_model_with_a_distributed_part_is_not_distributed_again(tmp_path: Path) -> None:
    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    averaged = AveragedModel(hpcgnn.distribute(Net(), graph, check=False))
    with pytest.raises(HpcgnnError, match=r"module \(Net\) is distributed already"):
        hpcgnn.distribute(averaged, graph)


# -- dropout -----------------------------------------------------------------------------------------------------------


def test_dropouts_keep_mode_rate_and_hooks(tmp_path: Path) -> None:
    graph, plain = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5"), nn.Sequential(nn.Dropout(0.5))
    called = []
    plain[0].register_forward_hook(lambda *_: called.append(1))
    model = hpcgnn.distribute(plain.eval(), graph, check=False)
    assert torch.equal(model(graph.x), graph.x)  # evaluation
    assert called
    assert isinstance(model[0], nn.Dropout)
    model[0].p = 0.0
    assert torch.equal(model.train()(graph.x), graph.x)
    model[0].p = 1.0
    assert not model(graph.x).any()


def test_dropouts_and_calls_of_one_of_them_draw_different_masks(tmp_path: Path) -> None:
    class Thrice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.other = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([drop(torch.ones_like(x)) for drop in (self.drop, self.drop, self.other)], 1)

    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    masks = hpcgnn.distribute(Thrice(), graph, check=False)(graph.x).unbind(1)
    for first, second in itertools.combinations(masks, 2):
        assert 0.15 < (first * second != 0).double().mean() < 0.35  # a quarter passes both


def test_an_inplace_dropout_changes_its_input_on_ranks_too(tmp_path: Path) -> None:
    graph = small_graphs.on_ranks(one_rank(), ARRAYS, tmp_path / "parts.h5")
    x = torch.ones_like(graph.x)
    y = hpcgnn.distribute(nn.Sequential(nn.Dropout(0.5, inplace=True)), graph, check=False)(x)
    assert y is x
    assert 0.3 < (x == 0).double().mean() < 0.7
