"""The trainer in one process: requests to stop, states from a checkpoint, and learning rates; and the reduction of gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import small_graphs
from trainings import trainer_of

import hpcgnn
from hpcgnn.base.process import StopRequest
from hpcgnn.world.thread_world import one_rank

SMALL = {"model": "gcn", "layers": 2, "hidden": 8, "epochs": 2}


@pytest.mark.parametrize(("epochs", "reason"), [(3, "SIGUSR1"), (2, None)])
def test_a_request_to_stop_in_the_last_epoch_leaves_a_finished_run(graph, epochs: int, reason: str | None) -> None:
    stop = StopRequest()
    settings = SMALL | {"epochs": epochs}
    made = trainer_of(graph, settings, stop=stop, on_epoch=lambda record: setattr(stop, "requested", True))
    made.fit()
    assert made.next_epoch == 2
    assert made.stop_reason == reason


def test_resuming_needs_a_run_folder(graph) -> None:
    with pytest.raises(hpcgnn.HpcgnnError, match=r"^resume\(\) needs a run folder"):
        trainer_of(graph, SMALL).resume()


def test_all_groups_of_parameters_have_the_scheduled_rate(graph) -> None:
    made = trainer_of(graph, SMALL | {"model": "appnp", "lr": 0.1, "dense_weight_decay": 0.5, "warmup": 4})
    for epoch, rate in enumerate((0.025, 0.05)):
        made.step(epoch)
        assert [group["lr"] for group in made.optimiser.param_groups] == pytest.approx([rate, rate])


@pytest.mark.parametrize("metric", ["micro-f1", "roc-auc", "accuracy"])
def test_a_class_without_an_example_is_learned_and_evaluated(tmp_path, metric: str) -> None:
    arrays = small_graphs.random_multigraph()
    arrays.y = np.random.default_rng(3).integers(0, 2, (arrays.num_nodes, 5)).astype(np.uint8)
    arrays.y[:, 2] = 0
    made = trainer_of(small_graphs.on_ranks(one_rank(), arrays, tmp_path / "parts.h5"), SMALL | {"metric": metric})
    summary = made.fit()
    assert math.isfinite(summary["best_val_metric"])
    assert math.isfinite(summary["test_metric_at_best_val"])
