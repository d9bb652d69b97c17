"""Calls of a distributed model: the rehearsal of the first one, what is refused in each of them, random draws, and arguments that
are no plain tensors. The ranks are threads.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_graphs
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from ranks.draws import draws
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex
from torch_geometric.utils import to_undirected

import hpcgnn
from hpcgnn.base.errors import HpcgnnError
from hpcgnn.exchange import MessageConfig
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.kernels.rows import cluster
from hpcgnn.pyg.convolutions import Normaliser
from hpcgnn.pyg.distribution import distribution_of
from hpcgnn.world.thread_world import ThreadWorld, on_threads

RANKS, WIDTH, ALLOWED = 3, 9, "nothing was refused"
ARRAYS = small_graphs.random_multigraph(seed=5, weighted=True)
X = torch.from_numpy(ARRAYS.x)


def on_each_rank(path: Path, use: Callable[[LocalGraph], Any], arrays: Any = ARRAYS, ranks: int = RANKS) -> list[Any]:
    """``use(graph)`` of each rank. The last rank of three owns no node."""

    def program(world: ThreadWorld) -> Any:
        return use(small_graphs.on_ranks(world, arrays, path / "parts.h5"))

    return on_threads(ranks, program)


def of_all(graph: LocalGraph, mine: torch.Tensor) -> torch.Tensor:
    """(N, ...) rows of all nodes, on all ranks."""
    rows = torch.zeros(graph.meta.num_nodes, *mine.shape[1:], dtype=mine.dtype)
    rows[graph.original_ids] = mine.detach()
    return graph.world.allreduce(rows)


class Net(nn.Module):
    """A layer after ``change(model, x, edge_index)``."""

    def __init__(self, change: Callable[..., torch.Tensor], width: int = WIDTH) -> None:
        super().__init__()
        self.change, self.flag, self.epoch = change, False, 0
        self.layer, self.conv = pyg.SAGEConv(width, 4), pyg.SimpleConv()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.layer(self.change(self, x, edge_index), edge_index)


def refusal(path: Path, use: Callable[[LocalGraph], Any], ranks: int = RANKS) -> str:
    """The sentence with which all ranks refuse."""

    def told(graph: LocalGraph) -> str:
        try:
            use(graph)
        except HpcgnnError as error:
            return str(error)
        return ALLOWED

    (sentence,) = set(on_each_rank(path, told, ranks=ranks))
    return sentence


# -- the rehearsal of the first call -----------------------------------------------------------------------------------


class Attributed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = pyg.GATConv(WIDTH, 4, edge_dim=2)

    def forward(self, nodes, adjacency, features=None, kind="plain"):
        features = features.sort(0)[0] if kind == "sorted" else features
        return self.layer(nodes, adjacency, features)


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_a_model_is_rehearsed_with_all_arguments_of_its_first_call(tmp_path: Path, ranks: int) -> None:
    def use(kind: str) -> Callable[[LocalGraph], torch.Tensor]:
        def call(graph: LocalGraph) -> torch.Tensor:
            features = torch.rand(graph.edge_index.shape[1], 2)
            return hpcgnn.distribute(Attributed(), graph)(graph.x, graph.edge_index, features=features, kind=kind)

        return call

    assert refusal(tmp_path, use("plain"), ranks) == ALLOWED
    assert "sort (test_calls.py, line " in refusal(tmp_path, use("sorted"), ranks)


class Static(nn.Module):
    """Two layers, for features (T, N, F) of one graph at T times."""

    def __init__(self, conv: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm, self.second = conv(WIDTH, 6), nn.LayerNorm(6), conv(6, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(self.norm(self.first(x, edge_index)), 0.4, self.training), edge_index)


@pytest.mark.parametrize(("conv", "times"), [  # the rehearsal's graph has 26 nodes, 11 of them on its first rank
    (pyg.GCNConv, 11), (pyg.LEConv, 2), (pyg.ResGatedGraphConv, 26), (lambda f, c: pyg.SAGEConv(f, c, aggr="max"), 2),
    (lambda f, c: pyg.MFConv(f, c, max_degree=2), 11),
])  # fmt: skip
def test_features_at_several_times_give_what_one_machine_gives(tmp_path: Path, conv: Any, times: int) -> None:
    """As PyG does, layers compute all times at once; a rank's rows are along the last dimension but one."""
    whole = Static(conv)
    given = torch.rand(times, len(X), WIDTH, requires_grad=True)

    def program(graph: LocalGraph) -> Any:
        x = given.detach()[:, graph.original_ids].requires_grad_()
        model = hpcgnn.distribute(copy.deepcopy(whole), graph)
        dropped = of_all(graph, model(x, graph.edge_index).transpose(0, 1))
        result = model.eval()(x, graph.edge_index)
        (result.square().sum(2) * graph.original_ids).sum().backward()
        hpcgnn.sum_gradients(model)
        weights = [each.grad for each in model.parameters() if each.grad is not None]
        rows = [of_all(graph, each.transpose(0, 1)) for each in (result, x.grad)]
        return dropped, [*rows, *weights]

    (one, _), *_ = on_each_rank(tmp_path, program, ranks=1)
    (dropped, found), *_ = on_each_rank(tmp_path, program)
    assert dropped == pytest.approx(one, rel=1e-4, abs=1e-5), "dropout depends on the number of ranks"
    result = whole.eval()(given, torch.from_numpy(ARRAYS.edge_index))
    (result.square().sum(2) * torch.arange(len(X))).sum().backward()
    wanted = [result.transpose(0, 1), given.grad.transpose(0, 1)]
    wanted += [each.grad for each in whole.parameters() if each.grad is not None]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_features_at_several_times_of_other_widths_are_refused(tmp_path: Path) -> None:
    def use(graph: LocalGraph) -> None:
        x = torch.rand(2, graph.num_nodes, WIDTH - (graph.world.rank == 1))
        hpcgnn.distribute(Static(pyg.GCNConv), graph)(x, graph.edge_index)

    assert "the ranks call the model with different arguments" in refusal(tmp_path, use)


class OfEdges(pyg.MessagePassing):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return x[:, :1] + self.propagate(edge_index, e=features)

    def message(self, e: torch.Tensor) -> torch.Tensor:
        return e


def test_sums_of_edges_alone_need_no_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """PyG finds the number of nodes in the edges, so the last node of the rehearsal has some."""

    def use(graph: LocalGraph) -> None:
        hpcgnn.distribute(OfEdges(), graph)(graph.x, graph.edge_index, torch.rand(graph.edge_index.shape[1], 1))

    assert refusal(tmp_path, use) == ALLOWED
    assert not caplog.records


@pytest.mark.parametrize("change", [
    lambda x, edges: x - x.mean(0),
    lambda x, edges: x * 2 if x.size(0) > 50 else x,
    lambda x, edges: x / x.shape[0],
    lambda x, edges: x * edges.double().mean(),
    lambda x, edges: x + float((x.relu() + 1).max()),
])  # fmt: skip
def test_a_branch_of_a_later_epoch_is_refused(tmp_path: Path, change: Callable[..., torch.Tensor]) -> None:
    def later(model: Net, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return change(x, edge_index) if model.epoch > 1 else x

    def use(graph: LocalGraph) -> None:
        model = hpcgnn.distribute(Net(later), graph)
        for model.epoch in range(3):
            model(graph.x, graph.edge_index)

    sentence = refusal(tmp_path, use)
    assert sentence.startswith("Net cannot be distributed: ")
    assert "(test_calls.py, line " in sentence


class OfData(nn.Module):
    """A model of PyG's that takes the whole data. change: of rows, given (x, data)."""

    def __init__(self, change: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.change, self.layer = change, pyg.SAGEConv(WIDTH, 4)

    def forward(self, data):
        return self.layer(self.change(data.x, data), data.edge_index)


def test_a_model_of_the_graph_itself_is_watched_and_rehearsed(tmp_path: Path) -> None:
    def use(change: Callable[..., torch.Tensor]) -> str:
        return refusal(tmp_path, lambda graph: hpcgnn.distribute(OfData(change), graph)(graph))

    assert (
        use(lambda x, data: x + x.new_zeros(x.shape).index_add_(0, data.edge_index[1], x[data.edge_index[0]]))
        == ALLOWED
    )
    assert "mean (test_calls.py" in use(lambda x, data: x - x.mean(0))
    assert "gives other values" in use(lambda x, data: x / data.num_nodes)


class Symmetric(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = pyg.SAGEConv(WIDTH, 4)

    def forward(self, x, edge_index):
        return self.layer(x, to_undirected(edge_index, num_nodes=x.size(0)))


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = pyg.SAGEConv(WIDTH, 4)

    def forward(self, x, edge_index, places=None):
        return self.layer(x if places is None else x * (places - places.mean(0)), edge_index)


class TwoSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = pyg.GraphConv(WIDTH, 4), pyg.GraphConv(4, 4)

    def forward(self, x, edge_index, others, weights):
        return self.b(self.a(x, edge_index), others, weights / weights.mean())


def called(change: Callable[..., torch.Tensor]) -> Callable[[LocalGraph], None]:
    """A use of a model with this change of rows."""
    plain = Net(change)
    return lambda graph: hpcgnn.distribute(copy.deepcopy(plain), graph)(graph.x, graph.edge_index)


def with_a_flag_that_is_set_later(graph: LocalGraph) -> None:
    model = hpcgnn.distribute(Net(lambda net, x, _: x + torch.arange(x.size(0))[:, None] if net.flag else x), graph)
    model.flag = True
    model(graph.x, graph.edge_index)


def with_an_argument_that_is_given_later(graph: LocalGraph) -> None:
    model = hpcgnn.distribute(Optional(), graph)
    model(graph.x, graph.edge_index)
    model(graph.x, graph.edge_index, torch.rand(graph.num_nodes, 1))


def with_weights_of_a_second_set_of_edges(graph: LocalGraph) -> None:
    others = graph.edge_index[:, ::2].contiguous()
    hpcgnn.distribute(TwoSets(), graph)(graph.x, graph.edge_index, others, torch.rand(others.shape[1]))


def with_a_sparse_matrix_of_edges(graph: LocalGraph) -> None:
    size = graph.num_nodes, graph.num_nodes
    adj_t = torch.sparse_csr_tensor(
        torch.zeros(size[0] + 1, dtype=torch.int64), torch.zeros(0).long(), torch.zeros(0), size
    )
    hpcgnn.distribute(pyg.GCNConv(WIDTH, 4), graph)(graph.x, adj_t)


def by_another_method(graph: LocalGraph) -> None:
    hpcgnn.distribute(pyg.GAE(pyg.GCNConv(WIDTH, 4)), graph).encode(graph.x, graph.edge_index)


def with_pooling_of_nodes(graph: LocalGraph) -> None:
    hpcgnn.distribute(pyg.GraphUNet(WIDTH, 4, 4, depth=2), graph)


def made_undirected(graph: LocalGraph) -> None:
    hpcgnn.distribute(Symmetric(), graph)


CALLS: list[tuple[Callable[[LocalGraph], None], str]] = [
    (with_a_flag_that_is_set_later, "gives other values on a part of a graph"),
    (with_an_argument_that_is_given_later, "mean \\(test_calls.py"),
    (with_weights_of_a_second_set_of_edges, "mean \\(test_calls.py"),
    (
        with_a_sparse_matrix_of_edges,
        "^GCNConv cannot be called with a sparse matrix as edge_index: .* takes graph.edge_index",
    ),
    (by_another_method, "GCNConv of a distributed model was called outside of a call of the model"),
    (with_pooling_of_nodes, "^GraphUNet cannot be distributed: .* in GraphUNet"),
    (made_undirected, "makes reversed edges.*hpcgnn convert --undirected"),
    (called(lambda net, x, edges: x - x.mean(0)), r"use hpcgnn.mean\(x, graph\)"),
    (called(lambda net, x, edges: x + x[torch.randperm(x.size(0))]), "takes rows by numbers"),
    # a rank without nodes takes shapes with an unknown size
    (called(lambda net, x, edges: x.view(x.size(0), 3, 3).relu().view(x.size(0), -1)), ALLOWED),
]


@pytest.mark.parametrize(("use", "sentence"), CALLS)
def test_calls_that_need_other_ranks_are_refused(tmp_path: Path, use: Any, sentence: str) -> None:
    assert re.search(sentence, refusal(tmp_path, use), re.DOTALL)


# -- what is right on ranks, too ---------------------------------------------------------------------------------------


def test_an_undirected_graph_may_be_made_undirected_again(tmp_path: Path) -> None:
    arrays = copy.deepcopy(ARRAYS)
    arrays.edge_index, arrays.weight = np.concatenate((ARRAYS.edge_index, ARRAYS.edge_index[::-1]), axis=1), None
    plain = Symmetric()

    def use(graph: LocalGraph) -> torch.Tensor:
        return of_all(graph, hpcgnn.distribute(copy.deepcopy(plain), graph)(graph.x, graph.edge_index))

    assert torch.allclose(
        on_each_rank(tmp_path, use, arrays)[0], plain(X, torch.from_numpy(arrays.edge_index)), atol=1e-5
    )


def test_degrees_are_exact_however_few_bits_messages_have(tmp_path: Path) -> None:
    plain = pyg.GCNConv(WIDTH, 4)

    def use(graph: LocalGraph) -> float:
        norms = []
        for bits in (2, 32):
            model = hpcgnn.distribute(copy.deepcopy(plain), graph, messages=MessageConfig(bits=bits))
            weight = torch.rand(graph.edge_index.shape[1], generator=torch.Generator().manual_seed(1)) + 0.5
            normaliser = Normaliser(distribution_of(model).bridge)
            norms.append(normaliser.gcn_norm(graph.edge_index, weight, dtype=torch.float32)[1])
        return float((norms[0] - norms[1]).abs().max()) if norms[0].numel() else 0.0

    assert max(on_each_rank(tmp_path, use)) == 0


# -- random draws ------------------------------------------------------------------------------------------------------


def test_functional_dropout_is_the_same_for_any_number_of_ranks(tmp_path: Path) -> None:
    """Also of the attention weights of a layer, which belong to edges."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = pyg.GATConv(WIDTH, 4, dropout=0.3)

        def forward(self, x, edge_index):
            return F.dropout(self.layer(F.dropout(x, 0.5, self.training), edge_index), 0.2, training=True)

    plain = Dropping()

    def use(graph: LocalGraph) -> list[torch.Tensor]:
        model = hpcgnn.distribute(copy.deepcopy(plain), graph)
        return [of_all(graph, model(graph.x, graph.edge_index)) for _ in range(2)]

    simple = copy.deepcopy(ARRAYS)  # parallel edges share a mask
    simple.edge_index = np.unique(simple.edge_index, axis=1)
    simple.weight = simple.weight[: simple.edge_index.shape[1]]
    three, one = on_each_rank(tmp_path, use, simple)[0], on_each_rank(tmp_path, use, simple, ranks=1)[0]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(three, one, strict=True))
    assert not torch.equal(*one)


@pytest.mark.mpi
def test_ranks_with_the_same_seed_draw_different_numbers(mpi_ranks: Callable, tmp_path: Path) -> None:
    """But the same ones where they belong to no row; and torch's generator goes on alike on all ranks."""
    path = small_graphs.in_parts(tmp_path / "parts.h5", ARRAYS, 2)
    (first, after), (second, again) = mpi_ranks(2).run(draws, str(path))
    size = min(len(first), len(second))
    assert size > 10
    assert not np.allclose(first[:size], second[:size])
    assert after == again
    assert len(set(after)) == 3


def test_a_checkpoint_repeats_its_dropout(tmp_path: Path) -> None:
    """So that gradients are those of the function that was computed: it is linear in x, so they give its values."""
    plain = Net(lambda model, x, edges: checkpoint(lambda y: F.dropout(y, 0.5), x, use_reentrant=False))
    plain.layer = pyg.SimpleConv(aggr="sum")

    def use(graph: LocalGraph) -> tuple[float, float]:
        x = graph.x.clone().requires_grad_()
        scores = hpcgnn.distribute(copy.deepcopy(plain), graph, check=False)(x, graph.edge_index)
        scores.sum().backward()
        return float(scores.sum()), float((x.grad * x).sum())

    values, gradients = np.array(on_each_rank(tmp_path, use, ranks=1)).T
    assert values.sum() == pytest.approx(gradients.sum(), rel=1e-4)


# -- arguments that are refused, or converted --------------------------------------------------------------------------


def test_tensors_without_memory_of_their_own_do_not_reach_kernels() -> None:
    with pytest.raises(TypeError, match="not the subclass"):
        cluster(EdgeIndex(torch.tensor([[0, 1], [1, 0]]))[1], 2)


@pytest.mark.parametrize("native", [True, False], ids=["native", "PyG's"])
def test_weights_without_a_positive_sum_are_refused_for_gcn(tmp_path: Path, native: bool) -> None:
    """PyG's results are not numbers there."""
    arrays = copy.deepcopy(ARRAYS)
    arrays.weight[arrays.edge_index[1] == 7] = -1
    arrays.weight[arrays.edge_index[1] == 11] = -1
    assert {7, 11} <= {*arrays.edge_index[1].tolist()}
    plain = pyg.GCNConv(WIDTH, 4)
    assert plain(X, torch.from_numpy(arrays.edge_index), torch.from_numpy(arrays.weight))[[7, 11]].isnan().all()

    def use(graph: LocalGraph) -> None:
        if native:
            hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=4), graph)
        else:
            weight = torch.as_tensor(graph.edge_weight)
            hpcgnn.distribute(plain, graph)(graph.x, graph.edge_index, weight)

    def program(world: ThreadWorld) -> str:
        with pytest.raises(HpcgnnError) as refused:
            use(small_graphs.on_ranks(world, arrays, tmp_path / "parts.h5"))
        return str(refused.value)

    (sentence,) = set(on_threads(RANKS, program))
    assert "the edge weights of 2 nodes, the first of which is node 7, add up to 0 or less" in sentence
