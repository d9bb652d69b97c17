"""Public functions name the argument that is wrong, as a ValueError or a TypeError, before anything fails inside."""

from __future__ import annotations

import numpy as np
import pytest
import small_graphs
import torch

import hpcgnn
from hpcgnn import kernels
from hpcgnn.comm import MessageConfig, Messages
from hpcgnn.comm.thread_world import one_rank
from hpcgnn.data.convert import ConvertOptions, convert
from hpcgnn.data.sealing import seal
from hpcgnn.stop import StopRequest

X, CSR = torch.ones(3, 4), kernels.Csr(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), 3)
ROW = torch.tensor([0])
CALLS = {
    "csr": [kernels.spmm, kernels.edge_softmax, kernels.edge_sum, kernels.sddmm, kernels.attention_weights],
    "x": [
        lambda x: kernels.spmm(CSR, x), lambda x: kernels.gather_rows(x, ROW), lambda x: kernels.dense_product(x, X),
        lambda x: kernels.activation(x), lambda x: kernels.dropout(x, ROW, 0, 0.5), lambda x: kernels.pack_bf16(x),
        lambda x: kernels.unpack_bf16(x),
    ],
    "weight": [lambda weight: kernels.dense_product(X, weight)],
    "index": [lambda index: kernels.gather_rows(X, index), lambda index: kernels.scatter_rows(index, X, 5)],
    "src": [lambda src: kernels.scatter_rows(ROW, src, 5)],
    "a": [lambda a: kernels.sddmm(CSR, a, X), lambda a: kernels.attention_weights(CSR, a, X, 0.2)],
    "b": [lambda b: kernels.sddmm(CSR, X, b)],
    "scores": [lambda scores: kernels.edge_softmax(CSR, scores)],
    "values": [lambda values: kernels.edge_sum(CSR, values)],
}  # fmt: skip
NO_TENSORS = [None, "x", 3, np.ones((3, 4), np.float32), [[1.0]], torch.ones(3, 4).to_sparse()]


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in CALLS.items() for call in calls])
def test_kernels_take_tensors(name, call):
    arguments = {kernels.spmm: (X,), kernels.edge_softmax: (X,), kernels.edge_sum: (X,), kernels.sddmm: (X, X)}
    arguments[kernels.attention_weights] = (X, X, 0.2)
    for wrong in NO_TENSORS:
        with pytest.raises(TypeError, match=f"^{name} must be "):
            call(wrong, *arguments.get(call, ()))


def test_optional_tensors_are_tensors():
    for name in ("weight", "out", "scale"):
        for wrong in NO_TENSORS[1:]:
            with pytest.raises(TypeError, match=f"^{name} must be a dense"):
                kernels.spmm(CSR, X, **{name: wrong})
    for wrong in (2.5, "3", None, True):
        with pytest.raises(TypeError, match=r"^num_rows must be a whole number"):
            kernels.scatter_rows(ROW, X[:1], wrong)
    for wrong in (3, None, ["a"], "no"):
        with pytest.raises((TypeError, ValueError), match=r"^backend must be one of"):
            kernels.spmm(CSR, X, backend=wrong)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "parts.h5"
    return small_graphs.on_ranks(one_rank(), small_graphs.random_multigraph(), path)


CONFIG = hpcgnn.ModelConfig("gcn", layers=2, hidden=8)
BUILD = {
    "strategy": ["x", 3, None], "seed": ["x", -1, 2.5, None, 2**70, True], "messages": ["x", 3, MessageConfig()],
    "backend": ["no", 3, None], "dtype": ["float32", torch.int64, None, torch.float16], "compute": ["x", 3, None],
    "keep_input_aggregation": ["x", 3],
}  # fmt: skip


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name, values in BUILD.items() for wrong in values])
def test_models_are_built_of_what_they_take(graph, name, wrong):
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be ") as refused:
        hpcgnn.build_model(CONFIG, graph, **{name: wrong})
    assert isinstance(refused.value, hpcgnn.HpcgnnError)


def test_graphs_and_configurations_are_of_their_type(graph):
    model = hpcgnn.build_model(CONFIG, graph)
    for wrong in (None, "x", 3):
        for name, calls in {
            "graph": [hpcgnn.split_links, lambda g: hpcgnn.build_model(CONFIG, g), lambda g: hpcgnn.Trainer(model, g)],
            "config": [lambda c: hpcgnn.build_model(c, graph)],
            "model": [lambda m: hpcgnn.Trainer(m, graph, stop=StopRequest()), hpcgnn.sum_gradients],
        }.items():
            for call in calls:
                with pytest.raises(TypeError, match=f"^{name} must be "):
                    call(wrong)
    for name in ("config", "run", "stop", "clock", "on_epoch", "measure_costs"):
        with pytest.raises(TypeError, match=f"^{name} must be "):
            hpcgnn.Trainer(model, graph, **({"stop": StopRequest()} | {name: "x"}))
    with pytest.raises(TypeError, match=r"^epochs must be a whole number, not 2\.5"):
        hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=2.5), stop=StopRequest())
    with pytest.raises(TypeError, match=r"^world must be a"):
        hpcgnn.sum_gradients(model, 3)


def test_a_file_is_named_by_a_path():
    for wrong in (None, 3, b"x", ["a"]):
        with pytest.raises(TypeError, match=r"^path must be a path"):
            hpcgnn.load(wrong)
    with pytest.raises(TypeError, match=r"^world must be a"):
        hpcgnn.load("x", 3)


def test_what_is_right_is_taken(graph):
    model = hpcgnn.build_model(CONFIG, graph, seed=np.int64(3), messages=Messages(one_rank()), backend="auto")
    hpcgnn.Trainer(model, graph, hpcgnn.TrainConfig(epochs=np.int64(1)), stop=StopRequest()).fit()


def test_values_are_told_in_one_line():
    for wrong in (np.ones((3, 4)), torch.ones(3, 4), "x" * 10_000, 10**5000):
        for call in (
            lambda value: kernels.spmm(CSR, X, reduce=value),
            lambda value: hpcgnn.LinkConfig(negatives=value).check(),
        ):
            with pytest.raises(hpcgnn.HpcgnnError) as refused:
                call(wrong)
            assert "\n" not in str(refused.value)
            assert len(str(refused.value)) < 400


WRONG_TENSORS = {
    "x": [X.half(), X[:2], X[None], X.to("meta")], "weight": [torch.ones(4), torch.ones(3).long()],
    "out": [torch.ones(2, 4).double(), torch.ones(4, 2).T], "scale": [torch.ones(3)], "accumulate": [None, "", 1, X],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, values in WRONG_TENSORS.items() for wrong in values]
)
def test_kernels_refuse_with_errors_of_the_package(name, wrong):
    with pytest.raises(hpcgnn.HpcgnnError, match=name):
        kernels.spmm(CSR, **({"x": X} | {name: wrong}))


def test_other_kernels_refuse_alike():
    values = torch.ones(3, 2)
    for wrong in (None, torch.float16, np.ones(3), "x"):
        with pytest.raises(hpcgnn.HpcgnnError, match=r"^backend must be"):
            kernels.edge_sum(CSR, values, backend=wrong)
        with pytest.raises(hpcgnn.HpcgnnError, match=r"^backend must be"):
            kernels.register(wrong)
    for wrong in (10**400, float("nan"), None, True):
        with pytest.raises(hpcgnn.HpcgnnError, match=r"^slope must be"):
            kernels.attention_weights(CSR, X[:2], X, wrong)
    for wrong in (np.ones(3), 0, 2.5, 3):
        with pytest.raises(hpcgnn.HpcgnnError, match=r"^heads must"):
            kernels.sddmm(CSR, X[:2], X, heads=wrong)


def test_views_that_are_negated_later_are_refused():
    x = torch.complex(X, -X).conj().imag
    assert x.is_neg()
    with pytest.raises(ValueError, match=r"^x must not be a view that torch negates"):
        kernels.spmm(CSR, x)
    assert torch.equal(kernels.spmm(CSR, x.resolve_neg()), kernels.spmm(CSR, X))


@pytest.mark.parametrize("name", ["indptr", "indices", "weight", "num_cols"])
def test_matrices_are_made_of_arrays(name):
    right = {
        "indptr": torch.tensor([0, 1, 3]),
        "indices": torch.tensor([0, 1, 2]),
        "num_cols": 3,
        "weight": torch.ones(3),
    }
    for wrong in ("x", object(), {"a": 1}, [[1.0], []], X.to_sparse()):
        with pytest.raises(hpcgnn.HpcgnnError, match=f"^{name} must be"):
            kernels.Csr(**(right | {name: wrong}))


def test_masks_and_norms_hold_what_they_say():
    for wrong in (None, "x", object(), float("nan")):
        with pytest.raises(hpcgnn.HpcgnnError, match=r"^probability must be"):
            kernels.activation(X, None, kernels.DropoutMask(torch.arange(3), 1, wrong))
        with pytest.raises(hpcgnn.HpcgnnError, match=r"^eps must be"):
            kernels.activation(X, kernels.Norm(X[0], X[0], wrong))
        with pytest.raises(hpcgnn.HpcgnnError, match=r"^weight must be"):
            kernels.activation(X, kernels.Norm(wrong, X[0], 1e-5))


@pytest.mark.parametrize("wrong", [None, 0, "no such device", torch.device("cpu"), object()])
def test_graphs_are_loaded_to_devices(tmp_path, wrong):
    path = tmp_path / "parts.h5"
    small_graphs.on_ranks(one_rank(), small_graphs.random_multigraph(), path)
    with pytest.raises(hpcgnn.HpcgnnError, match="device"):
        hpcgnn.load(path, one_rank(), device=wrong)


def test_messages_need_a_device_that_is_made():
    with pytest.raises(hpcgnn.HpcgnnError, match=r"device must be a hpcgnn\.devices\.Device, not str"):
        Messages(one_rank(), device="cpu")


OTHERS = [3, -0.5, object(), np.ones((2, 2)), torch.ones(2, 2), [1], "\udcff" * 2]


@pytest.mark.parametrize("wrong", OTHERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("source", lambda value: convert(value if not isinstance(value, str) else None, "g.h5")),
        ("output", lambda value: convert("digits", value if not isinstance(value, str) else "x" * 300)),
        ("options", lambda value: convert("digits", "g.h5", value)),
        ("split", lambda value: ConvertOptions(split=value if not isinstance(value, str) else 1j)),
        ("undirected", lambda value: ConvertOptions(undirected=value)),
        ("path", lambda value: seal(value if not isinstance(value, str) else "a\0b")),
        ("world", lambda value: Messages(value)),
        ("config", lambda value: Messages(one_rank(), value)),
        ("device", lambda value: Messages(one_rank(), device=value if not isinstance(value, str) else None)),
        ("overlap", lambda value: MessageConfig(overlap=value).check()),
        ("bits", lambda value: hpcgnn.PolicyConfig(bits=value)),
        ("model", lambda value: hpcgnn.ModelConfig(model=value)),
    ],
)
def test_arguments_of_another_kind_are_refused(name, call, wrong):
    with pytest.raises(hpcgnn.HpcgnnError, match=name) as told:
        call(wrong)
    assert "\n" not in str(told.value)
