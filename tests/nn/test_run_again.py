"""``--activations recompute`` by layers that backward runs again: the same bits and messages."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import small_graphs
import torch
import torch_geometric.nn as pyg
from ranks.models import small

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.kernels import again
from hpcgnn.policy import PolicyConfig
from hpcgnn.world.thread_world import on_threads

ARRAYS = small_graphs.with_typed_edges(small_graphs.random_multigraph())
WIDTH, CLASSES = ARRAYS.x.shape[1], ARRAYS.num_classes


@pytest.fixture
def parts(tmp_path):
    return lambda ranks: small_graphs.in_parts(tmp_path / f"{ranks}.h5", ARRAYS, ranks)


@pytest.fixture
def runs(monkeypatch):
    """The parts that have run again."""
    found, run_again = [], again._Part._run_again
    monkeypatch.setattr(again._Part, "_run_again", lambda part: (found.append(part), run_again(part)))
    return found


def trained(path, ranks, build):
    """The losses and bytes of two epochs on each rank, and all weights and buffers after them. build: a model of a graph."""

    def program(world):
        graph = hpcgnn.load(path, world)
        model = build(graph)
        trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=2, eval_every=100))
        told = [trainer.run_epoch() for _ in range(2)]
        values = [each.detach().clone() for each in model.state_dict().values()]
        return [each[key] for each in told for key in ("loss", "bytes_sent")], values

    return on_threads(ranks, program)


@pytest.mark.parametrize("change", ["epoch", "evaluation"])
def test_another_pass_before_backward_is_refused(parts, change):
    graph = hpcgnn.load(parts(1))
    model = hpcgnn.build_model(small("gin"), graph, activations="recompute")
    loss = model(graph.features).sum()
    model.eval() if change == "evaluation" else model.begin_epoch(7)
    with pytest.raises(hpcgnn.HpcgnnError, match="call backward before it"):
        loss.backward()


class Own(pyg.MessagePassing):
    """A user's layer with a norm over edges' rows, keyed dropout, and random numbers of torch."""

    def __init__(self, in_width, out_width):
        super().__init__(aggr="sum")
        self.lin, self.norm = torch.nn.Linear(2 * in_width, out_width), torch.nn.BatchNorm1d(out_width)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        y = torch.relu(self.norm(self.lin(torch.cat((x_i, x_j), 1))))
        return torch.nn.functional.dropout(y, 0.4, self.training) * torch.bernoulli(torch.full((1,), 0.5))


class Net(torch.nn.Module):
    def __init__(self, layer, in_width, out_width):
        super().__init__()
        self.first, self.second = layer(in_width), layer(16)
        self.norm, self.last = torch.nn.BatchNorm1d(16), torch.nn.Linear(16, out_width)

    def forward(self, x, edge_index):
        x = torch.relu(self.norm(self.first(x, edge_index)))
        x = torch.nn.functional.dropout(x, 0.5, self.training)
        return self.last(torch.relu(self.second(x, edge_index)))


LAYERS = {
    "GAT": lambda width: pyg.GATConv(width, 8, heads=2, dropout=0.3),
    "GATv2": lambda width: pyg.GATv2Conv(width, 8, heads=2, dropout=0.3),
    "Transformer": lambda width: pyg.TransformerConv(width, 8, heads=2, dropout=0.3),
    "SAGE, max": lambda width: pyg.SAGEConv(width, 16, aggr="max"),
    "PNA": lambda width: pyg.PNAConv(width, 16, ["mean", "max", "std"], ["identity"], deg=torch.tensor([1, 2, 3])),
    "own": lambda width: Own(width, 16),
}


# Ranks that are threads share torch's generators, from which the user's layer draws.
CASES = [
    ("own", 1, 32),
    ("GAT", 1, 32),
    *((name, 3, (32, 2)[number % 2]) for number, name in enumerate(LAYERS) if name != "own"),
]


@pytest.mark.parametrize(("name", "ranks", "bits"), CASES)
def test_messages_of_a_users_layers_run_again(parts, runs, name, ranks, bits):
    path = parts(ranks)
    torch.manual_seed(5)
    plain = Net(LAYERS[name], WIDTH, CLASSES)

    def built(mode):
        def build(graph):
            net = copy.deepcopy(plain)
            if ranks == 1:
                torch.manual_seed(3)
            return hpcgnn.distribute(net, graph, messages=MessageConfig(bits=bits), check=False, activations=mode)

        return build

    kept, again_ = (trained(path, ranks, built(mode)) for mode in ("keep", "recompute"))
    for (one, values), (other, others) in zip(kept, again_, strict=True):
        assert one == other
        assert all(map(torch.equal, values, others))
    assert runs


def test_a_frozen_weight_of_a_typed_layer_leaves_the_other_gradients(tmp_path):
    """Its product saves nothing, so that a second run must not end there."""
    graph = small_graphs.with_typed_edges(small_graphs.even_graph(60, 400), types=1)
    graph, found = hpcgnn.load(small_graphs.in_parts(tmp_path / "parts.h5", graph, 1)), []
    for mode in ("keep", "recompute"):
        torch.manual_seed(0)
        config = hpcgnn.ModelConfig("sage", layers=3, hidden=8, edge_types="sum")
        model = hpcgnn.build_model(config, graph, activations=mode)
        model.layers[0].weight_root.requires_grad_(False)
        model(graph.features).square().sum().backward()
        found.append([each.grad for each in model.parameters() if each.requires_grad])
    assert all(map(torch.equal, *found))


def test_nothing_is_left_of_a_part_after_backward(parts, monkeypatch):
    """Statistics of all ranks, which are kept, must not know the graph that knows the part."""
    made, first = [], again._Part.first

    def seen(part):
        made.append(weakref.ref(part))
        return first(part)

    monkeypatch.setattr(again._Part, "first", seen)

    path = parts(2)

    def program(world):
        graph = hpcgnn.load(path, world)
        config = small("hgt", norm="mean", activation="elu")
        model = hpcgnn.build_model(config, graph, messages=Messages(world, MessageConfig()), activations="recompute")
        model.begin_epoch(0)
        model(graph.features).sum().backward()

    on_threads(2, program)
    gc.collect()
    assert made
    assert not [part for part in made if part() is not None]


@pytest.mark.parametrize("what", ["weight", "features"])
def test_what_changed_since_forward_is_refused(what, parts):
    graph = hpcgnn.load(parts(1))
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gin", layers=3, hidden=8), graph, activations="recompute")
    x = graph.features.clone()
    loss = model(x).sum()
    with torch.no_grad():
        (next(model.layers[1].parameters()) if what == "weight" else x).mul_(2)
    with pytest.raises(hpcgnn.HpcgnnError, match="have changed since forward"):
        loss.backward()


BESIDE = [
    {"compute": "int8-always"},
    {"messages": MessageConfig(message_coding="delta")},
    {"messages": MessageConfig(node_aware="on")},
    {"staleness": "pipeline"},
]


@pytest.mark.parametrize("beside", BESIDE)
def test_a_users_layers_that_would_keep_all_rows_anyway_are_refused(beside, parts):
    path, stale = parts(2), beside.get("staleness", "off")
    how = {name: value for name, value in beside.items() if name != "staleness"}

    def program(world):
        graph = hpcgnn.load(path, world)
        net = Net(LAYERS["GAT"], graph.features.shape[1], graph.meta.num_classes)
        model = hpcgnn.distribute(net, graph, check=False, activations="recompute", **how)
        hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(policy=PolicyConfig(staleness=stale)))

    with pytest.raises(hpcgnn.HpcgnnError, match="recompute would save nothing"):
        on_threads(2, program)
