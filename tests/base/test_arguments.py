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

OTHERS = [3, -0.5, object(), np.ones((2, 2)), torch.ones(2, 2), [1]]
TEXT = "\udcff" * 2
LONG = [np.ones((3, 4)), torch.ones(3, 4), "x" * 10_000, 10**5000]

# A name, a call, and values that are refused under this name: first those whose error is a TypeError. For those of kernels, see
# tests/kernels/test_wrong_arguments.py.
WRONG_TYPES = [
    ("^path must be a path", hpcgnn.load, [None, 3, b"x", ["a"]]),
    ("^world must be a", lambda world: hpcgnn.load("x", world), [3]),
]
WRONG = [
    ("^backend must be", kernels.register, [3, None, ["a"], "no", torch.float16, np.ones(3)]),
    ("negatives", lambda negatives: hpcgnn.LinkConfig(negatives=negatives).check(), LONG),
    ("source", lambda source: convert(source, "g.h5"), [*OTHERS, None]),
    ("output", lambda output: convert("digits", output), [*OTHERS, "x" * 300]),
    ("options", lambda options: convert("digits", "g.h5", options), [*OTHERS, TEXT]),
    ("split", lambda split: ConvertOptions(split=split), [*OTHERS, 1j]),
    ("undirected", lambda undirected: ConvertOptions(undirected=undirected), [*OTHERS, TEXT]),
    ("path", seal, [*OTHERS, "a\0b"]),
    ("world", Messages, [*OTHERS, TEXT]),
    ("config", lambda config: Messages(one_rank(), config), [*OTHERS, TEXT]),
    (r"device must be a hpcgnn\.devices\.Device", lambda device: Messages(one_rank(), device=device), [*OTHERS, "cpu"]),
    ("overlap", lambda overlap: MessageConfig(overlap=overlap).check(), [*OTHERS, TEXT]),
    ("bits", lambda bits: hpcgnn.PolicyConfig(bits=bits), [*OTHERS, TEXT]),
    ("model", lambda model: hpcgnn.ModelConfig(model=model), [*OTHERS, TEXT]),
]


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
