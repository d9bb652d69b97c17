"""Distributed models of PyG's layers: the edges that get a plan, those that are used again in the next pass, and no others; the
ids of edges, which are checked; random draws of a training loop's passes; and statistics that stay for evaluations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import small_graphs
import torch
import torch_geometric.nn as pyg
from torch import nn

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.nn.halo import edge_matrix
from hpcgnn.pyg.distribution import distribution_of, on_ranks
from hpcgnn.pyg.given import Call, Rows
from hpcgnn.pyg.rehearsal import RANKS, TinyGraph
from hpcgnn.pyg.rows import EDGES, ENDS, NODES
from hpcgnn.world.thread_world import ThreadWorld, on_threads, one_rank

PASSES = 4


def tiny_graph(*, weighted: bool) -> TinyGraph:
    weight = {"edge_weight": Rows(EDGES, low=0.5, high=1.5)} if weighted else {}
    return TinyGraph(Call({"x": Rows(NODES, (6,), has_gradient=True), "edge_index": Rows(ENDS)} | weight))


def on_each_rank(plain: nn.Module, tiny: TinyGraph, use: Callable[[Any, dict[str, Any]], Any]) -> list[Any]:
    """``use(model, arguments)`` of each rank, for the distributed model and the rank's part of the arguments."""

    def program(world: ThreadWorld) -> Any:
        graph, arguments = tiny.part(world)
        messages = Messages(world, MessageConfig(collective="alltoallv"))
        return use(on_ranks(copy.deepcopy(plain), graph, messages, backend="reference"), arguments.named)

    return on_threads(RANKS, program)


def plans_and_exchanges(*, same_weight: bool) -> list[tuple[int, int]]:
    """The numbers of plans and exchanges after each pass of a layer with three hops, on rank 0."""

    def use(model: Any, named: dict[str, Any]) -> list[tuple[int, int]]:
        counts, bridge = [], distribution_of(model).bridge
        for _ in range(PASSES):
            weight = named["edge_weight"] if same_weight else named["edge_weight"].clone()
            model(named["x"], named["edge_index"], weight).sum().backward()
            counts.append((bridge._num_plans, len(bridge.exchanges)))
        return counts

    found = on_each_rank(pyg.TAGConv(6, 3, K=3).double(), tiny_graph(weighted=True), use)
    assert all(counts == found[0] for counts in found)
    return found[0]


def test_weights_that_come_again_get_one_plan():
    plans = [plans for plans, _ in plans_and_exchanges(same_weight=True)]
    assert plans == [0, 1, 1, 1]


def test_weights_that_are_new_in_each_pass_get_none():
    found = plans_and_exchanges(same_weight=False)
    assert [plans for plans, _ in found] == [0] * PASSES
    assert len({exchanges for _, exchanges in found}) == 1


def test_the_graphs_own_edges_have_a_plan_at_once():
    @torch.no_grad()
    def use(model: Any, named: dict[str, Any]) -> int:
        model(**named)
        return distribution_of(model).bridge._num_plans

    assert on_each_rank(pyg.GCNConv(6, 3).double(), tiny_graph(weighted=False), use) == [1] * RANKS


def test_edges_and_weights_that_were_changed_in_place_are_new_ones():
    changes = {"edge_weight": lambda weight: weight.mul_(2), "edge_index": lambda ends: ends[0].fill_(1)}

    @torch.no_grad()
    def use(model: Any, named: dict[str, Any]) -> list[bool]:
        named["edge_index"], found = named["edge_index"].clone(), []
        for name, change in changes.items():
            before = [model(**named) for _ in range(2)][-1]  # the second pass makes a plan
            change(named[name])
            after, wanted = model(**named), model(**named | {name: named[name].clone()})
            found.append(torch.allclose(after, wanted) and not torch.allclose(after, before))
        return found

    found = on_each_rank(pyg.GraphConv(6, 3).double(), tiny_graph(weighted=True), use)
    assert found == [[True, True]] * RANKS


@pytest.mark.parametrize("edge", [(0, 5), (7, 0), (-1, 0), (0, -1)])
def test_a_matrix_of_edges_between_other_nodes_is_refused(edge: tuple[int, int]) -> None:
    edges = torch.tensor([[0, edge[0]], [1, edge[1]]])
    with pytest.raises(ValueError, match="index must lie in"):
        edge_matrix(edges, (5, 7), check=True)


@pytest.mark.parametrize("wrong", [-1, 10**6])
@pytest.mark.parametrize("layer", [pyg.GCNConv(9, 4), pyg.GraphConv(9, 4)], ids=["with a plan", "over the halo"])
def test_a_distributed_model_refuses_edges_between_other_nodes(tmp_path, layer, wrong):
    graph = small_graphs.on_ranks(one_rank(), small_graphs.random_multigraph(), tmp_path / "parts.h5")
    edges = graph.edge_index.clone()
    edges[0, 0] = wrong
    with pytest.raises((ValueError, IndexError), match="index"):
        hpcgnn.distribute(layer, graph)(graph.x, edges)


def test_sparse_features_are_made_dense_once():
    plain = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)).double()

    def use(model: Any, named: dict[str, Any]) -> bool:
        sparse = named["x"].detach().to_sparse_csr()
        seen = []
        model.eval()[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        return (
            torch.equal(model(sparse), model(sparse))
            and seen[0] is seen[1]
            and torch.equal(model(sparse), plain[1](named["x"].detach()))
        )

    assert all(on_each_rank(plain, tiny_graph(weighted=False), use))


def test_each_pass_of_training_draws_anew_and_evaluation_does_not():
    tiny = tiny_graph(weighted=False)

    def use(model: Any, named: dict[str, Any]) -> list[torch.Tensor]:
        passes = [model(named["x"]).detach() for _ in range(2)]
        return [*passes, model.eval()(named["x"]).detach()]

    found = on_each_rank(nn.Sequential(nn.Dropout(0.5)), tiny, use)
    first, second, evaluated = (torch.cat(parts) for parts in zip(*found, strict=True))
    assert not torch.equal(first, second)
    x = torch.cat(on_each_rank(nn.Sequential(), tiny, lambda _, named: named["x"].detach()))
    assert torch.equal(evaluated, x)
    assert torch.equal(first != 0, first == 2 * x)


def test_each_pass_of_training_is_a_step_whose_messages_have_noise_of_their_own():
    """The noise of messages and of 8-bit integers is a function of the epoch."""

    def use(model: Any, named: dict[str, Any]) -> list[int]:
        epochs = []
        for is_training in (True, True, False):
            model.train(is_training)(named["x"])
            epochs.append(distribution_of(model).messages.current_pass.epoch)
        return epochs

    for first, second, evaluated in on_each_rank(nn.Sequential(nn.Dropout(0.5)), tiny_graph(weighted=False), use):
        assert (second, evaluated) == (first + 1, second)
