"""Trainings whose numbers exceed the range of float32, and the files that they leave."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import small_graphs
import torch
from rank_pool import ThreadPool
from trainings import trainer_of

import hpcgnn
from hpcgnn.train.run_folder import RunFolder


def written(folder, x, *, is_linked=False):
    """Parts for two ranks of a graph with features ``x`` (N, F), in which all training nodes but one have class 0."""
    nodes = x.shape[0]
    around = np.stack((np.arange(nodes), (np.arange(nodes) + 1) % nodes))
    masks = {name: np.ones(nodes, bool) for name in small_graphs.MASKS}
    labels = (np.arange(nodes) == 1).astype(np.int64)
    edges = around if is_linked else np.zeros((2, 0), np.int64)
    graph = small_graphs.Arrays(edges, x.astype(np.float32), labels, masks)
    return small_graphs.in_parts(folder / "parts.h5", graph, 2)


ONE_LAYER = {"model": "gcn", "layers": 1, "norm": "none", "dropout": 0.0, "seed": 3, "checkpoint_every": 1}


def trained(world, path, settings, run=None):
    """The sentence of the refusal, whether all weights are finite, and the losses."""
    refused, losses = "", []
    trainer = trainer_of(hpcgnn.load(path, world), settings, run=RunFolder(run) if run else None)
    trainer.on_epoch = lambda record: losses.append(record["loss"])
    try:
        trainer.fit()
    except hpcgnn.HpcgnnError as error:
        refused = str(error)
    return refused, all(bool(p.isfinite().all()) for p in trainer.model.parameters()), losses


def test_gradients_that_overflow_end_a_training_and_leave_its_checkpoint_alone(tmp_path):
    """The loss is finite, but the sum of its gradients over the nodes is not."""
    fine = written(tmp_path, np.ones((80, 1)))
    assert ThreadPool(2).run(trained, fine, ONE_LAYER | {"epochs": 2}, tmp_path / "run")[0][0] == ""
    overflows = written(tmp_path, np.full((80, 1), 1e37))
    found = ThreadPool(2).run(trained, overflows, ONE_LAYER | {"epochs": 1}, tmp_path / "other")
    assert found[0] == found[1]
    refused, is_finite, losses = found[0]
    assert refused == "gradients became NaN or infinite in epoch 0: lower --lr or scale the features down"
    assert is_finite
    assert losses == []
    assert not list((tmp_path / "other" / "checkpoints").glob("*.pt"))


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_rows_whose_squares_leave_float32_are_compared_without_a_warning(tmp_path, scale):
    rng = np.random.default_rng(0)
    path = written(tmp_path, scale * rng.standard_normal((12, 3)), is_linked=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings = {"model": "gcn", "layers": 2, "hidden": 4, "dropout": 0.0, "epochs": 4}
        found = ThreadPool(2).run(trained, path, settings | {"bits": "pipeqs", "staleness": "pipeqs"})
    for refused, _, losses in found:
        assert refused == ""
        assert torch.tensor(losses).isfinite().all()
