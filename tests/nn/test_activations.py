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
from hpcgnn.kernels.int8 import Int8Rows
from hpcgnn.nn import attention, attention_step
from hpcgnn.nn.activations import Activations
from hpcgnn.nn.aggregated_product import Order, _composed, aggregated_product
from hpcgnn.nn.aggregators import make_aggregator
from hpcgnn.nn.config import Int8Config
from hpcgnn.nn.layers import BatchNorm, MeanNorm
from hpcgnn.world.thread_world import on_threads

MODELS = ("gcn", "sage", "gin", "gcnii", "gat", "gatv2")


def trained(path, ranks, model, activations, *, bits=32, epochs=3, norm="auto", compute="float32", **settings):
    """The losses of some epochs, and the weights after them."""

    def program(world):
        graph = hpcgnn.load(path, world)
        config = hpcgnn.ModelConfig(model, layers=3, hidden=32, dropout=0.4, norm=norm, **settings)
        messages = Messages(world, MessageConfig(bits=bits))
        built = hpcgnn.build_model(config, graph, messages=messages, activations=activations, compute=compute)
        trainer = hpcgnn.Trainer(built, graph, hpcgnn.TrainConfig(epochs=epochs, eval_every=100, checkpoint_every=1000))
        found = [trainer.run_epoch()["loss"] for _ in range(epochs)]
        return found, [each.detach().clone() for each in built.parameters()]

    return on_threads(ranks, program)[0]


@pytest.fixture
def parts(tmp_path):
    return lambda ranks: small_graphs.in_parts(tmp_path / "parts.h5", small_graphs.random_multigraph(), ranks)


@pytest.fixture
def groups(monkeypatch):
    """Attention by single heads, and blocks of few rows."""
    monkeypatch.setattr(attention_step, "_LEAST_VALUES", 0)
    monkeypatch.setattr(attention_step, "_LEAST_COLUMNS", 1)
    monkeypatch.setattr(attention_step, "_ROWS_AT_ONCE", 7)


@pytest.mark.parametrize("model", ["gat", "gatv2"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_attention_by_heads_is_the_operations_of_which_it_consists(parts, groups, monkeypatch, model, ranks):
    def program(world):
        graph = hpcgnn.load(path, world)
        config = hpcgnn.ModelConfig(model, layers=3, hidden=32, heads=4, output_heads=2, attention_dropout=0.3)
        built = hpcgnn.build_model(config, graph, dtype=torch.float64)
        return gradients(built, graph, epoch=1, dtype=torch.float64)

    path = parts(ranks)
    step = on_threads(ranks, program)
    monkeypatch.setattr(attention.AttentionLayer, "_is_one_step", lambda *given: False)
    operations = on_threads(ranks, program)
    for one, other in zip(step, operations, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


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


@pytest.mark.parametrize("model", ["gat", "gatv2"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
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


@pytest.mark.parametrize("ranks", [1, 3])
def test_attention_gathers_bfloat16_rows(parts, monkeypatch, ranks):
    """Forward and backward."""
    monkeypatch.setattr(attention_step, "gathers_bf16", lambda csr, width: True)  # also for so small a graph
    path = parts(ranks)

    exact = on_threads(ranks, lambda world: of_first_layer(world, path, "gat", "float32", 1)[0])
    found = on_threads(ranks, lambda world: of_first_layer(world, path, "gat", "bf16-emulated", 1)[0])
    for wanted, given in zip(exact, found, strict=True):
        errors = [float((one - other).norm() / (other.norm() + 1e-6)) for one, other in zip(given, wanted, strict=True)]
        assert all(each < 0.1 for each in errors), errors  # products read rounded operands, too
        assert errors[0] > 1e-4, "rows were not rounded"
        assert errors[1] > 1e-4, "gradients were not rounded"


def test_attention_overwrites_no_gradient_that_others_use(parts, groups):
    graph, seen = hpcgnn.load(parts(1)), []
    layer = hpcgnn.build_model(hpcgnn.ModelConfig("gat", layers=2, hidden=32, heads=4), graph).layers[0]
    y = layer(graph.features)
    y.register_hook(seen.append)
    (y * 2).sum().backward()
    assert bool((seen[0] == 2).all())


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
    """The codes of inputs of products, and a bit of each value for the gradients of ReLU."""
    graph = hpcgnn.load(parts(1))
    config = hpcgnn.ModelConfig(model, layers=3, hidden=64, dropout=0.5, norm="mean")
    settings = Int8Config(most_error=1, before_softmax=True)
    built = hpcgnn.build_model(config, graph, compute="int8-always", int8=settings)
    row = graph.num_nodes * 64
    inputs = {"gcn": 2, "sage": 2, "gin": 7}[model]  # of width 64
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


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("transform_first", [True, False])
def test_one_step_is_the_operations_of_which_it_consists(parts, root, transform_first):
    def program(world):
        graph = hpcgnn.load(path, world)
        aggregator = make_aggregator(graph, "gcn" if not root else "mean", "hybrid", dtype=torch.float64)
        order = Order(aggregator, transform_first, "float32")
        own, shared = (torch.Generator().manual_seed(seed) for seed in (world.rank, 7))  # threads share torch's own
        rows = torch.randn(graph.num_nodes, 6, dtype=torch.float64, generator=own)
        weights = [torch.randn(6, 5, dtype=torch.float64, generator=shared) for _ in range(2)]
        weights = weights if root else [weights[0], None]
        bias, results = torch.randn(5, dtype=torch.float64, generator=shared), []
        for function in (aggregated_product, _composed):
            given = [None if each is None else each.clone().requires_grad_() for each in (rows, *weights, bias)]
            y = function(order, *given)
            wanted = [each for each in given if each is not None]
            found = torch.autograd.grad(y.square().sum(), wanted, retain_graph=True)
            again = torch.autograd.grad(y.square().sum(), wanted)
            assert all(map(torch.equal, found, again))
            results.append([y.detach(), *found])
        return results

    path = parts(3)
    ranks = on_threads(3, program)
    for step, operations in ranks:
        for one, other in zip(step[:2], operations[:2], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    # a rank's share of the gradient of a weight is that of its sums, or that of its rows
    step, operations = (
        [sum(each) for each in zip(*(found[2:] for found in way), strict=True)] for way in zip(*ranks, strict=True)
    )
    for one, other in zip(step, operations, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["gcn", "mean"])
def test_a_rank_that_is_alone_makes_sums_in_blocks(parts, kind, monkeypatch):
    """The product and its gradients are those of the operations, with blocks of 7 rows, also a second time."""
    monkeypatch.setattr("hpcgnn.nn.aggregator._BLOCK_BYTES", 7 * 6 * 8)
    graph, results = hpcgnn.load(parts(1)), []
    aggregator = make_aggregator(graph, kind, "hybrid", dtype=torch.float64)
    torch.manual_seed(0)
    rows, weight, root, upstream = (
        torch.randn(n, 6, dtype=torch.float64) for n in (graph.num_nodes, 6, 6, graph.num_nodes)
    )
    for function in (aggregated_product, _composed):
        x, *weights = (each.clone().requires_grad_() for each in (rows, weight, root))
        order = Order(aggregator, False, "float32")
        y = function(order, x * 1, weights[0], weights[1] if kind == "mean" else None, None)
        wanted = [x, weights[0], *weights[1 : 1 + (kind == "mean")]]
        kept = torch.autograd.grad(y, wanted, upstream, retain_graph=True)
        found = torch.autograd.grad(y, wanted, upstream)
        assert all(map(torch.equal, kept, found))
        results.append([y.detach(), *found])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_features_need_not_be_contiguous(parts):
    """Also where native kernels multiply."""
    graph = hpcgnn.load(parts(1))
    torch.manual_seed(0)
    x, order = torch.randn(1500, graph.num_nodes), Order(make_aggregator(graph, "mean", "hybrid"), False, "float32")
    weight, root = torch.randn(1500, 64), torch.randn(1500, 64)
    with torch.no_grad():
        wanted = aggregated_product(order, x.T.contiguous(), weight, root, None)
        assert torch.equal(aggregated_product(order, x.T, weight, root, None), wanted)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gatv2"])
@pytest.mark.parametrize(("rows", "columns"), [(0, 1), (0, -1), (1, 0), (-1, 0)])
def test_input_of_another_shape_is_refused(parts, model, rows, columns):
    graph = hpcgnn.load(parts(1))
    built = hpcgnn.build_model(hpcgnn.ModelConfig(model, layers=2, hidden=64), graph)
    x = torch.randn(graph.num_nodes + rows, graph.features.shape[1] + columns)
    with torch.no_grad(), pytest.raises(ValueError, match=r"shape|row"):
        built(x)


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


def rows_in_use(parts, model, **how):
    """The most bytes of buffers of a training pass at one time, as a multiple of a matrix of 512 columns."""
    graph = hpcgnn.load(parts(1))
    config = hpcgnn.ModelConfig(model, layers=5, hidden=512, dropout=0.3)
    return most_bytes(hpcgnn.build_model(config, graph, **how), graph) / (graph.num_nodes * 512 * 4)


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


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_a_step_takes_one_matrix_more_than_it_keeps(parts, model):
    """Results and gradients are written over rows that were read for the last time; the other matrix is a block of sums."""
    assert 4 < rows_in_use(parts, model, activations="recompute") < 5.5


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_a_step_in_integers_takes_two_matrices_beside_its_codes(parts, model, monkeypatch):
    """An input and an output. The codes of four layers are one matrix, and blocks take the rest."""
    monkeypatch.setattr("hpcgnn.nn.aggregator._BLOCK_BYTES", 1 << 16)
    settings = Int8Config(most_error=1, before_softmax=True)
    assert 2.5 < rows_in_use(parts, model, compute="int8-always", int8=settings) < 3.7


def test_blocks_of_integers_are_near_the_exact_sums(parts, monkeypatch):
    """GCN's sums of a rank that is alone, whose factors belong to the scales."""
    monkeypatch.setattr("hpcgnn.nn.aggregator._BLOCK_BYTES", 1 << 12)
    graph = hpcgnn.load(parts(1))
    exact, rounded = (
        gradients(
            hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=3, hidden=32, dropout=0.0), graph, compute=compute),
            graph,
        )
        for compute in ("float32", "int8-always")
    )
    for one, other in zip(exact, rounded, strict=True):
        assert (one - other).norm() < 0.1 * one.norm()


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_integers_overwrite_no_gradient_that_others_use(parts, model):
    graph, seen = hpcgnn.load(parts(1)), []
    settings = Int8Config(most_error=1, before_softmax=True)
    built = hpcgnn.build_model(
        hpcgnn.ModelConfig(model, layers=3, hidden=32), graph, compute="int8-always", int8=settings
    )
    wanted = gradients(built, graph)

    def held(layer, given, y):
        y.register_hook(lambda dy: seen.append((dy, dy.clone())))

    def places(layer, given, y):
        for each in (y, *given):
            each.register_hook(lambda gradient: seen.append(gradient.data_ptr()))

    for watch in (held, places):
        hook = built.layers[1].register_forward_hook(watch)
        assert all(map(torch.equal, wanted, gradients(built, graph)))
        hook.remove()
    (dy, copy), *both = seen
    assert torch.equal(dy, copy)
    assert len(set(both)) == 1, "a gradient that nobody else uses makes room"


@pytest.mark.parametrize("kind", [MeanNorm, BatchNorm])
def test_norms_over_all_ranks_keep_one_matrix_and_have_torchs_gradients(kind):
    """Three ranks, of which one has no row; the reference is one process with torch's operations."""
    torch.manual_seed(0)
    x, upstream = torch.randn(40, 6, dtype=torch.float64) + 3, torch.randn(40, 6, dtype=torch.float64)
    weight, bias = torch.rand(6, dtype=torch.float64) + 0.5, torch.randn(6, dtype=torch.float64)
    whole, own = x.clone().requires_grad_(), [each.clone().requires_grad_() for each in (weight, bias)]
    if kind is BatchNorm:
        before = torch.nn.functional.batch_norm(whole, None, None, *own, training=True)
    else:
        before = whole - whole.mean(0) + own[1]
    wanted = before.relu()
    wanted.backward(upstream)

    def program(world):
        rows = [slice(0, 25), slice(25, 25), slice(25, 40)][world.rank]
        norm = kind(6, world).double()
        norm.bias.data.copy_(bias)
        if kind is BatchNorm:
            norm.weight.data.copy_(weight)
        given = x[rows].clone().requires_grad_()
        y = norm.activated(given, None) if kind is MeanNorm else norm(given).relu()
        y.backward(upstream[rows])
        found = [each.grad for each in norm.parameters()]
        return y.detach(), given.grad, [torch.from_numpy(world.allreduce(each.numpy())) for each in found], norm

    ranks = on_threads(3, program)
    torch.testing.assert_close(torch.cat([rank[0] for rank in ranks]), wanted.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([rank[1] for rank in ranks]), whole.grad, rtol=1e-10, atol=1e-10)
    for one, other in zip(ranks[0][2][::-1], own[::-1], strict=False):
        torch.testing.assert_close(one, other.grad, rtol=1e-10, atol=1e-10)
    norm = ranks[0][3]
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(0))
    if kind is BatchNorm:
        torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * x.var(0))
        norm.eval()
        plain = torch.nn.functional.batch_norm(x, norm.running_mean, norm.running_var, weight, bias)
        torch.testing.assert_close(norm(x), plain)


def test_a_gradient_that_others_use_is_not_overwritten():
    """The gradient of a sum goes to both summands as the same tensor; that of a single user is overwritten."""
    x = torch.randn(50, 8, requires_grad=True)
    shared, seen = torch.randn(50, 8, requires_grad=True), []
    (kernels.activation(x) + shared).square().sum().backward()
    plain = [each.detach().clone().requires_grad_() for each in (x, shared)]
    (plain[0].relu() + plain[1]).square().sum().backward()
    torch.testing.assert_close([x.grad, shared.grad], [each.grad for each in plain])
    y = kernels.activation(x)
    y.register_hook(seen.append)
    (y * 2).sum().backward()
    assert bool((seen[0] == 2).all())  # that of a hook that keeps it


def test_a_gradient_that_nobody_else_uses_is_overwritten():
    addresses = []
    given = torch.randn(50, 8, requires_grad=True) * 1
    given.register_hook(lambda gradient: addresses.append(gradient.data_ptr()))
    y = kernels.activation(given)
    y.register_hook(lambda gradient: addresses.append(gradient.data_ptr()))
    (y * 2).sum().backward()
    assert addresses[0] == addresses[1]


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_8_bits_take_a_quarter_of_the_memory(parts, model):
    """Codes and a scale a row, of the results of hidden layers and, in layers that aggregate first, of sums."""
    graph = hpcgnn.load(parts(1))
    config = hpcgnn.ModelConfig(model, layers=4, hidden=64, dropout=0.5)
    built = hpcgnn.build_model(config, graph, activations="8bit")
    built.begin_epoch(0)
    found, known = {}, {each.data_ptr() for each in (graph.features, *built.parameters())}
    form, packed = built.activations.form, built.activations._packed

    def noted(tensors):
        found.update({each.data_ptr(): each.nbytes for each in tensors if each.data_ptr() not in known})
        kept.extend(tensors)  # so that no other tensor gets the address
        return tensors

    def of_form(tensors, make):
        given, unpacked = form(tensors, make)
        return noted(given), unpacked

    def of_hook(x):
        found_rows = packed(x)
        if isinstance(found_rows, Int8Rows):
            noted([found_rows.codes, found_rows.scale])
        elif x.shape == (graph.num_nodes, 64):
            noted([x])
        return found_rows

    kept = []
    built.activations.form, built.activations._packed = of_form, of_hook
    built.train()
    y = built(graph.features)
    assert sum(found.values()) <= 5 * graph.num_nodes * (64 + 4) + graph.num_nodes * 4 * 2 * graph.features.shape[1]
    y.square().sum().backward()
