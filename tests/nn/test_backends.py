"""Every model on every backend: the training gives the same results, and uses only the backend that was asked for."""

from __future__ import annotations

import contextlib

import pytest
import small_graphs
import torch

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.kernels import backend
from hpcgnn.nn.config import MODELS
from hpcgnn.train.config import LabelPropagationConfig
from hpcgnn.world.thread_world import one_rank

SMALL = {
    "layers": 2,
    "hidden": 8,
    "heads": 2,
    "hops": 2,
    "dropout": 0.3,
    "input_dropout": 0.1,
    "attention_dropout": 0.2,
}
CASES = {name: {"model": name} for name in MODELS} | {
    "gat, partial": {"model": "gat", "attention": "partial"},
    "sage, mean": {"model": "sage", "norm": "mean"},
    "gcn, batch": {"model": "gcn", "norm": "batch", "activation": "elu"},
    "sage, dot": {"model": "sage", "decoder": "dot"},
    "jknet, mlp": {"model": "jknet", "decoder": "mlp"},
    "gin, labels": {"model": "gin", "label_inputs": True},
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    graph = small_graphs.with_typed_edges(small_graphs.random_multigraph())
    return small_graphs.on_ranks(one_rank(), graph, tmp_path_factory.mktemp("one") / "parts.h5")


def losses(graph: hpcgnn.LocalGraph, settings: dict[str, object], name: str) -> list[float]:
    """The losses of two steps in float64: the second shows the gradients of the first."""
    config = hpcgnn.ModelConfig.of_used(SMALL | settings)
    links = hpcgnn.split_links(graph) if config.decoder != "none" else None
    model = hpcgnn.build_model(config, links.train if links else graph, backend=name, dtype=torch.float64, seed=2)
    labels = LabelPropagationConfig(0.5 if config.label_inputs else 0.0)
    trainer = hpcgnn.Trainer(model, links or graph, hpcgnn.TrainConfig(epochs=2, labels=labels), stop=StopRequest())
    return [trainer.run_epoch()["loss"] for _ in range(2)]


def usable_backends() -> list[str]:
    """``auto``, and the backends for tensors on this machine's CPU."""
    found = [backend.AUTO]
    for name in backend.backends():
        with contextlib.suppress(ValueError):
            found.append(backend.resolve(name, x=torch.zeros(1)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_model_trains_alike_on_every_backend(graph, case, monkeypatch):
    asked: set[str] = set()

    def noted(operator, name, tensors, select=backend._select):
        chosen = select(operator, name, tensors)
        if operator is not None and operator.name != "rows":  # these also transpose the structure of matrices
            asked.add(chosen.name)
        return chosen

    monkeypatch.setattr(backend, "_select", noted)
    found = {}
    for name in usable_backends():
        asked.clear()
        found[name] = losses(graph, CASES[case], name)
        assert asked == {backend.resolve(name)}, name
    assert len(found) > 2
    for name, values in found.items():
        assert values == pytest.approx(found["reference"], rel=1e-9), name
