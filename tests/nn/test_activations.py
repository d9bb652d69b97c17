"""``--activations``: ways to keep what gradients need give equal results, or as close ones as 8 bits allow, in less memory."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import small_graphs
import torch

import hpcgnn
from hpcgnn import kernels
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.kernels import buffers
from hpcgnn.nn import attention_step
from hpcgnn.nn.activations import Activations
from hpcgnn.nn.aggregated_product import Order, aggregated_product
from hpcgnn.nn.aggregators import make_aggregator
from hpcgnn.nn.config import Int8Config
from hpcgnn.train.ledger import Ledger
from hpcgnn.world.thread_world import on_threads


@pytest.fixture
def parts(tmp_path):
    return lambda ranks: small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), ranks)


@pytest.fixture
def groups(monkeypatch):
    """Attention by single heads, and blocks of few rows."""
    monkeypatch.setattr(attention_step, "_LEAST_VALUES", 0)
    monkeypatch.setattr(attention_step, "_LEAST_COLUMNS", 1)
    monkeypatch.setattr(attention_step, "_ROWS_AT_ONCE", 7)


def of_first_layer(world, path, model, compute, epochs):
    """The result and the gradients of the first layer, by epoch; those of parameters are of all ranks together."""
    graph, found = hpcgnn.load(path, world), []
    config = hpcgnn.ModelConfig(model, layers=2, hidden=32, heads=4, attention_dropout=0.3)
    kind = torch.float32 if compute != "float32" else torch.float64
    built = hpcgnn.build_model(config, graph, dtype=kind, compute=compute, int8=Int8Config(most_error=1))
    built.messages.begin_pass(is_training=True)
    upstream = torch.randn(1 << 10, 32, generator=torch.Generator().manual_seed(1)).to(kind)[graph.original_ids]
    for epoch in range(epochs):
        built.begin_epoch(epoch)
        built.keys.epoch = 0  # dropout is the same in all epochs
        x, layer = graph.features.to(kind, copy=True).requires_grad_(), built.layers[0]
        y, given = layer(x), [each for each in layer.parameters() if each.requires_grad]
        gradients = torch.autograd.grad((y * upstream).sum(), [x, *given])
        sums = [torch.from_numpy(world.allreduce(each.double().numpy())) for each in gradients[1:]]
        found.append([y.detach().double(), gradients[0].double(), *sums])
    return found


@pytest.mark.parametrize(("model", "ranks"), [("gat", 3), ("gatv2", 1)])
def test_attention_in_integers_has_errors_with_mean_0(parts, groups, model, ranks):
    """The mean of results over 60 draws of noise comes near float64's, as the root of their number says, and no single one does.
    Gradients are near float64's, and their means nearer: what is left are the signs of scores, which noise turns."""
    path = parts(ranks)
    exact = on_threads(ranks, lambda world: of_first_layer(world, path, model, "float32", 1)[0])
    found = on_threads(ranks, lambda world: of_first_layer(world, path, model, "int8-always", 60))
    for wanted, draws in zip(exact, found, strict=True):
        for number, each in enumerate(wanted):
            rounded = torch.stack([draw[number] for draw in draws])
            size = each.norm() + 1e-6
            one, mean = (rounded - each).flatten(1).norm(dim=1).mean() / size, (rounded.mean(0) - each).norm() / size
            assert 1e-4 < one < (0.12 if number else 0.03), number
            assert mean < (0.7 if number else 0.3) * one, (number, mean, one)


@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_attention_in_integers_takes_less_than_in_floats(parts, groups, model):
    """In each way of keeping what gradients need; codes have a quarter of the bytes of floats."""
    graph = hpcgnn.load(parts(1))
    config = hpcgnn.ModelConfig(model, layers=5, hidden=512, heads=4, dropout=0.3)
    peaks = {}
    for compute in ("float32", "int8-always"):
        for mode in ("keep", "recompute"):
            built = hpcgnn.build_model(config, graph, activations=mode, compute=compute, int8=Int8Config(most_error=1))
            peaks[compute, mode] = most_bytes(built, graph) / (graph.num_nodes * 512 * 4)
    assert peaks["int8-always", "keep"] < 0.75 * peaks["float32", "keep"], peaks
    assert peaks["int8-always", "recompute"] < 0.95 * peaks["float32", "recompute"], peaks
    assert peaks["int8-always", "recompute"] < peaks["int8-always", "keep"], peaks


def test_attention_gathers_bfloat16_rows(parts, monkeypatch):
    """Forward and backward."""
    monkeypatch.setattr(attention_step, "gathers_bf16", lambda csr, width: True)  # also for so small a graph
    path = parts(3)
    exact = on_threads(3, lambda world: of_first_layer(world, path, "gat", "float32", 1)[0])
    found = on_threads(3, lambda world: of_first_layer(world, path, "gat", "bf16-emulated", 1)[0])
    for wanted, given in zip(exact, found, strict=True):
        errors = [float((one - other).norm() / (other.norm() + 1e-6)) for one, other in zip(given, wanted, strict=True)]
        assert all(each < 0.1 for each in errors), errors  # products read rounded operands, too
        assert errors[0] > 1e-4, "rows were not rounded"
        assert errors[1] > 1e-4, "gradients were not rounded"


def gradients(model, graph, epoch=0, dtype=torch.float32):
    """The gradients of a training pass."""
    model.train()
    model.begin_epoch(epoch)
    model.zero_grad()
    model(graph.features.to(dtype)).square().sum().backward()
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


def kept_bytes(model, graph):
    """The bytes of the large tensors that a training pass keeps, each counted once, without features and weights."""
    known = {each.data_ptr() for each in (graph.features, *model.parameters())}
    found = {}

    def note(x):
        if x.data_ptr() not in known and x.numel() >= graph.num_nodes * 8:
            found[x.data_ptr()] = x.numel() * x.element_size()
        return x

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        y = model(graph.features)
    del y
    return sum(found.values())


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gatv2"])
def test_one_row_of_a_node_and_hidden_layer_is_kept(parts, model):
    """Beside two numbers for each head of a node, which are not counted."""
    graph = hpcgnn.load(parts(1))
    heads = {"heads": 2} if model.startswith("gat") else {}
    config = hpcgnn.ModelConfig(model, layers=4, hidden=64, dropout=0.5, **heads)
    found = {
        mode: kept_bytes(hpcgnn.build_model(config, graph, activations=mode), graph) for mode in ("keep", "recompute")
    }
    row, bits = graph.num_nodes * 64 * 4, graph.num_nodes * 64 // 8
    assert found["recompute"] == 3 * (row + bits)
    if model in ("gcn", "sage"):  # sums of features, because their gradients need no exchange
        assert found["keep"] == 3 * (row + bits) + graph.features.nbytes
    else:
        assert found["keep"] > 5 * (row + bits)


def test_rounded_messages_keep_their_sums(parts):
    """With 2 bits, a rank's gradient of a weight follows from the sums that it has made, and with 32 bits from its rows."""

    def program(world):
        graph, found = hpcgnn.load(path, world), []
        for bits in (32, 2):
            messages = Messages(world, MessageConfig(bits=bits))
            config = hpcgnn.ModelConfig("sage", layers=4, hidden=64, dropout=0.5)
            found.append(kept_bytes(hpcgnn.build_model(config, graph, messages=messages), graph))
        return found, graph.num_nodes * 64 * 4

    path = parts(2)
    for (exact, rounded), row in on_threads(2, program):
        assert exact < 4 * row < 5 * row < rounded


@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_integers_are_all_that_is_kept_of_a_hidden_layer(parts, model):
    """The codes of inputs of products, a bit of each value for ReLU's gradients, and the rows that GIN's layer norm keeps."""
    graph = hpcgnn.load(parts(1))
    config = hpcgnn.ModelConfig(model, layers=3, hidden=64, dropout=0.5, norm="mean")
    settings = Int8Config(most_error=1, before_softmax=True)
    built = hpcgnn.build_model(config, graph, compute="int8-always", int8=settings)
    row = graph.num_nodes * 64
    inputs = {"gcn": 2, "sage": 2, "gin": 8 + 3 * 4}[model]  # of width 64
    of_features = 2 * graph.num_nodes * graph.features.shape[1]
    most = inputs * row + 5 * row // 8 + of_features + 10 * graph.num_nodes * 4
    assert kept_bytes(built, graph) <= most


def test_rounded_activations_have_errors_with_mean_0(parts):
    """The mean gradient of many roundings comes near the exact one, as the root of their number says, and no single one does."""
    graph = hpcgnn.load(parts(1))
    config = hpcgnn.ModelConfig("sage", layers=3, hidden=32, dropout=0.0)
    exact = gradients(hpcgnn.build_model(config, graph), graph)
    model = hpcgnn.build_model(config, graph, activations="8bit")
    draws = [gradients(model, graph, epoch) for epoch in range(100)]
    for number, wanted in enumerate(exact):
        rounded = torch.stack([draw[number] for draw in draws])
        size = wanted.norm() + 1e-6
        one, mean = ((rounded - wanted).flatten(1).norm(dim=1) / size).mean(), (rounded.mean(0) - wanted).norm() / size
        assert one < 0.05
        assert mean < 0.3 * one + 1e-5
    assert not all(map(torch.equal, draws[0], exact))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_sign_of_a_small_positive_number_survives_rounding(backend):
    """It would be rounded to 0, beside a large one."""
    x = torch.full((1 << 10, 32), 1e-6)
    x[:, 0], x[:, 1], x[:, 2] = 100.0, 0.0, -1e-6
    leaf, activations = x.clone().requires_grad_(), Activations("8bit")
    activations.begin_epoch(0, 0, 0)
    with activations.keeping():
        y = kernels.activation(leaf * 1, backend=backend)
    y.sum().backward()
    assert torch.equal(leaf.grad, (x > 0).float())


@pytest.mark.parametrize("activations", ["keep", "recompute"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_gradients_can_be_taken_twice(parts, groups, model, activations):
    """Nothing that the second time reads is overwritten, also where sums are made in blocks."""
    graph = hpcgnn.load(parts(1))
    config = hpcgnn.ModelConfig(model, layers=3, hidden=32, dropout=0.3)
    built = hpcgnn.build_model(config, graph, activations=activations)
    loss, weights = built(graph.features).square().sum(), [each for each in built.parameters() if each.requires_grad]
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, weights)))


def test_features_need_not_be_contiguous(parts):
    """Also where native kernels multiply."""
    graph = hpcgnn.load(parts(1))
    torch.manual_seed(0)
    x, order = torch.randn(1500, graph.num_nodes), Order(make_aggregator(graph, "mean", "hybrid"), False, "float32")
    weight, root = torch.randn(1500, 64), torch.randn(1500, 64)
    with torch.no_grad():
        wanted = aggregated_product(order, x.T.contiguous(), weight, root, None)
        assert torch.equal(aggregated_product(order, x.T, weight, root, None), wanted)


def test_results_that_a_user_holds_are_not_overwritten(parts):
    """A hook holds what layers return and take; the gradients are those without it."""
    graph, held = hpcgnn.load(parts(1)), []
    config = hpcgnn.ModelConfig("sage", layers=3, hidden=32, dropout=0.3)
    torch.manual_seed(0)
    model = hpcgnn.build_model(config, graph)
    wanted = gradients(model, graph)
    for layer in model.layers:
        layer.register_forward_hook(lambda _, given, y: held.extend((each, each.clone()) for each in (*given, y)))
    assert all(map(torch.equal, wanted, gradients(model, graph)))
    assert len(held) == 6
    assert all(torch.equal(each, copy) for each, copy in held)


def most_bytes(model, graph):
    """The most bytes of buffers that a training pass uses at one time."""
    bytes_in_use, kinds = [0, 0], {torch.float32: np.float32, torch.uint8: np.uint8, torch.int8: np.int8}

    def in_use(change):
        bytes_in_use[0] += change
        bytes_in_use[1] = max(bytes_in_use)

    def provider(rows, width, dtype):
        array = np.empty((rows, width), kinds[dtype])
        in_use(array.nbytes)
        weakref.finalize(array, in_use, -array.nbytes)
        return torch.from_numpy(array)

    with buffers.provided_by(provider):
        gradients(model, graph)
    return bytes_in_use[1]


IN_INTEGERS = {"compute": "int8-always", "int8": Int8Config(most_error=1, before_softmax=True)}


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize(("how", "least", "most"), [({"activations": "recompute"}, 4, 5.5), (IN_INTEGERS, 2.5, 3.7)])
def test_a_step_takes_few_matrices_beside_what_it_keeps(parts, model, monkeypatch, how, least, most):
    """Results and gradients are written over rows that were read for the last time; one more matrix is a block of sums. In
    integers, an input and an output: the codes of four layers are one matrix, and blocks take the rest."""
    if how is IN_INTEGERS:
        monkeypatch.setattr("hpcgnn.nn.aggregator._BLOCK_BYTES", 1 << 16)
    graph = hpcgnn.load(parts(1))
    built = hpcgnn.build_model(hpcgnn.ModelConfig(model, layers=5, hidden=512, dropout=0.3), graph, **how)
    assert least < most_bytes(built, graph) / (graph.num_nodes * 512 * 4) < most


@pytest.mark.parametrize(("model", "how"), [("gcn", IN_INTEGERS), ("sage", IN_INTEGERS), ("gat", {})])
def test_no_gradient_that_others_use_is_overwritten(parts, groups, model, how):
    """A hook holds the gradient of a layer's result; where nobody does, integers write over it."""
    graph, held, places = hpcgnn.load(parts(1)), [], []
    built = hpcgnn.build_model(hpcgnn.ModelConfig(model, layers=3, hidden=32), graph, **how)
    wanted = gradients(built, graph)

    def holds(layer, given, y):
        y.register_hook(lambda dy: held.append((dy, dy.clone())))

    def looks(layer, given, y):
        for each in (y, *given):
            each.register_hook(lambda gradient: places.append(gradient.data_ptr()))

    for watch in (holds, looks):
        hook = built.layers[1].register_forward_hook(watch)
        assert all(map(torch.equal, wanted, gradients(built, graph)))
        hook.remove()
    assert torch.equal(*held[0])
    assert len(set(places)) == 1 or how is not IN_INTEGERS


@pytest.mark.parametrize("is_held", [True, False])
def test_an_activation_writes_over_a_gradient_that_nobody_else_uses(is_held):
    """A hook that keeps it, and the other summand of a sum, which has the same tensor as its gradient, use it."""
    given, other, seen, places = torch.randn(50, 8, requires_grad=True), torch.zeros(50, 8, requires_grad=True), [], []
    x = given * 1
    x.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    y = kernels.activation(x)
    y.register_hook(lambda gradient: seen.append(gradient) if is_held else places.append(gradient.data_ptr()))
    (y + other if is_held else y).mul(2).sum().backward()
    assert torch.equal(given.grad, 2.0 * (given > 0))
    if is_held:
        assert bool((seen[0] == 2).all())
        assert bool((other.grad == 2).all())
    else:
        assert len(set(places)) == 1


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_8_bits_take_a_quarter_of_the_memory(parts, model):
    """Codes and a scale a row, of the results of hidden layers and, in layers that aggregate first, of sums."""
    graph = hpcgnn.load(parts(1))
    config = hpcgnn.ModelConfig(model, layers=4, hidden=64, dropout=0.5)
    built = hpcgnn.build_model(config, graph, activations="8bit")
    built.begin_epoch(0)
    ledger = Ledger(least_bytes=64)
    ledger.know(built, graph)
    with ledger:
        y = built(graph.features)
    found = sum(ledger.blocks[number].num_bytes for number in ledger.live.values()) - y.nbytes
    assert found <= 5 * graph.num_nodes * (64 + 4) + graph.num_nodes * 4 * 2 * graph.features.shape[1]
