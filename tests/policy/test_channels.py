"""What policies are told of the rows that travel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).parents[1] / "ranks" / "channels.py"


@pytest.fixture(scope="module", params=[2, 3])
def found(request, mpirun, tmp_path_factory):
    """What one launch found, by strategy, order of nodes, and aggregator."""
    return json.loads(mpirun(request.param, [PROGRAM, tmp_path_factory.mktemp("channels")]).stdout)


def test_square_weights_are_those_with_which_receivers_add_a_row(found):
    """Forward and backward: measured by sending each row alone."""
    assert len(found) == 3 * 2 * 3
    for name, case in found.items():
        assert max(case["errors"]) < 1e-12, name


def test_degrees_are_those_of_sources_and_destinations(found):
    for name, case in found.items():
        assert case["degrees"], name


def test_classes_have_more_than_one_number_of_bits(found):
    for case in found.values():
        assert any(len(bits) > 1 for bits in case["classes"])
