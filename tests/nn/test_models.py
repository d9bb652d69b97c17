"""Native models, and PyG's own ones distributed, on P ranks: scores, losses and gradients equal those of one process of PyG."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcgnn.nn.config import MODELS

pytestmark = pytest.mark.mpi

PROGRAMS = Path(__file__).parents[1] / "ranks"
RANKS = tuple(rank for rank in map(int, os.environ.get("HPCGNN_TEST_RANKS", "1 2 3").split()) if rank <= 4)
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def all_reports(tmp_path_factory, mpirun):
    """What both programs found, by number of ranks; one launch of each."""
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for ranks in RANKS:
        for program in ("models", "distributed"):
            path = folder / f"{program}-{ranks}.json"
            mpirun(ranks, [PROGRAMS / f"{program}.py", path, folder])
            found.setdefault(ranks, {"ranks": ranks})[program] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module", params=RANKS)
def reports(request, all_reports):
    return all_reports[request.param]


@pytest.fixture(scope="module")
def one_rank(all_reports):
    return all_reports[min(RANKS)]


def test_native_models_equal_pygs(reports):
    found = {name: errors for name, errors in reports["models"].items() if name != "dropout"}
    assert {name.partition(",")[0] for name in found} >= set(MODELS)
    for name, errors in found.items():
        assert errors["score_error"] < TOLERANCE, name
        assert errors["gradient_error"] < TOLERANCE, name


def test_dropout_is_the_same_on_any_number_of_ranks(reports, one_rank):
    for name, losses in reports["models"]["dropout"].items():
        assert losses == pytest.approx(one_rank["models"]["dropout"][name], rel=1e-12), name
        assert losses["training"] != pytest.approx(losses["evaluation"], rel=1e-3), name


def test_partial_attention_drops_as_attention_over_the_halo_does(one_rank):
    losses = one_rank["models"]["dropout"]
    assert losses["gat, partial, 2 heads"] == pytest.approx(losses["gat, elu"], rel=1e-12)


def test_distributed_models_equal_themselves(reports):
    found = {name: errors for name, errors in reports["distributed"].items() if name not in ("sabotage", "trained")}
    assert len(found) == 24
    for name, errors in found.items():
        assert max(errors.values()) < TOLERANCE, name


def test_rows_that_do_not_come_are_noticed(reports):
    assert (reports["distributed"]["sabotage"] > 1e-3) == (reports["ranks"] > 1)


def test_a_trainer_trains_distributed_models(reports):
    found = reports["distributed"]["trained"]
    assert found["exact"] < 0.95
    assert found["quantized"] < 0.95
    assert found["quantized, exchanges"] == 6  # of three layers, forward and backward
