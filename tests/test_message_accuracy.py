"""What docs/messages.md says of pairs of accuracies, and the splits of its trainings."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import ROOT, ThreadPool
from ranks import split_anew
from scipy import stats

from hpcgnn.data.convert import ConvertOptions, convert
from hpcgnn.partition import PartitionOptions, partition


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("message_accuracy_report")


def runs(configuration: str, accuracies: list[float]) -> list[dict[str, Any]]:
    return [
        {"graph": "g", "model": "gcn", "configuration": configuration, "seed": seed, "test_metric_at_best_val": value / 100}
        for seed, value in enumerate(accuracies)
    ]  # fmt: skip


def test_interval_is_that_of_scipys_paired_test(report: Any) -> None:
    rng = np.random.default_rng(0)
    baseline, other = rng.normal(80, 3, 10), rng.normal(79, 3, 10)
    found = report.difference(dict(enumerate(baseline)), dict(enumerate(other)))
    expected = stats.ttest_rel(other, baseline).confidence_interval(0.95)
    assert found.pairs == 10
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high])


def test_only_seeds_that_both_have_make_pairs(report: Any) -> None:
    found = report.difference({0: 80.0, 1: 70.0, 2: 60.0}, {2: 61.0, 0: 79.0, 5: 0.0})
    assert (found.pairs, found.mean) == (2, 0.0)
    assert report.difference({0: 80.0}, {1: 80.0}) is None
    assert math.isnan(report.difference({0: 80.0}, {0: 81.0}).low)


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([-0.2, -0.1] * 5, "yes"),
        ([-0.4, -0.35] * 5, "**no**"),  # the mean is too low, the interval is not
        ([-2.0, 2.0] * 5, "**no**"),  # the interval is too wide
        ([-0.2, -0.1] * 2, "not yet known (4 of 10 pairs)"),
    ],
)
def test_verdict_needs_mean_interval_and_ten_pairs(report: Any, differences: list[float], said: str) -> None:
    measured = runs("fp32", [80.0] * len(differences)) + runs("int2", [80 + value for value in differences])
    comparison = report.COMPARISONS[0]
    assert comparison[:2] == ("fp32", "int2")
    [result] = report.differences(measured, comparison).values()
    assert report.verdict(comparison, result) == said


@pytest.mark.parametrize(("shift", "said"), [(-0.1, "the expectation holds"), (-1.0, "the expectation is refuted")])
def test_expectation_of_delta_coding_is_judged_by_measurement(report: Any, shift: float, said: str) -> None:
    plain = [80.0, 81.0, 79.5, 80.5, 80.2] * 2
    delta = [value + shift for value in plain]
    assert said in report.expectation(runs("int2, no dropout", plain) + runs("delta 1 bit", delta))
    few = report.expectation(runs("int2, no dropout", plain[:3]) + runs("delta 1 bit", delta[:3]))
    assert "fewer pairs" in few
    assert said not in few
    assert "not been measured" in report.expectation(runs("fp32", plain))


def test_trainings_have_the_splits_of_convert(tmp_path: Path) -> None:
    graph, parts, split = tmp_path / "graph.h5", tmp_path / "parts.h5", "random:0.5,0.2,0.3,7"
    convert("digits", graph, ConvertOptions(split=split))
    ThreadPool(1).run(partition, graph, parts, PartitionOptions(2))
    assert ThreadPool(2).run(split_anew.same_masks, parts, split) == [True, True]
    assert ThreadPool(2).run(split_anew.same_masks, parts, split.removesuffix("7") + "8") == [False, False]
