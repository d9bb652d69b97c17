"""Public functions name the argument that is wrong, as a ValueError or a TypeError, before anything fails inside."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import small_graphs
import torch
from requires import require_module

import hpcgnn
from hpcgnn import HpcgnnError, kernels
from hpcgnn.base.process import StopRequest
from hpcgnn.data.sealing import seal
from hpcgnn.exchange import MessageConfig, Messages
from hpcgnn.sources.convert import ConvertOptions, convert
from hpcgnn.world.thread_world import one_rank

X, CSR = torch.ones(3, 4), kernels.Csr(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2]), 3)
ROW = torch.tensor([0])
ARRAYS = {"indptr": torch.tensor([0, 1, 3]), "indices": torch.tensor([0, 1, 2]), "num_cols": 3, "weight": torch.ones(3)}
NO_TENSORS = ["x", 3, np.ones((3, 4), np.float32), [[1.0]], torch.ones(3, 4).to_sparse()]
NO_NUMBERS = [None, "x", object(), float("nan")]
NO_BACKENDS = [3, None, ["a"], "no", torch.float16, np.ones(3)]
OTHERS = [3, -0.5, object(), np.ones((2, 2)), torch.ones(2, 2), [1]]
TEXT = "\udcff" * 2
LONG = [np.ones((3, 4)), torch.ones(3, 4), "x" * 10_000, 10**5000]

# For each argument, calls with a tensor in its place.
TENSORS = {
    "csr": [
        lambda csr: kernels.spmm(csr, X), lambda csr: kernels.edge_softmax(csr, X), lambda csr: kernels.edge_sum(csr, X),
        lambda csr: kernels.sddmm(csr, X, X), lambda csr: kernels.attention_weights(csr, X, X, 0.2),
    ],
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
# The beginning of the sentence, a call, and values that are refused: first those whose error is a TypeError.
WRONG_TYPES = [
    *((f"^{name} must be ", call, [None, *NO_TENSORS]) for name, calls in TENSORS.items() for call in calls),
    ("^weight must be a dense", lambda weight: kernels.spmm(CSR, X, weight=weight), NO_TENSORS),
    ("^out must be a dense", lambda out: kernels.spmm(CSR, X, out=out), NO_TENSORS),
    ("^scale must be a dense", lambda scale: kernels.spmm(CSR, X, scale=scale), NO_TENSORS),
    ("^num_rows must be a whole number", lambda rows: kernels.scatter_rows(ROW, X[:1], rows), [2.5, "3", None, True]),
    ("^path must be a path", hpcgnn.load, [None, 3, b"x", ["a"]]),
    ("^world must be a", lambda world: hpcgnn.load("x", world), [3]),
]
WRONG = [
    ("^backend must be", lambda backend: kernels.spmm(CSR, X, backend=backend), NO_BACKENDS),
    ("^backend must be", lambda backend: kernels.edge_sum(CSR, X[:, :2], backend=backend), NO_BACKENDS),
    ("^backend must be", kernels.register, NO_BACKENDS),
    ("x", lambda x: kernels.spmm(CSR, x), [X.half(), X[:2], X[None], X.to("meta")]),
    ("weight", lambda weight: kernels.spmm(CSR, X, weight=weight), [torch.ones(4), torch.ones(3).long()]),
    ("out", lambda out: kernels.spmm(CSR, X, out=out), [torch.ones(2, 4).double(), torch.ones(4, 2).T]),
    ("scale", lambda scale: kernels.spmm(CSR, X, scale=scale), [torch.ones(3)]),
    ("accumulate", lambda accumulate: kernels.spmm(CSR, X, accumulate=accumulate), [None, "", 1, X]),
    ("reduce", lambda reduce: kernels.spmm(CSR, X, reduce=reduce), LONG),
    ("^slope must be", lambda slope: kernels.attention_weights(CSR, X[:2], X, slope), [10**400, *NO_NUMBERS, True]),
    ("^heads must", lambda heads: kernels.sddmm(CSR, X[:2], X, heads=heads), [np.ones(3), 0, 2.5, 3]),
    *(
        (f"^{name} must be", lambda wrong, name=name: kernels.Csr(**(ARRAYS | {name: wrong})),
         ["x", object(), {"a": 1}, [[1.0], []], X.to_sparse()])
        for name in ARRAYS
    ),
    ("^probability must be", lambda share: kernels.activation(X, None, kernels.DropoutMask(ROW, 1, share)), NO_NUMBERS),
    ("^eps must be", lambda eps: kernels.activation(X, kernels.Norm(X[0], X[0], eps)), NO_NUMBERS),
    ("^weight must be", lambda weight: kernels.activation(X, kernels.Norm(weight, X[0], 1e-5)), NO_NUMBERS),
    ("negatives", lambda negatives: hpcgnn.LinkConfig(negatives=negatives).check(), LONG),
    ("source", lambda source: convert(source, "g.h5"), [*OTHERS, None]),
    ("output", lambda output: convert("digits", output), [*OTHERS, "x" * 300]),
    ("options", lambda options: convert("digits", "g.h5", options), [*OTHERS, TEXT]),
    ("split", lambda split: ConvertOptions(split=split), [*OTHERS, 1j]),
    ("undirected", lambda undirected: ConvertOptions(undirected=undirected), [*OTHERS, TEXT]),
    ("path", seal, [*OTHERS, "a\0b"]),
    ("world", Messages, [*OTHERS, TEXT]),
    ("config", lambda config: Messages(one_rank(), config), [*OTHERS, TEXT]),
    ("device", lambda device: Messages(one_rank(), device=device), OTHERS),
    (r"device must be a hpcgnn\.devices\.Device, not str", lambda device: Messages(one_rank(), device=device), ["cpu"]),
    ("overlap", lambda overlap: MessageConfig(overlap=overlap).check(), [*OTHERS, TEXT]),
    ("bits", lambda bits: hpcgnn.PolicyConfig(bits=bits), [*OTHERS, TEXT]),
    ("model", lambda model: hpcgnn.ModelConfig(model=model), [*OTHERS, TEXT]),
]  # fmt: skip


def assert_refused(sentence, call, wrong, kind):
    for value in wrong:
        with pytest.raises(kind, match=sentence) as refused:
            call(value)
        assert isinstance(refused.value, HpcgnnError)
        assert isinstance(refused.value, TypeError | ValueError)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize(("sentence", "call", "wrong"), WRONG_TYPES)
def test_values_of_wrong_types_are_type_errors(sentence, call, wrong):
    assert_refused(sentence, call, wrong, TypeError)


@pytest.mark.parametrize(("sentence", "call", "wrong"), WRONG)
def test_wrong_values_are_refused_in_one_line(sentence, call, wrong):
    assert_refused(sentence, call, wrong, HpcgnnError)


CONFIG = hpcgnn.ModelConfig("gcn", layers=2, hidden=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A parts file, its graph, and a model."""
    path = tmp_path_factory.mktemp("one") / "parts.h5"
    graph = small_graphs.on_ranks(one_rank(), small_graphs.random_multigraph(), path)
    return SimpleNamespace(path=path, graph=graph, model=hpcgnn.build_model(CONFIG, graph))


BUILD = {
    "strategy": ["x", 3, None], "seed": ["x", -1, 2.5, None, 2**70, True], "messages": ["x", 3, MessageConfig()],
    "backend": ["no", 3, None], "dtype": ["float32", torch.int64, None, torch.float16], "compute": ["x", 3, None],
    "keep_input_aggregation": ["x", 3],
}  # fmt: skip
NOTHING = [None, "x", 3]
OF_A_TRAINER = ("config", "run", "stop", "clock", "on_epoch", "measure_costs")
WITH_A_GRAPH = [
    *(
        (f"^{name} must be ", lambda given, wrong, name=name: hpcgnn.build_model(CONFIG, given.graph, **{name: wrong}), values,
         HpcgnnError)
        for name, values in BUILD.items()
    ),
    ("^graph must be ", lambda given, wrong: hpcgnn.split_links(wrong), NOTHING, TypeError),
    ("^graph must be ", lambda given, wrong: hpcgnn.build_model(CONFIG, wrong), NOTHING, TypeError),
    ("^graph must be ", lambda given, wrong: hpcgnn.Trainer(given.model, wrong), NOTHING, TypeError),
    ("^config must be ", lambda given, wrong: hpcgnn.build_model(wrong, given.graph), NOTHING, TypeError),
    ("^model must be ", lambda given, wrong: hpcgnn.Trainer(wrong, given.graph, stop=StopRequest()), NOTHING, TypeError),
    ("^model must be ", lambda given, wrong: hpcgnn.sum_gradients(wrong), NOTHING, TypeError),
    ("^world must be a", lambda given, wrong: hpcgnn.sum_gradients(given.model, wrong), [3], TypeError),
    *(
        (f"^{name} must be ", lambda given, wrong, name=name: hpcgnn.Trainer(
            given.model, given.graph, **({"stop": StopRequest()} | {name: wrong})), ["x"], TypeError)
        for name in OF_A_TRAINER
    ),
    (r"^epochs must be a whole number, not 2\.5", lambda given, wrong: hpcgnn.Trainer(
        given.model, given.graph, hpcgnn.TrainConfig(epochs=wrong), stop=StopRequest()), [2.5], TypeError),
    ("device", lambda given, wrong: hpcgnn.load(given.path, one_rank(), device=wrong),
     [None, 0, "no such device", torch.device("cpu"), object()], HpcgnnError),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "call", "wrong", "kind"), WITH_A_GRAPH)
def test_graphs_models_and_configurations_are_of_their_type(made, sentence, call, wrong, kind):
    assert_refused(sentence, lambda value: call(made, value), wrong, kind)


def test_what_is_right_is_taken(made):
    model = hpcgnn.build_model(CONFIG, made.graph, seed=np.int64(3), messages=Messages(one_rank()), backend="auto")
    hpcgnn.Trainer(model, made.graph, hpcgnn.TrainConfig(epochs=np.int64(1)), stop=StopRequest()).fit()


def test_views_that_are_negated_later_are_refused():
    x = torch.complex(X, -X).conj().imag
    assert x.is_neg()
    with pytest.raises(ValueError, match=r"^x must not be a view that torch negates"):
        kernels.spmm(CSR, x)
    assert torch.equal(kernels.spmm(CSR, x.resolve_neg()), kernels.spmm(CSR, X))


NO_FUNCTIONS = {"HpcgnnError", "__version__", "kernels"}
PUBLIC = {
    f"{module.__name__}.{name}": module for module in (hpcgnn, kernels) for name in {*module.__all__} - NO_FUNCTIONS
}
OF_ANY_KIND = [None, object(), "x", b"x", float("nan"), -1, 10**400, [1], torch.ones(2, 2), np.ones((2, 2))]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_values_of_any_kind_raise_no_error_of_another_library(name, tmp_path, monkeypatch):
    """Each value stands in for all arguments without a default, and for one of the others, by the function's signature."""
    monkeypatch.chdir(tmp_path)
    require_module("torch_geometric")  # which hpcgnn.distribute imports
    function = getattr(PUBLIC[name], name.rpartition(".")[2])
    params = inspect.signature(function).parameters.values()
    params = [each for each in params if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    needed = [each.name for each in params if each.default is each.empty]
    # A world of None is that of MPI, and dataclasses of own settings are made by the registries.
    others = [each.name for each in params if each.name not in (*needed, "world", "own")]
    for value in OF_ANY_KIND:
        for other in ([], *([each] for each in others)):
            try:
                function(**dict.fromkeys([*needed, *other], value))
            except HpcgnnError as error:
                said = str(error)
                assert "\n" not in said, said
