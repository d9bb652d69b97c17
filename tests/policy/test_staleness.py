"""Rows of an epoch before: distributed training equals one process that uses the same epochs' rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).parents[1] / "ranks" / "staleness.py"


@pytest.fixture(scope="module", params=[2, 4])
def found(request, mpirun, tmp_path_factory):
    """What one launch found."""
    return json.loads(mpirun(request.param, [PROGRAM, tmp_path_factory.mktemp("stale")]).stdout)


def of_policy(found: dict, name: str) -> list[dict]:
    return [case for key, case in found.items() if key.endswith(f"/{name}")]


def test_ranks_equal_one_process_with_the_same_stale_rows(found):
    """For each model and policy; where anything was stale, another loss than without staleness is found."""
    assert len(found) == 2 * (6 + 2)
    for name, case in found.items():
        assert case["error"] <= 1e-10, name
        assert (case["from_fresh"] > 1e-4) == any(case["oldest"]), name


def test_pipeline_is_stale_by_one_epoch_after_the_first(found):
    for case in of_policy(found, "pipeline") + of_policy(found, "smoothed"):
        assert case["oldest"] == [0] + [1] * 13


def test_sylvie_switches_between_fresh_and_stale(found):
    for case in of_policy(found, "sylvie"):
        assert case["oldest"][:3] == [0, 1, 1]
        assert set(case["oldest"][3:]) == {0, 1}


def test_pipeqs_keeps_its_bound_on_staleness(found):
    for case in of_policy(found, "pipeqs"):
        assert case["ages"][-1] == 3  # not the 14 of so many late messages


def test_pipeqs_waits_where_rows_changed(found):
    for case in of_policy(found, "pipeqs-strict"):
        assert max(case["ages"]) == 1
