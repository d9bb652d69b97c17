"""The verdicts of the section ``numbers``: results that count as wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from campaign.numbers import verdicts
from campaign.numbers.messages import beyond_bound, kernel_cases, rows_out_of_the_ordinary
from campaign.numbers.ranks import Outcome
from campaign.numbers.settings import EXACT, all_axes, cases
from campaign.numbers.training import both_refused


def test_a_value_beyond_its_step_is_seen():
    x = np.array([[0.0, 1.0, 2.0, 3.0]], np.float32)
    assert beyond_bound(x, x + 0.9, 2, has_noise=True) == ""
    assert "came as" in beyond_bound(x, x + 1.1, 2, has_noise=True)
    assert "came as" in beyond_bound(x, x + 0.6, 2, has_noise=False)


def test_rows_that_are_not_finite_must_come_as_nan():
    x = np.array([[0.0, np.inf]], np.float32)
    assert beyond_bound(x, np.full((1, 2), np.nan), 8, has_noise=True) == ""
    assert "came as numbers" in beyond_bound(x, np.zeros((1, 2)), 8, has_noise=True)
    assert "NaN" in beyond_bound(np.zeros((1, 2)), np.full((1, 2), np.nan), 8, has_noise=True)


def test_a_flipped_bit_of_a_small_row_is_seen():
    rows = rows_out_of_the_ordinary(np.random.default_rng(0), 8)
    x = rows["1e-30"][None]
    moved = x.copy()
    moved.view(np.uint32)[0, 3] ^= 1 << 30
    assert beyond_bound(x, x, 8, has_noise=True) == ""
    assert beyond_bound(x, moved, 8, has_noise=True)


def test_differences_are_relative_to_the_largest():
    wanted = Outcome(losses=[1e30, 2e30], gradients={"a": np.array([1e30, 1.0]), "b": np.array([1.0])})
    found = Outcome(losses=[1e30, 2.2e30], gradients={"a": np.array([1e30, 3.0]), "b": np.array([9.0])})
    told = verdicts.differences(found, wanted, 2)
    assert told["losses"] == pytest.approx(0.1)
    assert told["gradients"] < 1e-20
    assert verdicts.differences(found, wanted, 1)["losses"] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_finite_on_one_side_only_differs(value):
    assert verdicts.difference(np.array([value, 1.0]), np.array([1.0, 1.0])) == np.inf


def test_a_run_that_ends_well_must_be_finite():
    assert verdicts.finite_everywhere(Outcome(losses=[1.0, float("nan")]))
    assert verdicts.finite_everywhere(Outcome(losses=[1.0], weights_finite=False))
    assert not verdicts.finite_everywhere(Outcome(losses=[1.0]))


def test_ranks_must_end_alike():
    fine = Outcome(losses=[1.0], metrics=[[0.5, None, 0.5]])
    assert verdicts.ranks_disagree([fine, fine]) == ""
    assert verdicts.ranks_disagree([fine, Outcome(refused="the loss became nan in epoch 0: lower --lr")])
    assert verdicts.ranks_disagree([fine, Outcome(losses=[1.1], metrics=fine.metrics)])
    assert verdicts.ranks_disagree([fine, Outcome(losses=[1.0], metrics=[[0.5, None, 0.4]])])


@pytest.mark.parametrize("features", ["usual", "1e38"])
def test_a_refusal_on_some_ranks_only_fails_but_where_sums_overflow(features):
    choice = {"features": features}
    refused = Outcome(refused="the loss became nan in epoch 0: lower --lr or scale the features down")
    assert (both_refused(Outcome(losses=[1.0]), refused, choice)[0] == "failed") == (features == "usual")
    assert both_refused(refused, refused, choice)[0] == "refused"
    traceback = Outcome(refused="Traceback (most recent call last):\n ValueError")
    assert both_refused(traceback, traceback, choice)[0] == "failed"


def test_every_value_of_every_axis_is_in_a_case_and_the_same_seed_gives_the_same_cases():
    axes = all_axes() | EXACT
    first, again = (list(itertools.islice(cases(np.random.default_rng(5), 60, axes), 60)) for _ in range(2))
    assert first == again
    for name in ("edges", "features", "labels", "model", "strategy", "ranks"):
        assert {choice[name] for choice in first} == set(axes[name]), name


def test_kernels_are_tried_at_all_bits():
    assert {bits for _, bits, _ in kernel_cases()} == {1, 2, 4, 8, 16, 32}
