"""Models that are refused by name, and with the line that cannot be right: the rehearsal, whose ranks are threads. That right
models pass it, all layers of PyG among them, is for ``test_zoo.py`` to say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch_geometric.nn as pyg
import torch_geometric.utils as utils
from torch import nn

from hpcgnn.base.errors import HpcgnnError
from hpcgnn.data.schema import GraphMeta
from hpcgnn.exchange import Exchange
from hpcgnn.pyg.given import expected_call
from hpcgnn.pyg.rehearsal import rehearse

GRAPH = SimpleNamespace(
    meta=GraphMeta(num_nodes=5, num_edges=4, num_features=6), edge_weight=None, world=SimpleNamespace(rank=0)
)


class One(nn.Module):
    """A model of one layer. use: calls the layer with the model's arguments."""

    def __init__(self, layer, use=lambda layer, *given: layer(*given)):
        super().__init__()
        self.layer, self.use = layer, use

    def forward(self, x, edge_index):
        return self.use(self.layer, x, edge_index)


class Net(nn.Module):
    """A model that applies ``change`` between two layers."""

    def __init__(self, change, norm=None):
        super().__init__()
        self.first, self.second, self.norm, self.drop = pyg.GCNConv(6, 4), pyg.SAGEConv(4, 3), norm, nn.Dropout(0.5)
        self.change = change

    def forward(self, x, edge_index):
        hidden = self.first(x, edge_index)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.second(self.drop(self.change(self, hidden, edge_index)).relu(), edge_index)


def unchanged(model, x, edge_index):
    return x


REFUSED = {
    "mean": (lambda self, x, edges: x - x.mean(0), "mean"),
    "number of nodes": (lambda self, x, edges: x / x.size(0), "a computation"),
    "length": (lambda self, x, edges: x / len(x), "len"),
    "all pairs": (lambda self, x, edges: (x @ x.T).softmax(1) @ x, "matmul"),
    "one node": (lambda self, x, edges: x - x[0], "row 0 of the nodes"),
    "reversed edges": (lambda self, x, edges: x + pyg.SimpleConv()(x, edges.flip(0)), "flip"),
    "mean over edges": (lambda self, x, edges: x * (edges[0] == edges[1]).double().mean(), "mean"),
    "sparse matrix": (
        lambda self, x, edges: utils.to_torch_csr_tensor(edges, x.new_ones(edges.size(1)), (x.size(0),) * 2) @ x,
        "sparse",
    ),
    "loops on nodes with edges": (
        lambda self, x, edges: x + pyg.SimpleConv()(x, utils.add_self_loops(edges)[0]),
        "num_nodes",
    ),
    "order of nodes": (lambda self, x, edges: x.sort(0)[0], "sort"),
}


@pytest.mark.parametrize("use", REFUSED)
def test_uses_of_all_nodes_are_refused_with_their_line(use):
    change, named = REFUSED[use]
    with pytest.raises(
        HpcgnnError, match=rf"Net cannot be distributed: (?=.*{named}).*\(test_rehearsal.py, line \d+\)"
    ):
        rehearse(Net(change), GRAPH)


@pytest.mark.parametrize(("model", "reason"), [
    (One(pyg.GCNConv(6, 3, flow="target_to_source")), r"layer \(GCNConv\) cannot be distributed: its flow"),
    (One(pyg.ClusterGCNConv(6, 4, decomposed_layers=2)), r"layer \(ClusterGCNConv\) .* with decomposed_layers=2"),
    (One(pyg.SAGEConv(6, 3, aggr="lstm")), r"layer \(SAGEConv\) gives other values .* in any order"),
    (Net(unchanged, pyg.InstanceNorm(4)), r"norm \(InstanceNorm\) cannot be distributed: it takes stat"),
    (Net(unchanged, pyg.BatchNorm(4, allow_single_element=True)), "allow_single_element"),
    (One(lambda x, edges: pyg.global_mean_pool(x, None)), "its result is not a tensor with a row for each node"),
])  # fmt: skip
def test_layers_that_cannot_be_distributed_are_refused_by_name(model, reason):
    with pytest.raises(HpcgnnError, match=reason):
        rehearse(model, GRAPH)


def test_a_branch_that_is_drawn_by_chance_is_right():
    for seed in range(10):
        torch.manual_seed(seed)
        rehearse(Net(lambda self, x, edges: 2 * x if torch.rand(()) < 0.5 else x), GRAPH)


class MakesSparse(pyg.MessagePassing):
    """A layer that makes a sparse matrix with more rows than it says."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (2, 2))
        return x_j


def test_sparse_matrices_are_checked_in_distributed_models_only():
    with pytest.raises(HpcgnnError, match="crow_indices"):
        rehearse(One(MakesSparse()), GRAPH)
    assert not torch.sparse.check_sparse_tensor_invariants.is_enabled()


def test_arguments_may_have_other_names(caplog):
    class Renamed(One):
        def forward(self, features, adj):
            return self.layer(features, adj)

    class Centred(Renamed):
        def forward(self, features, adj):
            hidden = self.layer(features, adj)
            return hidden - hidden.mean(0)

    rehearse(Renamed(pyg.GCNConv(6, 3)), GRAPH)
    with pytest.raises(HpcgnnError, match="mean"):
        rehearse(Centred(pyg.GCNConv(6, 3)), GRAPH)
    assert not caplog.text


def test_a_model_for_float32_alone_is_rehearsed_in_it(caplog):
    class Single(One):
        def forward(self, x, edge_index):
            return (x - x.new_tensor(self.use(x))) @ torch.ones(6, 2, dtype=torch.float32)

    rehearse(Single(None, lambda x: 0.5), GRAPH)
    with pytest.raises(HpcgnnError, match="Single cannot be distributed: max"):
        rehearse(Single(None, lambda x: x.max().item()), GRAPH)
    assert not caplog.text


def test_a_model_that_does_not_run_on_the_tiny_graph_is_distributed_with_a_warning(caplog):
    class Failing(nn.Module):
        def forward(self, x, edge_index):
            raise ValueError("too few nodes")

    assert rehearse(Failing(), GRAPH) is None
    assert not caplog.text  # the arguments of the first call may be others
    rehearse(Failing(), GRAPH, expected_call(Failing().forward, GRAPH))
    assert "without having been tried" in caplog.text
    assert "too few nodes" in caplog.text


@pytest.mark.parametrize("layer", [pyg.GCNConv(6, 3), pyg.GATConv(6, 3)])
def test_rows_that_do_not_come_are_noticed(layer, monkeypatch):
    rehearse(One(layer), GRAPH)
    add_received = Exchange.add_received

    def zeroed(self, message, matrix, z):
        message.received.zero_()
        add_received(self, message, matrix, z)

    monkeypatch.setattr(Exchange, "add_received", zeroed)
    with pytest.raises(HpcgnnError, match=r"layer \(.*\) gives other values"):
        rehearse(One(layer), GRAPH)
