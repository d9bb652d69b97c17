"""``--activations recompute`` by layers that backward runs again: the same bits and messages, and one row of a node is kept."""

from __future__ import annotations

import gc
import weakref

import pytest
import small_graphs
import torch
import torch_geometric.nn as pyg
from ranks.models import CONFIGS

import hpcgnn
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.kernels import again
from hpcgnn.policy import PolicyConfig
from hpcgnn.world.thread_world import on_threads


@pytest.fixture
def parts(tmp_path):
    arrays = small_graphs.with_typed_edges(small_graphs.random_multigraph())
    return lambda ranks: small_graphs.in_parts(tmp_path / f"{ranks}.h5", arrays, ranks)


@pytest.fixture
def runs(monkeypatch):
    """The parts that have run again."""
    found, run_again = [], again._Part._run_again
    monkeypatch.setattr(again._Part, "_run_again", lambda part: (found.append(part), run_again(part)))
    return found


def trained(path, ranks, build, epochs=3, **settings):
    """The losses and bytes of some epochs on each rank, and all weights and buffers after them. build: a model of a graph and
    messages."""

    def program(world):
        graph = hpcgnn.load(path, world)
        model = build(graph, world)
        how = {"eval_every": 100, "checkpoint_every": 1000} | settings
        trainer = hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=epochs, **how))
        told = [trainer.run_epoch() for _ in range(epochs)]
        values = [each.detach().clone() for each in model.state_dict().values()]
        return [each[key] for each in told for key in ("loss", "bytes_sent")], values

    return on_threads(ranks, program)


def assert_same_bits(kept, again_):
    for (one, values), (other, others) in zip(kept, again_, strict=True):
        assert one == other
        assert all(map(torch.equal, values, others))


def native(name, mode, *, bits=32, compute="float32", coding="plain", **changes):
    flat = CONFIGS[name].flat() | {"dropout": 0.5, "input_dropout": 0.2, "attention_dropout": 0.3} | changes

    def build(graph, world):
        messages = Messages(world, MessageConfig(bits=bits, message_coding=coding))
        config = hpcgnn.ModelConfig.of_used(flat)
        return hpcgnn.build_model(config, graph, messages=messages, activations=mode, compute=compute)

    return build


@pytest.mark.parametrize("name", ["gin", "transformer", "hgt"])
def test_one_row_of_a_node_and_layer_is_kept(parts, monkeypatch, name):
    graph, made, saved, first = hpcgnn.load(parts(1)), [], {}, again._Part.first
    monkeypatch.setattr(again._Part, "first", lambda part: (made.append(part), first(part))[1])
    config = hpcgnn.ModelConfig.of_used(CONFIGS[name].flat() | {"hidden": 32, "layers": 4, "dropout": 0.5})
    model = hpcgnn.build_model(config, graph, activations="recompute")
    known = {each.data_ptr() for each in model.parameters()}

    def note(x):
        if x.data_ptr() not in known and x.numel() >= graph.num_nodes * 8:
            saved[x.data_ptr()] = x.nbytes
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        y = model(graph.features)
    row = graph.num_nodes * 32 * 4
    given = {x.data_ptr(): x.nbytes for part in made for x in part._given if isinstance(x, torch.Tensor)}
    assert len(made) == 3  # not the last layer, whose backward follows at once
    assert sum(given.values()) == (3 * row if name == "hgt" else graph.features.nbytes + 2 * row)
    assert not given.keys() & saved.keys() - {graph.features.data_ptr()}
    del y


def test_a_graph_can_be_used_twice(parts):
    graph = hpcgnn.load(parts(1))
    built = [hpcgnn.build_model(CONFIGS["gin"], graph, activations=mode) for mode in ("keep", "recompute")]
    found = []
    for model in built:
        loss, weights = model(graph.features).square().sum(), list(model.parameters())
        weights = [each for each in weights if each.requires_grad]
        found += [torch.autograd.grad(loss, weights, retain_graph=True), torch.autograd.grad(loss, weights)]
    for each in found[1:]:
        assert all(map(torch.equal, found[0], each))


@pytest.mark.parametrize("change", ["epoch", "evaluation"])
def test_another_pass_before_backward_is_refused(parts, change):
    graph = hpcgnn.load(parts(1))
    model = hpcgnn.build_model(CONFIGS["gin"], graph, activations="recompute")
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
CASES = [(name, *how) for name in LAYERS for how in ((1, 32), (3, 32), (3, 2)) if name != "own" or how[0] == 1]


@pytest.mark.parametrize(("name", "ranks", "bits"), CASES)
def test_messages_of_a_users_layers_run_again(parts, runs, name, ranks, bits):
    path = parts(ranks)
    width, classes = hpcgnn.load(parts(1)).features.shape[1], hpcgnn.load(parts(1)).meta.num_classes
    torch.manual_seed(5)
    weights = Net(LAYERS[name], width, classes).state_dict()

    def built(mode):
        def build(graph, world):
            net = Net(LAYERS[name], width, classes)
            net.load_state_dict(weights)
            if world.size == 1:
                torch.manual_seed(3)
            how = {"messages": MessageConfig(bits=bits), "check": False, "activations": mode}
            return hpcgnn.distribute(net, graph, **how)

        return build

    ways = [trained(path, ranks, built(mode)) for mode in ("keep", "recompute")]
    assert_same_bits(*ways)
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
        config = hpcgnn.ModelConfig.of_used(CONFIGS["hgt"].flat() | {"layers": 3, "norm": "mean", "activation": "elu"})
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
