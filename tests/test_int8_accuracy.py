"""What docs/int8-accuracy.md says of pairs of trainings, and what its pairs have in common."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from rank_pool import ROOT


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("int8_accuracy")


def runs(configuration: str, accuracies: list[float], compute: str = "int8-always") -> list[dict[str, Any]]:
    about = {
        "graph": "g",
        "model": "gcn",
        "metric_name": "accuracy",
        "epochs": 5,
        "epoch_seconds_median": 0.1,
        "best_epoch": 4,
    }
    own = {"configuration": configuration, "compute": compute, "source": "dense:g.npz", "machine": "a CPU"}
    return [
        about | own | {"seed": seed, "test_metric_at_best_val": value / 100} for seed, value in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    ("int8", "said"),
    [
        ([79.3, 79.2] * 5, "yes"),
        ([79.0, 79.1] * 5, "**no**"),
        ([79.3, 79.2] * 2, "yes, of 4 pairs only"),
        ([79.0, 79.1] * 2, "**no**, of 4 pairs only"),
    ],
)
def test_99_percent_of_the_mean_of_float32_are_required_of_ten_pairs(study: Any, int8: list[float], said: str) -> None:
    found = study.report.compared(runs("float32", [80.0] * 10) + runs("int8", int8), "g", "gcn", "int8")
    assert study.report.verdict(found) == said


def test_only_seeds_that_both_have_are_compared(study: Any) -> None:
    measured = runs("float32", [80.0, 60.0, 10.0]) + runs("int8", [79.0, 61.0])
    found = study.report.compared(measured, "g", "gcn", "int8")
    assert (found.plain, found.other, found.difference.pairs) == (70.0, 70.0, 2)
    assert study.report.compared(measured, "g", "gcn", study.report.TEST1) is None


def test_trainings_that_went_on_in_float32_are_told(study: Any, tmp_path: Path) -> None:
    about = {"split": "random", "model": study.MODEL, "schedule": study.SCHEDULE, "eval_every": 5, "tasks": study.TASKS}
    content = {"settings": about | {"of_graphs": study.OF_GRAPHS}}
    told = {}
    for compute in ("int8-always", "float32"):
        both = runs("float32", [80.0, 81.0], "float32") + runs("int8", [80.0, 81.0], compute)
        study.report.write(content | {"runs": both}, tmp_path)
        told[compute] = (tmp_path / "int8-accuracy.md").read_text()
    assert "None of the 2 trainings" in told["int8-always"]
    assert "2 went on in float32 by the rule of Eq. 4: g gcn int8: 2." in told["float32"]
    assert "int8 with the rules has at least 99 % in 1 of 1 cases, of 2 pairs each or more" in told["float32"]
    assert "written out as dense matrices, whose products are in 8-bit integers too, for: g." in told["float32"]


def test_pairs_differ_in_nothing_but_the_arithmetic(study: Any) -> None:
    names = study.wanted(["pubmed", "g"], list(study.TASKS), 2)
    assert [name[3] for name in names] == sorted(name[3] for name in names)
    arithmetic = {"compute", "int8", "name"}
    for graph, task, _, seed in names:
        kept = [
            {key: value for key, value in study.training([graph, task, name, seed]).items() if key not in arithmetic}
            for name in study.CONFIGURATIONS
        ]
        assert all(one == kept[0] for one in kept)
    float32, int8 = (study.training(["g", "gcn", name, 0]) for name in ("float32", "int8"))
    assert ("compute" in float32, int8["compute"]) == (False, "int8-always")


def test_features_are_written_out_as_they_are(study: Any, tmp_path: Path) -> None:
    x = sp.random(7, 5, 0.4, "csr", np.float32, rng=np.random.default_rng(0))
    given, dense = tmp_path / "g.npz", tmp_path / "dense.npz"
    np.savez(given, num_nodes=7, x_data=x.data, x_indices=x.indices, x_indptr=x.indptr, x_shape=x.shape)
    with np.load(study.with_dense_features(given, dense)) as found:
        assert sorted(found) == ["num_nodes", "x"]
        np.testing.assert_array_equal(found["x"], x.toarray())
