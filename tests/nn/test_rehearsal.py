"""Models that can be distributed, and models that are refused by name: the rehearsal, whose ranks are threads."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
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
MLP = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
WEIGHTED = {
    "GCN": lambda: pyg.GCNConv(6, 3),
    "GCN, improved": lambda: pyg.GCNConv(6, 3, improved=True),
    "GCN without loops": lambda: pyg.GCNConv(6, 3, add_self_loops=False),
    "GCN without norm": lambda: pyg.GCNConv(6, 3, normalize=False),
    "GCN, cached": lambda: pyg.GCNConv(6, 3, cached=True),
    "GCN, decomposed": lambda: pyg.GCNConv(6, 4, decomposed_layers=2),
    "graph": lambda: pyg.GraphConv(6, 3),
    "graph, mean": lambda: pyg.GraphConv(6, 3, aggr="mean"),
    "graph, max": lambda: pyg.GraphConv(6, 3, aggr="max"),
    "SGC": lambda: pyg.SGConv(6, 3, K=3),
    "SGC, cached": lambda: pyg.SGConv(6, 3, K=2, cached=True),
    "SSGC": lambda: pyg.SSGConv(6, 3, alpha=0.1),
    "APPNP": lambda: pyg.APPNP(4, 0.1),
    "APPNP with dropout": lambda: pyg.APPNP(4, 0.1, dropout=0.5),
    "TAG": lambda: pyg.TAGConv(6, 3),
    "Chebyshev": lambda: pyg.ChebConv(6, 3, K=3),
    "Chebyshev, random walk": lambda: pyg.ChebConv(6, 3, K=3, normalization="rw"),
    "Chebyshev without norm": lambda: pyg.ChebConv(6, 3, K=3, normalization=None),
    "LE": lambda: pyg.LEConv(6, 3),
    "light GCN": lambda: pyg.LGConv(),
    "ARMA": lambda: pyg.ARMAConv(6, 3, num_stacks=2, num_layers=2),
    "mix of hops": lambda: pyg.MixHopConv(6, 3),
}
UNWEIGHTED = {
    "SAGE": lambda: pyg.SAGEConv(6, 3),
    "SAGE, sum": lambda: pyg.SAGEConv(6, 3, aggr="sum"),
    "SAGE, max": lambda: pyg.SAGEConv(6, 3, aggr="max"),
    "SAGE, softmax": lambda: pyg.SAGEConv(6, 3, aggr="softmax"),
    "SAGE, several": lambda: pyg.SAGEConv(6, 3, aggr=["mean", "max", "std"]),
    "SAGE, projected": lambda: pyg.SAGEConv(6, 3, project=True, normalize=True, root_weight=False),
    "GIN": lambda: pyg.GINConv(MLP, train_eps=True),
    "cluster GCN": lambda: pyg.ClusterGCNConv(6, 3),
    "GAT": lambda: pyg.GATConv(6, 3, heads=2, dropout=0.5),
    "GAT, mean of heads": lambda: pyg.GATConv(6, 3, heads=2, concat=False, add_self_loops=False),
    "GAT with residuals": lambda: pyg.GATConv(6, 3, residual=True),
    "GATv2": lambda: pyg.GATv2Conv(6, 3, heads=2, share_weights=True),
    "transformer": lambda: pyg.TransformerConv(6, 3, heads=2, beta=True),
    "AGNN": lambda: pyg.AGNNConv(),
    "edge": lambda: pyg.EdgeConv(nn.Linear(12, 3)),
    "FiLM": lambda: pyg.FiLMConv(6, 3),
    "GEN": lambda: pyg.GENConv(6, 3),
    "gated residuals": lambda: pyg.ResGatedGraphConv(6, 3),
    "FeaSt": lambda: pyg.FeaStConv(6, 3),
    "gated": lambda: pyg.GatedGraphConv(6, 2),
    "crystal": lambda: pyg.CGConv(6),
    "PNA": lambda: pyg.PNAConv(6, 3, ["mean", "max"], ["identity"], deg=torch.tensor([1, 2, 3])),
    "PyG's GCN": lambda: pyg.GCN(6, 8, 3, 3, norm="batch", jk="cat", dropout=0.5),
    "PyG's GAT": lambda: pyg.GAT(6, 8, 2, 3, norm="layer"),
}
NORMS = {
    "batch": lambda: nn.BatchNorm1d(4),
    "batch, not affine": lambda: nn.BatchNorm1d(4, affine=False),
    "batch, not tracked": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "PyG's batch": lambda: pyg.BatchNorm(4),
    "layer": lambda: nn.LayerNorm(4),
    "PyG's layer": lambda: pyg.LayerNorm(4),
    "PyG's layer, nodes": lambda: pyg.LayerNorm(4, mode="node"),
    "graph": lambda: pyg.GraphNorm(4),
    "pair": lambda: pyg.PairNorm(),
    "pair, individually": lambda: pyg.PairNorm(scale_individually=True),
}


BIPARTITE = {
    "SAGE": lambda: pyg.SAGEConv((6, 4), 3),
    "SAGE, max": lambda: pyg.SAGEConv((6, 4), 3, aggr="max"),
    "graph": lambda: pyg.GraphConv((6, 4), 3),
    "GIN": lambda: pyg.GINConv(nn.Linear(6, 3)),
    "LE": lambda: pyg.LEConv((6, 4), 3),
    "GAT": lambda: pyg.GATConv((6, 4), 3, add_self_loops=False),
    "GATv2": lambda: pyg.GATv2Conv((6, 4), 3, add_self_loops=False),
    "transformer": lambda: pyg.TransformerConv((6, 4), 3),
    "edge": lambda: pyg.EdgeConv(nn.Linear(12, 3)),
    "GEN": lambda: pyg.GENConv((6, 4), 3),
    "gated residuals": lambda: pyg.ResGatedGraphConv((6, 4), 3),
}
SAME_WIDTH = (pyg.GINConv, pyg.EdgeConv)
EDGE_FEATURES = {
    "GAT": lambda: pyg.GATConv(6, 3, edge_dim=1, fill_value=0.5),
    "GATv2": lambda: pyg.GATv2Conv(6, 3, heads=2, edge_dim=1),
    "transformer": lambda: pyg.TransformerConv(6, 3, edge_dim=1),
    "GINE": lambda: pyg.GINEConv(nn.Linear(6, 3), edge_dim=1),
    "GEN": lambda: pyg.GENConv(6, 3, edge_dim=1),
    "NN": lambda: pyg.NNConv(6, 3, nn.Linear(1, 18)),
    "crystal": lambda: pyg.CGConv(6, dim=1),
}


class One(nn.Module):
    """A model of one layer. use: calls the layer with the model's arguments."""

    def __init__(self, layer, use=lambda layer, *given: layer(*given)):
        super().__init__()
        self.layer, self.use = layer, use

    def forward(self, x, edge_index):
        return self.use(self.layer, x, edge_index)


class Weighted(One):
    def forward(self, x, edge_index, edge_weight):
        return self.use(self.layer, x, edge_index, edge_weight)


def of_two(layer, x, edges):
    return layer((x, x.flip(1) if isinstance(layer, SAME_WIDTH) else x[:, 2:] * 2), edges)


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


def weighted(x, edges):
    row, col = edges
    degree = utils.degree(col, x.size(0), x.dtype).clamp(min=1).pow(-0.5)
    return utils.scatter((degree[row] * degree[col])[:, None] * x[row], col, 0, x.size(0))


def unchanged(model, x, edge_index):
    return x


USES_OF_OWN_NODES = {
    "all rows": lambda self, x, edges: x[: x.size(0)],
    "weights of another type": lambda self, x, edges: pyg.LGConv(normalize=False)(
        x, edges, utils.degree(edges[1], x.size(0))[edges[1]]
    ),
    "degrees of sources": lambda self, x, edges: x * utils.degree(edges[0], x.size(0))[:, None],
    "rows of sources": lambda self, x, edges: x + utils.scatter(x[edges[0]], edges[1], 0, x.size(0)),
    "degrees of both ends": lambda self, x, edges: self.second.lin_l(x).new_zeros(()) + weighted(x, edges),
    "self-loops": lambda self, x, edges: (
        x
        + utils.scatter(
            x.index_select(0, utils.add_self_loops(edges, num_nodes=x.size(0))[0][0]),
            utils.add_self_loops(edges, num_nodes=x.size(0))[0][1],
            0,
            x.size(0),
        )
    ),
    "softmax of in-edges": lambda self, x, edges: (
        x * utils.scatter(utils.softmax(x[edges[0], 0], edges[1], num_nodes=x.size(0)), edges[1], 0, x.size(0))[:, None]
    ),
    "functional dropout": lambda self, x, edges: F.dropout(x, 0.5, self.training),
    "in-degrees": lambda self, x, edges: x * utils.degree(edges[1], x.size(0))[:, None],
    "a jump": lambda self, x, edges: x + self.first.lin(torch.ones(x.size(0), 6, dtype=x.dtype)),
}
LAYERS = WEIGHTED | UNWEIGHTED
ALLOWED = {  # how a model is made, and of what
    "layer": (lambda layer: One(layer()), LAYERS),
    "alone": (lambda layer: layer(), {name: LAYERS[name] for name in ("GCN", "SAGE", "GAT", "LE", "Chebyshev")}),
    "weights": (lambda layer: Weighted(layer()), WEIGHTED),
    "features of edges": (
        lambda layer: Weighted(layer(), lambda layer, x, edges, weight: layer(x, edges, weight[:, None])),
        EDGE_FEATURES,
    ),
    "features of targets": (lambda layer: One(layer(), of_two), BIPARTITE),
    "no features of targets": (
        lambda layer: One(layer(), lambda layer, x, edges: layer((x, None), edges)),
        {name: BIPARTITE[name] for name in ("SAGE", "graph", "GATv2")},
    ),
    "norm": (lambda norm: Net(unchanged, norm()), NORMS),
    "use": (Net, USES_OF_OWN_NODES),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, made_of) in ALLOWED.items() for name in made_of])
def test_models_may_be_distributed(kind, name):
    make, made_of = ALLOWED[kind]
    rehearse(make(made_of[name]), GRAPH)


REFUSED = {
    "mean": (lambda self, x, edges: x - x.mean(0), "mean"),
    "softmax": (lambda self, x, edges: x.softmax(0), "softmax"),
    "number of nodes": (lambda self, x, edges: x / x.size(0), "a computation"),
    "a number of nodes": (lambda self, x, edges: x * 2 if x.size(0) > 50 else x, "a computation"),
    "a number of edges": (lambda self, x, edges: x * 2 if edges.size(1) > 500 else x, "a computation"),
    "length": (lambda self, x, edges: x / len(x), "len"),
    "a root of the number": (lambda self, x, edges: x / math.sqrt(x.shape[0]), "a computation"),
    "norm of columns": (lambda self, x, edges: F.normalize(x, dim=0), "normalize"),
    "all pairs": (lambda self, x, edges: (x @ x.T).softmax(1) @ x, "matmul"),
    "products of columns": (lambda self, x, edges: x @ (x.t() @ x), "matmul"),
    "einsum": (lambda self, x, edges: x @ torch.einsum("ni,nj->ij", x, x), "einsum"),
    "one node": (lambda self, x, edges: x - x[0], "row 0 of the nodes"),
    "some nodes": (lambda self, x, edges: x + x[:1].sum(1), "a range of rows"),
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
    "batch norm": (lambda self, x, edges: F.batch_norm(x, None, None, training=True), "batch_norm"),
    "a virtual node": (lambda self, x, edges: torch.cat((x, x.new_zeros(1, 4)))[:-1], "cat"),
    "order of nodes": (lambda self, x, edges: x.sort(0)[0], "sort"),
    "running sum": (lambda self, x, edges: x.cumsum(0), "cumsum"),
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


@pytest.mark.parametrize("layer", ["GCN", "GAT"])
def test_rows_that_do_not_come_are_noticed(layer, monkeypatch):
    add_received = Exchange.add_received

    def zeroed(self, message, matrix, z):
        message.received.zero_()
        add_received(self, message, matrix, z)

    monkeypatch.setattr(Exchange, "add_received", zeroed)
    with pytest.raises(HpcgnnError, match=r"layer \(.*\) gives other values"):
        rehearse(One(LAYERS[layer]()), GRAPH)
