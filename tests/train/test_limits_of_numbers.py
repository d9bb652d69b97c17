"""Trainings whose numbers exceed the range of float32, and the files that they leave."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool

import hpcgnn
from hpcgnn.comm import Messages
from hpcgnn.policy.config import PolicyConfig
from hpcgnn.stop import StopRequest
from hpcgnn.train.run_config import RunConfig
from hpcgnn.train.run_folder import RunFolder


def written(folder, x, *, is_linked=False):
    """Parts for two ranks of a graph with features ``x`` (N, F), in which all training nodes but one have class 0."""
    nodes = x.shape[0]
    around = np.stack((np.arange(nodes), (np.arange(nodes) + 1) % nodes))
    masks = {name: np.ones(nodes, bool) for name in ("train_mask", "val_mask", "test_mask")}
    labels = (np.arange(nodes) == 1).astype(np.int64)
    graph = small_graphs.Arrays(
        around if is_linked else np.zeros((2, 0), np.int64), x.astype(np.float32), labels, masks
    )
    path = folder / "parts.h5"
    small_graphs.write_parts(path, graph, small_graphs.random_parts(nodes, 2), 2)
    return path


def trained(world, path, run, epochs, keeps_input=False):
    """The sentence of the refusal, whether all weights are finite, and the losses."""
    graph = hpcgnn.load(path, world)
    config = hpcgnn.ModelConfig("gcn", layers=1, norm="none", dropout=0.0)
    model = hpcgnn.build_model(config, graph, seed=3, keep_input_aggregation=keeps_input)
    config = hpcgnn.TrainConfig(epochs=epochs, checkpoint_every=1)
    trainer = hpcgnn.Trainer(model, graph, config, run=RunFolder(run), stop=StopRequest())
    refused, losses = "", []
    trainer.on_epoch = lambda record: losses.append(record["loss"])
    try:
        trainer.fit()
    except hpcgnn.HpcgnnError as error:
        refused = str(error)
    is_finite = all(bool(p.isfinite().all()) for p in model.parameters())
    return refused, is_finite, losses


def test_gradients_that_overflow_end_a_training_and_leave_its_checkpoint_alone(tmp_path):
    """The loss is finite, but the sum of its gradients over the nodes is not."""
    fine = written(tmp_path, np.ones((80, 1)))
    assert ThreadPool(2).run(trained, fine, tmp_path / "run", 2)[0][0] == ""
    overflows = written(tmp_path, np.full((80, 1), 1e37))
    found = ThreadPool(2).run(trained, overflows, tmp_path / "other", 1)
    assert found[0] == found[1]
    refused, is_finite, losses = found[0]
    assert refused == "gradients became NaN or infinite in epoch 0: lower --lr or scale the features down"
    assert is_finite
    assert losses == []
    assert not list((tmp_path / "other" / "checkpoints").glob("*.pt"))


def test_ranks_that_are_threads_keep_the_aggregated_input(tmp_path):
    """Ranks wait for each other when they choose the transport, so none may do so while it draws the weights."""
    path = written(tmp_path, np.ones((12, 2)), is_linked=True)
    kept, usual = (ThreadPool(2).run(trained, path, tmp_path / str(keeps), 2, keeps)[0][2] for keeps in (True, False))
    assert kept == pytest.approx(usual, rel=1e-6)


def drifting(world, path):
    """The losses of a training with PipeQS."""
    graph = hpcgnn.load(path, world)
    model = hpcgnn.build_model(hpcgnn.ModelConfig("gcn", layers=2, hidden=4, dropout=0.0), graph)
    config = hpcgnn.TrainConfig(epochs=4, policy=PolicyConfig("pipeqs", "pipeqs"))
    trainer = hpcgnn.Trainer(model, graph, config, stop=StopRequest())
    return [trainer.run_epoch()["loss"] for _ in range(4)]


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_rows_whose_squares_leave_float32_have_no_drift_to_warn_of(tmp_path, scale):
    rng = np.random.default_rng(0)
    path = written(tmp_path, scale * rng.standard_normal((12, 3)), is_linked=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ThreadPool(2).run(drifting, path)
    assert torch.tensor(found).isfinite().all()


def learned_with_sylvie(world, path, model, task):
    """The losses of a training with Sylvie's bits."""
    decoder = {"decoder": "dot"} if task == "link" else {}
    run = RunConfig.from_settings(
        {"task": task, "bits": "sylvie", "epochs": 3, "hidden": 8, "layers": 2, **model} | decoder
    )
    graph = hpcgnn.load(path, world)
    split = hpcgnn.split_links(graph, run.links) if task == "link" else None
    model = hpcgnn.build_model(
        run.model, graph if split is None else split.train, messages=Messages(world, run.messages)
    )
    trainer = hpcgnn.Trainer(model, split or graph, run.train, stop=StopRequest())
    return [trainer.run_epoch()["loss"] for _ in range(3)]


@pytest.mark.parametrize(
    ("model", "task"), [({"model": "gcn"}, "link"), ({"model": "gat", "attention": "partial", "heads": 2}, "node")]
)
def test_sylvie_gives_each_exchange_bits_for_its_own_rows(tmp_path, model, task):
    """Links use a halo beside the model's plan, and partial attention has exchanges of scores and of rows."""
    graph, path = small_graphs.random_multigraph(), tmp_path / "parts.h5"
    small_graphs.write_parts(path, graph, small_graphs.random_parts(graph.num_nodes, 3), 3)
    found = ThreadPool(3).run(learned_with_sylvie, path, model, task)
    assert found[0] == found[1] == found[2]
    assert torch.tensor(found).isfinite().all()
