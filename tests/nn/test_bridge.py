"""The edges that get a plan: those that are used again in the next pass, and no others; the random draws of a training loop's
passes; and the statistics that stay for evaluations.
"""

from __future__ import annotations

import copy

import torch
import torch_geometric.nn as pyg

from hpcgnn.comm import Messages
from hpcgnn.comm.messages import MessageConfig
from hpcgnn.comm.thread_world import ThreadWorld, on_threads
from hpcgnn.nn.pyg.distribution import distribution_of, on_ranks
from hpcgnn.nn.pyg.rehearsal import RANKS, Arguments

PASSES = 4


def plans_and_exchanges(*, same_weight: bool) -> list[tuple[int, int]]:
    """The numbers of plans and exchanges after each pass of a layer with three hops, on rank 0."""
    arguments = Arguments(6, weighted=True)
    layer = pyg.TAGConv(6, 3, K=3).double()

    def program(world: ThreadWorld) -> list[tuple[int, int]]:
        graph, named, _ = arguments.part(world)
        model = on_ranks(layer, graph, Messages(world, MessageConfig(collective="alltoallv")), backend="reference")
        counts, bridge = [], distribution_of(model).bridge
        for _ in range(PASSES):
            weight = named["edge_weight"] if same_weight else named["edge_weight"].clone()
            model(named["x"], named["edge_index"], weight).sum().backward()
            counts.append((bridge._num_plans, len(bridge.exchanges)))
        return counts

    found = on_threads(RANKS, program)
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
    arguments = Arguments(6, weighted=False)
    layer = pyg.GCNConv(6, 3).double()

    def program(world: ThreadWorld) -> int:
        graph, named, _ = arguments.part(world)
        model = on_ranks(layer, graph, Messages(world, MessageConfig(collective="alltoallv")), backend="reference")
        with torch.no_grad():
            model(**named)
        return distribution_of(model).bridge._num_plans

    assert on_threads(RANKS, program) == [1] * RANKS


def test_sparse_features_are_made_dense_once():
    model, arguments = (
        torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(6, 2)).double(),
        Arguments(6, weighted=False),
    )

    def program(world: ThreadWorld) -> bool:
        graph, named, _ = arguments.part(world)
        mine = on_ranks(
            model, graph, Messages(world, MessageConfig(collective="alltoallv")), backend="reference"
        ).eval()
        sparse = named["x"].detach().to_sparse_csr()
        once, again = (distribution_of(mine).dense(sparse) for _ in range(2))
        return once is again and torch.equal(mine(sparse), model.eval()(named["x"].detach()))

    assert all(on_threads(RANKS, program))


def test_each_pass_of_training_draws_anew_and_evaluation_does_not():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5))
    arguments = Arguments(6, weighted=False)

    def program(world: ThreadWorld) -> list[torch.Tensor]:
        graph, named, _ = arguments.part(world)
        mine = on_ranks(model, graph, Messages(world, MessageConfig(collective="alltoallv")), backend="reference")
        passes = [mine(named["x"]).detach() for _ in range(2)]
        return [*passes, mine.eval()(named["x"]).detach()]

    first, second, evaluated = (torch.cat(parts) for parts in zip(*on_threads(RANKS, program), strict=True))
    assert not torch.equal(first, second)
    assert torch.equal(evaluated, arguments.x)
    assert torch.equal(first != 0, first == 2 * arguments.x)


def test_edges_and_weights_that_were_changed_in_place_are_new_ones():
    arguments, layer = Arguments(6, weighted=True), pyg.GraphConv(6, 3).double()
    changes = {"edge_weight": lambda weight: weight.mul_(2), "edge_index": lambda ends: ends[0].fill_(1)}

    @torch.no_grad()
    def program(world: ThreadWorld) -> list[bool]:
        graph, named, _ = arguments.part(world)
        model = on_ranks(layer, graph, Messages(world, MessageConfig(collective="alltoallv")), backend="reference")
        named["edge_index"], found = named["edge_index"].clone(), []
        for name, change in changes.items():
            before = [model(**named) for _ in range(2)][-1]  # the second pass makes a plan
            change(named[name])
            after, wanted = model(**named), model(**named | {name: named[name].clone()})
            found.append(torch.allclose(after, wanted) and not torch.allclose(after, before))
        return found

    assert on_threads(RANKS, program) == [[True, True]] * RANKS


def test_dropouts_of_a_model_draw_different_masks():
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5))
    arguments = Arguments(6, weighted=False)

    def program(world: ThreadWorld) -> torch.Tensor:
        graph, named, _ = arguments.part(world)
        mine = on_ranks(model, graph, Messages(world, MessageConfig(collective="alltoallv")), backend="reference")
        return mine(named["x"]).detach()

    found = torch.cat(on_threads(RANKS, program))
    assert 0.15 < (found != 0).double().mean() < 0.35  # a quarter passes both


def test_a_batch_norm_keeps_the_variance_that_torchs_keeps():
    plain, arguments = torch.nn.Sequential(torch.nn.BatchNorm1d(6)).double(), Arguments(6, weighted=False)

    def program(world: ThreadWorld) -> torch.Tensor:
        graph, named, _ = arguments.part(world)
        messages = Messages(world, MessageConfig(collective="alltoallv"))
        model = on_ranks(copy.deepcopy(plain), graph, messages, backend="reference")
        model(named["x"])
        return model[0].running_var

    found = on_threads(RANKS, program)
    plain(arguments.x)
    assert all(torch.allclose(one, plain[0].running_var, rtol=1e-12) for one in found)
