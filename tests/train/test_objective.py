"""Losses and metrics; on ranks against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rank_pool import ThreadPool
from ranks import metrics

from hpcgnn.comm.thread_world import one_rank
from hpcgnn.train import objective


@pytest.mark.parametrize("ranks", [1, 3])
def test_metrics_equal_scikit_learn(ranks):
    found = ThreadPool(ranks).run(metrics.compare)[0]
    assert len(found) == 9
    for name, (value, of_nothing, wanted) in found.items():
        assert value == (wanted if wanted is None else pytest.approx(wanted, abs=1e-12)), name
        assert of_nothing is None, name


def test_a_rank_without_training_nodes_still_has_a_gradient():
    scores = torch.randn(4, 3, requires_grad=True)
    loss = objective.loss_sum(scores, torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss == 0
    assert scores.grad.abs().sum() == 0


def test_multi_label_loss_is_the_mean_over_classes():
    scores, y = torch.randn(4, 3), torch.randint(0, 2, (4, 3)).to(torch.uint8)
    mask = torch.tensor([True, False, True, True])
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(scores[mask], y[mask].float())
    assert torch.isclose(objective.loss_sum(scores, y, mask.nonzero()[:, 0]) / 3, wanted)


def test_a_link_with_the_score_of_the_kth_negative_pair_is_no_hit():
    joined, apart = np.array([3.0, 2.0, 2.0, 1.0]), np.array([0.0, 2.0, 5.0])
    hits = [objective.link_metric(one_rank(), f"hits@{k}", joined, apart) for k in (1, 2, 3, 4)]
    assert hits == [0, 0.25, 1, 1]
