"""A model and policies that only a user's program defines are offered, trained and refused like all others."""

from __future__ import annotations

import json

import pytest
from rank_pool import ROOT

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def found(mpirun, parts, tmp_path_factory):
    """The findings of a launch of its own, because a program registers its classes at its start, and no other may know them."""
    program = ROOT / "tests" / "ranks" / "toys.py"
    return json.loads(mpirun(2, [program, parts, tmp_path_factory.mktemp("toys")]).stdout)


def test_the_command_and_python_train_the_same(found):
    assert found["command"] == found["python"] == found["again"]
    assert found["command"][-1] < found["command"][0]


def test_the_toy_policies_decide(found):
    assert found["bits"] == [["8"], ["2"]] * 3
    assert found["stale"] == [False, True] * 3
    assert all(seen.keys() == {"seconds"} for seen in found["observed"])  # one of them needs a clock


def test_the_run_folder_and_the_help_have_their_settings(found):
    toys = {"model": "toy", "blend": 0.5, "bits": "alternating", "few_bits": 2, "staleness": "now-and-then"}
    assert (toys | {"fresh_every": 2}).items() <= found["config"].items()
    assert "teleport" not in found["config"]
    for told in (
        "Share of the neighbours in each layer. Models: toy. [default: 0.25",
        "toy: dense layers that mix in",
        "alternating: has 8 and fewer by turns",
        "Bit-width in every other epoch. Used by --bits alternating.",
        "Number of epochs from one fresh epoch to the next. Used by --staleness now-and-then. [default: 3; x>=1]",
    ):
        assert told in found["help"]


def test_others_refuse_their_settings(found):
    assert found["refused"] == [
        "--blend is not used by sage: toy uses it",
        "--few-bits is not used by fixed bits with --staleness off: --bits alternating uses it",
        "blend is not used by gcn: toy uses it",
        "fresh_every is not used by fixed bits with --staleness pipeline: --staleness now-and-then uses it",
        "blend must be at least 0 and at most 1, not 1.5",
    ]
